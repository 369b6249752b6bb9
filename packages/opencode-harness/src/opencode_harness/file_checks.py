"""What must be true of files afterwards: exact text, pattern, JSON path, diff, bytes, mode, link, absence.

Each function gives nothing when the condition holds, or one message that says what was expected and what was found.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import jsonpath
from jsonpath.exceptions import JSONPathError

from opencode_harness.workspace import FileChange, FileState

__all__ = ["difference", "file_message", "shown_change"]

_SHOWN_CHARS = 1200


def file_message(name: str, expected: Any, before: FileState | None, after: FileState | None) -> str | None:
    """What is wrong with a file that must not be absent.

    Args:
        name: The file's name for the message.
        expected: The exact text, or conditions by name.
        before: What stood there at the start.
        after: What stands there now.
    """
    if after is None:
        return f"{name} does not exist"
    conditions = {"text": expected} if isinstance(expected, str) else expected
    messages = (_CONDITIONS[key](name, value, before, after) for key, value in conditions.items())
    return next((message for message in messages if message), None)


def shown_change(change: FileChange) -> str:
    """A change for a person: of a text, the lines that differ."""
    if change.before is None or change.after is None:
        return f"{change.path} {change.kind}"
    before, after = change.before, change.after
    if before.text is not None and after.text is not None and before.text != after.text:
        return f"{change.path} changed\n{difference(before.text, after.text, 'before', 'after')}"
    return f"{change.path} changed: was {_in_words(before)}, is {_in_words(after)}"


def difference(old: str, new: str, old_name: str, new_name: str) -> str:
    """The lines that differ between two texts, and where no line does, their ends."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="", n=1)
    text = "\n".join(lines) or f"{old_name} {old[-80:]!r}\n{new_name} {new[-80:]!r}"
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "\n…"


def _in_words(state: FileState) -> str:
    if state.kind == "link":
        return f"a link to {state.target}"
    kind = "a file that is no regular one" if state.kind == "other" else f"a {state.kind} file"
    return f"{kind} {(state.sha256 or '')[:12]}".strip() + (", executable" if state.executable else "")


def _text(name: str, expected: str, before: FileState | None, after: FileState) -> str | None:
    if after.text is None:
        return f"{name} is no text file"
    if after.text == expected:
        return None
    return f"{name} differs\n" + difference(expected, after.text, "expected", "found")


def _matches(name: str, patterns: Any, before: FileState | None, after: FileState) -> str | None:
    if after.text is None:
        return f"{name} is no text file"
    missing = [
        pattern
        for pattern in ([patterns] if isinstance(patterns, str) else patterns)
        if not re.search(pattern, after.text)
    ]
    return f"/{missing[0]}/ not found in {name}; it ends with:\n{after.text[-_SHOWN_CHARS:]}" if missing else None


def _unchanged(name: str, expected: Any, before: FileState | None, after: FileState) -> str | None:
    if before is None:
        return f"{name} was not among the files at the start"
    return None if before == after else shown_change(FileChange(name, before, after))


def _json(name: str, expected: Mapping[str, Any], before: FileState | None, after: FileState) -> str | None:
    if after.text is None:
        return f"{name} is no text file"
    try:
        document = json.loads(after.text)
    except (ValueError, RecursionError) as error:
        return f"{name} is no JSON: {error}"
    for path, value in expected.items():
        try:
            found = jsonpath.findall(path, document)
        except (JSONPathError, RecursionError) as error:
            return f"{name}: {path} cannot be followed: {error}"
        if found != [value]:
            return f"{name}: {path} should be {json.dumps(value)}, found {json.dumps(found) if found else 'nothing'}"
    return None


def _diff(name: str, expected: str, before: FileState | None, after: FileState) -> str | None:
    if after.text is None or (before is not None and before.text is None):
        return f"{name} is no text file"
    old = before.text if before is not None and before.text is not None else ""
    found = list(difflib.unified_diff(old.splitlines(), after.text.splitlines(), lineterm="", n=0))
    wanted = _changed_lines(expected.splitlines())
    if _changed_lines(found) == wanted:
        return None
    shown = "\n".join(line for line in found if line[:3] not in ("---", "+++")) or "no change"
    return f"{name} changed otherwise than the diff says; found:\n{shown[:_SHOWN_CHARS]}"


def _changed_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if line[:1] in ("+", "-") and line[:3] not in ("---", "+++")]


def _base64(name: str, expected: str, before: FileState | None, after: FileState) -> str | None:
    wanted = hashlib.sha256(base64.b64decode(expected)).hexdigest()
    return None if after.sha256 == wanted else f"{name} holds other bytes: it is {_in_words(after)}"


def _executable(name: str, expected: bool, before: FileState | None, after: FileState) -> str | None:
    if after.executable == expected:
        return None
    return f"{name} is {'not ' if expected else ''}executable"


def _link(name: str, expected: str, before: FileState | None, after: FileState) -> str | None:
    return None if after.target == expected else f"{name} should be a link to {expected}, and is {_in_words(after)}"


_CONDITIONS: Mapping[str, Callable[[str, Any, FileState | None, FileState], str | None]] = {
    "text": _text,
    "matches": _matches,
    "unchanged": _unchanged,
    "json": _json,
    "diff": _diff,
    "base64": _base64,
    "executable": _executable,
    "link": _link,
}
