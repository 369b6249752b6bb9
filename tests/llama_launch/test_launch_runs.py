"""Runs that go on by themselves: started, looked at, followed, restarted and ended, with the fake server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from llama_launch.cli import main
from llama_launch.state import find_runs, process_start, state_folder

FakeServer = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]


class Runs:
    """The command, with the fake server."""

    def __init__(self, model: Path, root: Path, capsys: Capture) -> None:
        self.model, self.root, self._capsys = model, root, capsys

    def words(self, *more: str) -> list[str]:
        return ["serve", "--set", f"model={self.model}", "--set", f"root={self.root}", "--backend", "external", *more]

    def serve(self, *more: str) -> None:
        assert main(self.words("--detach", *more)) == 0, self._capsys.readouterr().err

    def said(self, *words: str, status: int = 0) -> str:
        self._capsys.readouterr()
        assert main(list(words)) == status
        captured = self._capsys.readouterr()
        return captured.out if status == 0 else captured.err

    def status(self, name: str = "smollm2-135m") -> dict[str, Any]:
        documents = json.loads(self.said("status", "--all", "--format", "json"))["runs"]
        (found,) = [document for document in documents if document["name"] == name]
        return dict(found)

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while not condition(found := self.status()):
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        return found


@pytest.fixture
def runs(fake_server: FakeServer, model: Path, tmp_path: Path, capsys: Capture) -> Iterator[Runs]:
    fake_server("well")
    yield Runs(model, tmp_path / "root", capsys)
    watchers = [psutil.Process(record.pid) for record in find_runs() if record.is_alive]
    for watcher in watchers:
        watcher.terminate()
    psutil.wait_procs(watchers, timeout=10)


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def server_of(pid: int) -> psutil.Process:
    """The server itself: the last of supervisor, leash and server."""
    return family(pid)[-1]


def test_a_detached_run_goes_on_and_ends_when_it_is_told(runs: Runs) -> None:
    runs.serve()
    found = runs.status()
    assert (found["condition"], found["n_busy"], found["n_slots"]) == ("ready", 1, 4)
    assert found["version"] == "10068 (571d0d5)"
    assert found["argv"][1:3] == ["--model", str(runs.model)]
    processes = family(found["pid"])
    assert len(processes) == 3
    assert "smollm2-135m is stopped" in runs.said("stop")
    assert not psutil.wait_procs(processes, timeout=10)[1]
    assert runs.status()["condition"] == "stopped"
    assert "no server runs" in runs.said("status")
    assert "no server runs" in runs.said("stop", status=3)


def test_the_table_names_what_runs_where(runs: Runs) -> None:
    runs.serve("--name", "mine")
    shown = runs.said("status")
    for word in ("mine", "ready", "http://127.0.0.1:", "1 of 4", "32768", "tiny.gguf"):
        assert word in shown, shown


@pytest.mark.parametrize("which", ["supervisor", "leash", "both"])
def test_killed_supervisors_and_leashes_leave_no_server(runs: Runs, which: str) -> None:
    runs.serve("--restart", "never")
    processes = family(runs.status()["pid"])
    for process in processes[{"supervisor": slice(0, 1), "leash": slice(1, 2), "both": slice(0, 2)}[which]]:
        process.kill()
    assert not psutil.wait_procs(processes, timeout=10)[1]
    assert runs.status()["condition"] == ("failed" if which == "leash" else "dead")


def test_a_killed_server_is_started_again_at_the_same_address(runs: Runs) -> None:
    runs.serve()
    before = runs.status()
    server_of(before["pid"]).kill()
    after = runs.wait_for(lambda found: found["n_restarts"] == 1 and found["condition"] == "ready")
    assert after["url"] == before["url"]
    assert after["pid"] == before["pid"]
    assert "status 137" in after["message"]


def test_a_recycled_process_number_is_never_signalled(runs: Runs) -> None:
    """The record's number now belongs to another process: this test's own child."""
    runs.serve()
    runs.said("stop")
    other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        path = state_folder() / "smollm2-135m.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "pid": other.pid, "state": "ready"}))
        assert runs.status()["condition"] == "dead"
        assert "does not run" in runs.said("stop", "smollm2-135m", status=3)
        runs.serve()  # and its name is free
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_server_that_sleeps_is_told_apart_from_a_dead_one(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LLAMA", "asleep")
    runs.serve()
    assert runs.status()["condition"] == "asleep"


def test_a_server_that_hangs_is_told_by_name(runs: Runs) -> None:
    runs.serve()
    server = server_of(runs.status()["pid"])
    server.send_signal(signal.SIGSTOP)
    assert runs.status()["condition"] == "does not answer"
    server.send_signal(signal.SIGCONT)
    assert runs.status()["condition"] == "ready"


def test_two_runs_of_a_profile_have_two_names_and_a_name_is_given_once(runs: Runs) -> None:
    runs.serve()
    runs.serve()
    assert {record.name for record in find_runs()} == {"smollm2-135m", "smollm2-135m-2"}
    assert "several servers run" in runs.said("stop", status=3)
    refused = runs.said(*runs.words("--detach", "--name", "smollm2-135m"), status=3)
    assert "a run called 'smollm2-135m' is alive" in refused
    assert runs.said("stop", "--all").count("is stopped") == 2


def test_two_launches_at_once_never_share_a_folder_or_a_name(runs: Runs, tmp_path: Path) -> None:
    words = runs.words("--detach", "--name", "one", "--run-dir", str(tmp_path / "run"))
    started = [
        subprocess.Popen([sys.executable, "-m", "llama_launch", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    ended = [process.communicate(timeout=60) and process.returncode for process in started]
    assert sorted(ended) == [0, 3, 3]
    assert runs.status("one")["condition"] == "ready"


def test_a_start_that_fails_says_why_and_leaves_nothing(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LLAMA", "missing-tensor")
    errors = runs.said(*runs.words("--detach"), status=3)
    assert "missing tensor 'token_embd.weight'" in errors
    assert "hint: the file is incomplete" in errors
    found = runs.status()
    assert found["condition"] == "failed"
    assert "missing tensor" in found["message"]
    assert process_start(found["pid"]) is None


def test_what_does_not_fit_is_shrunk_when_asked(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LLAMA", "out-of-memory-above")
    monkeypatch.setenv("FAKE_LLAMA_MOST", "16384")
    runs.serve("--on-oom", "shrink")
    found = runs.status()
    assert found["profile"]["n_ctx_slot"] == 4096
    assert "out of memory: 8192 tokens a slot are too many" in found["message"]


def test_the_clients_limits_follow_the_context_that_fits(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LLAMA", "out-of-memory-above")
    monkeypatch.setenv("FAKE_LLAMA_MOST", "16384")
    config = tmp_path / "opencode.json"
    config.write_text('{"theme": "nord"}')
    runs.serve("--on-oom", "shrink", "--client-config", str(config), "--set", "n_slots=1", "--set", "n_ctx_slot=32768")
    document = json.loads(config.read_text())
    assert document["provider"]["llama-server"]["models"]["tiny"]["limit"]["context"] == 16384
    assert document["theme"] == "nord"


def test_a_client_config_that_cannot_be_written_stops_no_server(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "opencode.json").write_text("// a comment\n{}")
    assert "[client-config]" in runs.said(*runs.words("--detach", "--client-config", str(tmp_path / "opencode.json")))
    assert runs.status()["condition"] == "ready"


def test_a_detached_run_outlives_its_terminal(runs: Runs) -> None:
    ours, theirs = pty.openpty()

    def attach() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(theirs), os.O_RDWR))  # the terminal becomes this session's own

    command = subprocess.Popen(
        [sys.executable, "-m", "llama_launch", *runs.words("--detach")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=attach,
    )
    os.close(theirs)
    shown = b""
    while b"it goes on as" not in shown:
        shown += os.read(ours, 1024)
    os.close(ours)
    command.wait(timeout=10)
    assert runs.status()["condition"] == "ready"


def test_an_interrupted_start_leaves_nothing(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LLAMA", "hang")
    command = subprocess.Popen(
        [sys.executable, "-m", "llama_launch", *runs.words("--detach")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert command.stdout is not None
    assert "starting external server" in command.stdout.readline()
    found = runs.wait_for(lambda found: found["state"] == "starting" and len(family(found["pid"])) == 3)
    processes = family(found["pid"])
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=20) == 130
    command.stdout.close()
    assert not psutil.wait_procs(processes, timeout=10)[1]


def test_restart_brings_back_the_address_and_the_slots(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LLAMA", "refilled")  # its slots hold tokens
    runs.serve("--set", "n_slots=2")
    before = runs.status()
    said = runs.said("restart", "--keep-slots")
    assert "slot 1: 5 tokens are back" in said
    after = runs.status()
    assert (after["url"], after["run_dir"]) == (before["url"], before["run_dir"])
    assert after["pid"] != before["pid"]
    assert (Path(after["run_dir"]) / "server.log.1").exists()


def test_logs_shows_the_last_lines_and_follows_to_the_end(runs: Runs) -> None:
    runs.serve()
    assert runs.said("logs", "-n", "1").strip().endswith("server is listening on " + runs.status()["url"])
    assert runs.said("logs").startswith("# external server 10068 (571d0d5)")
    follower = subprocess.Popen([sys.executable, "-m", "llama_launch", "logs", "-f"], stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    assert follower.stdout.readline().startswith("# external server")
    log_path = Path(runs.status()["log_path"])
    with log_path.open("a") as log:
        log.write("a line with \x1b[31mcolour\n")
    shown = ""
    while "a line with" not in shown:
        shown = follower.stdout.readline()
        assert shown
    assert "\x1b" not in shown
    runs.said("stop")
    follower.communicate(timeout=20)
    assert follower.returncode == 0


def test_the_report_of_a_run_is_vram_reports(runs: Runs) -> None:
    runs.serve()
    shown = runs.said("report")
    assert shown.startswith("smollm2-135m: server 10068 (571d0d5), log ")
    assert "Model and server" in shown
    document = json.loads(runs.said("report", "--format", "json"))
    assert document["server_version"] == "10068 (571d0d5)"
    assert document["runs"][-1]["outcome"] == "ready"


def test_a_run_in_a_terminal_is_seen_and_stopped_but_not_restarted(runs: Runs) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "llama_launch", *runs.words()],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert command.stdout is not None
    while "Ctrl-C stops the server" not in (line := command.stdout.readline()):
        assert line
    assert runs.status()["condition"] == "ready"
    assert "runs in a terminal" in runs.said("restart", status=3)
    runs.said("stop")
    assert command.wait(timeout=10) == 130
    command.communicate()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 3}', "\x00"])
def test_a_damaged_record_hides_no_other(runs: Runs, text: str) -> None:
    runs.serve()
    (state_folder() / "broken.json").write_text(text)
    assert runs.status()["condition"] == "ready"


@pytest.mark.parametrize(("key", "value"), [("pid", "1"), ("pid", -1), ("pid", 1 << 70), ("argv", 3), ("url", None)])
def test_a_record_with_a_wrong_value_is_passed_over(runs: Runs, key: str, value: object) -> None:
    runs.serve()
    (path,) = state_folder().glob("*.json")
    wrong = {**json.loads(path.read_text()), "name": "wrong", key: value}
    (state_folder() / "wrong.json").write_text(json.dumps(wrong))
    assert runs.status()["condition"] == "ready"


def test_a_record_that_never_ends_is_passed_over(runs: Runs) -> None:
    runs.serve()
    os.mkfifo(state_folder() / "pipe.json")
    (state_folder() / "zero.json").symlink_to("/dev/zero")
    (state_folder() / "deep.json").write_text("[" * 200_000)
    assert runs.status()["condition"] == "ready"


def test_a_state_folder_that_cannot_be_written_is_said(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert "set XDG_STATE_HOME" in runs.said(*runs.words("--detach"), status=3)


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "a b", "x" * 65])
def test_a_name_that_is_none_is_refused(runs: Runs, name: str) -> None:
    assert "cannot be a run's name" in runs.said(*runs.words("--detach", "--name", name), status=3)
