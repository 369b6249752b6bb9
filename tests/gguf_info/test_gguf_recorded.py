"""`estimate` for phantom models against the logs that a real server printed when it loaded the same phantoms.

The numbers are read from fixtures/logs here, by expressions of their own; fixtures/record.py records them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

import pytest
from gguf_info import (
    DraftModel,
    Estimate,
    PredictingLayers,
    Projector,
    Settings,
    Summary,
    estimate,
    read_summary,
    with_companions,
)

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
MIB = 2**20
# SmolLM2 and gemma-3-270m were recorded from their real files, whose tables the phantoms have.
PHANTOM_OF = {"smollm2": "smollm2-135m"}
QWEN35 = Settings(ctx_size=8192, parallel=2, kv_unified=True)
Q8 = Settings(cache_type_k="q8_0", cache_type_v="q8_0")
STARTS = {
    "gpt-oss-20b.p4_unified_q8_c32768": replace(Q8, ctx_size=32_768, parallel=4, kv_unified=True),
    "gpt-oss-20b.p4_unified_q8_c65536": replace(Q8, ctx_size=65_536, parallel=4, kv_unified=True),
    "gpt-oss-20b.p4_unified_q8_c131072": replace(Q8, ctx_size=131_072, parallel=4, kv_unified=True),
    "gpt-oss-20b.p4_divided_f16": Settings(ctx_size=32_768, parallel=4),
    "gpt-oss-20b.p1_swa_full": Settings(ctx_size=16_384, parallel=1, kv_unified=True, swa_full=True),
    "qwen3-8b.p2_unified_q8": replace(Q8, ctx_size=16_384, parallel=2, kv_unified=True),
    "deepseek-v2-lite.p2_unified": Settings(ctx_size=16_384, parallel=2, kv_unified=True),
    "granite-4-h-tiny.p3_unified": Settings(ctx_size=12_288, parallel=3, kv_unified=True),
    "smollm2.p1_c2048": Settings(ctx_size=2048, parallel=1),
    "smollm2.p4_divided_q8": replace(Q8, ctx_size=32_768, parallel=4),
    "openelm-1b.p1": Settings(ctx_size=2048, parallel=1),
    "gemma-3-270m.p3_unified_q8": replace(Q8, ctx_size=24_576, parallel=3, kv_unified=True),
    "gemma-3-270m.p4_divided": Settings(ctx_size=32_768, parallel=4),
    "gemma-3-270m.p2_embedding": Settings(ctx_size=8192, parallel=2, kv_unified=True, embedding=True),
    "gemma-3n-e2b.p2_unified": Settings(ctx_size=8192, parallel=2, kv_unified=True),
    "gemma-4-e2b.p2_unified": Settings(ctx_size=16_384, parallel=2, kv_unified=True),
    "gemma-4-e2b.p4_divided_q8": replace(Q8, ctx_size=16_384, parallel=4),
    "qwen3.5-0.8b-mtp.p2_unified": QWEN35,
    "qwen3.5-0.8b-mtp.p2_ngram_simple": replace(QWEN35, spec_type=("ngram-simple",)),
    "qwen3.5-0.8b-mtp.p2_ngram_mod": replace(QWEN35, spec_type=("ngram-mod",)),
}


Find = Callable[[str], Summary]


@pytest.fixture(scope="module")
def find(phantom: Callable[[str], Path]) -> Find:
    """The summary of the phantom of a recorded model."""

    @cache
    def read(model: str) -> Summary:
        return read_summary(phantom(PHANTOM_OF.get(model, model)))

    return read


@pytest.fixture(params=STARTS)
def start(request: pytest.FixtureRequest, find: Find) -> tuple[str, Estimate]:
    """The recorded log and the prediction of the same start, everything on the CPU as in the recording."""
    name = str(request.param)
    settings = STARTS[name]
    log = (LOGS / f"xllamacpp-2026.10.11549.{name}.log").read_text(errors="replace")
    on_the_cpu = replace(settings, n_gpu_layers=0)
    return log, estimate(find(name.rpartition(".")[0]), on_the_cpu)


def printed_mib(log: str, what: str) -> list[float]:
    return [float(mib) for mib in re.findall(rf"{what} = +([\d.]+) MiB", log)]


def in_mib(n_bytes: int) -> float:
    return round(n_bytes / MIB, 2)


def test_weights_equal_the_printed_buffer(start: tuple[str, Estimate]) -> None:
    log, predicted = start
    assert printed_mib(log, "model buffer size") == [in_mib(predicted.weights_total_bytes)]


def test_each_cache_equals_the_printed_one(start: tuple[str, Estimate]) -> None:
    log, predicted = start
    found = re.findall(r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +\d+/(\d+) seqs", log)
    expected = [(float(mib), int(cells), int(layers), int(streams)) for mib, cells, layers, streams in found]
    caches = [part for part in predicted.cache if part.kind != "recurrent"]
    assert [(in_mib(part.bytes), part.cells, part.layers, part.streams) for part in caches] == expected


def test_recurrent_state_equals_the_printed_one(start: tuple[str, Estimate]) -> None:
    log, predicted = start
    assert in_mib(predicted.recurrent_bytes) == sum(printed_mib(log, "RS buffer size"))


def test_output_buffer_equals_the_printed_one(start: tuple[str, Estimate]) -> None:
    log, predicted = start
    assert printed_mib(log, "output buffer size") == [in_mib(predicted.output_bytes)]


def test_compute_buffer_is_within_the_stated_range(start: tuple[str, Estimate]) -> None:
    log, predicted = start
    (printed,) = printed_mib(log, "compute buffer size")
    assert predicted.compute.low_bytes <= printed * MIB <= predicted.compute.high_bytes


def test_slots_are_those_that_the_server_announced(start: tuple[str, Estimate]) -> None:
    log, predicted = start
    match = re.search(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(\w+)'", log)
    assert match is not None
    slots = predicted.slots
    assert (slots.n_slots, slots.n_ctx_slot) == (int(match[1]), int(match[2]))
    if slots.n_slots > 1:
        assert slots.kv_unified == (match[3] == "true")


def test_a_draft_model_takes_what_the_server_printed(find: Find) -> None:
    log = (LOGS / "xllamacpp-2026.10.11549.smollm2.p2_draft_q8.log").read_text(errors="replace")
    _, of_the_draft = log.split("loading draft model")
    smollm2 = find("smollm2")
    target = estimate(smollm2, Settings(ctx_size=8192, parallel=2, kv_unified=True, n_gpu_layers=0))
    predicted = with_companions(target, draft=DraftModel(smollm2, "q8_0", "q8_0", n_gpu_layers=0))
    (draft,) = predicted.extra_models
    assert (draft.role, draft.device) == ("draft", "CPU")
    assert [in_mib(draft.weights_bytes)] == printed_mib(of_the_draft, "model buffer size")
    context = printed_mib(of_the_draft, "KV buffer size") + printed_mib(of_the_draft, "output buffer size")
    assert in_mib(draft.kv_bytes) == pytest.approx(sum(context), abs=0.011)
    (compute,) = printed_mib(of_the_draft, "compute buffer size")
    assert draft.compute is not None
    assert draft.compute.low_bytes <= compute * MIB <= draft.compute.high_bytes
    assert predicted.host.used_bytes == target.host.used_bytes + draft.used_bytes


@pytest.mark.parametrize(("name", "cache_type"), [("p2_draft_mtp", "f16"), ("p2_draft_mtp_q8", "q8_0")])
def test_layers_that_predict_further_tokens_take_what_the_server_printed(
    find: Find, name: str, cache_type: str
) -> None:
    """The layers are loaded, they get a context of their own, and the model keeps states to roll back to."""
    log = (LOGS / f"xllamacpp-2026.10.11549.qwen3.5-0.8b-mtp.{name}.log").read_text(errors="replace")
    of_the_model, of_the_layers = log.split("creating MTP draft context")
    summary = find("qwen3.5-0.8b-mtp")
    target = estimate(summary, replace(QWEN35, spec_type=("draft-mtp",), n_gpu_layers=0))
    layers = PredictingLayers(summary, cache_type_k=cache_type, cache_type_v=cache_type)
    (extra,) = with_companions(target, predicting=layers).extra_models
    assert (extra.role, extra.device) == ("mtp", "CPU")
    assert [in_mib(target.weights_total_bytes + extra.weights_bytes)] == printed_mib(log, "model buffer size")
    assert [in_mib(target.kv_bytes)] == printed_mib(of_the_model, "KV buffer size")
    assert [in_mib(target.recurrent_bytes)] == printed_mib(of_the_model, "RS buffer size")
    context = printed_mib(of_the_layers, "KV buffer size") + printed_mib(of_the_layers, "output buffer size")
    assert in_mib(extra.kv_bytes) == pytest.approx(sum(context), abs=0.011)
    for predicted, text in ((target.compute, of_the_model), (extra.compute, of_the_layers)):
        assert predicted is not None
        assert all(
            predicted.low_bytes <= mib * MIB <= predicted.high_bytes for mib in printed_mib(text, "compute buffer size")
        )


@pytest.mark.parametrize(("name", "flash_attn"), [("p2_mmproj", "auto"), ("p2_mmproj_fa_off", "off")])
def test_a_projector_takes_what_the_server_printed(
    find: Find, phantom: Callable[[str], Path], name: str, flash_attn: Literal["auto", "off"]
) -> None:
    log = (LOGS / f"xllamacpp-2026.10.11549.gemma-3-270m.{name}.log").read_text(errors="replace")
    settings = Settings(ctx_size=8192, parallel=2, kv_unified=True, n_gpu_layers=0, flash_attn=flash_attn)
    target = estimate(find("gemma-3-270m"), settings)
    projector = Projector(read_summary(phantom("siglip-gemma3")), offload=False)
    (extra,) = with_companions(target, projector=projector).extra_models
    of_the_model, of_the_projector = printed_mib(log, "compute buffer size")
    assert target.compute.low_bytes <= of_the_model * MIB <= target.compute.high_bytes
    assert extra.compute is not None
    assert in_mib(extra.compute.bytes) == of_the_projector
    (worst_case,) = re.findall(r"worst-case memory usage of mmproj is ([\d.]+) MiB", log)
    assert in_mib(extra.weights_bytes + extra.compute.bytes) == float(worst_case)
