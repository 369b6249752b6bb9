"""A log read while it grows, and a server that is started and followed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vram_report.cli import main
from vram_report.follow import Follower, follow_file

FOLDER = Path(__file__).parents[2] / "fixtures" / "logs"
READY = FOLDER / "xllamacpp-2026.10.11549.p1.log"
FAILED = FOLDER / "llama-server-b10068.err_missing_model.log"
RETRIED = FOLDER / "cuda-m3-retry-no-pipeline-prefix.log"


def test_a_ready_log_is_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["follow", "--section", "server", str(READY)]) == 0
    assert "│ ready" in capsys.readouterr().out


def test_a_failed_log_is_reported_with_status_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["follow", "--section", "findings", str(FAILED)]) == 1
    assert "start-failed" in capsys.readouterr().out


class Watched(Follower):
    """Tells when it has taken the first record."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.has_begun = threading.Event()

    def feed(self, lines: Iterator[bytes]) -> Iterator[None]:
        for record in super().feed(lines):
            self.has_begun.set()
            yield record


def test_a_growing_log_is_read_until_the_server_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    raw = READY.read_bytes()
    path.write_bytes(raw[:5000])
    follower = Watched(str(path))

    def write_the_rest() -> None:
        assert follower.has_begun.wait(10)
        with path.open("ab") as stream:
            for start in range(5000, len(raw), 1000):
                stream.write(raw[start : start + 1000])
                stream.flush()

    writer = threading.Thread(target=write_the_rest)
    writer.start()
    follow_file(follower, path, timeout_s=30)
    writer.join()
    report = follower.report()
    assert report is not None
    assert follower.is_ready
    assert report.runs[0].kv_cache.total_mib == 39.0


def test_time_up_reports_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(READY.read_bytes()[:9000])
    assert main(["follow", "--timeout", "0", "--format", "json", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["runs"][0]["outcome"] == "incomplete"


def test_an_allocation_failure_that_is_retried_does_not_end_the_wait() -> None:
    follower = Follower(str(RETRIED))
    follow_file(follower, RETRIED, timeout_s=0)
    assert not follower.has_failed
    assert not follower.has_given_up


@pytest.mark.parametrize(("log", "status", "outcome"), [(READY, 0, "ready"), (FAILED, 1, "failed")])
def test_a_command_is_followed_to_its_end(
    log: Path, status: int, outcome: str, capfd: pytest.CaptureFixture[str]
) -> None:
    printer = "import pathlib, sys; sys.stderr.write(pathlib.Path(sys.argv[1]).read_text())"
    assert main(["follow", "--format", "json", "--", sys.executable, "-c", printer, str(log)]) == status
    captured = capfd.readouterr()
    assert json.loads(captured.out)["runs"][0]["outcome"] == outcome
    assert captured.err == log.read_text()


def test_a_command_that_is_not_there_is_the_environments_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["follow", "--", "/nonexistent/llama-server", "-lv", "4"]) == 3
    assert "/nonexistent/llama-server: cannot start it: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["follow"], ["follow", str(READY), "--", "true"]])
def test_follow_wants_one_of_log_and_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "either a log or a command" in capsys.readouterr().err


def test_a_log_that_is_not_a_servers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk\n")
    assert main(["follow", "--timeout", "0", str(path)]) == 2
    assert "no llama-server start in 1 lines" in capsys.readouterr().err


def test_a_command_that_is_never_ready_is_ended_when_the_time_is_up(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import time; print('srv    load_model: loading model', flush=True); time.sleep(600)"
    started_s = time.monotonic()
    assert main(["follow", "--timeout", "0.5", "--", sys.executable, "-c", program]) in (1, 2)
    assert time.monotonic() - started_s < 60


@pytest.mark.parametrize("timeout", ["-1", "nan", "1e300", "soon"])
def test_a_time_that_is_none_is_a_usage_error(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["follow", f"--timeout={timeout}", str(READY)]) == 2
    assert "--timeout" in capsys.readouterr().err


class Following:
    """`vram-report follow` as a process of its own, whose stderr is read line by line."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vram_report", "follow", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def says(self, wanted: str) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if wanted in line:
                return
        raise AssertionError(f"stderr ended without {wanted!r}")

    def interrupt(self) -> tuple[int, str, str]:
        self._process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> tuple[int, str, str]:
        """Exit status, stdout, and the rest of stderr."""
        out, err = self._process.communicate(timeout=30)
        return self._process.returncode, out, err


def test_waiting_says_what_for_and_each_stage_and_json_stays_alone_on_stdout(tmp_path: Path) -> None:
    lines = READY.read_bytes().splitlines(keepends=True)
    path = tmp_path / "server.log"
    path.write_bytes(b"")
    following = Following("--format", "json", str(path))
    following.says(f"{path}: waiting until its server is ready or has failed; Ctrl-C shows the report so far")
    following.says(f"{path}: starting")
    with path.open("ab", buffering=0) as stream:
        for text, stage in (
            (b"loading model '", "loading"),
            (b"fitting params to device memory", "fitting"),
            (b"constructing llama_context", "making the context"),
            (b"warming up the model", "warming up"),
            (b"listening on http", "ready"),
        ):
            last = next(index for index, line in enumerate(lines) if text in line) + 1
            stream.write(b"".join(lines[:last]))
            del lines[:last]
            following.says(f"{path}: {stage}")
    status, out, _ = following.end()
    assert status == 0
    assert json.loads(out)["runs"][0]["outcome"] == "ready"


def test_a_complete_log_is_reported_without_a_word_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["follow", str(READY)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent")
def test_ctrl_c_prints_the_report_so_far_with_status_130(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(READY.read_bytes()[:9000])
    following = Following("--format", "json", str(path))
    following.says(": loading")
    status, out, _ = following.interrupt()
    assert status == 130
    (run,) = json.loads(out)["runs"]
    assert run["outcome"] == "incomplete"
    assert run["model"]["path"] is not None


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent")
def test_ctrl_c_before_any_server_line_says_so_with_status_130(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("starting the container\n")
    following = Following(str(path))
    following.says(": starting")
    status, out, err = following.interrupt()
    assert (status, out) == (130, "")
    assert f"{path}: no llama-server start in 1 lines" in err


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent")
def test_ctrl_c_ends_a_command_and_prints_the_report_so_far(tmp_path: Path) -> None:
    part = tmp_path / "part.log"
    part.write_bytes(READY.read_bytes()[:9000])
    program = "import pathlib, sys, time; print(pathlib.Path(sys.argv[1]).read_text(), flush=True); time.sleep(600)"
    following = Following("--format", "json", "--", sys.executable, "-c", program, str(part))
    following.says("llama_model_loader: loaded meta data")
    status, out, _ = following.interrupt()
    assert status == 130
    assert json.loads(out)["runs"][0]["outcome"] == "incomplete"
