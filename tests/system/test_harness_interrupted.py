"""Ctrl-C, SIGTERM and kill -9 at any moment: OpenCode, proxy and server end, and nothing is left running."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from system.processes import HarnessRun, processes_of, wait_until

pytestmark = pytest.mark.system

LIVE = """\
prompt: Count from one to one hundred in words.
max_output_tokens: 1024
screen_contains: never looked at
"""
# How a person or a supervisor ends a run, and what the command's exit status is then.
INTERRUPTIONS = {
    "ctrl-c": (HarnessRun.interrupt, 130),
    "sigterm": (lambda run: run.process.send_signal(signal.SIGTERM), 130),
    "kill-9": (lambda run: run.process.kill(), -signal.SIGKILL),
}


def server_is_starting(run: HarnessRun) -> bool:
    return bool(list(run.run_dir.glob("server/*"))) and len(processes_of(str(run.run_dir))) > 1


def opencode_is_starting(run: HarnessRun) -> bool:
    return any(path.stat().st_size for path in run.run_dir.glob("trials/*/artefacts/stdout.raw"))


def model_is_answering(run: HarnessRun) -> bool:
    return any('"main"' in path.read_text() for path in run.run_dir.glob("trials/*/artefacts/requests.jsonl"))


MOMENTS = {
    "server-starting": server_is_starting,
    "opencode-starting": opencode_is_starting,
    "model-answering": model_is_answering,
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("interruption", INTERRUPTIONS)
def test_nothing_is_left_running_within_five_seconds(
    tmp_path: Path, start_harness: Callable[..., HarnessRun], moment: str, interruption: str
) -> None:
    folder = tmp_path / "live"
    folder.mkdir()
    (folder / "count.yaml").write_text(LIVE)
    run = start_harness(folder, "--backend", "embedded")
    wait_until(lambda: MOMENTS[moment](run) or run.process.poll() is not None, f"{moment}\n{run.output}")
    assert run.process.poll() is None, run.output
    interrupt, status = INTERRUPTIONS[interruption]
    started = time.monotonic()
    interrupt(run)
    assert run.process.wait(timeout=10) == status, run.output
    wait_until(lambda: not run.left_over(), f"the end of {run.left_over()}", timeout_s=10)
    assert time.monotonic() - started < 5
    assert "Traceback" not in run.output
