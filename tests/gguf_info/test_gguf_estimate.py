"""`estimate` against what real servers printed when they started (CPU, CUDA, RPC, SYCL and Metal, 2024 to 2026)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_info import GGUFError, Settings, Summary, estimate, read_summary
from gguf_info.cli import main

MIB = 2**20
Number = int | list[int] | list[bool]
MakeModel = Callable[..., Path]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Write a model of given metadata: `make_model("gemma3", {"block_count": 18, ...}, n_vocab=262144)`."""

    def make(
        architecture: str, metadata: Mapping[str, Number], n_vocab: int = 1000, tensors: Mapping[str, int] | None = None
    ) -> Path:
        path = tmp_path / f"{architecture}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_vocab_size(n_vocab)
        for key, value in metadata.items():
            if isinstance(value, list):
                writer.add_array(f"{architecture}.{key}", value)
            else:
                writer.add_uint32(f"{architecture}.{key}", value)
        for name, size in (tensors or {"output_norm.weight": 8}).items():
            writer.add_tensor(name, np.zeros(size, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


GEMMA3_270M = {
    "block_count": 18,
    "context_length": 32768,
    "embedding_length": 640,
    "feed_forward_length": 2048,
    "attention.head_count": 4,
    "attention.head_count_kv": 1,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.sliding_window": 512,
}
SMOLLM2_135M = {
    "block_count": 30,
    "context_length": 8192,
    "embedding_length": 576,
    "feed_forward_length": 1536,
    "attention.head_count": 9,
    "attention.head_count_kv": 3,
}
QWEN35_MOE: dict[str, Number] = {
    "block_count": 40,
    "context_length": 262144,
    "embedding_length": 2048,
    "attention.head_count": 16,
    "attention.head_count_kv": 2,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
    "ssm.time_step_rank": 32,
    "ssm.inner_size": 4096,
    "full_attention_interval": 4,
}


GEMMA4: dict[str, Number] = {
    "context_length": 262144,
    "embedding_length": 2560,
    "attention.head_count": 16,
    "attention.key_length": 512,
    "attention.value_length": 512,
    "attention.key_length_swa": 256,
    "attention.value_length_swa": 256,
}
GEMMA4_26B: dict[str, Number] = {
    "block_count": 30,
    "attention.head_count_kv": [8, 8, 8, 8, 8, 2] * 5,
    "attention.sliding_window": 1024,
    "attention.sliding_window_pattern": [True, True, True, True, True, False] * 5,
    "attention.shared_kv_layers": 0,
}


@pytest.fixture
def gemma3(make_model: MakeModel) -> Summary:
    return read_summary(make_model("gemma3", GEMMA3_270M, n_vocab=262144))


def parts(summary: Summary, settings: Settings) -> list[tuple[str, int, int, int, float]]:
    found = estimate(summary, settings).cache
    return [(part.kind, part.cells, part.layers, part.streams, round(part.bytes / MIB, 2)) for part in found]


HOST_ONLY = Settings(n_gpu_layers=0, build=10068)
FOUR = replace(HOST_ONLY, ctx_size=16384, parallel=4, kv_unified=True)
Q8: dict[str, Any] = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}

# settings, printed caches (cells, streams, MiB), printed output and compute MiB, slot context
STARTS: dict[str, tuple[Settings, tuple[int, int, float], tuple[int, int, float], float, float, int]] = {
    "one slot": (
        replace(HOST_ONLY, ctx_size=8192, parallel=1), (8192, 1, 24.0), (1024, 1, 15.0), 1.0, 26.77, 8192),
    "defaults": (HOST_ONLY, (32768, 1, 96.0), (2560, 1, 37.5), 4.0, 52.27, 32768),
    "unified": (FOUR, (16384, 1, 48.0), (2560, 1, 37.5), 4.0, 36.27, 16384),
    "divided": (replace(FOUR, kv_unified=False), (4096, 4, 48.0), (1024, 4, 60.0), 4.0, 22.77, 4096),
    "above the training context": (
        replace(HOST_ONLY, ctx_size=65536, parallel=1), (65536, 1, 192.0), (1024, 1, 15.0), 1.0, 82.77, 32768),
    "swa-full": (replace(FOUR, swa_full=True), (16384, 1, 48.0), (16384, 1, 240.0), 4.0, 49.77, 16384),
    "ubatch 2048": (
        replace(FOUR, ctx_size=32768, ubatch_size=2048), (32768, 1, 96.0), (4096, 1, 60.0), 4.0, 215.08, 32768),
    "no flash attention": (
        replace(FOUR, flash_attn="off"), (16384, 1, 48.0), (2560, 1, 37.5), 4.0, 174.76, 16384),
    "16 slots, q8_0": (
        replace(FOUR, ctx_size=65536, parallel=16, **Q8), (65536, 1, 102.0), (8704, 1, 67.73), 16.0, 90.80, 32768),
    "build 11549": (replace(FOUR, build=11549), (16384, 1, 48.0), (2560, 1, 37.5), 4.0, 36.78, 16384),
    "build 11549, q8_0": (
        replace(FOUR, build=11549, **Q8), (16384, 1, 25.5), (2560, 1, 19.92), 4.0, 37.31, 16384),
    "build 9294": (replace(FOUR, build=9294), (16384, 1, 48.0), (2560, 1, 37.5), 4.0, 514.50, 16384),
    "build 9294, divided": (
        replace(FOUR, build=9294, kv_unified=False), (4096, 4, 48.0), (1024, 4, 60.0), 4.0, 514.50, 4096),
}  # fmt: skip


@pytest.mark.parametrize("start", STARTS)
def test_gemma3_270m_is_what_the_server_printed(gemma3: Summary, start: str) -> None:
    """Caches and output to the printed decimals, compute inside the range."""
    settings, full, window, output, compute, n_ctx_slot = STARTS[start]
    assert parts(gemma3, settings) == [
        ("non-swa", full[0], 3, full[1], full[2]),
        ("swa", window[0], 15, window[1], window[2]),
    ]
    prediction = estimate(gemma3, settings)
    assert round(prediction.output_bytes / MIB, 2) == output
    assert prediction.compute.low_bytes / MIB <= compute <= prediction.compute.high_bytes / MIB
    assert prediction.slots.n_ctx_slot == n_ctx_slot
    assert prediction.slots.capped == (n_ctx_slot < prediction.slots.cells)


def test_build_before_the_window_cache_kept_all_layers_at_full_length(gemma3: Summary) -> None:
    """llama.cpp of April 2025 printed 144.00 MiB at 8192 cells, and 774.51 MiB of compute at 65536."""
    old = Settings(build=5100, ctx_size=8192, parallel=1, n_gpu_layers=0)
    assert parts(gemma3, old) == [("full", 8192, 18, 1, 144.0)]
    four = estimate(gemma3, replace(old, ctx_size=16384, parallel=4))
    assert round(four.kv_bytes / MIB, 2) == 288.0
    assert four.slots.n_ctx_slot == 4096
    compute = estimate(gemma3, replace(old, ctx_size=65536)).compute
    assert compute.low_bytes / MIB <= 774.51 <= compute.high_bytes / MIB


@pytest.mark.parametrize(("build", "compute"), [(11549, 18.64), (9294, 98.25)])
def test_smollm2_is_what_the_server_printed(make_model: MakeModel, build: int, compute: float) -> None:
    summary = read_summary(make_model("llama", SMOLLM2_135M, n_vocab=49152))
    settings = Settings(ctx_size=4096, parallel=1, n_gpu_layers=0, build=build)
    assert parts(summary, settings) == [("full", 4096, 30, 1, 90.0)]
    prediction = estimate(summary, settings)
    assert round(prediction.output_bytes / MIB, 2) == 0.19
    assert prediction.compute.low_bytes / MIB <= compute <= prediction.compute.high_bytes / MIB


def test_gpt_oss_is_what_the_server_printed(gpt_oss: Path) -> None:
    """16 slots share 131072 cells in q8_0: 1632.00 + 31.88 MiB, weights 11536.18, output 12.27, compute 222.96."""
    settings = Settings(ctx_size=131072, parallel=16, kv_unified=True, n_gpu_layers=0, build=10068, **Q8)
    summary = read_summary(gpt_oss)
    assert parts(summary, settings) == [("non-swa", 131072, 12, 1, 1632.0), ("swa", 2560, 12, 1, 31.88)]
    prediction = estimate(summary, settings)
    assert round(prediction.weights_host_bytes / MIB, 2) == 11536.18
    assert round(prediction.output_bytes / MIB, 2) == 12.27
    assert prediction.compute.low_bytes / MIB <= 222.96 <= prediction.compute.high_bytes / MIB
    small = replace(settings, ctx_size=4096, parallel=4, cache_type_k="f16", cache_type_v="f16")
    assert parts(summary, small) == [("non-swa", 4096, 12, 1, 96.0), ("swa", 1024, 12, 1, 24.0)]


def test_hybrid_qwen35_moe_is_what_the_server_printed(make_model: MakeModel) -> None:
    """10 attention layers of 40: 640.00 MiB; states of 4 sequences: R 11.25 + S 240.00 MiB."""
    summary = read_summary(make_model("qwen35moe", QWEN35_MOE))
    prediction = estimate(summary, Settings(ctx_size=32768, build=9000))
    assert [(part.layers, part.bytes) for part in prediction.cache] == [(10, 640 * MIB)]
    assert prediction.recurrent_bytes == 251.25 * MIB
    # The same server's context checkpoints were 62.813 MiB each.
    assert round(prediction.checkpoint_bytes / MIB, 3) == 62.812
    parts = prediction.host.parts
    assert parts["checkpoints"] == 4 * 32 * prediction.checkpoint_bytes
    none = estimate(summary, Settings(ctx_size=32768, build=9000, ctx_checkpoints=0))
    assert none.host.parts["checkpoints"] == 0
    assert none.host.used_bytes == prediction.host.used_bytes


def test_a_checkpoint_of_windows_holds_what_one_slot_can_fill(make_model: MakeModel) -> None:
    """gemma-4-26B: 926 tokens were 180.871 MiB and 1434 were 280.095; a slot can fill 1536 cells."""
    summary = read_summary(make_model("gemma4", GEMMA4 | GEMMA4_26B))
    settings = Settings(ctx_size=32768, parallel=2, build=8854)
    assert estimate(summary, settings).checkpoint_bytes == 300 * MIB
    assert round(300 * 926 / 1536, 2) == 180.86
    assert estimate(summary, replace(settings, kv_unified=True)).checkpoint_bytes == 300 * MIB
    assert estimate(summary, replace(settings, swa_full=True)).checkpoint_bytes == 0


@pytest.mark.parametrize(
    ("metadata", "settings", "printed"),
    [
        (
            GEMMA4_26B,
            Settings(ctx_size=32768, parallel=2, build=8854),
            [("non-swa", 16384, 5, 2, 640.0), ("swa", 1536, 25, 2, 600.0)],
        ),
        (
            {
                "block_count": 42,
                "attention.head_count_kv": 2,
                "attention.sliding_window": 512,
                "attention.sliding_window_pattern": [True, True, True, True, True, False] * 7,
                "attention.shared_kv_layers": 18,
            },
            Settings(ctx_size=65536, parallel=1, build=8680),
            [("non-swa", 65536, 4, 1, 1024.0), ("swa", 1024, 20, 1, 40.0)],
        ),
    ],
    ids=["heads by layer", "shared layers"],
)
def test_gemma4_is_what_the_server_printed(
    make_model: MakeModel, metadata: dict[str, Number], settings: Settings, printed: list[Any]
) -> None:
    assert parts(read_summary(make_model("gemma4", GEMMA4 | metadata)), settings) == printed


def test_latent_attention_keeps_k_alone(make_model: MakeModel) -> None:
    """DeepSeek-V3.1 at 163840 tokens in f16: 10.72 GiB, as published."""
    metadata: dict[str, Number] = {
        "block_count": 61,
        "context_length": 163840,
        "embedding_length": 7168,
        "attention.head_count": 128,
        "attention.head_count_kv": 1,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.kv_lora_rank": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "rope.dimension_count": 64,
    }
    (part,) = estimate(read_summary(make_model("deepseek2", metadata)), Settings(parallel=1)).cache
    assert part.kind == "mla"
    assert round(part.bytes / 2**30, 2) == 10.72


def test_layers_without_heads_have_no_cache(make_model: MakeModel) -> None:
    """LFM2-1.2B: 6 of 16 layers, 384 MiB at 32768 tokens, as published."""
    metadata: dict[str, Number] = {
        "block_count": 16,
        "context_length": 128000,
        "embedding_length": 2048,
        "attention.head_count": 32,
        "attention.head_count_kv": [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0],
        "shortconv.l_cache": 3,
    }
    prediction = estimate(read_summary(make_model("lfm2", metadata)), Settings(ctx_size=32768, parallel=1))
    assert [(part.layers, part.bytes) for part in prediction.cache] == [(6, 384 * MIB)]
    assert prediction.recurrent_bytes == 10 * 2048 * 2 * 4


GEMMA3_TENSORS = {"token_embd.weight": 8000, "output_norm.weight": 8} | {
    f"blk.{index}.ffn_up.weight": 800 for index in range(18)
}


def test_two_devices_share_layers_as_the_server_did(make_model: MakeModel) -> None:
    """--tensor-split 3,1 over 18 layers and the output: 15 layers and 32.00 + 32.50 MiB of KV, 3 and 16.00 + 5.00."""
    summary = read_summary(make_model("gemma3", GEMMA3_270M, tensors=GEMMA3_TENSORS))
    settings = replace(FOUR, n_gpu_layers=99, tensor_split=(3.0, 1.0), memory_mib={"RPC0": 24105.0, "RPC1": 24105.0})
    prediction = estimate(summary, settings)
    assert [device.kv_bytes / MIB for device in prediction.devices] == [64.5, 21.0]
    # The embedding is tied: it stays on the host, and its copy is the output on the last device.
    assert [device.weights_bytes for device in prediction.devices] == [15 * 3200, 3 * 3200 + 32000 + 32]
    assert prediction.weights_host_bytes == 32000
    for device in prediction.devices:
        assert device.compute.low_bytes / MIB <= 35.02 <= device.compute.high_bytes / MIB
    assert prediction.host_compute.bytes / MIB == pytest.approx(21.02, abs=0.05)


GPU_STARTS: dict[str, tuple[str, int, dict[str, Number], Settings, list[float], float]] = {
    "one CUDA device": (
        "gemma4",
        262144,
        GEMMA4
        | GEMMA4_26B
        | {
            "embedding_length": 2816,
            "feed_forward_length": 2112,
            "expert_count": 128,
            "expert_used_count": 8,
            "expert_feed_forward_length": 704,
        },
        Settings(ctx_size=32768, parallel=2, batch_size=512, build=8854),
        [532.62],
        46.02,
    ),
    "Metal": (
        "gemma4",
        262144,
        GEMMA4
        | {
            "block_count": 42,
            "feed_forward_length": 10240,
            "embedding_length_per_layer_input": 256,
            "attention.head_count": 8,
            "attention.head_count_kv": 2,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [True, True, True, True, True, False] * 7,
            "attention.shared_kv_layers": 18,
        },
        Settings(ctx_size=65536, parallel=1, build=8680),
        [517.50],
        140.02,
    ),
    "a pipeline of two CUDA devices": (
        "qwen35moe",
        248320,
        QWEN35_MOE | {"expert_count": 256, "expert_used_count": 8, "expert_feed_forward_length": 512},
        Settings(ctx_size=32768, build=8600, memory_mib={"CUDA2": 48000, "CUDA3": 48000}),
        [372.06, 637.07],
        264.08,
    ),
    "two devices over the network, without flash attention": (
        "llama",
        128256,
        {
            "block_count": 80,
            "context_length": 131072,
            "embedding_length": 8192,
            "feed_forward_length": 28672,
            "attention.head_count": 64,
            "attention.head_count_kv": 8,
        },
        Settings(ctx_size=4096, parallel=1, flash_attn="off", build=6209, memory_mib={"RPC0": 50000, "RPC1": 50000}),
        [588.01, 588.01],
        28.01,
    ),
}


@pytest.mark.parametrize("start", GPU_STARTS)
def test_compute_buffers_of_devices_and_host_are_within_the_range(make_model: MakeModel, start: str) -> None:
    architecture, n_vocab, metadata, settings, devices, host = GPU_STARTS[start]
    prediction = estimate(read_summary(make_model(architecture, metadata, n_vocab=n_vocab)), settings)
    for device, printed in zip(prediction.devices, devices, strict=True):
        assert device.compute.low_bytes / MIB <= printed <= device.compute.high_bytes / MIB
    assert prediction.host_compute.low_bytes / MIB <= host <= prediction.host_compute.high_bytes / MIB


def test_a_device_without_layers_computes_with_the_hosts_weights(write_sparse: Callable[..., Path]) -> None:
    """Qwen3-4B with --n-gpu-layers 0 beside a GPU (build 5285): 606.03 MiB there, 13.01 on the host, no weights."""
    writer = gguf.GGUFWriter(None, "qwen3")
    writer.add_block_count(36)
    writer.add_context_length(40960)
    writer.add_embedding_length(2560)
    writer.add_feed_forward_length(9728)
    writer.add_vocab_size(151936)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    writer.add_key_length(128)
    writer.add_value_length(128)
    q6, q4 = gguf.GGMLQuantizationType.Q6_K, gguf.GGMLQuantizationType.Q4_K
    tensors = [("token_embd.weight", (151936, 2560), q6), ("blk.0.ffn_up.weight", (9728, 2560), q4)]
    summary = read_summary(write_sparse(writer, tensors))
    settings = Settings(
        ctx_size=4096, parallel=1, flash_attn="off", n_gpu_layers=0, build=5285, memory_mib={"CUDA0": 5000.0}
    )
    prediction = estimate(summary, settings)
    (device,) = prediction.devices
    assert device.weights_bytes == device.kv_bytes == 0
    assert device.compute.low_bytes / MIB <= 606.03 <= device.compute.high_bytes / MIB
    assert device.compute.bytes / MIB == pytest.approx(606.03, rel=0.1)
    assert prediction.host_compute.low_bytes / MIB <= 13.01 <= prediction.host_compute.high_bytes / MIB
    for without in (replace(settings, op_offload=False), replace(settings, memory_mib={})):
        assert estimate(summary, without).devices[0].compute.high_bytes == 0
    # Current builds have few outputs, too few to copy the output's weights for.
    newest = estimate(summary, replace(settings, flash_attn="auto", build=11549)).devices[0].compute
    assert newest.bytes < 100 * MIB


@pytest.mark.parametrize(("n_gpu_layers", "layers"), [(0, 0), (1, 0), (2, 1), (19, 18), (99, 18)])
def test_offload_counts_the_output_first(make_model: MakeModel, n_gpu_layers: int, layers: int) -> None:
    summary = read_summary(make_model("gemma3", GEMMA3_270M, tensors=GEMMA3_TENSORS))
    (device,) = estimate(summary, replace(FOUR, n_gpu_layers=n_gpu_layers)).devices
    output = 32000 + 32 if n_gpu_layers else 0
    assert device.weights_bytes == layers * 3200 + output


def test_experts_and_overrides_stay_on_the_host(make_model: MakeModel) -> None:
    tensors = {f"blk.{i}.{name}.weight": 100 for i in range(2) for name in ("ffn_up_exps", "attn_q")}
    metadata = {**GEMMA3_270M, "block_count": 2, "expert_count": 8, "expert_used_count": 2}
    summary = read_summary(make_model("gemma3", metadata, tensors=tensors))
    assert estimate(summary, Settings()).weights_host_bytes == 0
    assert estimate(summary, Settings(n_cpu_moe=1)).weights_host_bytes == 400
    assert estimate(summary, Settings(n_cpu_moe=99)).weights_host_bytes == 800
    overridden = estimate(summary, Settings(override_tensor=((r"attn_q", "CPU"),), n_cpu_moe=1))
    assert overridden.weights_host_bytes == 1200


def test_cache_stays_on_the_host_without_kv_offload(gemma3: Summary) -> None:
    prediction = estimate(gemma3, replace(FOUR, n_gpu_layers=None, kv_offload=False))
    assert prediction.devices[0].kv_bytes == 0
    assert prediction.host.parts["kv"] == 85.5 * MIB


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (replace(FOUR, flash_attn="off", cache_type_v="q8_0"), "flash attention for a quantized V cache"),
        (replace(FOUR, cache_type_k="q9"), "--cache-type-k out of"),
        (replace(FOUR, override_tensor=((".", "CUDA7"),)), "--override-tensor to one of CPU, GPU0"),
        (replace(FOUR, memory_mib={"CPU": 5.0}), "--memory of a device"),
        (replace(FOUR, parallel=1000), "--parallel of at most 256"),
        (replace(FOUR, ctx_size=3, kv_unified=False, build=6930), "--ctx-size of a token or more a slot"),
        (replace(FOUR, spec_type=("guess",)), "--spec-type out of"),
    ],
    ids=["quantized V", "type", "buffer", "host memory", "slots", "context", "speculation"],
)
def test_settings_that_the_server_refuses(gemma3: Summary, settings: Settings, expected: str) -> None:
    with pytest.raises(GGUFError, match=expected):
        estimate(gemma3, settings)


@pytest.mark.parametrize(
    ("architecture", "extra", "found"),
    [
        ("newer", {"attention.sliding_window": 128}, "'newer' with a window and no pattern"),
        ("deepseek32", {"attention.indexer.key_length": 128}, "an indexer cache"),
        ("kimi-linear", {"kda.head_dim": 128}, "delta attention states"),
    ],
)
def test_cache_of_unknown_shape_is_refused_not_guessed(
    make_model: MakeModel, architecture: str, extra: dict[str, Number], found: str
) -> None:
    metadata = {key: value for key, value in GEMMA3_270M.items() if "window" not in key}
    with pytest.raises(GGUFError, match=found):
        estimate(read_summary(make_model(architecture, {**metadata, **extra})))


@pytest.mark.parametrize("layers", [0, 5000, 2**32 - 1])
def test_a_number_of_layers_that_no_model_has_is_refused(make_model: MakeModel, layers: int) -> None:
    metadata: dict[str, Number] = {**GEMMA3_270M, "block_count": layers}
    with pytest.raises(GGUFError, match=r"language model|1 to 4096 layers"):
        estimate(read_summary(make_model("gemma3", metadata)))


def test_projector_has_no_estimate(make_model: MakeModel) -> None:
    with pytest.raises(GGUFError, match="a language model"):
        estimate(read_summary(make_model("clip", {"vision.block_count": 27})))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["estimate", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_command_prints_the_contract(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-c", 131072, "-np", 4, "-kvu", "-ctk", "q8_0", "-ctv", "q8_0", "--memory", "CUDA0=24000"]
    status, out, _ = run(capsys, gpt_oss, "--format", "json", *flags)
    document = json.loads(out)
    assert status == 0
    assert document["schema_version"] == 1
    assert document["assumptions"]["ubatch_size"] == 512
    assert document["kv_cache"]["total_bytes"] == 1644.75 * MIB
    assert document["slots"] == {
        "n_slots": 4,
        "n_ctx": 131072,
        "n_ctx_slot": 131072,
        "capped": False,
        "kv_unified": True,
        "streams": 1,
        "cells": 131072,
    }
    (device,) = document["devices"]
    assert device["fits"] is True
    parts_sum = sum(device[f"{kind}_bytes"] for kind in ("weights", "kv", "recurrent", "compute"))
    assert device["used_bytes"] == parts_sum
    assert [part["kind"] for part in document["host"]["parts"]] == [
        "weights",
        "kv",
        "output",
        "prompt-cache",
        "checkpoints",
    ]


def test_command_says_no_with_status_1(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, gpt_oss, "--memory", "CUDA0=8000")
    assert status == 1
    assert "does not fit" in out
    status, out, _ = run(capsys, gpt_oss, "--cpu-moe", "-c", "4096", "--memory", "CUDA0=8000")
    assert status == 0
    assert "fits" in out


def test_memory_that_the_driver_takes_counts(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-c", 4096, "--memory", "CUDA0=11400", "--format", "json"]
    assert run(capsys, gpt_oss, *flags)[0] == 0
    status, out, _ = run(capsys, gpt_oss, *flags, "--context-mib", 400)
    assert status == 1
    assert json.loads(out)["devices"][0]["context_bytes"] == 400 * MIB


@pytest.mark.parametrize(
    "flags", [["--memory", "24"], ["-ot", "x"], ["-ot", "(=CPU"], ["-ts", "0,0"], ["-c", "-5"], ["-ctk", "q3"]]
)
def test_bad_flag_is_a_usage_error(tiny_model: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    assert run(capsys, tiny_model, *flags)[0] == 2


def test_a_pasted_command_line_is_understood(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Short forms, aliases and flags that name devices, as llama-server takes them."""
    memory = ["--memory", "CUDA0=24000", "--memory", "CUDA1=24000", "--format", "json"]
    pasted = ["-m", gpt_oss, "-c", 16384, "-np", 2, "-no-kvu", "-nkvo", "--gpu-layers", 99, "-cram", -1, "-ctxcp", 8]
    status, out, _ = run(capsys, *pasted, *memory, "-sm", "none", "-mg", 1)
    document = json.loads(out)
    assert status == 0
    assert [device["weights_bytes"] > 0 for device in document["devices"]] == [False, True]
    assert document["slots"]["kv_unified"] is False
    parts = {part["kind"]: part["bytes"] for part in document["host"]["parts"]}
    assert parts["kv"] == document["kv_cache"]["total_bytes"]
    assert parts["prompt-cache"] is None
    assert parts["checkpoints"] == 2 * 8 * 18 * MIB  # 768 cells of 12 layers of 2 KiB
    _, out, _ = run(capsys, gpt_oss, *memory, "-dev", "CUDA1")
    assert [device["name"] for device in json.loads(out)["devices"]] == ["CUDA1"]
    _, out, _ = run(capsys, gpt_oss, *memory, "-dev", "none")
    assert json.loads(out)["weights"]["gpu_bytes"] == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--memory", "CUDA0=24000", "-dev", "CUDA7"], "--device CUDA7 is not among those of --memory"),
        (["-dev", "CUDA0,none"], "is no list of devices"),
        (["--spec-type", "draft-what"], "'draft-what' is not one of none, draft-simple"),
        (["--spec-type", "draft-eagle3"], "--spec-type draft-eagle3 needs --model-draft"),
        (["--plot", "x.svg"], "--plot draws a --sweep"),
        (["--sweep", "--plot", "x.pdf"], "does not end with .svg or .png"),
    ],
)
def test_flags_that_do_not_go_together(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    status, _, err = run(capsys, tiny_model, *flags)
    assert status == 2
    assert said in err


def test_no_file_and_no_device_are_errors(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "which model?" in run(capsys, "-c", 4096)[2]
    status, _, err = run(capsys, tiny_model, "-sm", "none", "-mg", 3)
    assert (status, "--main-gpu below 1" in err) == (2, True)
