"""A leash: runs a command that ends when whoever started the leash ends, however that happens, and keeps its log.

The starter holds the write end of a pipe and passes the read end; when the starter dies, even by kill -9, the kernel
closes the pipe and the leash ends its command: SIGTERM, then SIGKILL after a grace period. The leash itself is the
weak point, so on Linux the command also gets SIGKILL when the leash dies (PR_SET_PDEATHSIG, prctl(2); it follows the
thread that started the command, which is why the main thread does and then only waits).

What the command prints comes through the leash into a log that is rotated by size. What the starter waits for is told
on a second pipe, a word a line; that pipe closes when the leash ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from llama_launch.rotating_log import RotatingLog

__all__ = ["LeashSettings", "leashed", "main"]

_PR_SET_PDEATHSIG = 1
_CHUNK_BYTES = 1 << 16
_DRAIN_S = 0.5


class LeashSettings(NamedTuple):
    """How a command is held and logged.

    Attributes:
        hold_fd: Read end of the pipe whose closing ends the command.
        news_fd: Write end of the pipe that the starter reads news from.
        grace_s: Time between SIGTERM and SIGKILL.
        log: The log, which exists and may have a header.
        log_max_bytes: Size at which a new piece begins.
        log_keep: How many older pieces are kept.
        ready: Regular expression found in the line that ends the start-up part.
    """

    hold_fd: int
    news_fd: int
    grace_s: float
    log: str
    log_max_bytes: int
    log_keep: int
    ready: str


def leashed(command: Sequence[str], settings: LeashSettings) -> list[str]:
    """The command line that runs `command` on a leash."""
    # By path, without site packages: this file needs the standard library alone, and starts in no time. Without
    # bytecode: a full disk would leave half a file of it behind.
    return [sys.executable, "-I", "-S", "-B", __file__, json.dumps(settings._asdict()), *command]


def main(arguments: Sequence[str]) -> int:
    """Run `SETTINGS COMMAND...`; returns the command's exit status (128 + N for signal N)."""
    settings, command = LeashSettings(**json.loads(arguments[0])), list(arguments[1:])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log = _open_log(settings)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            preexec_fn=_die_with_parent(os.getpid()),
        )
    except OSError as error:
        log.write(f"error: cannot start {command[0]}: {error.strerror}\n".encode("utf-8", "replace"))
        return 127
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    released = threading.Event()
    threading.Thread(target=_end_when_released, args=(settings, process, released), daemon=True).start()
    copying = threading.Thread(target=_copy, args=(process, log), daemon=True)
    copying.start()
    status: int = process.wait()
    copying.join(_DRAIN_S)  # what the command started may hold the pipe for longer
    if released.is_set():
        # What the command itself started is in the same group, and so is this process: nobody waits for its status.
        os.killpg(0, signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _open_log(settings: LeashSettings) -> RotatingLog:
    def tell(word: str) -> None:
        with contextlib.suppress(OSError):
            os.write(settings.news_fd, f"{word}\n".encode())

    made: RotatingLog = _sibling("rotating_log").RotatingLog(
        Path(settings.log),
        max_bytes=settings.log_max_bytes,
        keep=settings.log_keep,
        ready=re.compile(settings.ready.encode()),
        tell=tell,
    )
    return made


def _sibling(name: str):  # type: ignore[no-untyped-def]  # a module's type is not known before it is loaded
    """A module beside this one, loaded without the package and what that imports."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _copy(process: subprocess.Popen[bytes], log: RotatingLog) -> None:
    assert process.stdout is not None
    while data := os.read(process.stdout.fileno(), _CHUNK_BYTES):
        log.write(data)


def _die_with_parent(parent: int) -> Callable[[], None]:
    """What the command does before it starts: ask for SIGKILL at the leash's death, and ignore nothing."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return prepare


def _end_when_released(settings: LeashSettings, process: subprocess.Popen[bytes], released: threading.Event) -> None:
    while os.read(settings.hold_fd, 1):
        continue
    released.set()
    process.terminate()
    try:
        process.wait(settings.grace_s)
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
