"""A log read while it grows, until the server is ready or has failed.

The rule: readiness is what the log says. An allocation failure is not the end while the server may retry, so a failure
counts once the server says that it gives up, its log stays silent for a moment, or its process has ended.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from vram_report.capacity import DEFAULT_MARGIN_MIB
from vram_report.document import Device, LogReport, Source
from vram_report.errors import CommandNotStarted, LogNotFound
from vram_report.records import iter_records
from vram_report.report import build_run
from vram_report.runs import RunFacts, RunSplitter
from vram_report.stages import run_stage

__all__ = ["Follower", "follow_command", "follow_file"]

POLL_S = 0.1
"""How often a file is looked at for new lines; there is no portable way to be told."""

GRACE_S = 5.0
"""How long a command may take to end after SIGTERM before it is killed."""

FAILURE_SILENCE_S = 2.0
"""A failed server that has printed nothing for so long will not retry."""


class Follower:
    """The state of a log read line by line.

    Attributes:
        name: How the report names the source.
        lines: Lines read so far.
    """

    def __init__(self, name: str, *, margin_mib: float = DEFAULT_MARGIN_MIB) -> None:
        self.name = name
        self._margin_mib = margin_mib
        self._splitter = RunSplitter()
        self._latest: RunFacts | None = None
        self.lines = 0
        self._bytes = 0

    def feed(self, lines: Iterator[bytes]) -> Iterator[None]:
        """Take lines as they come; yields after each record, for the caller to look at the state."""
        for record in iter_records(self._decode(lines)):
            self._latest = self._splitter.take(record)
            yield

    def _decode(self, lines: Iterator[bytes]) -> Iterator[str]:
        for raw in lines:
            self.lines += 1
            self._bytes += len(raw)
            yield raw.decode("utf-8", "replace")

    @property
    def stage(self) -> str:
        """What the latest server start is doing, as `start_stage` names it."""
        return run_stage(self._latest)

    @property
    def is_ready(self) -> bool:
        """True once the latest server start has come up."""
        return self._latest is not None and self._latest.ready_line is not None

    @property
    def has_failed(self) -> bool:
        """True while the latest server start stands failed; a retry may still mend it."""
        return self._latest is not None and self._latest.failure is not None and not self._latest.in_fit

    @property
    def has_given_up(self) -> bool:
        """True once a failed start has said that it exits."""
        return self.has_failed and self._latest is not None and self._latest.exit_line is not None

    @property
    def has_ended(self) -> bool:
        """True once the latest server has said that it exits."""
        return self._latest is not None and self._latest.exit_line is not None

    @property
    def requests(self) -> int | None:
        """Requests that the latest server has begun; None while it is not ready."""
        return self._latest.requests.launched if self._latest is not None and self.is_ready else None

    @property
    def devices(self) -> list[Device]:
        """The latest server's devices."""
        report = self.report()
        return report.runs[-1].devices if report else []

    def report(self) -> LogReport | None:
        """The report so far, or None when no line was a server's."""
        runs = [build_run(facts, self._margin_mib) for facts in self._splitter.runs]
        return LogReport(Source(self.name, self.lines, self._bytes), runs) if runs else None


def follow_file(
    follower: Follower,
    path: str | Path,
    *,
    timeout_s: float | None = None,
    on_ready: Callable[[], None] | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Read a growing log until its server is ready, has failed, or the time is up.

    Args:
        follower: Takes the lines.
        path: The log; it must exist.
        timeout_s: Seconds to wait at most; None waits for ever.
        on_ready: Called once when the server is ready; reading then goes on until the server has ended.
        on_wait: Called each time that all is read and more is awaited.

    Raises:
        LogNotFound: If the file cannot be opened or read.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    told = False
    try:
        with Path(path).open("rb") as stream:
            silent_since = [time.monotonic()]

            def goes_on() -> bool:
                now = time.monotonic()
                if follower.has_failed and now - silent_since[0] >= FAILURE_SILENCE_S:
                    return False
                if deadline is not None and now >= deadline:
                    return False
                on_wait()
                return True

            for _ in follower.feed(_growing_lines(stream, goes_on)):
                silent_since[0] = time.monotonic()
                if follower.is_ready and on_ready is not None and not told:
                    told = True
                    on_ready()
                if follower.has_given_up or (follower.has_ended if told else follower.is_ready):
                    break
    except OSError as error:
        raise LogNotFound(str(path), error.strerror or str(error)) from error


def _growing_lines(stream: BinaryIO, goes_on: Callable[[], bool]) -> Iterator[bytes]:
    """Whole lines of a file as they are written, until `goes_on` says no at its end."""
    pending = b""
    while True:
        raw = stream.readline()
        if raw.endswith(b"\n"):
            yield pending + raw
            pending = b""
        elif raw:
            pending += raw
        elif goes_on():
            time.sleep(POLL_S)
        else:
            return


def follow_command(
    follower: Follower,
    command: Sequence[str],
    *,
    on_ready: Callable[[], None],
    echo: Callable[[bytes], None],
    timeout_s: float | None = None,
) -> None:
    """Start a server, pass its output on, and say when it is ready; returns when the server has ended.

    Args:
        follower: Takes the lines.
        command: The server's argv.
        on_ready: Called once, when the server is ready.
        echo: Receives each line of the server's output.
        timeout_s: The command is ended when it is not ready after so many seconds; None waits for ever.

    Raises:
        CommandNotStarted: If the command cannot be started.
    """
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise CommandNotStarted(command[0], error.strerror or str(error)) from error
    with process, _ended_unless_ready(process, follower, timeout_s):
        try:
            _pass_on(process, follower, on_ready, echo)
        except BaseException:
            _end(process)
            raise


@contextlib.contextmanager
def _ended_unless_ready(
    process: subprocess.Popen[bytes], follower: Follower, timeout_s: float | None
) -> Iterator[None]:
    def end() -> None:
        if not follower.is_ready:
            _end(process)

    timer = threading.Timer(timeout_s, end) if timeout_s is not None else None
    if timer is not None:
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _pass_on(
    process: subprocess.Popen[bytes],
    follower: Follower,
    on_ready: Callable[[], None],
    echo: Callable[[bytes], None],
) -> None:
    stream = process.stdout
    if stream is None:  # Popen gives a pipe for PIPE; this tells the type checker
        return

    def lines() -> Iterator[bytes]:
        for raw in stream:
            echo(raw)
            yield raw

    told = False
    for _ in follower.feed(lines()):
        if follower.is_ready and not told:
            told = True
            on_ready()
