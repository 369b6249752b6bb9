"""The screen against streams recorded from OpenCode 1.18.33 and against sequences that terminals must survive."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from opencode_harness.screen import PlainText, TerminalScreen

DATA = Path(__file__).parent / "data"
_LEAVES = b"\x1b[?1049l"


def recorded(name: str) -> bytes:
    return gzip.decompress((DATA / f"opencode-1.18.33-{name}.raw.gz").read_bytes())


def test_a_finished_turn_is_read_off_the_alternate_screen() -> None:
    screen = TerminalScreen()
    screen.feed(recorded("wrap").partition(_LEAVES)[0])
    rows = screen.rows()
    assert rows[11].strip() == "- one item"
    assert rows[20].strip().startswith("▣  Build · m · 2.4s")


def test_a_sentence_that_wrapped_is_found_in_the_joined_text() -> None:
    screen = TerminalScreen()
    screen.feed(recorded("wrap").partition(_LEAVES)[0])
    assert "it has very many words in it, indeed." in screen.joined_text()
    assert "it has very many words in it, indeed." not in screen.text()


def test_leaving_the_alternate_screen_shows_only_what_is_printed_after_it() -> None:
    screen = TerminalScreen()
    screen.feed(recorded("plain"))
    assert screen.rows()[5].strip() == "Session   A title"
    assert "kiwi" not in screen.text()


def test_opencodes_queries_get_colours_and_cursor_and_nothing_about_kitty() -> None:
    replies = TerminalScreen().feed(recorded("plain"))
    assert replies.startswith(b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[1;1R")
    assert b"_G" not in replies
    assert b"u" not in replies


def test_the_plain_text_of_a_session_holds_the_answer_and_no_escape() -> None:
    text = PlainText().feed(recorded("plain"))
    assert "Hello there, the fruit is kiwi." in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("stream", "row"),
    [
        (b"a\x1b_Gi=1;AAAA\x1b\\b", "ab"),
        (b"a\x1bP+q4d73\x1b\\b", "ab"),
        (b"a\x1b]66;w=1;xyz\x07b", "ab"),
        (b"a\x1b[<ub", "ab"),
        (b"a\x1b[?4mb", "ab"),
        (b"a\x1b[>4;1mb", "ab"),
        (b"a\x1b[4:3mb", "ab"),
        (b"a\x1b[!pb", "ab"),
        (b"main\x1b[?1049halternate\x1b[?1049l!", "main!"),
        ("a\u200db\ufe0fc".encode(), "abc"),
        (b"\xff\xe2\x28b", "\ufffd\ufffd(b"),
    ],
    ids=[
        "APC",
        "DCS",
        "OSC",
        "kitty-pop",
        "private-m",
        "modify-keys",
        "curly",
        "DECSTR",
        "1049",
        "joiners",
        "bad-UTF-8",
    ],
)
def test_what_a_terminal_does_not_show_is_not_shown(stream: bytes, row: str) -> None:
    screen = TerminalScreen()
    screen.feed(stream)
    assert screen.rows()[0] == row


@pytest.mark.parametrize("colour", [b"48:2::245:167:66", b"48;2;245;167;66", b"58:2::1:2:3;48:2:245:167:66"])
def test_a_background_is_the_same_with_colons_and_semicolons(colour: bytes) -> None:
    screen = TerminalScreen()
    screen.feed(b"\x1b[" + colour + b"mx")
    assert screen.cell(0, 0).background == "f5a742"
