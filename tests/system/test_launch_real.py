"""A real `llama-server` of one's own: what the fake one and the embedded one cannot show.

LLAMA_SERVER names the program; `nox -s real_server` builds one.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_launch
import psutil
import pytest
import requests
import vram_report
from llama_launch import ServerStartError, load_profile, start_server
from llama_launch.cli import main
from system.processes import wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not os.environ.get("LLAMA_SERVER"), reason="LLAMA_SERVER names no server; nox -s real_server"),
]
Capture = pytest.CaptureFixture[str]
QUICK = ["--no-warmup", "--threads", "1"]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def detached(tmp_path: Path, capsys: Capture) -> Iterator[Callable[..., dict[str, Any]]]:
    """Starts a detached run; ended with the test."""

    def start(*words: str) -> dict[str, Any]:
        root = ["--set", f"root={tmp_path / 'root'}", "--backend", "external"]
        assert main(["serve", "--detach", *root, *words, "--", *QUICK]) == 0, capsys.readouterr().err
        return status(capsys)

    yield start
    main(["stop", "--all"])


def status(capsys: Capture) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["status", "--all", "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    return dict(found)


@pytest.mark.parametrize("name", ["smollm2-135m", "gpt-oss-20b"])
def test_the_shipped_profiles_have_flags_that_it_knows(name: str, capsys: Capture) -> None:
    assert main(["profile", "check", name, "--backend", "external"]) == 0
    assert "no fault found" in capsys.readouterr().out


def test_it_is_ready_with_the_memory_lines_that_vram_report_reads(tmp_path: Path) -> None:
    profile = load_profile("smollm2-135m", {"extra_flags": QUICK, "n_slots": 2, "n_ctx_slot": 1024})
    with start_server(profile, run_dir=tmp_path / "run", backend="external") as server:
        (run,) = vram_report.read_log(server.log_path).runs
        assert run.outcome == "ready"
        assert (run.context.n_ctx, run.context.n_slots, run.context.kv_unified) == (2048, 2, True)
        assert run.kv_cache.total_mib == 45.0  # 30 layers, 3 KV heads of 64 + 64 values, 2 bytes each
        assert server.version is not None
        assert "\n" not in server.version
        answer = requests.post(f"{server.url}/completion", json={"prompt": "One two", "n_predict": 1}, timeout=60)
        assert answer.ok
        assert sum(server.client.erase(slot.id).n_erased for slot in server.client.slots()) >= 2
        processes = psutil.Process(server.pid).children(recursive=True)
    assert not psutil.wait_procs(processes, timeout=5)[1]


@pytest.mark.parametrize("which", ["parent", "leash", "both"])
def test_killed_starters_leave_no_server(tmp_path: Path, which: str) -> None:
    words = ["serve", "--backend", "external", "--run-dir", str(tmp_path / "run"), "--", *QUICK]
    command = subprocess.Popen(
        [sys.executable, "-m", "llama_launch", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert command.stdout is not None
    while "Ctrl-C stops the server" not in (line := command.stdout.readline()):
        assert line
    parent = psutil.Process(command.pid)
    below = parent.children(recursive=True)
    leash = parent.children()
    for process in {"parent": [parent], "leash": leash, "both": [*leash, parent]}[which]:
        process.kill()
    command.communicate(timeout=20)
    assert not psutil.wait_procs(below, timeout=10)[1]


def test_a_crash_is_followed_by_a_start_at_the_same_address(
    detached: Callable[..., dict[str, Any]], capsys: Capture
) -> None:
    before = detached()
    psutil.Process(before["pid"]).children(recursive=True)[-1].kill()
    wait_until(lambda: status(capsys)["n_restarts"] == 1 and status(capsys)["condition"] == "ready", "a second start")
    assert status(capsys)["url"] == before["url"]


def test_a_server_that_hangs_is_told(detached: Callable[..., dict[str, Any]], capsys: Capture) -> None:
    server = psutil.Process(detached()["pid"]).children(recursive=True)[-1]
    server.send_signal(signal.SIGSTOP)
    assert status(capsys)["condition"] == "does not answer"
    server.send_signal(signal.SIGCONT)
    assert status(capsys)["condition"] == "ready"


def test_conversations_outlive_a_restart(detached: Callable[..., dict[str, Any]], capsys: Capture) -> None:
    url = detached()["url"]
    body = {"prompt": "One two three four five six seven.", "n_predict": 1, "id_slot": 1}
    computed = requests.post(f"{url}/completion", json=body, timeout=60).json()["timings"]["prompt_n"]
    assert main(["restart", "--keep-slots"]) == 0
    again = requests.post(f"{url}/completion", json=body, timeout=60).json()["timings"]
    assert again["cache_n"] >= computed - 1


def test_a_context_that_cannot_be_allocated_is_shrunk(detached: Callable[..., dict[str, Any]], capsys: Capture) -> None:
    """A terabyte of cache is refused by any machine of a developer; what follows must run on this one."""
    found = detached("--set", "n_slots=1", "--set", "n_ctx_slot=50000000", "--on-oom", "shrink")
    assert found["condition"] == "ready"
    assert found["profile"]["n_ctx_slot"] == 8192  # what the model was trained for
    assert "out of memory" in found["message"]


def test_a_port_that_is_taken_in_between_is_chosen_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program takes the port between the choice and the server's start."""
    module = sys.modules["llama_launch.server"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        chosen = iter([taken.getsockname()[1]])
        free_port = vars(module)["free_port"]
        monkeypatch.setattr(module, "free_port", lambda host: next(chosen, None) or free_port(host))
        said: list[str] = []
        profile = load_profile("smollm2-135m", {"extra_flags": QUICK})
        with start_server(profile, run_dir=tmp_path / "run", backend="external", progress=said.append) as server:
            assert server.is_alive()
        assert any("was taken by another program meanwhile" in line for line in said)


def test_a_model_that_it_cannot_load_is_told_by_its_cause(tmp_path: Path) -> None:
    """A whole file with a tensor under another name, as of a converter that is older or newer than the server."""
    original = llama_launch.fetch_default_model(print).read_bytes()
    model = tmp_path / "renamed.gguf"
    model.write_bytes(original.replace(b"blk.7.attn_q.weight", b"blk.7.attn_Q.weight", 1))
    profile = load_profile("smollm2-135m", {"model": str(model), "extra_flags": QUICK})
    with pytest.raises(ServerStartError, match=r"blk\.7\.attn_q\.weight") as caught:
        start_server(profile, run_dir=tmp_path / "run", backend="external")
    assert "download it again" in caught.value.hint


def test_a_flag_that_it_does_not_know_is_told_before_it_starts(tmp_path: Path) -> None:
    profile = load_profile("smollm2-135m", {"extra_flags": ["--no-warmupp"]})
    with pytest.raises(llama_launch.FlagsRefused) as caught:
        start_server(profile, run_dir=tmp_path / "run", backend="external")
    assert "--no-warmup" in caught.value.hint
    assert not (tmp_path / "run" / "server.log").exists()
