"""From text lines to records: one record for each fact that a line states.

The rule: this module knows how lines are wrapped (containers, journals, colours, router children, JSON) and asks
`grammar` what they say; it draws no conclusion from two lines. It keeps one line in memory at a time.

A last line without its line end may be cut inside a number, so only records without fields are taken from it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vram_report.grammar import FORMATS_BY_TRIGGER, LINE_STARTS, QUIET_STARTS, SLOT_TAILS, LineFormat
from vram_report.serving import Stretch, segments

__all__ = ["BlockReader", "Record", "iter_records", "unwrapped"]

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[(?:0|1|3[0-9])m(?=\d+\.\d\d\.\d{3}|[IWED] |$)")
WRAPPERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\ufeff",
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s(?:std(?:out|err) [FP] )?",
        r"(?:[A-Z][a-z]{2} [ \d]\d )\d\d:\d\d:\d\d \S+ [^\s\[:]+(?:\[\d+\])?: ",
        r"\d\d:\d\d:\d\d \S+ [^\s\[:]+\[\d+\]: ",
        r"[A-Za-z0-9._-]+ +\| (?=\S)",
        r"\[llama (?:Debug|Info|Warning|Error)\]: ",
    )
)
PORT = re.compile(r"\[ *(?P<port>\d{1,5})\] ")
WRAPPED = re.compile("|".join(pattern.pattern for pattern in (*WRAPPERS, re.compile(r"\[ *\d{1,5}\] "))))
CLOCK = re.compile(r"(?:^|\s|\.)(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) [IWED] ")
TRIGGERS = tuple(FORMATS_BY_TRIGGER)
SLOT_ROWS, START_ROWS = (
    {text: tuple(row for t in found for row in FORMATS_BY_TRIGGER[t]) for text, found in table.items()}
    for table in (SLOT_TAILS, LINE_STARTS)
)
# Where in a request's line its task is named at the farthest; when one is named behind that, two lines are joined.
TASK = " | task "
REQUEST_STARTS = ("slot ", "srv  ")
FARTHEST_TASK = 30
JSON_TEXT_KEYS = ("msg", "message", "log", "MESSAGE")


class Record(NamedTuple):
    """One fact as a line stated it.

    Attributes:
        line: Line number in the input, from 1.
        kind: What the fact is, see `grammar.FORMATS`.
        fields: The pattern's named groups as text; None where an optional part is absent.
        style: The generation that the wording proves, or "".
        port: The router child that printed the line, or None.
        clock_s: Seconds since process start from the line's prefix, or None.
    """

    line: int
    kind: str
    fields: Mapping[str, str | None]
    style: str
    port: str | None
    clock_s: float | None


def iter_records(lines: Iterable[str]) -> Iterator[Record]:
    r"""Yield the records of a log, in line order.

    Args:
        lines: The log's lines, with or without their line ends. When lines carry "\n", a last line without it
            counts as cut.
    """
    return _LineReader().read(lines, TRIGGERS)


class BlockReader:
    """Reads a log in UTF-8 bytes."""

    def __init__(self) -> None:
        self._reader = _LineReader()

    @property
    def lines(self) -> int:
        """How many lines were read so far."""
        return self._reader.number

    def read(self, parts: Iterable[bytes]) -> Iterator[Record | Stretch]:
        """Yield what a log says: stretches of request lines whole, and the records of all other lines.

        Args:
            parts: The log in blocks of whole lines, see `serving.blocks`.
        """
        for block in parts:
            for start, end, requests in segments(block):
                if requests is not None:
                    yield self._reader.pass_stretch(block, (start, end), requests)
                else:
                    lines = block[start:end].decode("utf-8", "replace")
                    triggers = [trigger for trigger in TRIGGERS if trigger in lines]
                    yield from self._reader.read(io.StringIO(lines, newline="\n"), triggers)


class _LineReader:
    """Turns lines into records, counting them."""

    def __init__(self) -> None:
        self.number = 0
        self._terminated = False

    def pass_stretch(self, text: bytes, span: tuple[int, int], requests: Sequence[re.Match[bytes]]) -> Stretch:
        """Count the lines of a stretch that is read elsewhere."""
        stretch = Stretch(text, span, self.number + 1, requests)
        self.number += stretch.lines
        self._terminated = True
        return stretch

    def read(self, lines: Iterable[str], triggers: Sequence[str]) -> Iterator[Record]:
        """Yield the records of the next lines, which hold no trigger but these."""
        for number, line in enumerate(lines, start=self.number + 1):
            self.number = number
            start = line.find(" I ", 0, 22) + 3 if line[:1].isdigit() else 0
            joined = line.rfind(TASK) > start + FARTHEST_TASK or line.rfind("srv  ") > start + FARTHEST_TASK
            if not joined and line.startswith(QUIET_STARTS, start):
                continue
            rows = _usual_rows(line, start) if not joined else None
            if rows is not None and not rows:
                continue
            ended = line.endswith("\n")
            cut = self._terminated and not ended
            self._terminated = self._terminated or ended
            record = _usual_record(number, line, rows) if rows else None
            if joined and line.startswith(REQUEST_STARTS, start):
                records = _joined_records(number, line, triggers)
            else:
                records = iter((record,)) if record is not None else _line_records(number, line, triggers)
            for found in records:
                if not cut or not found.fields:
                    yield found


def _usual_rows(line: str, start: int) -> tuple[LineFormat, ...] | None:
    """The formats to try on a line that a serving server prints all the time; None for any other line."""
    if line.startswith("slot ", start):
        bar = line.rfind("| ") + 2
        rows = SLOT_ROWS.get(line[bar : bar + 9])
        return rows if rows is not None else SLOT_ROWS.get(line[bar : bar + 19])
    return START_ROWS.get(line[start : start + 9])


def _usual_record(number: int, line: str, rows: tuple[LineFormat, ...]) -> Record | None:
    for row in rows:
        match = row.pattern.search(line)
        if match:
            return Record(number, row.kind, match.groupdict(), row.style, None, None)
    return None


def _joined_records(number: int, line: str, triggers: Sequence[str]) -> Iterator[Record]:
    matches = sorted(_matches(line, triggers), key=lambda found: found[1].start())
    return (Record(number, row.kind, match.groupdict(), row.style, None, None) for row, match in matches)


def _line_records(number: int, line: str, possible: Sequence[str]) -> Iterator[Record]:
    triggers = [trigger for trigger in possible if trigger in line]
    if not triggers:
        return
    port, text = unwrapped(line)
    message = _json_text(text)
    if message is not text:
        inner_port, text = unwrapped(message)
        port = port or inner_port
    clock_s = _clock(text)
    for row, match in _matches(text, triggers):
        yield Record(number, row.kind, match.groupdict(), _style(row, clock_s), port, clock_s)


def _matches(text: str, triggers: Sequence[str]) -> Iterator[tuple[LineFormat, re.Match[str]]]:
    for trigger in triggers:
        for row in FORMATS_BY_TRIGGER[trigger]:
            for match in row.pattern.finditer(text):
                yield row, match


def _style(row: LineFormat, clock_s: float | None) -> str:
    return (
        "prefixed-2026" if clock_s is not None and row.style in ("", "kv-cells-2025", "print_info-2025") else row.style
    )


def unwrapped(line: str) -> tuple[str | None, str]:
    """A line without what wraps it (containers, journals, colours), and the router child's port that it began with."""
    text = ANSI.sub("", line.rstrip("\r\n").replace("\0", "").replace("\u00a0", " "))
    if "&" in text:
        text = text.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")
    port = None
    stripping = WRAPPED.match(text) is not None
    while stripping:
        stripping = False
        for pattern in WRAPPERS:
            match = pattern.match(text)
            if match:
                text, stripping = text[match.end() :], True
        match = PORT.match(text)
        if match:
            port, text, stripping = match["port"], text[match.end() :], True
    return port, text


def _clock(text: str) -> float | None:
    match = CLOCK.search(text, 0, 80)
    if match is None:
        return None
    minutes, seconds, milli, micro = map(int, match.groups())
    return minutes * 60 + seconds + milli / 1e3 + micro / 1e6


def _json_text(text: str) -> str:
    """The message and the plain fields of a JSON line, in the shape of the text form; other lines unchanged."""
    if not text.startswith("{"):
        return text
    import json  # most logs have no JSON lines

    try:
        entry = json.loads(text)
    except ValueError:
        return text
    if not isinstance(entry, dict):
        return text
    message = next((str(entry[key]) for key in JSON_TEXT_KEYS if key in entry), None)
    if message is None:
        return text
    if ":" in message or "=" in message:
        return message
    fields = " ".join(f"{key}={value}" for key, value in entry.items() if key not in JSON_TEXT_KEYS)
    return f"{message.rstrip()} | {fields}"
