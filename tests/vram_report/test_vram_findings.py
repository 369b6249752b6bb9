"""Each finding appears where its numbers are in the log, and not where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from vram_report import Finding, Run, parse, read_log

FOLDER = Path(__file__).parents[2] / "fixtures" / "logs"

GPU = (
    "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4090) (0000:01:00.0) - 24000 MiB free",
    "load_tensors: offloaded 25/25 layers to GPU",
    "load_tensors:        CUDA0 model buffer size = 11000.00 MiB",
    "load_tensors:   CPU_Mapped model buffer size =   586.82 MiB",
)
CONTEXT = (
    "llama_context: constructing llama_context",
    "llama_context: n_seq_max     = 4",
    "llama_context: n_ctx         = 131072",
    "llama_context: n_ctx_seq     = 131072",
    "llama_context: flash_attn    = enabled",
    "llama_context: kv_unified    = true",
)
KV = (
    "llama_kv_cache:      CUDA0 KV buffer size =  3072.00 MiB",
    "llama_kv_cache: size = 3072.00 MiB (131072 cells,  12 layers,  4/1 seqs), K (f16): 1536.00 MiB, V (f16): "
    "1536.00 MiB",
)
COMPUTE = ("sched_reserve:      CUDA0 compute buffer size =   768.00 MiB",)
CUDA_FAILURE = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating {} MiB on device 0: cudaMalloc failed: out of memory"
)
READY = ("main: server is listening on http://127.0.0.1:8080 - starting the main loop",)


def run_of(*lines: str) -> Run:
    (run,) = parse(line + "\n" for line in lines)
    return run


def finding(run: Run, code: str) -> Finding | None:
    return next((finding for finding in run.findings if finding.code == code), None)


def message(run: Run, code: str) -> str:
    found = finding(run, code)
    assert found is not None, [item.code for item in run.findings]
    return found.message


def test_plain_gpu_start_reports_what_it_used_and_what_fits() -> None:
    run = run_of(*GPU, *CONTEXT, *KV, *COMPUTE, *READY)
    (gpu, _) = run.devices
    assert (gpu.used_mib, gpu.free_after_load_mib) == (14840.0, 9160.0)
    # 9160 - 1024 MiB at (3072 + 768) / 131072 MiB a token, in multiples of 256
    assert run.capacity.additional_ctx_tokens == 277_504
    assert (run.capacity.additional_slots, run.capacity.additional_conversations) == (None, 2)
    assert "about 1,632 MiB" in message(run, "f16-cache")


def test_kv_allocation_failure_names_the_context_that_would_have_fitted() -> None:
    run = run_of(
        GPU[0].replace("24000", "14000"),
        *GPU[1:],
        *CONTEXT,
        CUDA_FAILURE.format("3072.00"),
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 3221225472",
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
    )
    assert run.outcome == "out-of-memory"
    assert run.failure is not None
    assert (run.failure.device, run.failure.requested_mib) == ("CUDA0", 3072.0)
    # 14000 - 11000 - 1024 MiB at 3072 / 131072 MiB a token
    assert "--ctx-size 84224 would have fitted (asked: 131072)" in message(run, "out-of-memory")
    assert "14,000 MiB were free" in message(run, "out-of-memory")


def test_compute_allocation_failure_counts_the_cache_that_was_allocated() -> None:
    run = run_of(
        GPU[0].replace("24000", "14500"),
        *GPU[1:],
        *CONTEXT,
        *KV,
        CUDA_FAILURE.format("768.00"),
        "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 805306368",
        "graph_reserve: failed to allocate compute buffers",
    )
    # 14500 - 11000 MiB at (3072 + 768) / 131072 MiB a token
    assert "--ctx-size 119296 would have fitted" in message(run, "out-of-memory")


def test_failure_without_sizes_gives_advice_without_invented_numbers() -> None:
    run = read_log(FOLDER / "rocm-apertus70b-oom.log").runs[-1]
    assert "would have fitted" not in message(run, "out-of-memory")
    assert "14,136 MiB on ROCm0" in message(run, "out-of-memory")


def test_buffer_limit_is_told_apart_from_lack_of_memory() -> None:
    run = read_log(FOLDER / "vulkan-oom-buffer-limit-segv.log").runs[-1]
    assert "size of one buffer" in message(run, "out-of-memory")
    assert "8,348 MiB on Vulkan0" in message(run, "out-of-memory")


def test_allocation_failure_that_is_retried_is_no_failure() -> None:
    run = read_log(FOLDER / "cuda-m3-retry-no-pipeline-prefix.log").runs[-1]
    assert (run.failure, run.outcome) == (None, "incomplete")


def test_quantized_v_without_flash_attention_is_reported() -> None:
    lines = [line.replace("= enabled", "= disabled").replace("f16", "q8_0") for line in (*CONTEXT, *KV)]
    assert "-fa on" in message(run_of(*GPU, *lines, *READY), "flash-attention-off")
    assert finding(run_of(*GPU, *CONTEXT, *KV, *READY), "flash-attention-off") is None


@pytest.mark.parametrize(
    ("lines", "sign"),
    [
        ((KV[0], KV[1].replace("V (f16)", "V (q4_0)")), "differ in type (f16, q4_0)"),
        ((*KV, "sched_reserve: graph splits = 62"), "62 splits"),
    ],
)
def test_attention_on_the_cpu_is_suspected_from_its_signs(lines: tuple[str, ...], sign: str) -> None:
    run = run_of(*GPU, *CONTEXT, *lines, *READY)
    assert sign in message(run, "attention-on-cpu")


def test_many_splits_are_expected_with_experts_on_the_host() -> None:
    experts = "load_tensors:   CPU_Mapped model buffer size =  9000.00 MiB"
    run = run_of(*GPU[:3], experts, *CONTEXT, *KV, "sched_reserve: graph splits = 62", *READY)
    assert finding(run, "attention-on-cpu") is None


def test_compute_buffer_that_outweighs_the_cache_is_reported() -> None:
    run = run_of(*GPU, *CONTEXT, *KV, COMPUTE[0].replace("768.00", "4000.00"), *READY)
    assert run.capacity.binding == "compute"
    assert "--ubatch-size" in message(run, "compute-binding")
    assert finding(run_of(*GPU, *CONTEXT, *KV, *COMPUTE, *READY), "compute-binding") is None


@pytest.mark.parametrize(("n_slots", "severity"), [(4, "info"), (3, "warning")])
def test_a_capped_slot_is_no_loss_where_the_slots_fill_the_pool_together(n_slots: int, severity: str) -> None:
    run = run_of(
        *GPU,
        *(line.replace("131072", "32768") for line in CONTEXT),
        "llama_context: n_ctx_seq (32768) > n_ctx_train (8192) -- possible training context overflow",
        "srv    load_model: the slot context (32768) exceeds the training context of the model (8192) - capping",
        f"srv    load_model: initializing, n_slots = {n_slots}, n_ctx_slot = 8192, kv_unified = 'true'",
        *READY,
    )
    found = finding(run, "capped-context")
    assert found is not None
    assert found.severity == severity
    assert "8,192 tokens, the model's training context" in found.message


def test_unequal_gpus_are_reported() -> None:
    banner = (
        "ggml_cuda_init: found 2 CUDA devices:",
        "  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes, VRAM: 24080 MiB",
        "  Device 1: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes, VRAM: 24080 MiB",
    )
    second = (GPU[0].replace("CUDA0", "CUDA1"), GPU[2].replace("CUDA0", "CUDA1").replace("11000", " 1000"))
    run = run_of(*banner, GPU[0], second[0], *GPU[1:], second[1], *READY)
    assert "23,000 MiB stay free on CUDA1, and 13,000 MiB on CUDA0" in message(run, "gpu-imbalance")


def test_kv_in_host_memory_and_partial_offload_are_reported() -> None:
    run = read_log(FOLDER / "cuda-1660ti-qwen3-ngl0-b5285.log").runs[-1]
    assert "576 MiB of KV cache are in host memory" in message(run, "kv-on-host")
    assert "Only 0 of 37 layers" in message(run, "partial-offload")


def test_host_memory_that_will_fill_is_reported() -> None:
    host = "0.00.031.263 I cmn  common_param:   - CPU     : AMD EPYC (8000 MiB, 6000 MiB free)"
    cache = "srv    load_model: prompt cache is enabled, size limit: 8192 MiB"
    run = run_of(host, *GPU, *CONTEXT, *KV, cache, *READY)
    assert "prompt cache up to 8,192 MiB" in message(run, "host-ram-budget")
    roomy = run_of(host.replace("6000", "60000"), *GPU, *CONTEXT, *KV, cache, *READY)
    assert finding(roomy, "host-ram-budget") is None


def test_memory_of_a_projector_is_named() -> None:
    run = read_log(FOLDER / "metal-gemma4-iswa-mmproj.log").runs[-1]
    # 945.51 MiB of weights, 101.27 and 6.77 MiB of compute buffers
    assert "mmproj 1,054 MiB" in message(run, "extra-model-memory")


def test_draft_model_is_not_counted_as_the_target() -> None:
    draft = (
        "srv    load_model: loading draft model 'draft.gguf'",
        "llama_model_loader: loaded meta data with 33 key-value pairs and 236 tensors from draft.gguf "
        "(version GGUF V3 (latest))",
        "print_info: n_layer          = 8",
        "load_tensors:        CUDA0 model buffer size =   500.00 MiB",
        "llama_context: constructing llama_context",
        "llama_context: n_ctx         = 4096",
        "llama_kv_cache:      CUDA0 KV buffer size =    64.00 MiB",
        "llama_kv_cache: size =   64.00 MiB (  4096 cells,   8 layers,  1/1 seqs), K (f16):   32.00 MiB, V (f16):"
        "   32.00 MiB",
    )
    run = run_of(*GPU, "print_info: n_layer          = 24", *CONTEXT, *KV, *COMPUTE, *draft, *READY)
    assert (run.model.n_layer, run.context.n_ctx, run.kv_cache.total_mib) == (24, 131072, 3072.0)
    assert {b.role: b.mib for b in run.buffers if b.kind == "kv"} == {"model": 3072.0, "draft": 64.0}
    assert "draft 564 MiB" in message(run, "extra-model-memory")


def test_second_context_of_one_load_is_the_mtp_head() -> None:
    run = run_of(*GPU, *CONTEXT, *KV, *COMPUTE, CONTEXT[0], KV[0].replace("3072.00", " 100.00"), *READY)
    assert {b.role: b.mib for b in run.buffers if b.kind == "kv"} == {"model": 3072.0, "mtp": 100.0}


def test_second_reservation_of_a_compute_buffer_replaces_the_first() -> None:
    run = run_of(*GPU, *CONTEXT, *KV, *COMPUTE, COMPUTE[0].replace("768.00", "512.00"), *READY)
    assert [b.mib for b in run.buffers if b.kind == "compute"] == [512.0]


def test_exit_table_is_a_measurement() -> None:
    table = (
        "srv    operator(): operator(): cleaning up before exit...",
        "common_memory_breakdown_print: | memory breakdown [MiB] | total   free    self   model   context   compute    "
        "unaccounted |",
        "common_memory_breakdown_print: |   - CUDA0 (RTX 4090)   | 24080 = 8800 + (14840 = 11000 +    3072 +     768) +"
        "         440 |",
    )
    (gpu, _) = run_of(*GPU, *CONTEXT, *KV, *COMPUTE, *READY, *table).devices
    assert (gpu.used_mib, gpu.used_basis) == (14840.0, "measured")
    assert (gpu.free_after_load_mib, gpu.free_after_load_basis) == (8800.0, "measured")


def test_projection_is_labelled_and_its_trial_load_not_counted() -> None:
    run = read_log(FOLDER / "cuda-1080ti-fit-abort-wrap.log").runs[-1]
    (gpu, _) = run.devices
    assert (gpu.used_mib, gpu.used_basis) == (10001.0, "projected")
    assert run.buffers == []


def test_split_buffers_leave_the_sum_of_their_devices_unknown() -> None:
    run = read_log(FOLDER / "ik-2xT4-rowsplit-qwen3-32b.log").runs[-1]
    used = {device.name: device.used_mib for device in run.devices}
    assert used["CUDA0"] is None
    assert used["CUDA_Split"] == 21608.65
