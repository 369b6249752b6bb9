"""The real embedded server: what it serves, that it is really cold after an erase, and that nothing outlives a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import llama_launch
import psutil
import pytest
import requests
import vram_report
from llama_launch.cli import main
from system.processes import processes_of, wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[llama_launch.RunningServer]:
    profile = llama_launch.load_profile("smollm2-135m", {"extra_flags": ["--no-warmup", "--threads", "2"]})
    run_dir = tmp_path_factory.mktemp("server")
    with llama_launch.start_server(profile, run_dir=run_dir, backend="embedded") as running:
        yield running


def complete(server: llama_launch.RunningServer, prompt: str) -> dict[str, int]:
    body = {"prompt": prompt, "n_predict": 1, "id_slot": 0, "cache_prompt": True}
    timings: dict[str, int] = requests.post(f"{server.url}/completion", json=body, timeout=120).json()["timings"]
    return timings


def test_the_profile_is_what_runs(server: llama_launch.RunningServer) -> None:
    props = server.client.props()
    assert (props.n_slots, props.n_ctx_slot) == (4, 8192)
    (run,) = vram_report.read_log(server.log_path).runs
    assert run.outcome == "ready"
    assert (run.context.n_ctx, run.context.kv_unified, run.context.n_slots) == (32768, True, 4)
    assert (run.kv_cache.type_k, run.kv_cache.type_v) == ("f16", "f16")


def test_an_erased_slot_is_cold_and_a_restored_one_warm(server: llama_launch.RunningServer) -> None:
    prompt = "One two three four five six seven eight nine ten."
    n_prompt = len(server.client.tokenize(prompt))
    server.client.erase(0)
    assert complete(server, prompt)["prompt_n"] >= n_prompt
    saved = server.client.save(0, "numbers.bin")
    assert (server.log_path.parent / "slots" / "numbers.bin").stat().st_size == saved.n_bytes
    assert server.client.erase(0).n_erased >= n_prompt
    assert server.client.slots()[0].n_prompt_tokens == 0
    assert complete(server, prompt)["cache_n"] == 0
    server.client.erase(0)
    assert server.client.restore(0, "numbers.bin").n_tokens == saved.n_tokens
    assert complete(server, prompt)["cache_n"] >= n_prompt - 1


def test_metrics_count_what_was_asked(server: llama_launch.RunningServer) -> None:
    before = server.client.metrics()["llamacpp:prompt_tokens_total"]
    server.client.erase(0)
    complete(server, "Eleven twelve thirteen.")
    assert server.client.metrics()["llamacpp:prompt_tokens_total"] > before


def test_the_command_erases_and_says_that_it_is_cold(
    server: llama_launch.RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    complete(server, "Fourteen fifteen.")
    assert main(["slots", "erase", "all", "--url", server.url, "--format", "json"]) == 0
    assert '"cached_tokens": 0' in capsys.readouterr().out


def test_a_model_that_the_server_cannot_load_is_named_with_its_cause(tmp_path: Path) -> None:
    """A whole GGUF file that lacks the tensors of its architecture: only the server can tell."""
    model = tmp_path / "hollow.gguf"
    real = llama_launch.fetch_default_model(lambda line: None).read_bytes()
    model.write_bytes(real.replace(b"output_norm.weight", b"output_mron.weight", 1))
    profile = llama_launch.load_profile("smollm2-135m", {"model": str(model)})
    with pytest.raises(llama_launch.ServerStartError, match=r"output_norm\.weight") as caught:
        llama_launch.start_server(profile, run_dir=tmp_path / "run", backend="embedded")
    assert str(tmp_path / "run" / "server.log") in caught.value.hint
    assert not processes_of(str(tmp_path / "run"))


@pytest.mark.parametrize("victim", ["launcher", "leash", "server"])
def test_kill_9_of_any_of_them_leaves_nothing_running(tmp_path: Path, victim: str) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "llama_launch", "serve", "--backend", "embedded", "--run-dir", str(run_dir)]
    with (tmp_path / "output").open("wb") as output:
        launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        log = tmp_path / "output"
        wait_until(lambda: b"Ctrl-C stops" in log.read_bytes() or launcher.poll() is not None, "the server is ready")
        leash, server = psutil.Process(launcher.pid).children(recursive=True)
        started = time.monotonic()
        os.kill({"launcher": launcher.pid, "leash": leash.pid, "server": server.pid}[victim], signal.SIGKILL)
        assert launcher.wait(timeout=10) == (-signal.SIGKILL if victim == "launcher" else 3)
        wait_until(lambda: not processes_of(str(run_dir)), "nothing is left", timeout_s=10)
        assert time.monotonic() - started < 5
    finally:
        launcher.kill()
        launcher.wait()
