"""What follows a failure: again, later, smaller, or no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_launch import Profile, RunningServer, ServerStartError, load_profile, start_server
from llama_launch.supervisor import RestartPolicy, Restarts, smaller_context, supervise

FakeServer = Callable[[str], Path]
RECORDED = Path(__file__).parents[2] / "fixtures" / "logs"
# An RTX 4090's lines with 14,000 MiB free: weights of 11,000 MiB, a cache of 3,072 MiB that failed.
OUT_OF_MEMORY = """\
load_backend: loaded CUDA backend
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4090) (0000:01:00.0) - 14000 MiB free
load_tensors:        CUDA0 model buffer size = 11000.00 MiB
llama_context: n_seq_max     = 4
llama_context: n_ctx         = 131072
llama_context: n_ctx_per_seq = 32768
llama_context: kv_unified    = true
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 3072.00 MiB on device 0: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size 3221225472
llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache
"""


class Told:
    """An observer that remembers, and ends the supervision after so many readinesses."""

    def __init__(self, enough: int = 1) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._enough = enough

    def starting(self, profile: Profile, n_restarts: int, why: str) -> None:
        self.events.append(("starting", profile.n_ctx_slot, n_restarts))

    def ready(self, server: RunningServer) -> None:
        self.events.append(("ready",))
        if sum(event == ("ready",) for event in self.events) >= self._enough:
            raise KeyboardInterrupt

    def waiting(self, why: str, delay_s: float) -> None:
        self.events.append(("waiting", delay_s))


def external(run_dir: Path) -> Callable[[Profile], RunningServer]:
    return lambda profile: start_server(profile, run_dir=run_dir, backend="external")


@given(uptimes=st.lists(st.floats(0, 1e6), max_size=30))
def test_delays_grow_until_it_is_enough_and_start_anew_after_a_steady_run(uptimes: list[float]) -> None:
    policy = RestartPolicy(after_crash=True, first_delay_s=1, longest_delay_s=6, most_failures=5, steady_s=100)
    restarts = Restarts(policy)
    in_a_row = 0
    for uptime_s in uptimes:
        in_a_row = 1 if uptime_s >= 100 else in_a_row + 1
        expected = {1: 1.0, 2: 2.0, 3: 4.0, 4: 6.0}.get(in_a_row)
        assert restarts.delay_s(uptime_s) == expected
        if expected is None:
            break


def test_a_crash_is_followed_by_later_and_later_starts_until_given_up(
    fake_server: FakeServer, profile: Profile, tmp_path: Path
) -> None:
    fake_server("dies-when-ready")
    told = Told(enough=99)
    waits: list[float] = []
    policy = RestartPolicy(after_crash=True, first_delay_s=0.5, most_failures=4)
    with pytest.raises(ServerStartError, match=r"status 9 \(4 times in a row: given up\)"):
        supervise(profile, external(tmp_path / "run"), policy, told, wait=waits.append)
    assert waits == [0.5, 1.0, 2.0]
    assert [event[2] for event in told.events if event[0] == "starting"] == [0, 1, 2, 3]


def test_a_first_start_that_fails_is_not_tried_again(fake_server: FakeServer, profile: Profile, tmp_path: Path) -> None:
    fake_server("missing-tensor")
    told = Told()
    with pytest.raises(ServerStartError, match="missing tensor"):
        supervise(profile, external(tmp_path / "run"), RestartPolicy(after_crash=True), told)
    assert told.events == [("starting", 8192, 0)]


def test_an_allocation_that_fails_is_answered_with_the_next_context(
    fake_server: FakeServer, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server("out-of-memory-above")
    monkeypatch.setenv("FAKE_LLAMA_MOST", "8192")
    with pytest.raises(ServerStartError, match="kv cache") as caught:
        supervise(profile, external(tmp_path / "run"), RestartPolicy(after_crash=True), Told())
    assert "--set n_ctx_slot=4096, or --on-oom shrink" in caught.value.hint


def test_shrink_takes_the_next_context_until_one_fits(
    fake_server: FakeServer, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server("out-of-memory-above")
    monkeypatch.setenv("FAKE_LLAMA_MOST", "8192")
    told = Told()
    with pytest.raises(KeyboardInterrupt):
        supervise(profile, external(tmp_path / "run"), RestartPolicy(after_crash=False, on_oom="shrink"), told)
    assert told.events == [("starting", 8192, 0), ("starting", 4096, 1), ("starting", 2048, 2), ("ready",)]


def test_shrink_ends_where_nothing_useful_is_left(
    fake_server: FakeServer, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server("out-of-memory-above")
    monkeypatch.setenv("FAKE_LLAMA_MOST", "0")
    with pytest.raises(ServerStartError, match="kv cache"):
        supervise(profile, external(tmp_path / "run"), RestartPolicy(after_crash=False, on_oom="shrink"), Told())


def test_the_next_context_is_the_largest_that_would_have_fitted_by_the_log(tmp_path: Path) -> None:
    """14000 - 11000 - 1024 MiB at 3072 / 131072 MiB a token: 84,224 tokens, 21,056 a slot, 20,992 in steps of 256."""
    log = tmp_path / "server.log"
    log.write_text(OUT_OF_MEMORY)
    profile = load_profile("gpt-oss-20b", {"n_ctx_slot": 32768})
    smaller = smaller_context(profile, log)
    assert smaller is not None
    assert smaller.n_ctx_slot == 20_992
