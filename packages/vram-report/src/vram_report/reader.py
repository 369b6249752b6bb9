"""Logs from files and streams: bytes to lines.

The rule: this module alone touches files. It undoes gzip, UTF-16 (PowerShell's redirection) and broken UTF-8, counts
what it reads, and hands lines on one at a time, each with its line end, so that a cut last line can be told apart.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from vram_report.capacity import DEFAULT_MARGIN_MIB
from vram_report.document import LogReport, Run, Source
from vram_report.errors import LogNotFound, LogNotRecognized
from vram_report.report import parse, parse_blocks
from vram_report.serving import blocks

__all__ = ["read_log", "read_stream"]

BLOCK_BYTES = 1 << 16
GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


class _Input:
    """A log that is being read, with counts of its lines and bytes so far."""

    def __init__(self) -> None:
        self.lines = 0
        self.bytes = 0

    def runs(self, stream: BinaryIO, margin_mib: float) -> list[Run]:
        """Read the whole stream."""
        stream, encoding = _decoder(stream)
        if encoding == "utf-8":
            runs, self.lines = parse_blocks(self._blocks(stream), margin_mib=margin_mib)
            return runs
        return parse(self._decoded(stream, encoding), margin_mib=margin_mib)

    def _blocks(self, stream: BinaryIO) -> Iterator[bytes]:
        for block in blocks(stream):
            self.bytes += len(block)
            yield block

    def _decoded(self, stream: BinaryIO, encoding: str) -> Iterator[str]:
        counter = _Counter(stream, self)
        text = io.TextIOWrapper(cast(BinaryIO, counter), encoding=encoding, errors="replace", newline="\n")
        try:
            for line in text:
                self.lines += 1
                yield line
        finally:
            text.detach()  # whoever opened the stream closes it


class _Counter(io.BufferedIOBase):
    """A byte stream that counts what is read from it."""

    def __init__(self, stream: BinaryIO, counts: _Input) -> None:
        self._stream = stream
        self._counts = counts

    def readable(self) -> bool:
        return True

    def read1(self, size: int | None = -1, /) -> bytes:
        """Read what is there, up to a block: a larger one than a text stream asks for."""
        data = cast(io.BufferedReader, self._stream).read1(BLOCK_BYTES)
        self._counts.bytes += len(data)
        return data

    def close(self) -> None:
        """Leave the stream open: whoever opened it closes it."""


def _decoder(stream: BinaryIO) -> tuple[BinaryIO, str]:
    head, stream = _peek(stream)
    if head.startswith(GZIP_MAGIC):
        import gzip  # few logs are compressed, and the import costs as much as reading one

        head, stream = _peek(cast(BinaryIO, gzip.GzipFile(fileobj=stream)))
    encoding = UTF16_MARKS.get(head[:2], "utf-8")
    if encoding == "utf-8" and len(head) >= 4 and head[1] == 0 and head[3] == 0:
        encoding = "utf-16-le"
    return stream, encoding


def _peek(stream: BinaryIO) -> tuple[bytes, BinaryIO]:
    if not isinstance(stream, io.BufferedReader):
        stream = io.BufferedReader(cast(io.RawIOBase, stream))
    return stream.peek(4)[:4], stream


def read_stream(stream: BinaryIO, name: str = "-", *, margin_mib: float = DEFAULT_MARGIN_MIB) -> LogReport:
    """Read a log from an open byte stream.

    Args:
        stream: Any readable byte stream; gzip and UTF-16 are recognised.
        name: How the report names the source.
        margin_mib: MiB that are to stay free on each device.

    Raises:
        LogNotRecognized: If nothing in the input is a llama.cpp server's.
        LogNotFound: If reading fails, for instance in a damaged gzip file.
    """
    log = _Input()
    try:
        runs = log.runs(stream, margin_mib)
    except (OSError, EOFError) as error:
        raise LogNotFound(name, str(error)) from error
    if not runs:
        raise LogNotRecognized(name, log.lines)
    return LogReport(Source(name, log.lines, log.bytes), runs)


def read_log(path: str | Path, *, margin_mib: float = DEFAULT_MARGIN_MIB) -> LogReport:
    """Read a log file: plain or gzip, UTF-8 or UTF-16.

    Args:
        path: The file.
        margin_mib: MiB that are to stay free on each device.

    Raises:
        LogNotFound: If the file cannot be opened or read.
        LogNotRecognized: If nothing in it is a llama.cpp server's.
    """
    try:
        with Path(path).open("rb") as stream:
            return read_stream(stream, str(path), margin_mib=margin_mib)
    except OSError as error:
        raise LogNotFound(str(path), error.strerror or str(error)) from error
