"""Starting, failing and stopping, with a fake llama-server that misbehaves on command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import llama_launch
import psutil
import pytest
from llama_launch import ModelError, Profile, ServerStartError, start_server
from llama_launch.cli import main

FakeServer = Callable[[str], Path]


def start(profile: Profile, run_dir: Path, *, timeout_s: float = 30) -> llama_launch.RunningServer:
    return start_server(profile, run_dir=run_dir, backend="external", timeout_s=timeout_s)


def test_a_server_that_is_ready_says_what_it_is(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    fake_server("well")
    lines: list[str] = []
    with start_server(profile, run_dir=tmp_path / "run", progress=lines.append) as server:
        assert server.backend == "external"
        assert server.version == "10068 (571d0d5)"
        assert server.is_alive()
        assert server.client.props().n_slots == 4
        log = server.log_path.read_text()
    assert not server.is_alive()
    assert log.startswith("# external server 10068 (571d0d5)\n# ")
    assert "llama-server --model" in log.splitlines()[1]
    assert "starting external server 10068 (571d0d5) with tiny.gguf, 4 slots" in lines[0]
    assert lines[-1].startswith(f"ready at {server.url} after ")


def test_a_program_that_cannot_run_is_told_before_anything_starts(
    fake_server: FakeServer, profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_server("cannot-run")
    with pytest.raises(ServerStartError, match=r"llama-server cannot run: .*libllama-common\.so\.0"):
        start(profile, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert main(["profile", "check", "smollm2-135m", "--set", f"model={profile.model}"]) == 3


def test_stop_can_be_called_twice(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    fake_server("well")
    server = start(profile, tmp_path / "run")
    server.stop()
    server.stop()
    assert not server.is_alive()


def test_a_server_that_ignores_sigterm_is_gone_within_five_seconds(
    fake_server: FakeServer, profile: Profile, tmp_path: Path
) -> None:
    fake_server("stubborn")
    server = start(profile, tmp_path / "run")
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 5
    assert not psutil.pid_exists(server.pid)


def test_what_the_server_started_ends_with_it(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    marker = str(fake_server("with-a-child"))
    with start(profile, tmp_path / "run"):
        assert any(marker in word for process in children() for word in process.cmdline())
    assert not [process for process in psutil.process_iter() if is_marked(process, marker)]


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def is_marked(process: psutil.Process, marker: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and marker in process.cmdline()
    except psutil.Error:
        return False


def test_a_server_that_is_killed_is_not_alive(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    fake_server("well")
    with start(profile, tmp_path / "run") as server:
        for process in psutil.Process(server.pid).children():
            process.kill()
        assert server.wait(timeout_s=10) == 128 + signal.SIGKILL
        assert not server.is_alive()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs PR_SET_PDEATHSIG, which is Linux's")
def test_a_leash_that_is_killed_takes_the_server_along(
    fake_server: FakeServer, profile: Profile, tmp_path: Path
) -> None:
    fake_server("stubborn")
    with start(profile, tmp_path / "run") as server:
        on_leash = psutil.Process(server.pid).children()
        os.kill(server.pid, signal.SIGKILL)
        gone, alive = psutil.wait_procs(on_leash, timeout=10)
        assert gone
        assert not alive


def test_health_that_says_loading_is_waited_for(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    fake_server("loading")
    with start(profile, tmp_path / "run") as server:
        assert server.client.is_healthy()


def test_a_port_that_is_taken_meanwhile_is_replaced(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    marker = fake_server("port-taken-once")
    with start(profile, tmp_path / "run") as server:
        assert server.client.is_healthy()
        assert not server.url.endswith(":" + marker.read_text())


def test_a_port_that_is_always_taken_is_an_error(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    fake_server("bind-failure")
    with pytest.raises(ServerStartError, match=r"port \d+ is in use"):
        start(profile, tmp_path / "run")


def test_a_busy_port_is_named_before_anything_starts(fake_server: FakeServer, model: Path, tmp_path: Path) -> None:
    fake_server("well")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        profile = llama_launch.load_profile("smollm2-135m", {"model": str(model), "port": port})
        with pytest.raises(ServerStartError, match=rf"port {port} of 127\.0\.0\.1 is in use") as caught:
            start(profile, tmp_path / "run")
    assert "--port 0" in caught.value.hint
    assert not (tmp_path / "run" / "server.log").exists()


def test_a_failed_start_names_the_cause_and_the_log(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    fake_server("missing-tensor")
    with pytest.raises(ServerStartError, match=r"missing tensor 'token_embd\.weight'") as caught:
        start(profile, tmp_path / "run")
    assert caught.value.log_path == tmp_path / "run" / "server.log"
    assert str(caught.value.log_path) in caught.value.hint


def test_a_server_that_dies_without_a_word_is_told_by_its_status(
    fake_server: FakeServer, profile: Profile, tmp_path: Path
) -> None:
    fake_server("silent")
    with pytest.raises(ServerStartError, match="the server ended with status 7: it said nothing"):
        start(profile, tmp_path / "run")


def test_a_start_that_hangs_is_ended_in_time_and_says_where_it_was(
    fake_server: FakeServer, profile: Profile, tmp_path: Path
) -> None:
    fake_server("hang")
    lines: list[str] = []
    with pytest.raises(ServerStartError, match="not ready after"):
        start_server(profile, run_dir=tmp_path / "run", backend="external", progress=lines.append, timeout_s=3)
    assert any(line.startswith("warming up (") for line in lines)
    assert not children()


def test_health_alone_is_not_readiness(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    """Whoever answers on the port, it is this server only once its own log says so."""
    fake_server("healthy-without-a-word")
    with pytest.raises(ServerStartError, match="not ready after"):
        start(profile, tmp_path / "run", timeout_s=1)


def test_flags_that_the_installed_server_lacks_are_named(
    fake_server: FakeServer, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server("well")
    monkeypatch.setenv("FAKE_LLAMA_OLD", "1")
    with pytest.raises(llama_launch.FlagsRefused, match="does not know --kv-unified") as caught:
        start(profile, tmp_path / "run")
    assert caught.value.flags == ("--kv-unified",)
    assert "did you mean --kv-unify?" in caught.value.hint


def test_a_missing_model_is_answered_with_where_to_get_it(fake_server: FakeServer, tmp_path: Path) -> None:
    fake_server("well")
    profile = llama_launch.load_profile("gpt-oss-20b")
    with pytest.raises(ModelError, match=r"model gpt-oss-20b-mxfp4\.gguf: No such file") as caught:
        start(profile, tmp_path / "run")
    assert "ggml-org/gpt-oss-20b-GGUF" in caught.value.hint


def test_a_file_that_is_no_model_is_refused(fake_server: FakeServer, model: Path, tmp_path: Path) -> None:
    fake_server("well")
    model.write_bytes(b"<html>not found</html>")
    profile = llama_launch.load_profile("smollm2-135m", {"model": str(model)})
    with pytest.raises(ModelError, match=r"tiny\.gguf.*GGUF"):
        start(profile, tmp_path / "run")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_model_that_is_no_file_is_refused_and_not_waited_for(
    fake_server: FakeServer, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    fake_server("well")
    make(tmp_path / "odd.gguf")
    profile = llama_launch.load_profile("smollm2-135m", {"model": str(tmp_path / "odd.gguf")})
    with pytest.raises(ModelError, match=r"odd\.gguf: not a regular file"):
        start(profile, tmp_path / "run")


def test_a_model_that_was_cut_is_refused(fake_server: FakeServer, model: Path, tmp_path: Path) -> None:
    fake_server("well")
    model.write_bytes(model.read_bytes()[:-1])
    profile = llama_launch.load_profile("smollm2-135m", {"model": str(model)})
    with pytest.raises(ModelError, match=r"tiny\.gguf is not whole: expected 128 bytes of data") as caught:
        start(profile, tmp_path / "run")
    assert caught.value.hint == "download it again"


def test_a_slot_above_the_training_context_is_a_warning(fake_server: FakeServer, model: Path, tmp_path: Path) -> None:
    fake_server("well")
    profile = llama_launch.load_profile("smollm2-135m", {"model": str(model), "n_ctx_slot": 16384})
    lines: list[str] = []
    with start_server(profile, run_dir=tmp_path / "run", progress=lines.append):
        pass
    assert lines[0].startswith("warning: a slot has 16384 tokens, but the model was trained for 8192")


def test_a_named_program_that_is_missing_is_no_reason_to_take_another(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_SERVER", "/nowhere/llama-server")
    with pytest.raises(ServerStartError, match="LLAMA_SERVER=/nowhere/llama-server: no such program"):
        start_server(profile, run_dir=tmp_path / "run")


def test_a_run_folder_that_cannot_be_written_is_named(
    fake_server: FakeServer, profile: Profile, tmp_path: Path
) -> None:
    fake_server("well")
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerStartError, match="file/run: Not a directory"):
        start(profile, tmp_path / "file" / "run")


def test_saved_slots_lie_below_the_run_folder(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    fake_server("well")
    with start(profile, tmp_path / "run") as server:
        (process,) = psutil.Process(server.pid).children()
        words = process.cmdline()
    assert words[words.index("--slot-save-path") + 1] == f"{tmp_path}/run/slots/"
    assert (tmp_path / "run" / "slots").stat().st_mode & 0o077 == 0


def test_the_api_key_is_sent_and_in_no_command_line(
    fake_server: FakeServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server("well")
    monkeypatch.setenv("FAKE_LLAMA_KEY", "s3cret")
    keys = tmp_path / "keys"
    keys.write_text("# for tests\ns3cret\n")
    profile = llama_launch.load_profile("smollm2-135m", {"model": str(model), "api_key_file": str(keys)})
    with start(profile, tmp_path / "run") as server:
        assert server.client.erase(0).n_erased == 17
        with pytest.raises(llama_launch.ServerRefused, match="Invalid API Key") as caught:
            llama_launch.Client(server.url).erase(0)
        command_lines = [" ".join(process.cmdline()) for process in children()]
        log = server.log_path.read_text()
    assert caught.value.status == 401
    assert not [line for line in [*command_lines, log] if "s3cret" in line]


def test_two_servers_run_side_by_side(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    fake_server("well")
    with start(profile, tmp_path / "one") as one, start(profile, tmp_path / "two") as two:
        assert one.url != two.url
        assert one.client.is_healthy()
        assert two.client.is_healthy()


def test_waiting_for_a_server_that_runs_times_out(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    fake_server("well")
    with start(profile, tmp_path / "run") as server, pytest.raises(subprocess.TimeoutExpired):
        server.wait(timeout_s=0.05)
