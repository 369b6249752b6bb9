"""Erasing slots really empties the cache of a real server: shown by the timings of the same prompt, asked thrice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_launch
import pytest
import requests
from opencode_harness.slots import WarmCache, check_cold, flush_slots

pytestmark = pytest.mark.system

PROMPT = "The quick brown fox jumps over the lazy dog. " * 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[llama_launch.RunningServer]:
    profile = llama_launch.load_profile("smollm2-135m")
    run_dir = tmp_path_factory.mktemp("server")
    with llama_launch.start_server(profile, run_dir=run_dir, backend="embedded") as running:
        yield running


def ask(server: llama_launch.RunningServer, id_slot: int) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4, "id_slot": id_slot}
    answer = requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
    timings: dict[str, Any] = answer.json()["timings"]
    return timings


def test_a_flushed_slot_computes_the_whole_prompt_again(server: llama_launch.RunningServer) -> None:
    flush_slots(server.client)
    first = ask(server, 0)
    warm = ask(server, 0)
    flush = flush_slots(server.client)
    cold = ask(server, 0)
    assert warm["cache_n"] > 0
    assert flush.problem is None
    assert sorted(flush.erased_tokens) == [0, 1, 2, 3]
    assert flush.erased_tokens[0] >= first["prompt_n"]
    assert (cold["cache_n"], cold["prompt_n"]) == (0, first["prompt_n"])


def test_a_server_without_a_prompt_cache_in_host_ram_can_be_emptied(server: llama_launch.RunningServer) -> None:
    check_cold(llama_launch.Client(server.url, timeout_s=120))


def test_a_server_with_a_prompt_cache_in_host_ram_is_found_out(tmp_path: Path) -> None:
    profile = llama_launch.load_profile("smollm2-135m", {"cache_ram_mib": 512})
    with (
        llama_launch.start_server(profile, run_dir=tmp_path, backend="embedded") as running,
        pytest.raises(WarmCache, match=r"reused \d+ tokens that had been erased") as raised,
    ):
        check_cold(llama_launch.Client(running.url, timeout_s=120))
    assert "--cache-ram 0" in raised.value.hint


def test_a_server_that_is_not_there_is_a_problem_and_no_error() -> None:
    flush = flush_slots(llama_launch.Client("http://127.0.0.1:9", timeout_s=2))
    assert flush.erased_tokens == {}
    assert "127.0.0.1:9" in str(flush.problem)
