"""A run that goes on without its terminal: a supervisor process of its own, and how its starter hears from it.

The supervisor gets its request on its command line (no secret is in it) and tells what happens on a pipe, one JSON
object a line: `pid`, `say` while it starts, then `ready` with the run's name, or `error`. What it says is also in
`supervisor.log` in the run's folder. It is nobody's child, so that no starter has to collect it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from llama_launch.errors import LlamaLaunchError, ServerStartError
from llama_launch.preflight import writable_folder
from llama_launch.serving import ServeRequest, serve_run
from llama_launch.state import RunRecord, chosen_run, process_start, wait_until_ended

__all__ = ["main", "start_detached"]


_END_S = 10.0


class StartFailed(LlamaLaunchError):
    """What the supervisor told of an error, with its exit status."""

    def __init__(self, message: str, *, hint: str, exit_code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


def start_detached(request: ServeRequest, say: Callable[[str], None]) -> RunRecord:
    """Start a run that goes on without this process, and wait until its server is ready.

    Args:
        request: What to run.
        say: Receives lines for a person.

    Raises:
        LlamaLaunchError: It did not become ready; nothing of it is left.
    """
    writable_folder(request.run_dir)
    log_path = request.run_dir / "supervisor.log"
    read_fd, write_fd = os.pipe()
    try:
        with log_path.open("ab") as log:
            subprocess.run(
                [sys.executable, "-m", "llama_launch.detached", json.dumps(request.document()), str(write_fd)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[write_fd],
                start_new_session=True,
                check=True,
            )
    except OSError as error:
        os.close(read_fd)
        raise ServerStartError(f"{log_path}: {error.strerror}", hint="choose another folder: --run-dir DIR") from error
    finally:
        os.close(write_fd)
    with os.fdopen(read_fd, encoding="utf-8", errors="replace") as news:
        return _listen(news, say, log_path)


def _listen(news: Iterable[str], say: Callable[[str], None], log_path: Path) -> RunRecord:
    pid, start = 0, None
    try:
        for line in news:
            told = json.loads(line)
            if "pid" in told:
                pid, start = told["pid"], process_start(told["pid"])
            elif "say" in told:
                say(told["say"])
            elif "ready" in told:
                return chosen_run(told["ready"])
            else:
                wait_until_ended(pid, start, _END_S)
                raise StartFailed(told["error"], hint=told["hint"], exit_code=told["exit_code"])
    except KeyboardInterrupt:
        if start is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            wait_until_ended(pid, start, _END_S)
        raise
    raise ServerStartError("the supervisor ended without a word", log_path=log_path, hint=f"read {log_path}")


def main(arguments: Sequence[str]) -> int:
    """Run `REQUEST PIPE_FD`: supervise until SIGTERM."""
    if os.fork():
        os._exit(0)
    request, news_fd = ServeRequest.from_document(json.loads(arguments[0])), int(arguments[1])
    os.set_inheritable(news_fd, False)
    signal.signal(signal.SIGTERM, _interrupt)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    news = _News(news_fd)
    news.tell({"pid": os.getpid()})
    try:
        serve_run(
            request,
            lambda text: news.tell({"say": text}),
            is_detached=True,
            on_ready=lambda record: news.end({"ready": record.name}),
        )
    except KeyboardInterrupt:
        return 0
    except LlamaLaunchError as error:
        news.end({"error": str(error), "hint": error.hint, "exit_code": error.exit_code})
        return error.exit_code
    except Exception as error:
        traceback.print_exception(error)
        news.end({"error": f"a fault of llama-launch: {error!r}", "hint": "please report it", "exit_code": 3})
        return 3
    return 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


class _News:
    """The pipe to the starter for as long as it listens, and the log."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def tell(self, message: dict[str, object]) -> None:
        text = " ".join(str(value) for key, value in message.items() if key in ("say", "error", "hint"))
        if text:
            with contextlib.suppress(OSError):  # a full disk stops no server
                print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}", flush=True)
        if self._fd >= 0:
            try:
                os.write(self._fd, json.dumps(message).encode() + b"\n")
            except OSError:
                self._close()

    def end(self, message: dict[str, object]) -> None:
        self.tell(message)
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
