"""A terminal screen fed with bytes: never raises, and never depends on how the stream is split.

pyte keeps the grid of cells; everything about *reading* a terminal's byte stream is done here, because pyte's own
parser prints string sequences (APC, DCS) as text, has no alternate screen, and raises on sequences that programs
really send. One tokenizer, after Paul Williams' state diagram of DEC terminals (vt100.net/emu/dec_ansi_parser),
serves both the screen and the plain text of the stream:

- UTF-8 is decoded incrementally; 8-bit C1 controls are ignored, as terminals in UTF-8 mode do.
- APC, PM, SOS and DCS strings are dropped; OSC is read for colour queries only. Whatever a stream holds, the
  tokenizer keeps a bounded number of characters.
- Queries get the same answers in every run, so that a program's feature detection is the same in every run: a VT220
  with colours, white on black; no kitty keyboard, no kitty graphics.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import pyte
from pyte import modes
from pyte.screens import Char, StaticDefaultDict
from wcwidth import wcwidth

__all__ = ["Cell", "PlainText", "TerminalScreen", "join_rows"]

_ESC = "\x1b"
_PARAMETER_RUN = re.compile(r"[ -?]+")
_TEXT_RUN = re.compile(r"[^\x00-\x1f\x7f-\x9f]+")
_STRING_RUN = re.compile(r"[^\x07\x18\x1a\x1b]+")
_CSI_SHAPE = re.compile(r"([<=>?]?)([0-9:;]*)([ -/]*)")
_STRING_OPENERS = {"]": "OSC", "P": "DCS", "X": "SOS", "^": "PM", "_": "APC"}
# Longest CSI parameters and OSC payload that are kept; a real terminal has such bounds too.
_LONGEST_SEQUENCE = 256
_LARGEST_PARAMETER = 9999
_COLOUR_CODES = (38, 48, 58)
_UNDERLINE_COLOUR = 58
_NOT_UNDERLINED = 24
# How many numbers follow the kind of an SGR colour: an index, or red, green and blue.
_COLOUR_NUMBERS: Mapping[int, int] = {5: 1, 2: 3}
_MOST_COMBINED = 8
_MOST_SAVEPOINTS = 32


@dataclass(frozen=True)
class _Text:
    text: str


@dataclass(frozen=True)
class _Control:
    char: str


@dataclass(frozen=True)
class _Escape:
    intermediates: str
    final: str


@dataclass(frozen=True)
class _Csi:
    prefix: str
    parameters: str
    intermediates: str
    final: str


@dataclass(frozen=True)
class _Osc:
    payload: str


_Token = _Text | _Control | _Escape | _Csi | _Osc


class _Tokenizer:
    """Bytes to tokens; keeps what a chunk border cut."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._state: Callable[[str, int], tuple[int, _Token | None]] = self._ground
        self._collected = ""
        self._overflow = False
        self._string = ""

    def feed(self, data: bytes) -> Iterator[_Token]:
        text = self._decode(data)
        offset = 0
        while offset < len(text):
            offset, token = self._state(text, offset)
            if token is not None:
                yield token

    def _enter(self, state: Callable[[str, int], tuple[int, _Token | None]]) -> None:
        self._state = state
        self._collected = ""
        self._overflow = False

    def _collect(self, run: str) -> None:
        room = _LONGEST_SEQUENCE - len(self._collected)
        self._overflow = self._overflow or len(run) > room
        self._collected += run[:room]

    def _ground(self, text: str, offset: int) -> tuple[int, _Token | None]:
        run = _TEXT_RUN.match(text, offset)
        if run:
            return run.end(), _Text(run.group())
        return offset + 1, self._control(text[offset])

    def _control(self, char: str) -> _Token | None:
        """A C0 control, in the ground state or amid a sequence; C1 and DEL are ignored."""
        if char == _ESC:
            self._enter(self._escape)
            return None
        if char in "\x18\x1a":
            self._enter(self._ground)
            return None
        return _Control(char) if char < " " else None

    def _escape(self, text: str, offset: int) -> tuple[int, _Token | None]:
        char = text[offset]
        if " " <= char <= "/":
            self._collect(char)
        elif "0" <= char <= "~":
            return offset + 1, self._end_escape(char)
        elif char < " " or char == "\x7f":
            return offset + 1, self._control(char)
        else:
            self._enter(self._ground)
            return offset, None
        return offset + 1, None

    def _end_escape(self, final: str) -> _Token | None:
        intermediates = self._collected
        if not intermediates and final == "[":
            self._enter(self._csi)
        elif not intermediates and final in _STRING_OPENERS:
            self._string = _STRING_OPENERS[final]
            self._enter(self._inside_string)
        else:
            overflow = self._overflow
            self._enter(self._ground)
            return None if overflow else _Escape(intermediates, final)
        return None

    def _csi(self, text: str, offset: int) -> tuple[int, _Token | None]:
        run = _PARAMETER_RUN.match(text, offset)
        if run:
            self._collect(run.group())
            return run.end(), None
        char = text[offset]
        if "@" <= char <= "~":
            return offset + 1, self._end_csi(char)
        if char < " " or char == "\x7f":
            return offset + 1, self._control(char)
        self._enter(self._ground)
        return offset, None

    def _end_csi(self, final: str) -> _Token | None:
        shape = None if self._overflow else _CSI_SHAPE.fullmatch(self._collected)
        self._enter(self._ground)
        return _Csi(shape[1], shape[2], shape[3], final) if shape else None

    def _inside_string(self, text: str, offset: int) -> tuple[int, _Token | None]:
        run = _STRING_RUN.match(text, offset)
        if run:
            self._collect(run.group())
            return run.end(), None
        char = text[offset]
        if char == "\x07" and self._string != "OSC":
            return offset + 1, None
        token = _Osc(self._collected) if self._string == "OSC" and char in "\x07\x1b" and not self._overflow else None
        # ST is ESC \, and any other escape sequence ends a string as well.
        self._enter(self._escape if char == _ESC else self._ground)
        return offset + 1, token


@dataclass(frozen=True)
class Cell:
    """One cell of the screen.

    Attributes:
        text: A character with what combines with it; empty in the right half of a wide one.
        foreground: Six hexadecimal digits, a colour's name, or `default`.
        background: The same; reverse video is already applied to both.
    """

    text: str
    foreground: str
    background: str


_Row = StaticDefaultDict[int, Char]


class _Grid(pyte.Screen):
    """pyte's grid with a second buffer, a fixed size, and drawing that does not depend on the runs of text."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows)
        self.has_alternate = False
        self._other = self._blank_buffer()

    def _blank_buffer(self) -> dict[int, _Row]:
        blank = pyte.Screen(self.columns, self.lines)
        return blank.buffer

    def draw(self, data: str) -> None:
        """Draw what has a width or combines; pyte would drop the rest of a run after any other character."""
        for char in data:
            width = wcwidth(char)
            if width > 0:
                self._put(char, width)
            elif unicodedata.combining(char):
                self._combine(char)

    def _put(self, char: str, width: int) -> None:
        if self.cursor.x + width > self.columns:
            self._wrap(width)
        if modes.IRM in self.mode:
            self.insert_characters(width)
        line, column = self.buffer[self.cursor.y], self.cursor.x
        self._blank_cut_halves(line, column, column + width)
        line[column] = self.cursor.attrs._replace(data=char)
        if width == 2:
            line[column + 1] = self.cursor.attrs._replace(data="")
        self.cursor.x = column + width

    def _wrap(self, width: int) -> None:
        if modes.DECAWM in self.mode:
            self.carriage_return()
            self.index()
        else:
            self.cursor.x = max(0, self.columns - width)

    def _blank_cut_halves(self, line: _Row, start: int, end: int) -> None:
        """A wide character of which one half is about to be overwritten leaves a blank in the other."""
        if start > 0 and line[start].data == "":
            line[start - 1] = line[start - 1]._replace(data=" ")
        if line[end].data == "":
            line[end] = line[end]._replace(data=" ")

    def _combine(self, char: str) -> None:
        line = self.buffer[self.cursor.y]
        column = self.cursor.x - 1
        if column > 0 and line[column].data == "":
            column -= 1
        if column >= 0 and 0 < len(line[column].data) < _MOST_COMBINED:
            line[column] = line[column]._replace(data=unicodedata.normalize("NFC", line[column].data + char))

    def cursor_to_line(self, line: int | None = None) -> None:
        """Go to a row; pyte takes it for granted that origin mode comes with margins."""
        self.cursor_position(line, min(self.cursor.x, self.columns - 1) + 1)

    def use_alternate(self, wanted: bool) -> None:
        if wanted != self.has_alternate:
            self.buffer, self._other = self._other, self.buffer
            self.has_alternate = wanted

    def clear_buffer(self) -> None:
        self.buffer.clear()

    def save_cursor(self) -> None:
        """Keep the cursor; a program that only ever saves does not fill the memory."""
        super().save_cursor()
        del self.savepoints[:-_MOST_SAVEPOINTS]

    def scroll(self, rows: int) -> None:
        """Scroll the region up by `rows`, or down when negative; the cursor stays."""
        top, bottom = self.margins or (0, self.lines - 1)
        held_x, held_y = self.cursor.x, self.cursor.y
        for _ in range(min(abs(rows), self.lines)):
            self.cursor.y = bottom if rows > 0 else top
            self.index() if rows > 0 else self.reverse_index()
        self.cursor.x, self.cursor.y = held_x, held_y

    def cell(self, row: int, column: int) -> Cell:
        char = self.buffer[row][column]
        colours = (char.bg, char.fg) if char.reverse else (char.fg, char.bg)
        return Cell(char.data, *colours)

    def row_text(self, row: int) -> str:
        line = self.buffer[row]
        return "".join(line[column].data for column in range(self.columns)).rstrip()


# Final byte of a plain CSI sequence: pyte's method, and how many parameters it takes.
_CSI_METHODS: Mapping[str, tuple[str, int]] = {
    "@": ("insert_characters", 1),
    "A": ("cursor_up", 1),
    "B": ("cursor_down", 1),
    "C": ("cursor_forward", 1),
    "D": ("cursor_back", 1),
    "E": ("cursor_down1", 1),
    "F": ("cursor_up1", 1),
    "G": ("cursor_to_column", 1),
    "H": ("cursor_position", 2),
    "L": ("insert_lines", 1),
    "M": ("delete_lines", 1),
    "P": ("delete_characters", 1),
    "X": ("erase_characters", 1),
    "`": ("cursor_to_column", 1),
    "a": ("cursor_forward", 1),
    "d": ("cursor_to_line", 1),
    "e": ("cursor_down", 1),
    "f": ("cursor_position", 2),
    "r": ("set_margins", 2),
}
# The same, for parameters that are a choice: any other value is ignored.
_CSI_CHOICES: Mapping[str, tuple[str, frozenset[int]]] = {
    "J": ("erase_in_display", frozenset({0, 1, 2, 3})),
    "K": ("erase_in_line", frozenset({0, 1, 2})),
    "g": ("clear_tab_stop", frozenset({0, 3})),
}
_ESCAPE_METHODS: Mapping[str, str] = {
    "7": "save_cursor",
    "8": "restore_cursor",
    "D": "index",
    "E": "linefeed",
    "H": "set_tab_stop",
    "M": "reverse_index",
}
_CONTROL_METHODS: Mapping[str, str] = {
    "\b": "backspace",
    "\t": "tab",
    "\n": "linefeed",
    "\v": "linefeed",
    "\f": "linefeed",
    "\r": "carriage_return",
}
# DEC private modes that change what is drawn where: origin, wrap, cursor. The others do not show in text.
_PRIVATE_MODES = frozenset({6, 7, 25})
# What a colour query gets: OSC 10 is the foreground, 11 the background, 4;0 the palette's black.
_COLOUR_REPLIES: Mapping[str, str] = {
    "10;?": "\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
    "11;?": "\x1b]11;rgb:0000/0000/0000\x1b\\",
    "4;0;?": "\x1b]4;0;rgb:0000/0000/0000\x1b\\",
}
_DEVICE_ATTRIBUTES = "\x1b[?62;22c"


class TerminalScreen:
    """What a person would see of a program's output.

    Args:
        columns: Width in cells.
        rows: Height in cells.
    """

    def __init__(self, columns: int = 120, rows: int = 36) -> None:
        self.columns = columns
        self._grid = _Grid(columns, rows)
        self._tokenizer = _Tokenizer()
        self._replies: list[str] = []

    def feed(self, data: bytes) -> bytes:
        """Draw `data`, and return what the terminal answers to the queries in it."""
        for token in self._tokenizer.feed(data):
            self._apply(token)
        replies, self._replies = "".join(self._replies), []
        return replies.encode("ascii")

    def rows(self) -> tuple[str, ...]:
        """Text of every row from the top, without spaces at the end."""
        return tuple(self._grid.row_text(row) for row in range(self._grid.lines))

    def text(self) -> str:
        """The rows as one text, each ended by a line feed."""
        return "".join(f"{row}\n" for row in self.rows())

    def joined_text(self) -> str:
        """The text whatever its wrapping; see `join_rows`."""
        return join_rows(self.rows())

    def cell(self, row: int, column: int) -> Cell:
        """The cell at a place, counted from 0."""
        return self._grid.cell(row, column)

    @property
    def on_alternate_screen(self) -> bool:
        """Whether the program draws on the alternate screen, as full-screen programs do."""
        return self._grid.has_alternate

    def _apply(self, token: _Token) -> None:
        if isinstance(token, _Text):
            self._grid.draw(token.text)
        elif isinstance(token, _Control):
            self._call(_CONTROL_METHODS.get(token.char))
        elif isinstance(token, _Escape):
            self._apply_escape(token)
        elif isinstance(token, _Csi):
            self._apply_csi(token)
        else:
            self._replies.append(_COLOUR_REPLIES.get(token.payload, ""))

    def _call(self, method: str | None, *parameters: int | None) -> None:
        if method is not None:
            getattr(self._grid, method)(*parameters)

    def _apply_escape(self, token: _Escape) -> None:
        if token.intermediates == "#" and token.final == "8":
            self._grid.alignment_display()
        elif token.intermediates == "" and token.final == "c":
            self._grid.use_alternate(False)
            self._grid.reset()
        elif token.intermediates == "":
            self._call(_ESCAPE_METHODS.get(token.final))
            if token.final == "E":
                self._grid.carriage_return()

    def _apply_csi(self, token: _Csi) -> None:
        if token.intermediates:
            return
        if token.prefix == "?":
            self._apply_private(token)
        elif token.prefix == "":
            self._apply_plain(token)

    def _apply_plain(self, token: _Csi) -> None:
        final = token.final
        if final == "m":
            self._grid.select_graphic_rendition(*_graphic_rendition(token.parameters))
            return
        parameters = _numbers(token.parameters)
        first = parameters[0] or 0
        if final in _CSI_METHODS:
            method, most = _CSI_METHODS[final]
            self._call(method, *parameters[:most])
        elif final in _CSI_CHOICES:
            method, choices = _CSI_CHOICES[final]
            self._call(method if first in choices else None, first)
        elif final in "ST":
            self._grid.scroll((first or 1) * (1 if final == "S" else -1))
        elif final in "hl":
            self._set_modes({4, 20} & {number or 0 for number in parameters}, final == "h", private=False)
        elif final in "su":
            self._call("save_cursor" if final == "s" else "restore_cursor")
        else:
            self._answer(final, first)

    def _answer(self, final: str, first: int) -> None:
        cursor = self._grid.cursor
        replies = {
            ("c", 0): _DEVICE_ATTRIBUTES,
            ("n", 5): "\x1b[0n",
            ("n", 6): f"\x1b[{cursor.y + 1};{min(cursor.x, self.columns - 1) + 1}R",
        }
        self._replies.append(replies.get((final, first), ""))

    def _apply_private(self, token: _Csi) -> None:
        if token.final not in "hl":
            return
        on = token.final == "h"
        modes = {number or 0 for number in _numbers(token.parameters)}
        self._set_modes(modes & _PRIVATE_MODES, on, private=True)
        for mode in sorted(modes & {47, 1047, 1049}):
            self._switch_buffer(mode, on)

    def _set_modes(self, modes: set[int], on: bool, *, private: bool) -> None:
        if modes:
            (self._grid.set_mode if on else self._grid.reset_mode)(*modes, private=private)

    def _switch_buffer(self, mode: int, on: bool) -> None:
        """Modes 47, 1047 and 1049 of xterm (ctlseqs): 1049 also keeps the cursor, and 1047 clears on leaving."""
        grid = self._grid
        if mode == 1049 and on and not grid.has_alternate:
            grid.save_cursor()
        if mode == 1047 and not on and grid.has_alternate:
            grid.clear_buffer()
        left = grid.has_alternate and not on
        grid.use_alternate(on)
        if mode == 1049 and on:
            grid.clear_buffer()
        if mode == 1049 and left:
            grid.restore_cursor()


def _numbers(parameters: str) -> list[int | None]:
    """Numbers between semicolons; an absent one is None, one with sub-parameters counts by its first."""
    return [_number(part.partition(":")[0]) for part in parameters.split(";")]


def _number(digits: str) -> int | None:
    return min(int(digits), _LARGEST_PARAMETER) if digits else None


def _graphic_rendition(parameters: str) -> list[int]:
    """SGR codes as pyte takes them: `38:2::R:G:B` as 38;2;R;G;B, other sub-parameters by their first number."""
    codes: list[int] = []
    for part in parameters.split(";"):
        numbers = [_number(sub) or 0 for sub in part.split(":")]
        if numbers[:2] == [4, 0]:
            codes.append(_NOT_UNDERLINED)
        elif len(numbers) > 2 and numbers[0] in _COLOUR_CODES:
            codes += numbers[:2] + (numbers[-3:] if numbers[1] == 2 else numbers[2:3])
        else:
            codes.append(numbers[0])
    return _without_underline_colour(codes)


def _without_underline_colour(codes: list[int]) -> list[int]:
    """Drop `58;2;R;G;B` and `58;5;N`, whose numbers pyte would take for codes of their own."""
    kept: list[int] = []
    rest = iter(codes)
    for code in rest:
        if code in _COLOUR_CODES:
            kind = next(rest, 0)
            colour = [code, kind, *islice(rest, _COLOUR_NUMBERS.get(kind, 0))]
            kept += colour if code != _UNDERLINE_COLOUR else []
        else:
            kept.append(code)
    return kept


# Frames, gutters and scroll bars: box drawing and block elements count as empty cells.
_WITHOUT_FRAMES = dict.fromkeys([*range(0x2500, 0x25A0)], " ")


class PlainText:
    """The text of a terminal's stream without escape sequences and controls, however it is split.

    Lines end where the stream has a line feed. A full-screen program moves the cursor instead, so a row drawn in
    several places comes out in the order it was written, and wrapped text with whatever was drawn between its rows.
    """

    def __init__(self) -> None:
        self._tokenizer = _Tokenizer()

    def feed(self, data: bytes) -> str:
        """The text in `data`."""
        return "".join(_plain(token) for token in self._tokenizer.feed(data))


def _plain(token: _Token) -> str:
    if isinstance(token, _Text):
        return token.text
    return token.char if isinstance(token, _Control) and token.char in "\t\n" else ""


def join_rows(rows: Sequence[str]) -> str:
    """Rows as text in which wrapping no longer shows.

    Gutters, side bars and margins are stripped. Rows that follow each other at the same left margin are one
    paragraph, joined by single spaces; an empty row or another margin starts a new one. Where a word was too long
    for a row it is joined with a space inside, so compare without white space, or allow it in a pattern.
    """
    paragraphs: list[list[str]] = []
    last_margin: int | None = None
    for row in rows:
        stripped = row.translate(_WITHOUT_FRAMES).rstrip()
        margin = len(stripped) - len(stripped.lstrip()) if stripped else None
        if margin is not None:
            if margin != last_margin:
                paragraphs.append([])
            paragraphs[-1].append(" ".join(stripped.split()))
        last_margin = margin
    return "\n".join(" ".join(paragraph) for paragraph in paragraphs)
