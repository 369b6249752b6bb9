"""What differs from run to run in OpenCode's requests, and the placeholders that stand for it in a cassette.

OpenCode 1.18.33 writes into its requests the trial's folder (absolute, and relative to / in a folder without git),
the date, the platform and its own ids. Nothing else was seen to differ between two runs of one scenario.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Placeholders"]

_TRIAL = "{trial}"
_TRIAL_FROM_ROOT = "{trial-from-root}"
_VOLATILE = (
    (re.compile(r"(Today's date: )[^\n]*"), r"\1{date}"),
    (re.compile(r"(Platform: )\w+"), r"\1{platform}"),
    (re.compile(r"\b(ses|msg|prt|per|que)_[0-9A-Za-z]{16,}"), r"\1_{id}"),
)


class Placeholders:
    """Hides what differs from run to run, and shows a trial's own folder in its place.

    Args:
        trial: The trial's folder.
    """

    def __init__(self, trial: Path) -> None:
        path = str(trial)
        self._shown = {_TRIAL: path, _TRIAL_FROM_ROOT: path.lstrip("/")}
        found = {path: _TRIAL, path.lstrip("/"): _TRIAL_FROM_ROOT}
        # As it stands in JSON inside a string, too: a tool call's arguments are such a text.
        found |= {json.dumps(text)[1:-1]: name for text, name in found.items()}
        self.hidden: Mapping[str, str] = {text: name for text, name in found.items() if text}
        self._hidden_re = re.compile("|".join(map(re.escape, sorted(self.hidden, key=len, reverse=True))) or r"(?!)")
        self._shown_re = re.compile("|".join(map(re.escape, self._shown)))

    def hide(self, value: Any) -> Any:
        """A value whose texts hold placeholders for all that differs from run to run."""
        return _on_texts(value, lambda text: _without_volatile(self.hide_places(text)))

    def hide_places(self, text: str) -> str:
        """A text with placeholders for the trial's folder only."""
        return self._hidden_re.sub(lambda match: self.hidden[match[0]], text)

    def show(self, value: Any) -> Any:
        """A value with the trial's folder in place of its placeholders."""
        return _on_texts(value, lambda text: self._shown_re.sub(lambda match: self._shown[match[0]], text))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the trial's folder stands in a text, as half-open ranges."""
        return [match.span() for match in self._hidden_re.finditer(text)]


def _without_volatile(text: str) -> str:
    for pattern, replacement in _VOLATILE:
        text = pattern.sub(replacement, text)
    return text


def _on_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _on_texts(item, change) for name, item in value.items()}
    return [_on_texts(item, change) for item in value] if isinstance(value, list) else value
