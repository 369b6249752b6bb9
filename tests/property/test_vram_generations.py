"""A random model and set-up, printed in the line formats of each generation, is read back exactly.

The renderers below follow the message texts of llama.cpp's sources of the named builds; they share no code with the
reader.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vram_report import Run, parse

mib = st.integers(1, 9_999_999).map(lambda hundredths: hundredths / 100)


@dataclass(frozen=True)
class Setup:
    """What a start prints."""

    n_layer: int
    n_embd: int
    n_head: int
    n_ctx_train: int
    n_ctx: int
    n_slots: int
    weights: float
    host: float
    k: float
    v: float
    compute: float
    output: float
    name: str

    @property
    def kv(self) -> float:
        return round(self.k + self.v, 2)

    @property
    def per_slot(self) -> int:
        return self.n_ctx // self.n_slots


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    n_slots = draw(st.integers(1, 16))
    n_ctx = 256 * n_slots * draw(st.integers(1, 256))
    return Setup(
        n_layer=draw(st.integers(1, 128)),
        n_embd=draw(st.integers(64, 16384)),
        n_head=draw(st.integers(1, 128)),
        n_ctx_train=n_ctx + 256 * draw(st.integers(1, 100)),
        n_ctx=n_ctx,
        n_slots=n_slots,
        weights=draw(mib),
        host=draw(mib),
        k=draw(mib),
        v=draw(mib),
        compute=draw(mib),
        output=draw(mib),
        name=draw(st.text("abcXYZ 0123456789.-", min_size=1, max_size=30).map(str.strip).filter(bool)),
    )


def meta(setup: Setup, function: str) -> list[str]:
    values = {
        "arch": "llama",
        "n_ctx_train": setup.n_ctx_train,
        "n_embd": setup.n_embd,
        "n_layer": setup.n_layer,
        "n_head": setup.n_head,
        "general.name": setup.name,
    }
    return [f"{function}: {key:<16} = {value}" for key, value in values.items()]


def server_2024_json(setup: Setup) -> list[str]:
    """b1843 to b2258: named buffers, JSON server lines."""
    init = "llama_new_context_with_model"
    slots = [f" -> Slot {index} - max context: {setup.per_slot}" for index in range(setup.n_slots)]
    return [
        json.dumps({"timestamp": 1, "level": "INFO", "function": "main", "message": "build info", "build": 1900,
                    "commit": "abc1234"}),
        *meta(setup, "llm_load_print_meta"),
        f"llm_load_tensors:        CPU buffer size = {setup.host:8.2f} MiB",
        f"llm_load_tensors:      CUDA0 buffer size = {setup.weights:8.2f} MiB",
        f"{init}: n_ctx      = {setup.n_ctx}",
        f"llama_kv_cache_init:      CUDA0 KV buffer size = {setup.kv:8.2f} MiB",
        f"{init}: KV self size  = {setup.kv:7.2f} MiB, K (f16): {setup.k:7.2f} MiB, V (f16): {setup.v:7.2f} MiB",
        f"{init}:      CUDA0 compute buffer size = {setup.compute:8.2f} MiB",
        "Available slots:",
        *slots,
        json.dumps({"message": "model loaded", "level": "INFO"}),
        "all slots are idle and system prompt is empty, clear the KV cache",
    ]  # fmt: skip


def server_2024_text(setup: Setup) -> list[str]:
    """b2413 to b3760: text server lines with keys, output buffers; still the shape of ik_llama.cpp."""
    init = "llama_new_context_with_model"
    tail = 'tid="139894354608128" timestamp=1723538705'
    return [
        f'INFO [                    main] build info | {tail} build=3579 commit="fc4ca27b"',
        *meta(setup, "llm_load_print_meta"),
        f"llm_load_tensors:        CPU buffer size = {setup.host:8.2f} MiB",
        f"llm_load_tensors:      CUDA0 buffer size = {setup.weights:8.2f} MiB",
        f"{init}: n_ctx      = {setup.n_ctx}",
        f"llama_kv_cache_init:      CUDA0 KV buffer size = {setup.kv:8.2f} MiB",
        f"{init}: KV self size  = {setup.kv:7.2f} MiB, K (f16): {setup.k:7.2f} MiB, V (f16): {setup.v:7.2f} MiB",
        f"{init}:  CUDA_Host  output buffer size = {setup.output:8.2f} MiB",
        f"{init}:      CUDA0 compute buffer size = {setup.compute:8.2f} MiB",
        f"INFO [                    init] initializing slots | {tail} n_slots={setup.n_slots}",
        *(
            f"INFO [                    init] new slot | {tail} id_slot={index} n_ctx_slot={setup.per_slot}"
            for index in range(setup.n_slots)
        ),
        f"INFO [                    main] model loaded | {tail}",
        f'INFO [                    main] HTTP server listening | {tail} n_threads_http="15" port="8080"',
    ]


def server_2025(setup: Setup) -> list[str]:
    """b4881 to b5428: print_info, llama_context, KV lines of `init:`."""
    return [
        "build: 5129 (526739b8) with cc (GCC) 10.2.1 for x86_64-redhat-linux",
        *meta(setup, "print_info"),
        f"load_tensors:   CPU_Mapped model buffer size = {setup.host:8.2f} MiB",
        f"load_tensors:        CUDA0 model buffer size = {setup.weights:8.2f} MiB",
        "llama_context: constructing llama_context",
        f"llama_context: n_seq_max     = {setup.n_slots}",
        f"llama_context: n_ctx         = {setup.n_ctx}",
        f"llama_context: n_ctx_per_seq = {setup.per_slot}",
        f"llama_context:  CUDA_Host  output buffer size = {setup.output:8.2f} MiB",
        f"init: kv_size = {setup.n_ctx}, offload = 1, type_k = 'f16', type_v = 'f16', n_layer = {setup.n_layer}, "
        "can_shift = 1",
        f"init:      CUDA0 KV buffer size = {setup.kv:8.2f} MiB",
        f"llama_context: KV self size  = {setup.kv:7.2f} MiB, K (f16): {setup.k:7.2f} MiB, V (f16): {setup.v:7.2f} MiB",
        f"llama_context:      CUDA0 compute buffer size = {setup.compute:8.2f} MiB",
        f"srv          init: initializing slots, n_slots = {setup.n_slots}",
        *(
            f"slot         init: id {index:2d} | task -1 | new slot n_ctx_slot = {setup.per_slot}"
            for index in range(setup.n_slots)
        ),
        "main: model loaded",
        "main: server is listening on http://127.0.0.1:8080 - starting the main loop",
    ]


def cells_line(setup: Setup) -> str:
    return (
        f"llama_kv_cache: size = {setup.kv:7.2f} MiB ({setup.per_slot:6d} cells, {setup.n_layer:3d} layers, "
        f"{setup.n_slots:2d}/{setup.n_slots} seqs), K (f16): {setup.k:7.2f} MiB, V (f16): {setup.v:7.2f} MiB"
    )


def server_2025_cells(setup: Setup) -> list[str]:
    """b6925 to b9150: caches with cells, kv_unified."""
    return [
        "build: 7079 (416e7c7f4) with cc (GCC) 10.2.1 for x86_64-redhat-linux",
        *meta(setup, "print_info"),
        f"load_tensors:   CPU_Mapped model buffer size = {setup.host:8.2f} MiB",
        f"load_tensors:        CUDA0 model buffer size = {setup.weights:8.2f} MiB",
        "llama_context: constructing llama_context",
        f"llama_context: n_seq_max     = {setup.n_slots}",
        f"llama_context: n_ctx         = {setup.n_ctx}",
        f"llama_context: n_ctx_seq     = {setup.per_slot}",
        "llama_context: kv_unified    = false",
        f"llama_context:  CUDA_Host  output buffer size = {setup.output:8.2f} MiB",
        f"llama_kv_cache:      CUDA0 KV buffer size = {setup.kv:8.2f} MiB",
        cells_line(setup),
        f"llama_context:      CUDA0 compute buffer size = {setup.compute:8.2f} MiB",
        f"srv          init: initializing slots, n_slots = {setup.n_slots}",
        *(
            f"slot         init: id {index:2d} | task -1 | new slot, n_ctx = {setup.per_slot}"
            for index in range(setup.n_slots)
        ),
        "srv  update_slots: all slots are idle",
    ]


def server_2026(setup: Setup) -> list[str]:
    """b9829 and later: prefixes, a projection before the load, one line for the slots, wide labels."""
    lines = [
        "cmn  common_param: common_params_print_info: build 10573 (571d0d5) with GNU 11.4.0 for Linux x86_64",
        "common_memory_breakdown_print: | memory breakdown [MiB] | total   free    self   model   context   compute    "
        "unaccounted |",
        "common_memory_breakdown_print: |   - CUDA0 (RTX 4090)   | 24080 = 23000 + ( 123 =    45 +      67 +      11) +"
        "        -123 |",
        "common_fit_params: fitting params to free memory took 0.46 seconds",
        *meta(setup, "print_info"),
        f"load_tensors:   CPU_Mapped model buffer size = {setup.host:8.2f} MiB",
        f"load_tensors:        CUDA0 model buffer size = {setup.weights:8.2f} MiB",
        "llama_context: constructing llama_context",
        f"llama_context: n_seq_max             = {setup.n_slots}",
        f"llama_context: n_ctx                 = {setup.n_ctx}",
        f"llama_context: n_ctx_seq             = {setup.per_slot}",
        "llama_context: kv_unified            = false",
        f"llama_context:  CUDA_Host  output buffer size = {setup.output:8.2f} MiB",
        f"llama_kv_cache:      CUDA0 KV buffer size = {setup.kv:8.2f} MiB",
        cells_line(setup),
        f"sched_reserve:      CUDA0 compute buffer size = {setup.compute:8.2f} MiB",
        f"srv    load_model: initializing, n_slots = {setup.n_slots}, n_ctx_slot = {setup.per_slot}, "
        "kv_unified = 'false'",
        "srv  llama_server: model loaded",
        "srv  llama_server: listening on http://127.0.0.1:8099",
    ]
    return [f"0.{index // 1000:02d}.{index % 1000:03d}.000 I {line}" for index, line in enumerate(lines)]


RENDERERS = (server_2024_json, server_2024_text, server_2025, server_2025_cells, server_2026)


def sizes(run: Run) -> dict[tuple[str, str], float]:
    return {(buffer.kind, buffer.buffer): buffer.mib for buffer in run.buffers}


@pytest.mark.parametrize("render", RENDERERS, ids=lambda render: render.__name__)
@settings(deadline=None)
@given(setup=setups())
def test_a_rendered_start_is_read_back_exactly(render: object, setup: Setup) -> None:
    lines = render(setup)  # type: ignore[operator]
    (run,) = parse(line + "\n" for line in lines)
    model, context = run.model, run.context
    assert run.outcome == "ready"
    assert (model.n_layer, model.n_embd, model.n_head) == (setup.n_layer, setup.n_embd, setup.n_head)
    assert (model.n_ctx_train, model.name) == (setup.n_ctx_train, setup.name)
    assert (context.n_ctx, context.n_slots, context.n_ctx_slot) == (setup.n_ctx, setup.n_slots, setup.per_slot)
    found = sizes(run)
    assert found["weights", "CUDA0"] == setup.weights
    assert found["kv", "CUDA0"] == setup.kv
    assert found["compute", "CUDA0"] == setup.compute
    assert found.get(("output", "CUDA_Host"), setup.output) == setup.output
    assert setup.host in (found.get(("weights", "CPU")), found.get(("weights", "CPU_Mapped")))
    assert run.kv_cache.total_mib == setup.kv
    (part,) = run.kv_cache.parts
    assert (part.k_mib, part.v_mib) == (setup.k, setup.v)
    assert (part.cells or 0) * (part.streams or 0) == setup.n_ctx


@settings(deadline=None)
@given(setup=setups())
def test_sums_without_a_buffer_name_are_read_from_builds_of_2023(setup: Setup) -> None:
    """b1619 to b1842: sums only."""
    lines = [
        *meta(setup, "llm_load_print_meta"),
        f"llm_load_tensors: mem required  = {setup.host:7.2f} MiB",
        f"llm_load_tensors: VRAM used: {setup.weights:.2f} MiB",
        f"llama_new_context_with_model: n_ctx      = {setup.n_ctx}",
        f"llama_new_context_with_model: KV self size  = {setup.kv:7.2f} MiB, K (f16): {setup.k:7.2f} MiB, "
        f"V (f16): {setup.v:7.2f} MiB",
        f"llama_new_context_with_model: compute buffer total size = {setup.compute:.2f} MiB",
    ]
    (run,) = parse(line + "\n" for line in lines)
    found = sizes(run)
    assert found["weights", "CPU"] == setup.host
    assert found["weights", "VRAM"] == setup.weights
    assert found["kv", "total"] == setup.kv
    assert found["compute", "total"] == setup.compute
    assert run.kv_cache.total_mib == setup.kv
