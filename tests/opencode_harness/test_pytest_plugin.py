"""The plugin as a user meets it: pytest in a child process, a small HTTP server in place of llama-server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

FAKE = Path(__file__).with_name("fake_opencode.py")
PASSING = "prompt: Hi\nturns: [{text: hello there}]\nscreen_contains: hello there\n"
ASKING = "prompt: Hi\nscreen_contains: let in\n"
FAILING = "prompt: Hi\nturns: [{text: hello there}]\nscreen_contains:\n  - hello there\n  - goodbye\n"


class FakeServer(ThreadingHTTPServer):
    """Answers /slots with `n_slots` slots and notes every POST; erasing fails when `can_erase` is False."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.n_slots = 3
        self.can_erase = True
        self.key: str | None = None
        self.refused: list[str] = []
        self.posted: list[str] = []
        self.leased: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def is_let_in(self) -> bool:
        if self.server.key is None or self.headers.get("authorization") == f"Bearer {self.server.key}":
            return True
        self.server.refused.append(self.path)
        self.answer(401, {"error": {"code": 401, "message": "Invalid API Key"}})
        return False

    def do_GET(self) -> None:
        if not self.is_let_in():
            return
        slots = [{"id": index, "n_ctx": 8192, "is_processing": False} for index in range(self.server.n_slots)]
        props = {"default_generation_settings": {"n_ctx": 8192}, "total_slots": self.server.n_slots}
        self.answer(200, {"/slots": slots, "/props": props}.get(self.path, {"status": "ok"}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        if not self.is_let_in():
            return
        self.server.posted.append(self.path)
        if self.path == "/v1/chat/completions":
            self.server.leased += [body["id_slot"]] if "id_slot" in body else []
            self.chat()
        elif self.server.can_erase:
            self.answer(200, {"id_slot": 0, "n_erased": 5})
        else:
            self.answer(501, {"error": {"code": 501, "message": "no --slot-save-path", "type": "not_supported"}})

    def chat(self) -> None:
        delta = {"index": 0, "delta": {"role": "assistant", "content": "let in"}, "finish_reason": "stop"}
        timings = {"cache_n": 0, "prompt_n": 9}
        chunk = {"object": "chat.completion.chunk", "choices": [delta], "timings": timings}
        body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    opencode = folder / "opencode"
    opencode.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    opencode.chmod(0o755)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--oc-opencode={opencode}"]
    command += [f"--basetemp={folder / 'trials'}", f"--rootdir={folder}", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_slot_is_erased_before_each_test_that_may_use_it(tmp_path: Path, server: FakeServer) -> None:
    write(tmp_path, "test_plain.py", "def test_one(): pass\ndef test_two(): pass\n")
    write(tmp_path, "scenarios/asks.yaml", ASKING)
    write(tmp_path, "scenarios/scripted.yaml", PASSING)
    done = run_pytest(tmp_path, f"--oc-server={server.url}")
    assert "4 passed" in done.stdout, done.stdout
    erased = [path for path in server.posted if "erase" in path]
    assert erased == [f"/slots/{index}?action=erase&id_slot={index}" for index in range(3)] * 3


@pytest.mark.parametrize("mode", ["warm", "shared"])
def test_only_a_cold_trial_erases(tmp_path: Path, server: FakeServer, mode: str) -> None:
    write(tmp_path, "scenarios/asks.yaml", ASKING)
    done = run_pytest(tmp_path, f"--oc-server={server.url}", f"--oc-kv-mode={mode}")
    assert "1 passed" in done.stdout, done.stdout
    assert [path for path in server.posted if "erase" in path] == []


def test_workers_share_no_slot(tmp_path: Path, server: FakeServer) -> None:
    server.n_slots = 4
    for name in ("one", "two", "three", "four"):
        write(tmp_path, f"scenarios/{name}.yaml", ASKING)
    done = run_pytest(tmp_path, f"--oc-server={server.url}", "-n2", "--dist=load")
    assert "4 passed" in done.stdout, done.stdout
    assert set(server.leased) == {0, 2}
    assert len(server.leased) == 4


def test_a_flush_that_fails_is_a_warning_and_no_error(tmp_path: Path, server: FakeServer) -> None:
    server.can_erase = False
    write(tmp_path, "scenarios/asks.yaml", ASKING)
    done = run_pytest(tmp_path, f"--oc-server={server.url}")
    assert "1 passed" in done.stdout, done.stdout
    assert "KV cache not flushed" in done.stdout


def test_a_scripted_scenario_needs_no_server_that_is_there(tmp_path: Path) -> None:
    write(tmp_path, "scenarios/hello.yaml", PASSING)
    done = run_pytest(tmp_path, "--oc-server=http://127.0.0.1:9")
    assert "1 passed" in done.stdout, done.stdout
    assert "KV cache" not in done.stdout


def test_without_any_server_scenarios_that_need_one_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, "scenarios/hello.yaml", PASSING)
    write(tmp_path, "scenarios/asks.yaml", ASKING)
    done = run_pytest(tmp_path, "--oc-no-server")
    assert "1 passed, 1 skipped" in done.stdout, done.stdout


def test_scenarios_that_are_passed_over_are_told(tmp_path: Path) -> None:
    write(tmp_path, "scenarios/hello.yaml", PASSING)
    done = run_pytest(tmp_path)
    assert "scenario files were passed over; name a server with --oc-server URL" in done.stdout


def test_a_scenario_is_an_item_and_its_failure_names_file_and_line(tmp_path: Path, server: FakeServer) -> None:
    write(tmp_path, "scenarios/hello.yaml", PASSING)
    write(tmp_path, "scenarios/goodbye.yaml", FAILING)
    done = run_pytest(tmp_path, f"--oc-server={server.url}")
    assert done.returncode == 1
    assert re.search(r"scenarios/hello\.yaml::hello PASS \(\d+\.\d s, 2 requests\)", done.stdout), done.stdout
    assert "scenarios/goodbye.yaml::goodbye FAIL" in done.stdout
    assert "scenarios/goodbye.yaml:5: screen_contains: 'goodbye' not found in the screen" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_faulty_scenario_is_told_by_line_and_column(tmp_path: Path, server: FakeServer) -> None:
    write(tmp_path, "scenarios/typo.yaml", "prompt: Hi\nscren_contains: x\n")
    done = run_pytest(tmp_path, f"--oc-server={server.url}")
    assert done.returncode == 2
    assert "typo.yaml:2:1: unknown key 'scren_contains'" in done.stdout
    assert "did you mean 'screen_contains'?" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("option", ["--oc-kv-mode=lukewarm", "--oc-oracle=delphi", "--oc-repeat=often"])
@pytest.mark.parametrize("is_in_the_ini_file", [True, False])
def test_a_value_that_means_nothing_is_refused_before_anything_is_run(
    tmp_path: Path, option: str, is_in_the_ini_file: bool
) -> None:
    write(tmp_path, "scenarios/hello.yaml", PASSING)
    name, _, value = option.partition("=")
    if is_in_the_ini_file:
        write(tmp_path, "pytest.ini", f"[pytest]\n{name[2:].replace('-', '_')} = {value}\n")
    done = run_pytest(tmp_path, "--oc-no-server", *([] if is_in_the_ini_file else [option]))
    assert done.returncode == 4
    assert f"{name} '{value}'" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert not (tmp_path / "trials").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "collected"),
    [
        ("scenarios/deep/hello.yaml", (), True),
        ("hello.scenario.yaml", (), True),
        ("other/hello.yaml", (), False),
        ("other/hello.yaml", ("other/hello.yaml",), True),
    ],
)
def test_what_counts_as_a_scenario_file(
    tmp_path: Path, server: FakeServer, name: str, arguments: tuple[str, ...], collected: bool
) -> None:
    write(tmp_path, name, PASSING)
    done = run_pytest(tmp_path, f"--oc-server={server.url}", "--collect-only", *arguments)
    assert ("<ScenarioItem hello>" in done.stdout) is collected


def test_without_a_server_no_file_of_the_project_is_touched(tmp_path: Path) -> None:
    write(tmp_path, "scenarios/not-ours.yaml", "[")
    write(tmp_path, "test_plain.py", "def test_one(): pass\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_server_that_asks_for_a_key_gets_it_and_no_record_holds_it(tmp_path: Path, server: FakeServer) -> None:
    server.key = "k3y-0f-the-server"
    keys = write(tmp_path, "keys.txt", f"# the server's\n{server.key}\n")
    write(tmp_path, "scenarios/hello.yaml", "prompt: Hi\nscreen_contains: let in\n")
    done = run_pytest(tmp_path, f"--oc-server={server.url}", f"--oc-api-key-file={keys}")
    assert "1 passed" in done.stdout, done.stdout
    assert server.refused == []
    assert "/v1/chat/completions" in server.posted
    held = [
        path for path in (tmp_path / "trials").rglob("*") if path.is_file() and server.key in path.read_text("latin-1")
    ]
    assert held == []


def test_a_server_whose_key_is_missing_is_the_environments_fault(tmp_path: Path, server: FakeServer) -> None:
    server.key = "k3y-0f-the-server"
    write(tmp_path, "scenarios/hello.yaml", "prompt: Hi\nscreen_contains: let in\n")
    done = run_pytest(tmp_path, f"--oc-server={server.url}")
    assert "1 failed" in done.stdout, done.stdout
    assert "401" in done.stdout


def test_tags_select_scenarios_as_names_do(tmp_path: Path, server: FakeServer) -> None:
    write(tmp_path, "scenarios/one.yaml", PASSING + "tags: [quick]\n")
    write(tmp_path, "scenarios/two.yaml", PASSING + "tags: [slow]\n")
    done = run_pytest(tmp_path, f"--oc-server={server.url}", "--collect-only", "-q", "-k", "quick")
    assert "<ScenarioItem one>" in done.stdout
    assert "<ScenarioItem two>" not in done.stdout


def test_a_project_that_lies_in_a_folder_called_scenarios_has_no_more_of_them(
    tmp_path: Path, server: FakeServer
) -> None:
    project = tmp_path / "scenarios" / "project"
    write(project, "config/app.yaml", "setting: 1\n")
    write(project, "scenarios/one.yaml", PASSING)
    done = run_pytest(project, f"--oc-server={server.url}", "--collect-only", "-q")
    assert "<ScenarioItem one>" in done.stdout
    assert "app" not in done.stdout


def test_a_scenario_whose_requirements_are_not_met_is_skipped_with_the_reason(
    tmp_path: Path, server: FakeServer
) -> None:
    write(tmp_path, "one.scenario.yaml", "requires: {commands: no-such-program}\n" + PASSING)
    done = run_pytest(tmp_path, "--oc-server", server.url, "-rs")
    assert done.returncode == 0
    assert "it requires no-such-program, which is not on PATH" in " ".join(done.stdout.split())
