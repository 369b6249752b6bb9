"""The statements of docs/llama-server-slots.md, each asked of the embedded server. The document names these tests."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_launch
import pytest
import requests
import vram_report
from llama_launch import RunningServer, ServerRefused

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
BRIEF = ROOT / "docs" / "llama-server-slots.md"
LONG = "The quick brown fox jumps over the lazy dog. " * 6
OTHER = "Numbers: " + " ".join(map(str, range(40)))

Start = Callable[..., RunningServer]


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """Starts the small default model with these values of a profile; ended with the test."""

    def started(**values: object) -> RunningServer:
        profile = llama_launch.load_profile(
            "smollm2-135m", {**values, "extra_flags": ["--no-warmup", "--threads", "1"]}
        )
        number = len(list(tmp_path.glob("run-*")))
        server = llama_launch.start_server(profile, run_dir=tmp_path / f"run-{number}", backend="embedded")
        request.addfinalizer(server.stop)
        return server

    return started


def ask(server: RunningServer, prompt: str, **more: Any) -> requests.Response:
    body = {"prompt": prompt, "n_predict": 1, **more}
    return requests.post(f"{server.url}/completion", json=body, timeout=120)


def ask_at_once(server: RunningServer, *bodies: dict[str, Any]) -> list[requests.Response]:
    answers: dict[int, requests.Response] = {}

    def go(number: int, body: dict[str, Any]) -> None:
        answers[number] = ask(server, **body)

    threads = [threading.Thread(target=go, args=item) for item in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[number] for number in range(len(bodies))]


def run_of(server: RunningServer) -> vram_report.Run:
    return vram_report.read_log(server.log_path).runs[-1]


def test_slots_share_the_context_and_cost_nothing_by_themselves(start: Start) -> None:
    one, four = start(n_slots=1, n_ctx_slot=2048), start(n_slots=4, n_ctx_slot=512)
    assert run_of(one).kv_cache.total_mib == run_of(four).kv_cache.total_mib
    assert len(four.client.slots()) == 4


def test_unified_slots_may_each_use_the_whole_pool_and_divided_ones_their_share(start: Start) -> None:
    unified, divided = start(n_slots=4, n_ctx_slot=512), start(n_slots=4, n_ctx_slot=512, kv_unified=False)
    assert (unified.client.props().n_ctx_slot, divided.client.props().n_ctx_slot) == (2048, 512)
    assert [run_of(server).kv_cache.parts[0].streams for server in (unified, divided)] == [1, 4]
    assert run_of(unified).kv_cache.total_mib == run_of(divided).kv_cache.total_mib


def test_a_pool_that_is_exceeded_ends_every_generation(start: Start) -> None:
    server = start(n_slots=2, n_ctx_slot=128)
    bodies = [{"prompt": f"{n} " + "word " * 90, "n_predict": 80, "ignore_eos": True, "id_slot": n} for n in (0, 1)]
    answers = ask_at_once(server, *bodies)
    assert [answer.status_code for answer in answers] == [500, 500]
    assert all("Context size has been exceeded" in answer.text for answer in answers)


def test_a_share_that_is_full_ends_its_own_generation_alone(start: Start) -> None:
    server = start(n_slots=2, n_ctx_slot=256, kv_unified=False)
    long = {"prompt": "word " * 200, "n_predict": 100, "ignore_eos": True, "id_slot": 0}
    full, other = ask_at_once(server, long, {"prompt": "One two", "n_predict": 8, "ignore_eos": True, "id_slot": 1})
    assert (full.json()["truncated"], full.json()["stop_type"]) == (True, "limit")
    assert other.json()["tokens_predicted"] == 8


def test_a_prompt_over_the_slots_context_is_refused(start: Start) -> None:
    answer = ask(start(n_slots=1, n_ctx_slot=256), "word " * 300)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "exceed_context_size_error"


def test_a_context_above_the_training_context_is_capped_and_paid_for(start: Start) -> None:
    server = start(n_slots=1, n_ctx_slot=16384)
    run = run_of(server)
    assert server.client.props().n_ctx_slot == 8192
    assert run.context.capped
    assert run.kv_cache.parts[0].cells == 16384


def test_quantized_cache_rows_take_34_bytes_where_f16_takes_64(start: Start) -> None:
    f16 = start(n_slots=1, n_ctx_slot=2048)
    q8_0 = start(n_slots=1, n_ctx_slot=2048, cache_type_k="q8_0", cache_type_v="q8_0")
    sizes = [run_of(server).kv_cache.total_mib for server in (f16, q8_0)]
    assert sizes[0] is not None
    assert sizes[1] == pytest.approx(sizes[0] * 34 / 64, abs=0.01)


def test_threads_are_the_servers_and_not_the_slots(start: Start) -> None:
    logs = [start(n_slots=n, n_ctx_slot=256).log_path.read_text() for n in (1, 4)]
    found = [re.findall(r"system_info: n_threads = (\d+)", log) for log in logs]
    assert found == [["1"], ["1"]]


def test_more_requests_than_slots_wait_and_take_the_slots_in_turn(start: Start) -> None:
    server = start(n_slots=1, n_ctx_slot=512)
    answers = ask_at_once(server, *({"prompt": f"{number} and", "n_predict": 4} for number in range(3)))
    assert [(answer.status_code, answer.json()["id_slot"]) for answer in answers] == [(200, 0)] * 3


def test_a_conversation_comes_back_to_the_slot_that_holds_its_beginning(start: Start) -> None:
    server = start(n_slots=4, n_ctx_slot=512)
    first = ask(server, LONG, id_slot=2).json()
    again = ask(server, LONG + "And then").json()
    assert again["id_slot"] == 2
    assert again["timings"]["cache_n"] >= first["timings"]["prompt_n"] - 1
    assert ask(server, OTHER).json()["id_slot"] != 2


def test_one_slot_for_two_conversations_computes_each_anew(start: Start) -> None:
    server = start(n_slots=1, n_ctx_slot=512)
    ask(server, LONG)
    ask(server, OTHER)
    assert ask(server, LONG).json()["timings"]["cache_n"] <= 1


def test_the_flush_api_is_gated_by_slot_save_path(start: Start) -> None:
    with pytest.raises(ServerRefused, match="--slot-save-path"):
        start(n_slots=1, n_ctx_slot=256, slot_save=False).client.erase(0)
    assert start(n_slots=1, n_ctx_slot=256).client.erase(0).n_erased == 0


@pytest.mark.parametrize(("cache_ram_mib", "is_cold"), [(0, True), (256, False)])
def test_the_prompt_cache_in_host_ram_brings_an_erased_prompt_back(
    start: Start, cache_ram_mib: int, is_cold: bool
) -> None:
    server = start(n_slots=1, n_ctx_slot=512, cache_ram_mib=cache_ram_mib)
    ask(server, LONG)
    ask(server, OTHER)  # the slot's prompt goes into the cache when another one takes the slot
    server.client.erase(0)
    assert (ask(server, LONG).json()["timings"]["cache_n"] == 0) is is_cold


def test_every_statement_names_a_test_that_is_here() -> None:
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", BRIEF.read_text(encoding="utf-8")))
    here = {name for name in globals() if name.startswith("test_")} - {"test_every_statement_names_a_test_that_is_here"}
    elsewhere = {"test_the_worked_figures_are_those_that_estimate_prints"}
    assert named == here | elsewhere
