"""The environment and configuration that OpenCode runs with: its own folders, the proxy, and nothing of the user's.

The environment is built from nothing but PATH; what the user's shell holds (keys, proxies, OpenCode variables) does
not reach the agent.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opencode_harness.opencode import opencode_version
from opencode_harness.workspace import TrialLayout, create_layout

__all__ = [
    "DEFAULT_LIMITS",
    "GRANTED_PERMISSIONS",
    "MODEL_ID",
    "PROVIDER_ID",
    "ModelLimits",
    "limits_within",
    "opencode_config",
    "opencode_environment",
    "version_in_isolation",
]

PROVIDER_ID = "local"
MODEL_ID = "model"

# What OpenCode 1.18.33 asks for by default (external_directory, doom_loop), what scenarios use, and what its own
# rules may ask for (reading .env files): a question that nobody answers would stop a trial.
GRANTED_PERMISSIONS: Mapping[str, str] = {
    "read": "allow",
    "glob": "allow",
    "grep": "allow",
    "list": "allow",
    "edit": "allow",
    "write": "allow",
    "bash": "allow",
    "task": "allow",
    "todowrite": "allow",
    "external_directory": "allow",
    "doom_loop": "allow",
    "webfetch": "deny",
}

# A closed port: whatever OpenCode would fetch over the network fails at once instead of running in the background.
_NO_REGISTRY = "http://127.0.0.1:9/"


@dataclass(frozen=True)
class ModelLimits:
    """What OpenCode is told about the model: tokens of context, and tokens of one answer."""

    context_tokens: int
    output_tokens: int


DEFAULT_LIMITS = ModelLimits(context_tokens=32_768, output_tokens=2_048)


def limits_within(n_ctx_slot: int | None) -> ModelLimits:
    """What OpenCode is told of a server whose slots hold so many tokens, so that it never sends more than fits."""
    context_tokens = n_ctx_slot or DEFAULT_LIMITS.context_tokens
    return ModelLimits(context_tokens, min(DEFAULT_LIMITS.output_tokens, context_tokens // 4))


def opencode_config(base_url: str, limits: ModelLimits, permission: Mapping[str, Any]) -> dict[str, Any]:
    """OpenCode's configuration: one provider at `base_url`, everything granted but what `permission` replaces.

    Args:
        base_url: The proxy's address, ending in `/v1`.
        limits: The model's limits.
        permission: Entries that replace or add to `GRANTED_PERMISSIONS`.
    """
    model = {
        "name": MODEL_ID,
        "tool_call": True,
        "limit": {"context": limits.context_tokens, "output": limits.output_tokens},
    }
    return {
        "$schema": "https://opencode.ai/config.json",
        "provider": {
            PROVIDER_ID: {
                "npm": "@ai-sdk/openai-compatible",
                "name": PROVIDER_ID,
                "options": {"baseURL": base_url, "apiKey": "none"},
                "models": {MODEL_ID: model},
            }
        },
        "model": f"{PROVIDER_ID}/{MODEL_ID}",
        "autoupdate": False,
        "share": "disabled",
        "permission": {**GRANTED_PERMISSIONS, **permission},
    }


def opencode_environment(layout: TrialLayout, *, path: str | None = None) -> dict[str, str]:
    """The whole environment of OpenCode for one trial.

    Args:
        layout: The trial's folders.
        path: PATH; the caller's own by default.
    """
    return {
        "PATH": path if path is not None else os.environ.get("PATH", os.defpath),
        "HOME": str(layout.home),
        **{name: str(folder) for name, folder in layout.xdg.items()},
        "TMPDIR": str(layout.tmp),
        "PWD": str(layout.workspace),
        "SHELL": "/bin/sh",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "OPENCODE_CONFIG": str(layout.config_file),
        "OPENCODE_AUTH_CONTENT": "{}",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "npm_config_registry": _NO_REGISTRY,
        "NO_PROXY": "127.0.0.1,localhost",
    }


def version_in_isolation(opencode: Path) -> str | None:
    """OpenCode's version, asked in folders of its own; None when it tells none."""
    with tempfile.TemporaryDirectory() as folder:
        return opencode_version(opencode, opencode_environment(create_layout(Path(folder) / "version")))
