"""Keeps a server up: starts it again after a crash, gives up when that does not help, shrinks what did not fit.

The decisions are pure (`Restarts`); `supervise` carries them out for as long as it is not interrupted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import vram_report

from llama_launch.errors import ServerStartError
from llama_launch.failure import ServerFailure, failure_in
from llama_launch.profile import Profile
from llama_launch.server import RunningServer

__all__ = ["Observer", "OnOom", "RestartPolicy", "Restarts", "smaller_context", "supervise"]

OnOom = Literal["stop", "shrink"]
_CTX_STEP = 256
_FEWEST_TOKENS = 1024


@dataclass(frozen=True)
class RestartPolicy:
    """When a server is started again.

    Attributes:
        after_crash: Whether a server that went away by itself is.
        on_oom: What an allocation that failed leads to: `stop`, or `shrink` to the next context that fits.
        first_delay_s: Wait before the first restart; doubled for each that follows.
        longest_delay_s: The longest wait.
        most_failures: Failures in a row after which it is left.
        steady_s: A server that ran for so long has recovered: its failure is the first again.
    """

    after_crash: bool
    on_oom: OnOom = "stop"
    first_delay_s: float = 0.5
    longest_delay_s: float = 60.0
    most_failures: int = 5
    steady_s: float = 300.0


class Restarts:
    """Counts failures in a row, and says how long to wait, or that it is enough."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.failures = 0

    def delay_s(self, uptime_s: float) -> float | None:
        """Wait before the next start after a server that was ready for `uptime_s`; None for none."""
        self.failures = 1 if uptime_s >= self._policy.steady_s else self.failures + 1
        if not self._policy.after_crash or self.failures >= self._policy.most_failures:
            return None
        return float(min(self._policy.longest_delay_s, self._policy.first_delay_s * 2 ** (self.failures - 1)))


def smaller_context(profile: Profile, log_path: Path) -> Profile | None:
    """The profile with the next context that fits after an allocation failed; None when there is none to try.

    That is the largest that would have fitted by the log's own sizes; where the log does not give it, half. A slot
    gets no more than the model was trained for: the server would not use it.
    """
    run = _last_run(log_path)
    n_ctx = (vram_report.largest_context_that_fitted(run) if run else None) or profile.n_ctx // 2
    n_ctx_train = run.model.n_ctx_train if run else None
    most = min(profile.n_ctx_slot - 1, n_ctx_train or profile.n_ctx_slot)
    n_ctx_slot = min(n_ctx // profile.n_slots, most) // _CTX_STEP * _CTX_STEP
    return replace(profile, n_ctx_slot=n_ctx_slot) if n_ctx_slot >= _FEWEST_TOKENS else None


def _last_run(log_path: Path) -> vram_report.Run | None:
    try:
        return vram_report.read_log(log_path).runs[-1]
    except (vram_report.VRAMReportError, IndexError):
        return None


class Observer(Protocol):
    """Who is told what happens."""

    def starting(self, profile: Profile, n_restarts: int, why: str) -> None:
        """A start begins; `why` is empty for the first."""

    def ready(self, server: RunningServer) -> None:
        """The server is ready."""

    def waiting(self, why: str, delay_s: float) -> None:
        """The server failed and will be started again."""


def supervise(
    profile: Profile,
    start: Callable[[Profile], RunningServer],
    policy: RestartPolicy,
    observer: Observer,
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] | None = None,
) -> None:
    """Keep a server up until an exception ends this: KeyboardInterrupt, or the error that was one too many.

    Args:
        profile: What to start.
        start: Starts it and waits until it is ready.
        policy: When to start it again.
        observer: Told what happens.
        clock: Seconds.
        wait: Waits so many seconds.

    Raises:
        LlamaLaunchError: It does not start, or failed too often.
    """
    wait = wait or threading.Event().wait
    restarts = Restarts(policy)
    n_restarts, why = 0, ""
    while True:
        observer.starting(profile, n_restarts, why)
        ready_at = None
        try:
            with start(profile) as server:
                ready_at = clock()
                observer.ready(server)
                status = server.wait()
            error = _ended(server.log_path, status)
        except ServerStartError as failed:
            error = failed
        smaller = _smaller(profile, error)
        if smaller is not None and policy.on_oom == "shrink":
            why = f"out of memory: {profile.n_ctx_slot} tokens a slot are too many, trying {smaller.n_ctx_slot}"
            profile, n_restarts = smaller, n_restarts + 1
            continue
        # One that never was ready will not be by trying again, unless it has been before.
        delay_s = restarts.delay_s(0.0 if ready_at is None else clock() - ready_at)
        if delay_s is None or (ready_at is None and n_restarts == 0):
            raise _with_offer(error, smaller, restarts.failures)
        observer.waiting(str(error), delay_s)
        wait(delay_s)
        why, n_restarts = str(error), n_restarts + 1


def _ended(log_path: Path, status: int) -> ServerStartError:
    failure = failure_in(log_path)
    what = f"the server ended by itself with status {status}"
    if failure.is_out_of_memory or failure.remedy:
        what = f"{what}: {failure.message}"
    return ServerStartError(what, log_path=log_path, hint=_read(failure, log_path), failure=failure)


def _read(failure: ServerFailure, log_path: Path) -> str:
    return f"{failure.remedy}; the log is {log_path}" if failure.remedy else f"read {log_path}"


def _smaller(profile: Profile, error: ServerStartError) -> Profile | None:
    if error.failure is None or not error.failure.is_out_of_memory or error.log_path is None:
        return None
    return smaller_context(profile, error.log_path)


def _with_offer(error: ServerStartError, smaller: Profile | None, failures: int) -> ServerStartError:
    often = f" ({failures} times in a row: given up)" if failures > 1 else ""
    offer = f"try --set n_ctx_slot={smaller.n_ctx_slot}, or --on-oom shrink; " if smaller is not None else ""
    return ServerStartError(
        f"{error}{often}", log_path=error.log_path, hint=f"{offer}{error.hint}", failure=error.failure
    )
