"""What the reader should know or change, each under a code that docs/findings.md explains.

The rule: a finding is one function in `RULES`; it states the numbers it rests on and what to do, and says nothing
when the log does not hold them. Order in the report is the order of `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vram_report.capacity import largest_context_that_fitted
from vram_report.document import Device, Finding, Run
from vram_report.runs import ContextFacts, RunFacts

__all__ = ["CODES", "build_findings"]

Rule = Callable[[Run, RunFacts, "ContextFacts | None"], "Finding | None"]

F16_TYPES = ("f16", "bf16")
F16_SAVING_MIB = 256
Q8_0_BYTES_PER_VALUE = 34 / 32
IMBALANCE_SHARE = 0.25
MANY_GRAPH_SPLITS = 10
SLOW_PREFILL_TOKENS = 1000
HOST_WEIGHT_SHARE = 0.2


def build_findings(run: Run, facts: RunFacts, context: ContextFacts | None) -> Run:
    """Return the run with the findings that apply to it."""
    found = (rule(run, facts, context) for rule in RULES.values())
    return replace(run, findings=[finding for finding in found if finding is not None])


def _mib(value: float) -> str:
    return f"{value:,.0f} MiB"


def _failed(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    failure = run.failure
    if failure is None or run.outcome == "out-of-memory":
        return None
    return Finding("start-failed", "error", f"The start failed ({failure.kind}): {failure.message}.", failure.line)


def _out_of_memory(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    failure = run.failure
    if failure is None or run.outcome != "out-of-memory":
        return None
    asked = f"asked for {_mib(failure.requested_mib)}" if failure.requested_mib is not None else "asked for memory"
    device = next((d for d in run.devices if d.name == failure.device), None)
    free = f"; {_mib(device.free_mib)} were free before the load" if device and device.free_mib is not None else ""
    where = f" on {failure.device}" if failure.device else ""
    if failure.kind == "buffer-limit":
        remedy = "The limit is the size of one buffer, not the free VRAM: lower --ubatch-size or --ctx-size."
    else:
        remedy = "Lower --ctx-size, use -ctk q8_0 -ctv q8_0, lower --ubatch-size, or offload fewer layers (-ngl)."
        largest = largest_context_that_fitted(run)
        if largest is not None:
            remedy += f" By this log's sizes, --ctx-size {largest} would have fitted (asked: {run.context.n_ctx})."
    return Finding(
        "out-of-memory", "error", f"An allocation failed: the server {asked}{where}{free}. {remedy}", failure.line
    )


def _partial(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    if run.buffers or any(device.used_mib is not None for device in run.devices) or run.outcome != "ready":
        return None
    return Finding(
        "partial-log",
        "warning",
        "The log holds no memory lines: current builds print them only at verbosity 4. Add -lv 4 to the server's "
        "command and start it again; what is shown here is all that this log says.",
        None,
    )


def _incomplete(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    if run.outcome != "incomplete":
        return None
    return Finding(
        "incomplete-log",
        "info",
        "The log ends before the server was ready, and says no failure: it is cut, or the process was killed.",
        run.last_line,
    )


def _capped(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    used = run.context
    if not used.capped or used.n_ctx_slot is None:
        return None
    asked = f"{used.n_ctx_seq:,}" if used.n_ctx_seq else "a larger context"
    if used.kv_unified and used.n_slots and used.n_ctx and used.n_ctx <= used.n_slots * used.n_ctx_slot:
        return Finding(
            "capped-context",
            "info",
            f"A conversation ends at {used.n_ctx_slot:,} tokens, the model's training context, although the pool has "
            f"{used.n_ctx:,}; the {used.n_slots} slots fill it together.",
            facts.capping_line,
        )
    return Finding(
        "capped-context",
        "warning",
        f"Each slot is capped to {used.n_ctx_slot:,} tokens, the model's training context, although {asked} was asked "
        "for. The KV cache keeps its full size: lower --ctx-size to take the memory back, or extend the model with "
        "--rope-scaling.",
        facts.capping_line,
    )


def _divided(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    used = run.context
    if used.kv_unified is not False or not used.n_slots or used.n_slots < 2 or not used.n_ctx_slot:
        return None
    total = f" of {used.n_ctx:,}" if used.n_ctx else ""
    return Finding(
        "divided-kv",
        "warning",
        f"The KV cache is divided: each of the {used.n_slots} slots has {used.n_ctx_slot:,} tokens{total} and cannot "
        "lend them. An explicit --parallel divides the cache; add --kv-unified to share one pool.",
        None,
    )


def _oversubscribed(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    used = run.context
    if not used.kv_unified or not used.n_slots or not used.n_ctx_slot or not used.n_ctx:
        return None
    demand = used.n_slots * used.n_ctx_slot
    if demand <= used.n_ctx:
        return None
    return Finding(
        "oversubscribed-pool",
        "info",
        f"{used.n_slots} slots of {used.n_ctx_slot:,} tokens may ask for {demand:,}, and the shared pool holds "
        f"{used.n_ctx:,}. When it is full, 'Context size has been exceeded' ends every running generation: raise "
        f"--ctx-size, or run at most {max(1, used.n_ctx // used.n_ctx_slot)} full conversations at once.",
        None,
    )


def _swa_full(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    swa = [part for part in run.kv_cache.parts if part.kind == "swa"]
    other = [part for part in run.kv_cache.parts if part.kind == "non-swa"]
    full = context is not None and context.swa_full
    if not swa or not other or not full:
        return None
    return Finding(
        "swa-full",
        "warning",
        f"The SWA cache is kept at full size: {swa[0].cells or 0:,} cells, {_mib(swa[0].mib or 0)}. Without --swa-full "
        f"it would hold the window of {run.model.n_swa or 0:,} tokens per slot only.",
        None,
    )


def _kv_on_host(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    host = [b for b in run.buffers if b.kind == "kv" and b.device == "CPU" and b.role == "model"]
    if not host or not _has_gpu(run):
        return None
    return Finding(
        "kv-on-host",
        "warning",
        f"{_mib(sum(b.mib for b in host))} of KV cache are in host memory although there is a GPU: attention over them "
        "is slow. Offload more layers (-ngl), or drop --no-kv-offload.",
        host[0].line,
    )


def _partial_offload(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    layers, of = run.offload.layers, run.offload.of
    if layers is None or of is None or layers >= of or not _has_gpu(run):
        return None
    return Finding(
        "partial-offload",
        "warning",
        f"Only {layers} of {of} layers are on the GPU: every token waits for the host. Raise -ngl, or make room "
        "with a smaller context, a quantized cache or a smaller quantization of the model.",
        None,
    )


def _f16_cache(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    cache = run.kv_cache
    if cache.type_k not in F16_TYPES or cache.total_mib is None or (cache.type_v or "f16") not in F16_TYPES:
        return None
    quantized = cache.total_mib * Q8_0_BYTES_PER_VALUE / 2
    if cache.total_mib - quantized < F16_SAVING_MIB:
        return None
    return Finding(
        "f16-cache",
        "info",
        f"The KV cache is {cache.type_k}: {_mib(cache.total_mib)}. With -ctk q8_0 -ctv q8_0 it would take about "
        f"{_mib(quantized)}.",
        None,
    )


def _low_headroom(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    capacity = run.capacity
    if capacity.headroom_mib is None or capacity.headroom_mib >= 0 or run.outcome == "out-of-memory":
        return None
    free = capacity.headroom_mib + capacity.margin_mib
    return Finding(
        "low-headroom",
        "warning",
        f"{_mib(free)} stay free on {capacity.device}, against a safety margin of {_mib(capacity.margin_mib)}: a "
        "second program on this device, or a larger batch, may run out of memory.",
        None,
    )


def _compute_binding(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    if run.capacity.binding != "compute" or not _has_gpu(run):
        return None
    device = next(d for d in run.devices if d.name == run.capacity.device)
    return Finding(
        "compute-binding",
        "info",
        f"On {device.name} the compute buffer ({_mib(device.compute_mib or 0)}) weighs more than the KV cache that "
        f"grows with the context ({_mib(device.kv_mib or 0)} in all): a lower --ubatch-size makes more room than a "
        "smaller cache type.",
        None,
    )


def _flash_off(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    type_v = run.kv_cache.type_v
    if run.context.flash_attn != "disabled" or type_v is None or type_v in (*F16_TYPES, "f32"):
        return None
    return Finding(
        "flash-attention-off",
        "warning",
        f"The V cache is {type_v} and flash attention is off: a quantized V cache needs it. Start with -fa on, or use "
        "-ctv f16.",
        None,
    )


def _imbalance(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    gpus = [d for d in run.devices if d.kind == "gpu" and d.free_after_load_mib is not None and d.total_mib]
    if len(gpus) < 2 or not any(d.used_mib for d in gpus):
        return None
    fullest = min(gpus, key=_free_share)
    emptiest = max(gpus, key=_free_share)
    if _free_share(emptiest) - _free_share(fullest) < IMBALANCE_SHARE:
        return None
    return Finding(
        "gpu-imbalance",
        "info",
        f"{_mib(emptiest.free_after_load_mib or 0)} stay free on {emptiest.name}, and "
        f"{_mib(fullest.free_after_load_mib or 0)} on {fullest.name}, which therefore bounds the context. Move layers "
        "with --tensor-split.",
        None,
    )


def _free_share(device: Device) -> float:
    return (device.free_after_load_mib or 0) / (device.total_mib or 1)


def _attention_on_cpu(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    if context is None or not _has_gpu(run) or not _is_fully_offloaded(run):
        return None
    signs = []
    cache, requests = run.kv_cache, run.requests
    if cache.type_k and cache.type_v and cache.type_k != cache.type_v:
        signs.append(f"the K and V caches differ in type ({cache.type_k}, {cache.type_v})")
    splits = context.graph_splits
    if splits is not None and splits >= MANY_GRAPH_SPLITS and splits >= (run.model.n_layer or 0) // 2:
        signs.append(f"the graph has {splits} splits")
    if requests and requests.prompt_tokens_per_second and requests.tokens_per_second:
        slow = requests.prompt_tokens_per_second < requests.tokens_per_second
        if slow and (requests.prompt_tokens_computed or 0) > SLOW_PREFILL_TOKENS:
            signs.append(f"prompts run at {requests.prompt_tokens_per_second:.0f} tokens a second, slower than answers")
    if not signs:
        return None
    return Finding(
        "attention-on-cpu",
        "warning",
        f"Attention may run on the CPU although all layers are on the GPU: {'; '.join(signs)}. Use the same cache type "
        "for K and V, one that the build's GPU kernels support (f16, q8_0, q4_0).",
        None,
    )


def _is_fully_offloaded(run: Run) -> bool:
    offload = run.offload
    host = sum(b.mib for b in run.buffers if b.kind == "weights" and b.device == "CPU")
    every = sum(b.mib for b in run.buffers if b.kind == "weights")
    all_layers = offload.layers is None or offload.layers == offload.of
    return all_layers and every > 0 and host < HOST_WEIGHT_SHARE * every


def _host_ram(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    if facts.prompt_cache is None or not run.buffers:
        return None
    limit = None if facts.prompt_cache == "no limit" else float(facts.prompt_cache)
    checkpoints = (facts.checkpoints or 0) * (run.context.n_slots or 1) * _checkpoint_mib(run)
    host = next((d for d in run.devices if d.name == "CPU"), None)
    loaded = host.used_mib or 0 if host else 0
    need = loaded + checkpoints + (limit or 0)
    free = host.free_mib if host else None
    if limit is not None and (free is None or need <= free):
        return None
    against = f", of {_mib(free)} free at the start" if free is not None else ""
    cache = "without limit" if limit is None else f"up to {_mib(limit)}"
    return Finding(
        "host-ram-budget",
        "warning",
        f"Host memory may fill later{against}: the prompt cache {cache}, context checkpoints up to "
        f"{_mib(checkpoints)}, and {_mib(loaded)} loaded now. Lower --cache-ram or --ctx-checkpoints.",
        None,
    )


def _checkpoint_mib(run: Run) -> float:
    """What one checkpoint of one slot keeps: its recurrent state and its window of the SWA cache."""
    recurrent = sum(b.mib for b in run.buffers if b.kind == "recurrent") / (run.context.n_slots or 1)
    windows = [p for p in run.kv_cache.parts if p.kind == "swa" and p.mib and p.cells]
    window = sum((p.mib or 0) * (run.model.n_swa or 0) / ((p.cells or 1) * (p.streams or 1)) for p in windows)
    return recurrent + window


def _extra_models(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    extra = [b for b in run.buffers if b.role in ("draft", "mtp", "mmproj", "lora")]
    if not extra:
        return None
    roles = sorted({b.role for b in extra})
    sums = [f"{role} {_mib(sum(b.mib for b in extra if b.role == role))}" for role in roles]
    return Finding(
        "extra-model-memory",
        "info",
        f"Beside the model, memory goes to: {', '.join(sums)}. The automatic fit does not always plan for it.",
        extra[0].line,
    )


def _has_gpu(run: Run) -> bool:
    return any(device.kind in ("gpu", "igpu") for device in run.devices)


def _full_reprocessing(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    requests = run.requests
    if requests is None or not requests.full_reprocessings:
        return None
    first = requests.full_reprocessings[0]
    return Finding(
        "full-reprocessing",
        "warning",
        f"{len(requests.full_reprocessings)} of {requests.count} prompts were computed again from the first token "
        f"({first.reason}). Keep more context checkpoints (--ctx-checkpoints), keep the start of the prompt stable, or "
        "give each agent a slot of its own.",
        first.line,
    )


def _context_exceeded(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    requests = run.requests
    if requests is None or not requests.context_exceeded:
        return None
    pool = f" of {run.context.n_ctx:,} tokens" if run.context.n_ctx else ""
    shared = " In a unified cache this ends every running generation." if run.context.kv_unified else ""
    return Finding(
        "context-exceeded",
        "error",
        f"The context{pool} was exceeded {requests.context_exceeded} times.{shared} Raise --ctx-size, lower the "
        "number of conversations at once, or let the client compact earlier.",
        facts.requests.exceeded_line,
    )


def _truncated(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    requests = run.requests
    if requests is None or not requests.truncated:
        return None
    return Finding(
        "truncated",
        "warning",
        f"{requests.truncated} generations ended because the slot was full ({run.context.n_ctx_slot or 0:,} tokens).",
        facts.requests.truncated_line,
    )


def _slot_taken(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    taken = facts.requests
    worst = taken.worst_takeover
    if worst is None:
        return None
    return Finding(
        "slot-taken",
        "warning",
        f"{taken.takeovers} requests took a slot that held another prompt, and {taken.tokens_lost:,} cached tokens "
        f"were lost by it; most by task {worst.task}, which took slot {worst.slot} from task {worst.previous_task} "
        f"({worst.held:,} tokens held, {worst.kept:,} kept). With more agents than slots this repeats at every turn: "
        "raise --parallel.",
        worst.line,
    )


def _no_build(run: Run, facts: RunFacts, context: ContextFacts | None) -> Finding | None:
    if run.build.flavor == "llama.cpp":
        return None
    return Finding(
        "foreign-log",
        "info",
        f"This is a log of {run.build.flavor}, a fork with build numbers and options of its own.",
        None,
    )


RULES: dict[str, Rule] = {
    "start-failed": _failed,
    "out-of-memory": _out_of_memory,
    "partial-log": _partial,
    "incomplete-log": _incomplete,
    "capped-context": _capped,
    "divided-kv": _divided,
    "oversubscribed-pool": _oversubscribed,
    "swa-full": _swa_full,
    "kv-on-host": _kv_on_host,
    "partial-offload": _partial_offload,
    "f16-cache": _f16_cache,
    "flash-attention-off": _flash_off,
    "attention-on-cpu": _attention_on_cpu,
    "compute-binding": _compute_binding,
    "gpu-imbalance": _imbalance,
    "low-headroom": _low_headroom,
    "host-ram-budget": _host_ram,
    "extra-model-memory": _extra_models,
    "context-exceeded": _context_exceeded,
    "truncated": _truncated,
    "full-reprocessing": _full_reprocessing,
    "slot-taken": _slot_taken,
    "foreign-log": _no_build,
}
"""The rules by the code that they report."""

CODES: tuple[str, ...] = (*RULES, "other-model", "assumed-build", "prediction-differs")
"""Every finding's code, in report order; the last three come from `prediction`, with a model's file."""
