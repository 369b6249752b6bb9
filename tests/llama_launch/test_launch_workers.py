"""Workers on this machine and others: started, asked before they are used, and gone with their server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import llama_launch
import psutil
import pytest
from llama_launch import ProfileError, ServerStartError, load_profile, start_server
from llama_launch.workers import read_workers, start_workers, worker_version

FAKE = Path(__file__).with_name("fake_rpc_server.py")
FakeServer = Callable[[str], Path]


@pytest.fixture
def programs(fake_server: FakeServer, tmp_path: Path) -> Path:
    """A fake ggml-rpc-server, and an ssh that runs what it is given here and notes how it was called."""
    fake_server("well")
    folder = tmp_path / "bin"
    worker, ssh = folder / "ggml-rpc-server", folder / "ssh"
    worker.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    ssh.write_text(f'#!/bin/sh\necho "$@" >{folder}/ssh.txt\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    for program in (worker, ssh):
        program.chmod(0o755)
    return folder


@pytest.fixture
def running_worker(programs: Path) -> Iterator[str]:
    """One that runs already."""
    from llama_launch.preflight import free_port

    port = free_port("127.0.0.1")
    process = subprocess.Popen(
        [programs / "ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while "endpoint" not in process.stdout.readline():
        assert process.poll() is None
    yield f"127.0.0.1:{port}"
    process.kill()
    process.communicate()


def test_a_server_gets_its_workers_and_they_end_with_it(
    programs: Path, running_worker: str, profile: llama_launch.Profile, tmp_path: Path
) -> None:
    values = {"model": profile.model, "rpc": [running_worker, "local", "ssh:me@box"]}
    said: list[str] = []
    server = start_server(load_profile("smollm2-135m", values), run_dir=tmp_path / "run", progress=said.append)
    try:
        endpoints = server.argv[server.argv.index("--rpc") + 1].split(",")
        assert endpoints[0] == running_worker
        assert all(worker_version(endpoint) == "4.0.3" for endpoint in endpoints)
        assert [line for line in said if "protocol 4.0.3" in line and line.startswith("worker ")]
        called = (programs / "ssh.txt").read_text()
        port = endpoints[2].rpartition(":")[2]
        assert f"-L {port}:127.0.0.1:{port} me@box -- ggml-rpc-server -H 127.0.0.1 -p {port}" in called
        assert "BatchMode=yes" in called
    finally:
        server.stop()
    assert worker_version(running_worker) == "4.0.3"
    assert [worker_version(endpoint) for endpoint in endpoints[1:]] == [None, None]


def test_killed_starters_leave_no_worker(programs: Path, model: Path, tmp_path: Path) -> None:
    words = ["serve", "--set", f"model={model}", "--set", "rpc=local", "--run-dir", str(tmp_path / "run")]
    command = subprocess.Popen(
        [sys.executable, "-m", "llama_launch", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert command.stdout is not None
    while "Ctrl-C stops the server" not in (line := command.stdout.readline()):
        assert line
    processes = psutil.Process(command.pid).children(recursive=True)
    assert len(processes) == 4
    command.kill()
    command.communicate()
    assert not psutil.wait_procs(processes, timeout=10)[1]


@pytest.mark.parametrize("behaviour", ["", "old"])
def test_both_generations_of_the_handshake_are_understood(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    monkeypatch.setenv("FAKE_RPC", behaviour)
    workers = start_workers(["local"], tmp_path, lambda line: None)
    try:
        assert worker_version(workers.endpoints[0]) == "4.0.3"
    finally:
        workers.stop()


def test_a_worker_that_fails_is_told_with_its_last_words(
    programs: Path, profile: llama_launch.Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_RPC", "fails")
    values = {"model": profile.model, "rpc": ["local:CUDA7"]}
    with pytest.raises(ServerStartError, match=r"worker local:CUDA7 .* no device called CUDA7") as caught:
        start_server(load_profile("smollm2-135m", values), run_dir=tmp_path / "run")
    assert caught.value.log_path == tmp_path / "run" / "worker-0.log"


def test_what_is_no_worker_is_not_used(running_worker: str, profile: llama_launch.Profile, tmp_path: Path) -> None:
    with start_server(profile, run_dir=tmp_path / "first") as other:
        values = {"model": profile.model, "rpc": [other.url.removeprefix("http://")]}
        with pytest.raises(ServerStartError, match="no ggml-rpc-server answers at"):
            start_server(load_profile("smollm2-135m", values), run_dir=tmp_path / "second")


@pytest.mark.parametrize("entry", ["", "box", "box:0", "box:70000", "ssh:", "ssh:-oProxyCommand=x", "ssh:a b", "a,b:1"])
def test_an_entry_that_names_no_worker_is_refused(entry: str) -> None:
    with pytest.raises(ProfileError, match="names no worker"):
        read_workers([entry])


def test_a_worker_that_is_not_installed_is_said(
    fake_server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(ServerStartError, match="ggml-rpc-server is not installed"):
        start_workers(["local"], tmp_path, lambda line: None)
    with pytest.raises(ServerStartError, match="ssh is not installed"):
        start_workers(["ssh:box"], tmp_path, lambda line: None)
