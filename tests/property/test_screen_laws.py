"""Laws of the terminal screen: any bytes, split anywhere."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from opencode_harness.screen import PlainText, TerminalScreen

_PIECES = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from(
        [
            b"\x1b[",
            b"\x1b]10;?",
            b"\x1b_G",
            b"\x1bP",
            b"\x1b\\",
            b"\x07",
            b"\x1b[?1049h",
            b"\x1b[?1049l",
            b"\x1b[6n",
            b"\x1b[?6h",
            b"\x1b[3;5r",
            b"\x1b[?3h",
            b"\x1b[99999999999d",
            b"\x1b[2J",
            b"\x1b[7K",
            b"\x1b[4h",
            b"\x1bc",
            "漢".encode(),
            "e\u0301".encode(),
            b"\x1b[5L",
            b"\x1b[38:2::1:2:3m",
            b"\x1b[48;5;999m",
            b"\r\n",
            b"\t",
        ]
    ),
    st.tuples(st.integers(0, 130), st.sampled_from(b"@ABCDEFGHJKLMPSTXadefghlmnrsu`")).map(
        lambda pair: b"\x1b[%d%c" % pair
    ),
)
streams = st.lists(_PIECES, max_size=30).map(b"".join)


@given(stream=streams, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_split_feed_equals_whole_feed(stream: bytes, cuts: list[int]) -> None:
    whole, split = TerminalScreen(20, 6), TerminalScreen(20, 6)
    whole_text, split_text = PlainText(), PlainText()
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    parts = [stream[start:end] for start, end in pairwise(edges)]
    assert whole.feed(stream) == b"".join(split.feed(part) for part in parts)
    assert whole.rows() == split.rows()
    assert [whole.cell(row, column) for row in range(6) for column in range(20)] == [
        split.cell(row, column) for row in range(6) for column in range(20)
    ]
    assert whole_text.feed(stream) == "".join(split_text.feed(part) for part in parts)


@given(stream=streams)
def test_the_screen_keeps_its_size_and_the_text_has_no_escape(stream: bytes) -> None:
    screen = TerminalScreen(20, 6)
    screen.feed(stream)
    assert len(screen.rows()) == 6
    screen.joined_text()
    assert "\x1b" not in PlainText().feed(stream)
