"""The command: what it prints, its exit status, and that its server never outlives it."""

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

import llama_launch
import psutil
import pytest
from llama_launch.cli import main

FakeServer = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def running(
    fake_server: FakeServer, profile: llama_launch.Profile, tmp_path: Path
) -> Iterator[llama_launch.RunningServer]:
    fake_server("well")
    with llama_launch.start_server(profile, run_dir=tmp_path / "run", backend="external") as server:
        yield server


class Command:
    """A running `llama-launch serve`."""

    def __init__(self, model: Path, run_dir: Path, *, terminal: int | None = None) -> None:
        words = ["serve", "--set", f"model={model}", "--run-dir", str(run_dir), "--backend", "external"]
        self.run_dir = run_dir
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llama_launch", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=None if terminal is None else lambda: attach(terminal),
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        while "Ctrl-C stops the server" not in (line := self.process.stdout.readline()):
            assert line, self.process.communicate()[1]

    def servers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def attach(terminal: int) -> None:
    """Make the terminal this process's own, as a shell in a terminal window has it."""
    os.setsid()
    fd = os.open(os.ttyname(terminal), os.O_RDWR)
    os.close(fd)


@pytest.fixture
def serve(fake_server: FakeServer, model: Path, tmp_path: Path) -> Iterator[Callable[[str], Command]]:
    commands: list[Command] = []

    def start(behaviour: str) -> Command:
        fake_server(behaviour)
        commands.append(Command(model, tmp_path / "run"))
        commands[-1].wait_until_ready()
        return commands[-1]

    yield start
    for command in commands:
        command.process.kill()
        command.process.communicate()


@pytest.mark.parametrize(
    ("behaviour", "number", "status"),
    [
        ("well", signal.SIGINT, 130),
        ("stubborn", signal.SIGTERM, 130),
        ("well", signal.SIGHUP, 130),
        ("well", signal.SIGKILL, -9),
        ("stubborn", signal.SIGKILL, -9),
        ("with-a-child", signal.SIGKILL, -9),
    ],
)
def test_nothing_is_left_running_within_five_seconds(
    serve: Callable[[str], Command], behaviour: str, number: int, status: int
) -> None:
    command = serve(behaviour)
    servers = command.servers()
    assert len(servers) >= 2
    started = time.monotonic()
    command.process.send_signal(number)
    assert command.process.wait(timeout=10) == status
    _, alive = psutil.wait_procs(servers, timeout=10)
    assert not alive
    assert time.monotonic() - started < 5


def test_a_closed_terminal_ends_the_server(fake_server: FakeServer, model: Path, tmp_path: Path) -> None:
    fake_server("well")
    ours, theirs = pty.openpty()
    command = Command(model, tmp_path / "run", terminal=theirs)
    os.close(theirs)
    try:
        command.wait_until_ready()
        servers = command.servers()
        os.close(ours)
        assert command.process.wait(timeout=10) == 130
        assert not psutil.wait_procs(servers, timeout=10)[1]
    finally:
        command.process.kill()
        command.process.communicate()


def test_a_server_that_is_killed_is_an_error_with_its_log(serve: Callable[[str], Command]) -> None:
    command = serve("well")
    command.servers()[-1].kill()
    _, errors = command.process.communicate(timeout=10)
    assert command.process.returncode == 3
    assert "error: the server ended by itself with status 137" in errors
    assert f"hint: read {command.run_dir}/server.log" in errors
    assert "Traceback" not in errors


def test_a_start_that_fails_is_status_3(fake_server: FakeServer, model: Path, tmp_path: Path, capsys: Capture) -> None:
    fake_server("missing-tensor")
    root = tmp_path / "root"
    assert main(["serve", "--set", f"model={model}", "--set", f"root={root}"]) == 3
    errors = capsys.readouterr().err
    assert "missing tensor 'token_embd.weight'" in errors
    (run_dir,) = root.iterdir()
    assert run_dir.name.startswith("smollm2-135m-")
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_root_that_is_a_link_is_refused(
    fake_server: FakeServer, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    fake_server("well")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "elsewhere")
    assert main(["serve", "--set", f"model={model}", "--set", f"root={tmp_path}/root"]) == 3
    assert "belongs to another user, or is a link" in capsys.readouterr().err


def test_a_dry_run_prints_a_line_that_can_be_pasted(fake_server: FakeServer, capsys: Capture, tmp_path: Path) -> None:
    fake_server("well")
    status = main(["serve", "gpt-oss-20b", "--set", "model=my models/a.gguf", "--dry-run", "--", "--no-warmup"])
    assert status == 0
    line = capsys.readouterr().out.strip()
    assert line.startswith(f"{tmp_path}/bin/llama-server --model 'my models/a.gguf' --port 8080 --slot-save-path ")
    assert line.endswith("--jinja --metrics --no-warmup")


def test_a_dry_run_checks_the_flags(fake_server: FakeServer, capsys: Capture) -> None:
    fake_server("well")
    assert main(["serve", "gpt-oss-20b", "--dry-run", "--", "--draft-max", "8"]) == 2
    assert "use --spec-draft-n-max or --spec-ngram-mod-n-max" in capsys.readouterr().err


def test_the_embedded_server_names_a_flag_that_it_lacks(capsys: Capture) -> None:
    pytest.importorskip("xllamacpp")
    assert main(["serve", "--backend", "embedded", "--dry-run", "--", "--rpc", "host:1"]) == 2
    assert "the embedded server has no --rpc" in capsys.readouterr().err


def test_a_footgun_is_a_warning(fake_server: FakeServer, capsys: Capture) -> None:
    fake_server("well")
    assert main(["serve", "gpt-oss-20b", "--set", "kv_unified=off", "--dry-run"]) == 0
    assert "warning: the KV cache is divided: no slot can use more than 32768 of 131072" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--set", "n_slots"], "expected KEY=VALUE"),
        (["serve", "--set", "n_slot=3"], "--set: unknown key 'n_slot'"),
        (["serve", "gpt-oss"], "did you mean 'gpt-oss-20b'?"),
        (["profile", "show", "/none.toml"], "/none.toml: No such file"),
        (["profile", "new", "../up"], "'../up' is not a name"),
    ],
)
def test_wrong_input_is_status_2_without_a_trace(words: list[str], message: str, capsys: Capture) -> None:
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_debug_shows_the_trace(capsys: Capture) -> None:
    assert main(["--debug", "serve", "gpt-oss"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_flags_after_two_dashes_are_for_serve_alone(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["slots", "--", "--no-warmup"])
    assert caught.value.code == 2
    assert "for `serve` alone" in capsys.readouterr().err


def test_a_flag_of_the_server_before_two_dashes_is_told_where_it_belongs(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--ctx-size", "100"])
    assert caught.value.code == 2
    assert "flags of llama-server go behind --" in capsys.readouterr().err


def test_slots_are_a_table_or_json(running: llama_launch.RunningServer, capsys: Capture) -> None:
    assert main(["slots", "--url", running.url]) == 0
    table = capsys.readouterr().out
    assert "│ 1    │ 32768 │ 0             │ yes           │" in table
    assert "│ 0    │ 32768 │ –             │ no            │" in table
    assert main(["slots", "--url", running.url, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == {
        "slot": 0,
        "n_ctx": 32768,
        "cached_tokens": None,
        "is_processing": False,
    }


@pytest.mark.parametrize(("slot", "count"), [("all", 4), ("2", 1)])
def test_slots_are_erased(running: llama_launch.RunningServer, capsys: Capture, slot: str, count: int) -> None:
    assert main(["slots", "erase", slot, "--url", running.url, "--format", "json"]) == 0
    erased = json.loads(capsys.readouterr().out)
    assert len(erased) == count
    assert {row["erased_tokens"] for row in erased} == {17}


def test_a_slot_that_is_not_cold_after_all_is_status_1(
    fake_server: FakeServer, profile: llama_launch.Profile, tmp_path: Path, capsys: Capture
) -> None:
    fake_server("refilled")
    with llama_launch.start_server(profile, run_dir=tmp_path / "run") as server:
        assert main(["slots", "erase", "1", "--url", server.url]) == 1
    assert "│ 1    │ 17            │ 40            │" in capsys.readouterr().out


def test_a_slot_is_saved_and_restored(running: llama_launch.RunningServer, capsys: Capture) -> None:
    assert main(["slots", "save", "0", "chat.bin", "--url", running.url, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"slot": 0, "file": "chat.bin", "saved_tokens": 5, "bytes": 99}]
    assert main(["slots", "restore", "1", "chat.bin", "--url", running.url, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["restored_tokens"] == 5
    assert main(["slots", "save", "0", "--url", running.url]) == 2
    assert "slots save needs a slot and a file" in capsys.readouterr().err


def test_a_slot_that_is_not_there_is_named(running: llama_launch.RunningServer, capsys: Capture) -> None:
    assert main(["slots", "erase", "9", "--url", running.url]) == 2
    assert "hint: slots: 0, 1, 2, 3, or all" in capsys.readouterr().err


def test_no_server_is_status_3(capsys: Capture) -> None:
    assert main(["slots", "--url", "http://127.0.0.1:9"]) == 3
    assert "error: http://127.0.0.1:9/slots: nothing answers" in capsys.readouterr().err


def test_profiles_are_listed_with_a_wrong_one_among_them(capsys: Capture) -> None:
    folder = Path(".llama-launch")
    folder.mkdir()
    (folder / "bad.toml").write_text("modell = 1\n")
    assert main(["profile", "list", "--format", "json"]) == 0
    listed = {row["profile"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed["gpt-oss-20b"]["from"] == "package"
    assert "unknown key 'modell'" in listed["bad"]["description"]
    assert main(["profile", "list"]) == 0
    assert "│ smollm2-135m │ package │" in capsys.readouterr().out


def test_a_profile_is_shown_with_its_context_and_origins(capsys: Capture) -> None:
    assert main(["profile", "show", "gpt-oss-20b", "--set", "n_slots=2", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["profile"]["n_ctx"] == 65536
    assert shown["origins"]["n_slots"] == "--set"
    assert main(["profile", "show", "gpt-oss-20b"]) == 0
    assert "n_slots x n_ctx_slot" in capsys.readouterr().out


def test_explain_gives_every_flag_a_reason(capsys: Capture) -> None:
    assert main(["profile", "show", "gpt-oss-20b", "--explain"]) == 0
    explained = capsys.readouterr().out
    for flag in ("--kv-unified", "--cache-type-k q8_0", "--ctx-size 131072", "--verbosity 4", "--jinja"):
        assert flag in explained
    assert "unified: all slots share one pool" in explained
    assert "package:gpt-oss-20b.toml:" in explained


def test_a_profile_is_checked_against_the_installed_server(
    fake_server: FakeServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server("well")
    assert main(["profile", "check", "gpt-oss-20b"]) == 0
    assert capsys.readouterr().out == "gpt-oss-20b: no fault found\n"
    monkeypatch.setenv("FAKE_LLAMA_OLD", "1")
    assert main(["profile", "check", "gpt-oss-20b"]) == 2
    assert "does not know --kv-unified" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "n_ctx"),
    [
        (["gpt-oss-20b"], 131072),
        (["fast", "--extends", "gpt-oss-20b"], 131072),
        (["mine"], 32768),
        (["mine", "--project"], 32768),
    ],
)
def test_a_new_profile_can_be_used_at_once(words: list[str], n_ctx: int, capsys: Capture) -> None:
    assert main(["profile", "new", *words]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.is_file()
    assert llama_launch.load_profile(words[0]).n_ctx == n_ctx
    assert main(["profile", "new", *words]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["serve"], ["slots"], ["profile"], ["model"]])
def test_help_has_examples(words: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    assert "llama-launch " in capsys.readouterr().out.partition("example")[2]


def test_the_version_is_the_installed_packages(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("llama-launch 0.")


def test_a_closed_pipe_ends_quietly() -> None:
    script = '"$0" -m llama_launch profile show gpt-oss-20b | true; echo "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_table_is_ascii_where_the_output_cannot_show_more() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llama_launch", "profile", "list"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"| smollm2-135m | package |" in done.stdout


@pytest.mark.parametrize(
    ("flags", "flag", "remedy"),
    [
        (["--api-key", "s3cret"], "--api-key", "api_key_file"),
        (["--api-key=s3cret"], "--api-key", "api_key_file"),
        (["--host", "0.0.0.0"], "--host", "--set host="),
        (["--port", "9999"], "--port", "--port N"),
        (["-c", "4096"], "-c", "n_ctx_slot"),
    ],
)
def test_a_flag_that_the_profile_decides_is_refused_as_an_extra_one(
    fake_server: FakeServer, capsys: Capture, model: Path, flags: list[str], flag: str, remedy: str
) -> None:
    fake_server("well")
    assert main(["serve", "--set", f"model={model}", "--backend", "external", "--dry-run", "--", *flags]) == 2
    captured = capsys.readouterr()
    assert f"{flag} cannot be an extra flag" in captured.err
    assert remedy in captured.err
    assert "s3cret" not in captured.out + captured.err


def test_a_new_profile_can_be_read_whatever_its_base_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "base 'q' \"d\".toml").write_text(
        'description = "fast \U0001f680 \\u007f \\"quoted\\""\nmodel = "m.gguf"\n', encoding="utf-8"
    )
    assert main(["profile", "new", "mine", "--extends", "./base 'q' \"d\".toml", "--project"]) == 0
    written = Path(capsys.readouterr().out.strip())
    profile = llama_launch.load_profile(str(written))
    assert profile.description == 'fast \U0001f680 \x7f "quoted"'
    assert Path(profile.model) == tmp_path / "m.gguf"
