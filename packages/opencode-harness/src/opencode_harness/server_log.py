"""What the server wrote into its log while a trial ran, and which of it belongs to a request.

The lines are llama-server's (tools/server/server-context.cpp, build 11549): a slot's lines name the slot and the task,
and a task's timing line has the same milliseconds and tokens as the timings in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import vram_report

__all__ = ["LogLine", "TaskOnSlot", "lines_since", "log_mark", "task_of", "vram_of"]

# More than a trial's worth; what comes after it is left out.
_LARGEST_READ_BYTES = 4 * 1024 * 1024
_SLOT_RE = re.compile(r"\bid +(?P<slot>\d+) \| task ")
_TIMING_RE = re.compile(
    r"id +(?P<slot>\d+) \| task (?P<task>\d+) \| prompt eval time = +(?P<ms>[\d.]+) ms / +(?P<tokens>\d+) tokens"
)


@dataclass(frozen=True)
class LogLine:
    """A line of the log, with its number from 1."""

    number: int
    text: str


@dataclass(frozen=True)
class TaskOnSlot:
    """Which slot computed a request, as which task, and the lines that name both."""

    slot: int
    task: int
    lines: tuple[LogLine, ...]


def log_mark(path: Path | None) -> int | None:
    """How many bytes the log holds now; None when it cannot be read."""
    try:
        return None if path is None else path.stat().st_size
    except OSError:
        return None


def lines_since(path: Path | None, mark: int | None, slots: Collection[int] = ()) -> tuple[LogLine, ...]:
    """What was written since; empty when the log cannot be read.

    Args:
        path: The log.
        mark: How many bytes it held before.
        slots: Lines that name another slot than these are somebody else's; empty for none.
    """
    if path is None or mark is None:
        return ()
    try:
        with path.open("rb") as file:
            lines_before = _line_ends(file, mark)
            data = file.read(_LARGEST_READ_BYTES)
    except OSError:
        return ()
    texts = data.decode("utf-8", "replace").splitlines()
    lines = (LogLine(number, text) for number, text in enumerate(texts, start=lines_before + 1))
    return tuple(line for line in lines if not slots or _slot_of(line.text) in {None, *slots})


def _line_ends(file: BinaryIO, n_bytes: int) -> int:
    """How many lines end in a file's next bytes, which are read past."""
    count = 0
    while n_bytes > 0 and (data := file.read(min(n_bytes, _LARGEST_READ_BYTES))):
        count += data.count(b"\n")
        n_bytes -= len(data)
    return count


def _slot_of(text: str) -> int | None:
    found = _SLOT_RE.search(text)
    return None if found is None else int(found["slot"])


def task_of(timings: Mapping[str, Any] | None, lines: Sequence[LogLine]) -> TaskOnSlot | None:
    """The task whose timing line has the milliseconds and tokens of an answer's timings."""
    prompt_ms, prompt_n = (timings or {}).get("prompt_ms"), (timings or {}).get("prompt_n")
    if not isinstance(prompt_ms, (int, float)) or not isinstance(prompt_n, int):
        return None
    for line in lines:
        found = _TIMING_RE.search(line.text)
        # The log has two decimals, the answer three.
        if found and int(found["tokens"]) == prompt_n and abs(float(found["ms"]) - prompt_ms) < 0.006:
            name = re.compile(rf"id +{found['slot']} \| task {found['task']} \|")
            own = tuple(line for line in lines if name.search(line.text))
            return TaskOnSlot(int(found["slot"]), int(found["task"]), own)
    return None


def vram_of(path: Path | None) -> dict[str, float]:
    """MiB that the server's model, context and compute buffers take, by device; empty where the log does not tell."""
    if path is None:
        return {}
    try:
        report = vram_report.read_log(path)
    except vram_report.VRAMReportError:
        return {}
    held = {device.name: _held_mib(device) for device in report.runs[-1].devices} if report.runs else {}
    return {name: mib for name, mib in held.items() if mib > 0}


def _held_mib(device: vram_report.Device) -> float:
    if device.used_mib is not None:
        return device.used_mib
    parts = (device.weights_mib, device.kv_mib, device.recurrent_mib, device.compute_mib, device.output_mib)
    return sum(part for part in parts if part is not None)
