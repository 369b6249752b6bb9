"""Looks for secrets in what is about to be written where others will read it."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["find_secret"]

# Forms that their issuers document, each long enough not to be met by chance.
_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("an AWS key id", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a GitHub token", re.compile(r"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_[0-9A-Za-z_]{60,})")),
    ("a GitLab token", re.compile(r"\bglpat-[0-9A-Za-z_-]{20,}")),
    ("a Hugging Face token", re.compile(r"\bhf_[0-9A-Za-z]{30,}")),
    ("an API key", re.compile(r"\bsk-[0-9A-Za-z_-]{20,}")),
    ("a Slack token", re.compile(r"\bxox[abprs]-[0-9A-Za-z-]{10,}")),
    ("a bearer token", re.compile(r"\b[Aa]uthorization\W{1,6}Bearer\s+[0-9A-Za-z._~+/-]{16,}")),
    ("a JSON web token", re.compile(r"\beyJ[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{10,}")),
    ("a password in an address", re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@\"']+:[^/\s@\"']{3,}@")),
)


def find_secret(text: str, known: Iterable[str] = ()) -> str | None:
    """What kind of secret a text holds, in words; None when none is seen.

    Args:
        text: What is looked through.
        known: Secrets themselves.
    """
    if any(secret and secret in text for secret in known):
        return "the server's API key"
    return next((name for name, pattern in _FORMS if pattern.search(text)), None)
