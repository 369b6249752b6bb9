"""Plays a recording (asciicast v2) in the terminal: its bytes at their times, markers named on the way.

A recording holds whatever a program wrote. It is played only to a terminal, and only what was recorded of OpenCode's
own screen; it can do what any program's output can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opencode_harness.errors import HarnessError

__all__ = ["CastEvent", "Recording", "play", "read_recording"]

_LARGEST_LINE_BYTES = 16 * 1024 * 1024
# Leaves the alternate screen, shows the cursor, drops colours, mouse and paste modes: however far it was played.
_RESET = "\x1b[?2026l\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[<u\x1b[0m\r\n"


class RecordingError(HarnessError):
    """A file that is no recording."""

    exit_code = 2


@dataclass(frozen=True)
class CastEvent:
    """What happened at a moment: `o` output, `m` a marker's name, and other kinds of asciicast v2."""

    at_s: float
    kind: str
    text: str


@dataclass(frozen=True)
class Recording:
    """A recording: the terminal's size and what happened, in order."""

    columns: int
    rows: int
    events: tuple[CastEvent, ...]

    @property
    def markers(self) -> tuple[CastEvent, ...]:
        """Named moments."""
        return tuple(event for event in self.events if event.kind == "m")


def read_recording(path: Path) -> Recording:
    """Read an asciicast v2 file; a last line that was cut off by a crash is left out.

    Raises:
        RecordingError: It cannot be read, or is no asciicast v2.
    """
    hint = "recordings are called screen.cast, in a trial's artefacts folder"
    try:
        lines = list(_lines(path))
        header = json.loads(lines[0])
        if header["version"] != 2:
            raise ValueError(f"version {header['version']!r} of the format")
        size = int(header["width"]), int(header["height"])
        return Recording(*size, tuple(_events(lines[1:])))
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}", hint=hint) from error
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise RecordingError(f"{path}: no asciicast v2 recording: {error}", hint=hint) from error


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(_LARGEST_LINE_BYTES):
            yield line


def _events(lines: list[bytes]) -> Iterator[CastEvent]:
    for number, line in enumerate(lines):
        try:
            at_s, kind, text = json.loads(line)
        except ValueError:
            if number == len(lines) - 1:
                return
            raise
        yield CastEvent(float(at_s), str(kind), str(text))


def play(
    recording: Recording,
    write: Callable[[str], Any],
    wait_s: Callable[[float], Any],
    *,
    speed: float = 1.0,
    longest_pause_s: float | None = None,
) -> None:
    """Write what was recorded, at its times.

    Args:
        recording: The recording.
        write: Receives the terminal's text.
        wait_s: Waits so many seconds.
        speed: 2 plays twice as fast.
        longest_pause_s: Pauses are cut to this, before `speed`; None to keep them.
    """
    before_s = 0.0
    try:
        for event in recording.events:
            pause_s = max(0.0, event.at_s - before_s)
            before_s = event.at_s
            wait_s((pause_s if longest_pause_s is None else min(pause_s, longest_pause_s)) / speed)
            if event.kind == "o":
                write(event.text)
    finally:
        write(_RESET)
