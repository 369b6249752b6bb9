"""`new`, `record`, `show` and `play`, with stand-ins for OpenCode and for the server."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opencode_harness import HarnessError
from opencode_harness.cli import main
from opencode_harness.recording_player import CastEvent, Recording, play, read_recording

FAKE = Path(__file__).with_name("fake_opencode.py")
ASKING = "prompt: Hi\nscreen_contains: let in\n"
HEADER = '{"version": 2, "width": 120, "height": 36}\n'


class Handler(BaseHTTPRequestHandler):
    """As much of llama-server as a recording needs."""

    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        slots = [{"id": 0, "n_ctx": 8192, "is_processing": False}]
        settings = {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 1}
        props = {**settings, "model_path": "/far/away/tiny.gguf", "build_info": "b1-abc"}
        documents: dict[str, object] = {"/slots": slots, "/props": props}
        self.answer("application/json", json.dumps(documents.get(self.path, {"status": "ok"})).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path != "/v1/chat/completions":
            self.answer("application/json", b'{"id_slot": 0, "n_erased": 5}')
            return
        delta = {"index": 0, "delta": {"role": "assistant", "content": "let in"}, "finish_reason": "stop"}
        chunk = {"object": "chat.completion.chunk", "choices": [delta], "timings": {"cache_n": 0, "prompt_n": 9}}
        self.answer("text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())


@pytest.fixture
def server() -> Iterator[str]:
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    opencode = tmp_path / "opencode"
    opencode.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    opencode.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_scenario_passes_as_it_is(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "scenarios/fruit.yaml"]) == 0
    assert "opencode-harness run scenarios/fruit.yaml --no-server" in capsys.readouterr().out
    assert main(["run", "scenarios/fruit.yaml", "--no-server", "--opencode", "./opencode", "--run-dir", "run"]) == 0


@pytest.mark.parametrize("is_chosen", [True, False])
@pytest.mark.parametrize("command", ["run", "record"])
def test_a_run_folder_that_opencode_would_not_be_alone_in_is_refused_before_anything_starts(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, is_chosen: bool
) -> None:
    (project / "hi.yaml").write_text(ASKING)
    (project / ".opencode").mkdir()
    (project / "deep").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(project / "deep"))
    chosen = ["--run-dir", "deep/run"] if is_chosen else []
    # A server that is not there: it must not even be asked.
    assert main([command, "hi.yaml", "--server", "http://127.0.0.1:9", "--opencode", "./opencode", *chosen]) == 3
    assert f"{project / '.opencode'}, which OpenCode would read" in capsys.readouterr().err
    assert list((project / "deep").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "told"), [("there.yaml", "is there already"), ("odd.txt", "ends in .yaml"), ("there.yaml/x.yaml", "there")]
)
def test_a_new_scenario_replaces_nothing(
    project: Path, name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "there.yaml").write_text("mine")
    assert main(["new", name]) == 3
    assert told in capsys.readouterr().err
    assert (project / "there.yaml").read_text() == "mine"


def test_what_a_server_said_is_replayed_without_it_and_says_where_it_comes_from(project: Path, server: str) -> None:
    (project / "hi.yaml").write_text(ASKING)
    assert main(["record", "hi.yaml", "--server", server, "--opencode", "./opencode", "--run-dir", "record"]) == 0
    (cassette,) = project.glob("*.jsonl")
    header = json.loads(cassette.read_text().splitlines()[0])
    assert header["provenance"]["opencode"] == "1.18.33"
    assert header["provenance"]["build"] == "b1-abc"
    # The folder of the model is nobody's business.
    assert header["provenance"]["model"] == {"file": "tiny.gguf"}
    assert main(["run", "hi.yaml", "--no-server", "--opencode", "./opencode", "--run-dir", "replay"]) == 0
    (trial,) = json.loads((project / "replay" / "run.json").read_text())["trials"]
    assert (trial["source"], trial["outcome"]) == ("cassette", "pass")


def test_a_recording_that_is_there_is_not_replaced(
    project: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "hi.yaml").write_text(ASKING)
    arguments = ["record", "hi.yaml", "--server", server, "--opencode", "./opencode"]
    assert main([*arguments, "--run-dir", "one"]) == 0
    assert main([*arguments, "--run-dir", "two"]) != 0
    assert "delete it to record it again" in capsys.readouterr().err


def test_a_trial_that_fails_leaves_no_recording(project: Path, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "hi.yaml").write_text("prompt: Hi\nscreen_contains: plum\n")
    assert main(["record", "hi.yaml", "--server", server, "--opencode", "./opencode", "--run-dir", "run"]) == 1
    assert "FAIL, so nothing is recorded" in capsys.readouterr().out
    assert list(project.glob("*.jsonl")) == []


def test_hand_written_turns_are_nothing_to_record(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "hi.yaml").write_text(ASKING + "turns: [{text: let in}]\n")
    assert main(["record", "hi.yaml", "--server", "http://127.0.0.1:9", "--opencode", "./opencode"]) != 0
    assert "all turns are written by hand" in capsys.readouterr().err


def test_show_tells_outcome_requests_moments_and_screen(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["new", "fruit.yaml"])
    main(["run", "fruit.yaml", "--no-server", "--opencode", "./opencode", "--run-dir", "run"])
    capsys.readouterr()
    assert main(["show", "run"]) == 0
    out = capsys.readouterr().out
    assert "fruit.yaml: PASS (turns, " in out
    assert "request 3 main (scripted): " in out
    assert "100 computed, 10 generated, stop" in out
    assert "opencode-harness play run/trials/fruit0/artefacts" in out
    assert "     The fruit is kiwi." in out


def test_a_recording_is_played_to_a_terminal_with_all_its_bytes(project: Path) -> None:
    (project / "screen.cast").write_text(HEADER + '[0.0, "o", "one"]\n[0.1, "m", "ready"]\n[900.0, "o", "two"]\n')
    command = [sys.executable, "-m", "opencode_harness", "play", "screen.cast", "--longest-pause", "0.1"]
    parent, child = pty.openpty()
    with subprocess.Popen(command, stdout=child, stdin=child) as process:
        os.close(child)
        shown = b""
        while b"two" not in shown:
            shown += os.read(parent, 1024)
        assert process.wait(timeout=30) == 0
    os.close(parent)
    assert shown.startswith(b"onetwo")


def test_a_recording_is_not_poured_into_a_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "screen.cast").write_text(HEADER)
    assert main(["play", "screen.cast"]) == 2
    assert "opencode-harness show" in capsys.readouterr().err


def test_pauses_are_kept_cut_and_divided_by_the_speed() -> None:
    events = (CastEvent(1.0, "o", "a"), CastEvent(1.5, "m", "x"), CastEvent(9.5, "o", "b"))
    waited: list[float] = []
    written: list[str] = []
    play(Recording(80, 24, events), written.append, waited.append, speed=2.0, longest_pause_s=3.0)
    assert waited == [0.5, 0.25, 1.5]
    assert written[:2] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 3}', HEADER + "[1]\n[2]\n", HEADER + "nonsense\n[1.0, 2, 3]\n", "[" * 90_000, "\x00"],
)
def test_a_file_that_is_no_recording_is_told(project: Path, text: str) -> None:
    path = project / "screen.cast"
    path.write_text(text)
    with pytest.raises(HarnessError, match="no asciicast v2 recording"):
        read_recording(path)


def test_a_last_line_that_a_crash_cut_off_is_left_out(project: Path) -> None:
    path = project / "screen.cast"
    path.write_text(HEADER + '[0.5, "o", "one"]\n[0.7, "o", "tw')
    assert read_recording(path).events == (CastEvent(0.5, "o", "one"),)
