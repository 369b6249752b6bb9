"""Dialogs of OpenCode's terminal: which one is open, which option is chosen, which key comes next.

Keys are never counted. Each press is decided from the screen: as long as it does not show the wanted option chosen,
one key that may move the choice is pressed; when the screen does, Enter. So the same rule answers dialogs in which
Right and Left move (OpenCode 1.18.33) and those in which Tab does (older ones), whatever option they start with.

The chosen option is told by its background colour alone, and a dialog counts as open only while one of its options
stands out: the same words in a model's answer are not a dialog.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["ENTER", "Answer", "Dialog", "DialogAnswerer", "find_dialog", "next_keys"]

Answer = Literal["always", "once", "reject"]

ENTER = b"\r"
_RIGHT = b"\x1b[C"
_TAB = b"\t"
_ESCAPE = b"\x1b"
# Tried in this order; the next one when the choice did not move.
_MOVING_KEYS = (_RIGHT, _TAB)
# How long a key may take to show on a busy machine before another one is tried.
_REDRAW_S = 1.0
# The same for Enter, which a dialog that comes next would take as its own.
_ENTER_REDRAW_S = 5.0
_GUTTER = "┃"


@dataclass(frozen=True)
class _Kind:
    """A dialog as it is recognised.

    Attributes:
        name: What it is called in a record.
        title: Found in the dialog's panel.
        options: Labels of its options from left to right; empty when it is no choice between labels.
        footer: Found in the row that ends the panel, for a dialog without labels.
        wanted: Option by answer, or the keys themselves for a dialog without labels.
    """

    name: str
    title: re.Pattern[str]
    options: tuple[str, ...]
    wanted: Mapping[Answer, str]
    footer: re.Pattern[str] | None = None


_CONFIRM: Mapping[Answer, str] = {"always": "Confirm", "once": "Cancel", "reject": "Cancel"}
_PERMISSION: Mapping[Answer, str] = {"always": "Allow always", "once": "Allow once", "reject": "Reject"}
# The first kind that fits is taken, so the special ones come first. Read off OpenCode 1.18.33.
_KINDS = (
    _Kind("always-confirm", re.compile("Always allow"), ("Confirm", "Cancel"), _CONFIRM),
    _Kind(
        "doom-loop",
        re.compile("Continue after repeated failures"),
        ("Allow once", "Allow always", "Reject"),
        _PERMISSION,
    ),
    _Kind("permission", re.compile("Permission required"), ("Allow once", "Allow always", "Reject"), _PERMISSION),
    _Kind(
        "question",
        re.compile(r"^\s*1\. ", re.MULTILINE),
        (),
        {"always": "enter", "once": "enter", "reject": "escape"},
        footer=re.compile(r"select\s+enter (?:submit|confirm|toggle)\s+esc dismiss"),
    ),
)
_KEYS_BY_NAME: Mapping[str, bytes] = {"enter": ENTER, "escape": _ESCAPE}


@dataclass(frozen=True)
class Dialog:
    """A dialog that is open.

    Attributes:
        kind: `permission`, `doom-loop`, `always-confirm` or `question`.
        text: The rows of its panel without gutter, empty rows and key hints.
        options: Labels from left to right.
        chosen: The label that stands out; None for a question, whose options are not told apart.
    """

    kind: str
    text: str
    options: tuple[str, ...]
    chosen: str | None

    def wanted(self, answer: Answer) -> str:
        """The label, or the key's name, that gives `answer` here."""
        return next(kind.wanted[answer] for kind in _KINDS if kind.name == self.kind)


def find_dialog(rows: Sequence[str], background: Callable[[int, int], str]) -> Dialog | None:
    """The dialog that is open on a screen, or None.

    Args:
        rows: Text of the rows.
        background: Background colour of a cell, by row and column from 0.
    """
    for row in range(len(rows) - 1, -1, -1):
        for kind in _KINDS:
            dialog = _dialog_at(kind, row, rows, background)
            if dialog is not None:
                return dialog
    return None


def _dialog_at(kind: _Kind, row: int, rows: Sequence[str], background: Callable[[int, int], str]) -> Dialog | None:
    ends_here = kind.footer.search(rows[row]) if kind.footer else _label_columns(kind.options, rows[row])
    if not ends_here or _GUTTER not in rows[row]:
        return None
    text = _panel_text(rows, row)
    if not kind.title.search(text):
        return None
    chosen = _chosen(kind.options, rows[row], lambda column: background(row, column)) if kind.options else None
    if kind.options and chosen is None:
        return None
    return Dialog(kind.name, text, kind.options, chosen)


def _label_columns(labels: Sequence[str], row: str) -> list[int]:
    """Where the labels stand when they stand in `row` in this order, or nothing."""
    columns: list[int] = []
    for label in labels:
        column = row.find(label, columns[-1] + 1 if columns else 0)
        if column < 0:
            return []
        columns.append(column)
    return columns


def _panel_text(rows: Sequence[str], last: int) -> str:
    first = last
    while first > 0 and _GUTTER in rows[first - 1]:
        first -= 1
    inside = (row.partition(_GUTTER)[2].strip() for row in rows[first:last])
    return "\n".join(text for text in inside if text)


def _chosen(labels: Sequence[str], row: str, background: Callable[[int], str]) -> str | None:
    colours = [background(column) for column in range(row.index(_GUTTER) + 1, len(row))]
    (panel_colour, _), *_rest = Counter(colours).most_common(1)
    places = zip(labels, _label_columns(labels, row), strict=True)
    standing_out = [label for label, column in places if background(column) != panel_colour]
    return standing_out[0] if len(standing_out) == 1 else None


def next_keys(dialog: Dialog, wanted: str, unmoved_by: bytes | None = None) -> bytes:
    """The next key to press so that `wanted` is answered.

    Args:
        dialog: What the screen shows now.
        wanted: The label, from `Dialog.wanted`.
        unmoved_by: The key that was pressed last and changed nothing, if any.
    """
    if wanted in _KEYS_BY_NAME:
        return _KEYS_BY_NAME[wanted]
    if dialog.chosen == wanted:
        return ENTER
    if unmoved_by not in _MOVING_KEYS:
        return _MOVING_KEYS[0]
    return _MOVING_KEYS[(_MOVING_KEYS.index(unmoved_by) + 1) % len(_MOVING_KEYS)]


@dataclass(frozen=True)
class _Press:
    dialog: Dialog
    keys: bytes
    at_s: float


class DialogAnswerer:
    """Answers dialogs one key at a time, from screens and the clock it is given.

    Args:
        answer: How permissions are answered.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._last: _Press | None = None
        self._moving_key: bytes | None = None
        self._moved_late = False

    def step(self, dialog: Dialog | None, now_s: float) -> bytes:
        """The keys to press now that the screen shows `dialog`; nothing while the last key has yet to show.

        `Dialog.wanted` is answered when the keys are Enter, or Escape for a question.
        """
        last = self._last
        if dialog is None:
            self._last = None
            return b""
        if last is None or dialog.kind != last.dialog.kind or dialog.text != last.dialog.text:
            self._moved_late = False
            return self._press(dialog, None, now_s)
        waited_s = now_s - last.at_s
        if dialog.chosen != last.dialog.chosen:
            return self._after_a_move(dialog, last, waited_s, now_s)
        if waited_s < (_REDRAW_S if last.keys in _MOVING_KEYS else _ENTER_REDRAW_S):
            return b""
        self._moved_late = True
        return self._press(dialog, last.keys, now_s)

    def _after_a_move(self, dialog: Dialog, last: _Press, waited_s: float, now_s: float) -> bytes:
        """After a key that seemed to do nothing, a second one may be on its way: Enter waits for it to show."""
        if self._moved_late and waited_s < _REDRAW_S:
            return b""
        return self._press(dialog, None, now_s)

    def _press(self, dialog: Dialog, unmoved_by: bytes | None, now_s: float) -> bytes:
        if unmoved_by is None and self._moving_key is not None and dialog.chosen != dialog.wanted(self._answer):
            keys = self._moving_key
        else:
            keys = next_keys(dialog, dialog.wanted(self._answer), unmoved_by)
        if keys in _MOVING_KEYS:
            self._moving_key = keys
        self._last = _Press(dialog, keys, now_s)
        return keys
