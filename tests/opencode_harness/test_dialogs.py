"""Dialogs on recorded screens of OpenCode 1.18.33, and the keys that answer them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from opencode_harness.dialogs import ENTER, Answer, Dialog, DialogAnswerer, find_dialog
from opencode_harness.screen import TerminalScreen

DATA = Path(__file__).parent / "data"
RIGHT, TAB = b"\x1b[C", b"\t"
OPTIONS = ("Allow once", "Allow always", "Reject")


def open_dialog(screen: TerminalScreen) -> Dialog | None:
    return find_dialog(screen.rows(), lambda row, column: screen.cell(row, column).background)


def test_the_recorded_doom_loop_dialog_moves_to_always_and_is_confirmed_on_a_second_page() -> None:
    screen, seen = TerminalScreen(), list[tuple[str, str | None]]()
    for frame in gzip.decompress((DATA / "opencode-1.18.33-doom.raw.gz").read_bytes()).split(b"\x1b[?2026l"):
        screen.feed(frame)
        dialog = open_dialog(screen)
        if dialog is not None and (dialog.kind, dialog.chosen) not in seen:
            seen.append((dialog.kind, dialog.chosen))
    assert seen == [("doom-loop", "Allow once"), ("doom-loop", "Allow always"), ("always-confirm", "Confirm")]


def test_the_words_of_a_dialog_in_plain_text_are_no_dialog() -> None:
    screen = TerminalScreen()
    screen.feed("┃ Permission required\r\n┃ Allow once   Allow always   Reject".encode())
    assert open_dialog(screen) is None


@pytest.mark.parametrize("works", [RIGHT, TAB], ids=["right-moves", "tab-moves"])
@pytest.mark.parametrize(
    ("answer", "wanted"), [("always", "Allow always"), ("once", "Allow once"), ("reject", "Reject")]
)
def test_the_wanted_option_is_entered_whichever_key_moves(works: bytes, answer: Answer, wanted: str) -> None:
    answerer, chosen, now_s = DialogAnswerer(answer), 0, 0.0
    for _ in range(400):
        keys = answerer.step(Dialog("permission", "Permission required", OPTIONS, OPTIONS[chosen]), now_s)
        if keys == ENTER:
            break
        chosen = (chosen + (keys == works)) % 3
        now_s += 0.05
    assert keys == ENTER
    assert OPTIONS[chosen] == wanted


def test_enter_is_pressed_once_while_the_answered_dialog_stays_on_the_screen() -> None:
    answerer = DialogAnswerer("once")
    dialog = Dialog("permission", "Permission required", OPTIONS, "Allow once")
    pressed = [answerer.step(dialog, tenth / 10) for tenth in range(40)]
    assert pressed.count(ENTER) == 1
    assert b"".join(pressed) == ENTER


def test_an_equal_dialog_after_the_first_has_gone_is_answered_again() -> None:
    answerer = DialogAnswerer("once")
    dialog = Dialog("permission", "Permission required", OPTIONS, "Allow once")
    assert [answerer.step(shown, 0.1) for shown in (dialog, None, dialog)] == [ENTER, b"", ENTER]
