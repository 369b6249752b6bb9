"""A server's log on disk: rotated by size, with the start-up part at the head of every piece.

What a server prints while it starts (sizes of buffers, contexts, devices) is what its memory is read from, and it is
printed once. So a new piece begins with a copy of it, and any single piece can be read as a whole log. A full disk
loses lines and never stops the server: what was lost is counted, and said in the log once there is room.

Only the standard library is needed here: the leash loads this file without the package around it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["CONTINUED", "RotatingLog", "piece", "shift_pieces"]

CONTINUED = b"# earlier lines of this run are in "
"""How the line begins that parts the copied start-up from what follows it."""
_LOOK_BACK = 256


def piece(path: Path, number: int) -> Path:
    """The piece of that number: 0 is the log itself, higher ones are older."""
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


def shift_pieces(path: Path, keep: int) -> None:
    """Make room for a new log: each piece becomes the next older one, and the oldest goes.

    Raises:
        OSError: A piece cannot be renamed or removed.
    """
    if not path.exists():
        return
    piece(path, keep).unlink(missing_ok=True)
    for number in range(keep - 1, -1, -1):
        if piece(path, number).exists():
            piece(path, number).replace(piece(path, number + 1))


class RotatingLog:
    """Appends to a log that may already have a header.

    Args:
        path: The log.
        max_bytes: Size of a piece; a line is never cut, so one may be longer by a line.
        keep: How many older pieces are kept.
        ready: Found in the line that ends the start-up part.
        tell: Receives `ready` once the start-up part is whole, and `lost` when something could not be written.
    """

    def __init__(
        self, path: Path, *, max_bytes: int, keep: int, ready: re.Pattern[bytes], tell: Callable[[str], None]
    ) -> None:
        self._path, self._max_bytes, self._keep, self._ready, self._tell = path, max_bytes, keep, ready, tell
        self._fd = self._open()
        self._startup = bytearray(path.read_bytes())
        self._size = len(self._startup)
        self._is_started = False
        self._seen = b""
        self._at_line_start = True
        self._lost_bytes = 0

    def write(self, data: bytes) -> None:
        """Append what the server printed; never raises for a full disk."""
        if not self._is_started:
            self._follow_startup(data)
        if self._size + len(data) > self._max_bytes and self._size > len(self._startup):
            # A piece ends at the end of a line; without one in sight it grows a little.
            end = 0 if self._at_line_start else data.find(b"\n") + 1
            if end or self._at_line_start:
                self._append(data[:end])
                self._rotate()
                data = data[end:]
        self._append(data)

    def _follow_startup(self, data: bytes) -> None:
        self._seen = self._seen[-_LOOK_BACK:] + data
        room = max(0, self._max_bytes // 2 - len(self._startup))  # a start that never ends may not fill every piece
        self._startup += data[:room]
        found = self._ready.search(self._seen)
        if not found:
            return
        self._is_started = True
        self._tell("ready")
        after = len(self._seen) - found.end()
        line_end = self._seen.find(b"\n", found.end())
        if room >= len(data) and line_end >= 0:
            del self._startup[len(self._startup) - after + (line_end + 1 - found.end()) :]

    def _append(self, data: bytes) -> None:
        if not data:
            return
        if self._lost_bytes:
            note = b"# %d bytes of this log were lost: they could not be written\n" % self._lost_bytes
            if not self._write_all(note if self._at_line_start else b"\n" + note):
                self._lost_bytes += len(data)
                return
            self._lost_bytes = 0
        written = self._write_all(data)
        if written < len(data):
            if not self._lost_bytes:
                self._tell("lost")
            self._lost_bytes += len(data) - written

    def _write_all(self, data: bytes) -> int:
        """How many bytes were written."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            pass
        if written:
            self._size += written
            self._at_line_start = data[written - 1 : written] == b"\n"
        return written

    def _rotate(self) -> None:
        try:
            shift_pieces(self._path, self._keep)
            fd = self._open()
        except OSError:
            return
        os.close(self._fd)
        self._fd, self._size, self._at_line_start = fd, 0, True
        self._append(bytes(self._startup))
        if not self._at_line_start:
            self._append(b"\n")
        self._append(CONTINUED + os.fsencode(piece(self._path, 1).name) + b"\n")

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
