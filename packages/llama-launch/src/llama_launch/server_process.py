"""One server process on its leash, as its starter sees it: spawned, heard from, and released."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from llama_launch.errors import ServerStartError
from llama_launch.leash import LeashSettings, leashed
from llama_launch.rotating_log import shift_pieces

__all__ = ["ServerProcess"]

_GRACE_S = 2.0
_MIB = 1 << 20


class ServerProcess:
    """A running command in a session of its own, which ends when this process does.

    Args:
        argv: The command.
        log_path: Receives what it prints; an older log there becomes a numbered piece beside it.
        header: First lines of the log.
        ready: Regular expression for the line that says that the command is ready.
        log_max_mib: Size of a piece of the log.
        log_keep: How many older pieces are kept.
        environment: All variables of the command; this process's own if not given.

    Raises:
        ServerStartError: The log cannot be written, or no process can be made.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log_path: Path,
        header: str,
        ready: str,
        log_max_mib: float,
        log_keep: int,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._heard = b""
        self._is_swept = False
        self._begin_log(log_path, header, log_keep)
        hold_read, self._hold_fd = os.pipe()
        self._news_fd, news_write = os.pipe()
        settings = LeashSettings(
            hold_read, news_write, _GRACE_S, str(log_path), int(log_max_mib * _MIB), log_keep, ready
        )
        try:
            self._process = subprocess.Popen(
                leashed(argv, settings),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[hold_read, news_write],
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            os.close(self._hold_fd)
            os.close(self._news_fd)
            raise ServerStartError(f"cannot start {argv[0]}: {error}", log_path=log_path) from error
        finally:
            os.close(hold_read)
            os.close(news_write)
        os.set_blocking(self._news_fd, False)

    @staticmethod
    def _begin_log(path: Path, header: str, keep: int) -> None:
        try:
            shift_pieces(path, keep)
            with path.open("xb") as log:
                log.write(header.encode("utf-8", "surrogateescape"))
            path.chmod(0o600)
        except OSError as error:
            raise ServerStartError(
                f"{path}: {error.strerror}", log_path=path, hint="make room, or choose another folder: --run-dir DIR"
            ) from error

    @property
    def pid(self) -> int:
        """The leash's process id, which is also its process group's."""
        return self._process.pid

    def fileno(self) -> int:
        """Becomes readable when there is news, or when the process has ended; -1 once it is released."""
        return self._news_fd

    def has_said(self, word: str) -> bool:
        """Whether the leash has told this: `ready`, or `lost` for lines of the log that could not be written."""
        if self._news_fd >= 0:
            with contextlib.suppress(BlockingIOError):
                self._heard += os.read(self._news_fd, 4096)
        return word.encode() in self._heard.split(b"\n")

    def wait_for_news(self, timeout_s: float) -> None:
        """Wait until something is told, the process ends, or the time is over."""
        select.select([self._news_fd], [], [], timeout_s)

    def is_alive(self) -> bool:
        """Whether it runs."""
        if self._process.poll() is None:
            return True
        self._sweep()
        return False

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the command to end by itself; returns its exit status, 128 + N for signal N.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        status = self._process.wait(timeout_s)
        self._sweep()
        return status

    def release(self) -> None:
        """End the command and all its processes: SIGTERM, then SIGKILL after a grace period. Safe to call twice."""
        if self._hold_fd >= 0:
            fd, self._hold_fd = self._hold_fd, -1
            os.close(fd)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S + 1)
        finally:
            self._sweep()
            self._process.wait()
            if self._news_fd >= 0:
                fd, self._news_fd = self._news_fd, -1
                os.close(fd)

    def _sweep(self) -> None:
        """Kill what is left of the process group: once, since its number may be another's later."""
        if not self._is_swept:
            self._is_swept = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
