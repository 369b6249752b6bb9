"""Bounds on what foreign code (a chat template) may take of this process: time and memory.

The rule: bounds belong to the process, so only the command sets them, around one piece of work, and takes them back.
Where the system has no such limit (Windows; memory on macOS), the work runs without.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

__all__ = ["OutOfTime", "bounded"]


class OutOfTime(Exception):
    """The work took longer than it may."""


@contextlib.contextmanager
def bounded(seconds: float, more_bytes: int) -> Iterator[None]:
    """Run a block with at most `seconds` of wall time and `more_bytes` more address space than is in use.

    Raises:
        OutOfTime: The block took longer.
        MemoryError: The block wanted more.
    """
    with _time_bound(seconds), _memory_bound(more_bytes):
        yield


@contextlib.contextmanager
def _time_bound(seconds: float) -> Iterator[None]:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise OutOfTime

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def _memory_bound(more_bytes: int) -> Iterator[None]:
    in_use = _address_space_bytes()
    if in_use is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = in_use + more_bytes
    bounds = [limit for limit in (wanted, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int | None:
    """Size of this process's address space (proc_pid_statm(5)); None where there is no /proc."""
    try:
        with Path("/proc/self/statm").open(encoding="ascii") as stream:
            pages = int(stream.read().split()[0])
    except (OSError, ValueError):
        return None
    import resource

    return pages * resource.getpagesize()
