"""Real processes: how they are started, waited for, and found again when they should be gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
OPENCODE = ROOT / "node_modules" / ".bin" / "opencode"


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    """Poll until `condition` holds; fails with `what` when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.02)


def processes_of(marker: str) -> list[psutil.Process]:
    """Living processes, zombies aside, whose command line or environment holds `marker`."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _holds(process, marker)]


def _holds(process: psutil.Process, marker: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return marker in " ".join(process.cmdline()) or marker in " ".join(process.environ().values())
    except psutil.Error:
        return False


@dataclass
class HarnessRun:
    """A running `opencode-harness run`, in a process group of its own as a shell would start it."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    output_path: Path

    @property
    def output(self) -> str:
        return self.output_path.read_text(encoding="utf-8", errors="replace")

    def interrupt(self) -> None:
        """What a terminal does on Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def left_over(self) -> list[str]:
        found = []
        for process in processes_of(str(self.run_dir)):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                found.append(" ".join(process.cmdline())[:200])
        return found


@contextlib.contextmanager
def harness_runs(folder: Path) -> Iterator[Callable[..., HarnessRun]]:
    """Gives what starts `opencode-harness run ARGUMENTS` in `folder`; whatever is left is killed at the end.

    The keyword `env` adds to the environment.
    """
    runs: list[HarnessRun] = []

    def start(*arguments: str | Path, env: Mapping[str, str] | None = None) -> HarnessRun:
        run_dir = folder / f"run-{len(runs)}"
        output_path = folder / f"output-{len(runs)}.txt"
        command = [sys.executable, "-m", "opencode_harness", "run", *arguments]
        command += ["--run-dir", run_dir, "--opencode", OPENCODE]
        with output_path.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        runs.append(HarnessRun(process, run_dir, output_path))
        return runs[-1]

    try:
        yield start
    finally:
        for run in runs:
            run.process.kill()
            run.process.wait()
            for process in processes_of(str(run.run_dir)):
                process.kill()
