"""A leash: runs a command that ends when whoever started the leash ends, however that happens.

The starter holds the write end of a pipe and passes the read end; when the starter dies, even by kill -9, the kernel
closes the pipe and the leash ends its command: SIGTERM, then SIGKILL after a grace period. The leash itself is the
weak point, so on Linux the command also gets SIGKILL when the leash dies (PR_SET_PDEATHSIG, prctl(2); it follows the
thread that started the command, which is why the main thread does and then only waits).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

__all__ = ["leashed", "main"]

_PR_SET_PDEATHSIG = 1


def leashed(command: Sequence[str], read_fd: int, grace_s: float) -> list[str]:
    """The command line that runs `command` on a leash held through the pipe `read_fd`."""
    # By path, and without the user's site packages: this file needs the standard library alone and starts in no time.
    return [sys.executable, "-I", "-S", __file__, str(read_fd), str(grace_s), *command]


def main(arguments: Sequence[str]) -> int:
    """Run `PIPE_FD GRACE_S COMMAND...`; returns the command's exit status (128 + N for signal N)."""
    read_fd, grace_s, command = int(arguments[0]), float(arguments[1]), list(arguments[2:])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent(os.getpid()))
    except OSError as error:
        print(f"error: cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    released = threading.Event()
    threading.Thread(target=_end_when_released, args=(read_fd, process, grace_s, released), daemon=True).start()
    status: int = process.wait()
    if released.is_set():
        # What the command itself started is in the same group, and so is this process: nobody waits for its status.
        os.killpg(0, signal.SIGKILL)
    return status if status >= 0 else 128 - status


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


def _end_when_released(
    read_fd: int, process: subprocess.Popen[bytes], grace_s: float, released: threading.Event
) -> None:
    while os.read(read_fd, 1):
        continue
    released.set()
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
