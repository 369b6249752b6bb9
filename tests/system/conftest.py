"""Fixtures of the tests that start real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from system.processes import OPENCODE, HarnessRun, processes_of


@pytest.fixture
def start_harness(tmp_path: Path) -> Iterator[Callable[..., HarnessRun]]:
    """Starts `opencode-harness run ARGUMENTS`; whatever is left of it is killed afterwards."""
    runs: list[HarnessRun] = []

    def start(*arguments: str | Path) -> HarnessRun:
        run_dir = tmp_path / f"run-{len(runs)}"
        output_path = tmp_path / f"output-{len(runs)}.txt"
        command = [sys.executable, "-m", "opencode_harness", "run", *arguments]
        command += ["--run-dir", run_dir, "--opencode", OPENCODE]
        with output_path.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        runs.append(HarnessRun(process, run_dir, output_path))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.wait()
        for process in processes_of(str(run.run_dir)):
            process.kill()
