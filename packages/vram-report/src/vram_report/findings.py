"""What the reader should know or change, each under a code that docs/findings.md explains.

The rule: a finding is one function in `RULES`; it states the numbers it rests on and what to do, and says nothing
when the log does not hold them. Order in the report is the order of `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vram_report.document import Finding, Run
from vram_report.runs import ContextFacts, RunFacts

__all__ = ["CODES", "build_findings"]

Rule = Callable[[Run, RunFacts, "ContextFacts | None"], "Finding | None"]

F16_TYPES = ("f16", "bf16")
F16_SAVING_MIB = 256
Q8_0_BYTES_PER_VALUE = 34 / 32


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
    has_gpu = any(device.kind in ("gpu", "igpu") for device in run.devices)
    if not host or not has_gpu:
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
    has_gpu = any(device.kind in ("gpu", "igpu") for device in run.devices)
    if layers is None or of is None or layers >= of or not has_gpu:
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
    "low-headroom": _low_headroom,
    "context-exceeded": _context_exceeded,
    "truncated": _truncated,
    "full-reprocessing": _full_reprocessing,
    "slot-taken": _slot_taken,
    "foreign-log": _no_build,
}
"""The rules by the code that they report."""

CODES: tuple[str, ...] = tuple(RULES)
"""Every finding's code, in report order."""
