"""From the facts of a run to its report: which line wins, and what follows from it.

The rule: a field has a list of sources, best first, and is None when none of them was printed. The arithmetic
follows the llama.cpp sources named at each formula; nothing here reads a file or a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from vram_report.capacity import DEFAULT_MARGIN_MIB, build_capacity
from vram_report.devices import build_devices, merged_devices, owner
from vram_report.document import (
    Buffer,
    Build,
    Context,
    Failure,
    KVCache,
    KVPart,
    LogReport,
    Model,
    Offload,
    Run,
)
from vram_report.findings import build_findings
from vram_report.records import BlockReader, iter_records
from vram_report.requests import summarize
from vram_report.runs import CacheFacts, ContextFacts, DeviceFacts, LoadFacts, RunFacts, split_runs

__all__ = ["SCHEMA_VERSION", "build_run", "parse", "parse_blocks", "report_document"]

SCHEMA_VERSION = 1
PART_KINDS = {
    "non-SWA": "non-swa",
    "SWA": "swa",
    "main": "mla",
    "DSA": "mla",
    "indexer": "indexer",
}
UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
MIB_PER = {"MiB": 1.0, "GiB": 1024.0, "KiB": 1 / 1024}


def parse(lines: Iterable[str], *, margin_mib: float = DEFAULT_MARGIN_MIB) -> list[Run]:
    r"""Read a log and return its server starts, in the order of their first lines.

    Args:
        lines: The log's lines. When they carry their line ends, a last line without one counts as cut and no
            number is taken from it.
        margin_mib: MiB that are to stay free on each device; the server's own fit keeps 1024.

    Returns:
        One `Run` for each start; an empty list when no line is a llama.cpp server's.
    """
    return [build_run(facts, margin_mib) for facts in split_runs(iter_records(lines))]


def parse_blocks(blocks: Iterable[bytes], *, margin_mib: float = DEFAULT_MARGIN_MIB) -> tuple[list[Run], int]:
    """The same as `parse`, much faster, for UTF-8 bytes in blocks of whole lines; and how many lines there are."""
    reader = BlockReader()
    return [build_run(facts, margin_mib) for facts in split_runs(reader.read(blocks))], reader.lines


def report_document(report: LogReport) -> dict[str, object]:
    """The report as the JSON document of `--format json`: every key present, None where the log does not say."""
    return {"schema_version": SCHEMA_VERSION, **asdict(report)}


def build_run(facts: RunFacts, margin_mib: float) -> Run:
    """Assemble one run's report from its facts."""
    load = _target(facts)
    context = _target_context(load)
    buffers = _buffers(facts)
    devices = build_devices(facts, buffers)
    model = _model(facts, load)
    used_context = _context(facts, load, context, model)
    kv_cache = _kv_cache(context, used_context)
    failure = _failure(facts)
    run = Run(
        first_line=facts.first_line,
        last_line=facts.last_line,
        build=_build(facts),
        log_style="ik_llama.cpp" if facts.is_ik else facts.style,
        outcome=_outcome(facts),
        failure=failure,
        devices=devices,
        model=model,
        context=used_context,
        kv_cache=kv_cache,
        offload=Offload(*(load.offloaded if load and load.offloaded else (None, None))),
        buffers=buffers,
        capacity=build_capacity(devices, buffers, used_context, kv_cache, margin_mib),
        requests=summarize(facts.requests),
        findings=[],
    )
    return build_findings(run, facts, context)


def _build(facts: RunFacts) -> Build:
    number, commit = facts.build or (None, None)
    flavor = "ik_llama.cpp" if facts.is_ik else "other" if facts.is_other else "llama.cpp"
    return Build(number, commit, flavor)


def _outcome(facts: RunFacts) -> str:
    if facts.failure is None:
        return "ready" if facts.ready_line is not None else "incomplete"
    return "out-of-memory" if facts.failure.kind in ("out-of-memory", "buffer-limit") else "failed"


def _failure(facts: RunFacts) -> Failure | None:
    failure = facts.failure
    if failure is None:
        return None
    device = owner(failure.buffer, facts.devices) if failure.buffer else None
    if device is None and failure.device_index is not None:
        device = _indexed_device(facts, failure.device_index)
    return Failure(failure.kind, failure.message, failure.line, device, failure.requested_mib)


def _indexed_device(facts: RunFacts, index: int) -> str:
    if facts.backend:
        return f"{facts.backend}{index}"
    named = [name for name in facts.devices if re.fullmatch(rf"(?:CUDA|ROCm|MUSA|CANN|SYCL){index}", name)]
    return named[0] if len(named) == 1 else f"device {index}"


def _target(facts: RunFacts) -> LoadFacts | None:
    real = [load for load in facts.loads if load.role == "model" and not load.is_probe]
    return real[-1] if real else None


def _target_context(load: LoadFacts | None) -> ContextFacts | None:
    contexts = [c for c in load.contexts if c.role == "model" and not c.is_probe] if load else []
    return contexts[-1] if contexts else None


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d+", text) else None


def _integers(text: str | None) -> int | list[int] | None:
    if text is not None and re.fullmatch(r"\[[\d, ]+\]", text):
        return [int(part) for part in text.strip("[]").split(",")]
    return _integer(text)


def _decimal(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", text) else None


def _parameters(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMBT]?)", text or "")
    return round(float(match[1]) * UNITS[match[2]]) if match else None


def _size(text: str | None) -> tuple[float | None, float | None]:
    match = re.match(r"(\d+\.\d+) (MiB|GiB|KiB)(?: \((\d+\.\d+) BPW\))?", text or "")
    if match is None:
        return None, None
    return round(float(match[1]) * MIB_PER[match[2]], 2), float(match[3]) if match[3] else None


def _model(facts: RunFacts, load: LoadFacts | None) -> Model:
    source = load or next((probe for probe in reversed(facts.loads) if probe.role == "model"), None)
    meta: Mapping[str, str] = source.meta if source else {}
    kv: Mapping[str, str] = source.gguf if source else {}
    architecture = meta.get("arch") or kv.get("general.architecture")

    def of_arch(key: str) -> str | None:
        return kv.get(f"{architecture}.{key}")

    size_mib, bits = _size(meta.get("file size") or meta.get("model size"))
    n_expert, n_used = _integer(meta.get("n_expert")), _integer(meta.get("n_expert_used"))
    n_expert = n_expert if n_expert is not None else _integer(of_arch("expert_count"))
    n_used = n_used if n_used is not None else _integer(of_arch("expert_used_count"))
    scale = _decimal(meta.get("freq_scale_train"))
    return Model(
        path=facts.local_path or (source.path if source else None) or facts.loading_path,
        architecture=architecture,
        name=meta.get("general.name") or kv.get("general.name"),
        file_type=meta.get("file type") or meta.get("model ftype") or meta.get("ftype"),
        parameters=_parameters(meta.get("model params") or facts.router_meta.get("n_params")),
        size_mib=size_mib,
        bits_per_weight=bits,
        n_ctx_train=_n_ctx_train(facts, meta, of_arch("context_length")),
        n_layer=_n_layer(source, meta, of_arch("block_count")),
        n_embd=_first(_integer(meta.get("n_embd")), _integer(of_arch("embedding_length"))),
        n_head=_heads(meta.get("n_head"), of_arch("attention.head_count")),
        n_head_kv=_heads(meta.get("n_head_kv"), of_arch("attention.head_count_kv")),
        n_embd_head_k=_first(_integer(meta.get("n_embd_head_k")), _integer(of_arch("attention.key_length"))),
        n_embd_head_v=_first(_integer(meta.get("n_embd_head_v")), _integer(of_arch("attention.value_length"))),
        n_swa=_first(_integer(meta.get("n_swa")), _integer(of_arch("attention.sliding_window"))),
        n_ff=_heads(meta.get("n_ff"), of_arch("feed_forward_length")),
        n_vocab=_integer(meta.get("n_vocab")),
        n_expert=n_expert,
        n_expert_used=n_used,
        expert_used_percent=round(100 * n_used / n_expert, 2) if n_expert and n_used else None,
        rope_scaling=meta.get("rope scaling") or of_arch("rope.scaling.type"),
        rope_scaling_factor=round(1 / scale, 4) if scale else _decimal(of_arch("rope.scaling.factor")),
        rope_freq_base=_first(_decimal(meta.get("freq_base_train")), _decimal(of_arch("rope.freq_base"))),
        n_ctx_orig=_integer(meta.get("n_ctx_orig_yarn") or meta.get("n_yarn_orig_ctx")),
    )


def _first(*values: float | int | None) -> int | None:
    return next((value for value in values if value is not None), None)  # type: ignore[return-value]


def _heads(printed: str | None, key: str | None) -> int | list[int] | None:
    value = _integers(printed)
    return value if value is not None else _integer(key)


def _n_ctx_train(facts: RunFacts, meta: Mapping[str, str], key: str | None) -> int | None:
    sources = (
        meta.get("n_ctx_train"),
        key,
        (facts.capping or {}).get("n_ctx_train"),
        (facts.train_warning or {}).get("n_ctx_train"),
        facts.router_meta.get("n_ctx_train"),
    )
    return _first(*(_integer(source) for source in sources))


def _n_layer(load: LoadFacts | None, meta: Mapping[str, str], key: str | None) -> int | None:
    contexts = load.contexts if load else []
    inferred: list[int | None] = [_integer((c.kv_size or {}).get("n_layer")) for c in contexts]
    inferred += [_integer((s.size or {}).get("layers")) for c in contexts for s in c.caches if s.recurrent]
    if load and load.offloaded:
        inferred.append(load.offloaded[1] - 1)
    return _first(_integer(meta.get("n_layer")), _integer(key), *inferred)


def _caches(context: ContextFacts | None) -> list[CacheFacts]:
    return [cache for cache in context.caches if not cache.is_probe] if context else []


def _part_kind(cache: CacheFacts, caches: list[CacheFacts]) -> str:
    if cache.recurrent:
        return "recurrent"
    if cache.what is None:
        return "non-swa" if any(other.what == "SWA" for other in caches) else "full"
    return PART_KINDS.get(cache.what, "compressed")


def _streams(cache: CacheFacts) -> int | None:
    size = cache.size or {}
    n_seq, n_stream = _integer(size.get("n_seq")), _integer(size.get("n_stream"))
    if cache.recurrent:
        return None
    return n_stream if n_stream is not None else (1 if n_seq is not None else None)


def _main_cache(context: ContextFacts | None) -> CacheFacts | None:
    caches = [cache for cache in _caches(context) if not cache.recurrent and cache.what != "SWA"]
    return caches[0] if caches else None


def _context(facts: RunFacts, load: LoadFacts | None, context: ContextFacts | None, model: Model) -> Context:
    params: Mapping[str, str] = context.params if context else {}
    n_slots = _n_slots(facts, load, context)
    unified = _unified(facts, context, params, n_slots)
    n_ctx_seq = _first(
        _integer(params.get("n_ctx_seq")),
        _integer(params.get("n_ctx_per_seq")),
        _integer((facts.train_warning or {}).get("n_ctx_seq")),
    )
    n_ctx = _n_ctx(facts, context, params, n_ctx_seq, n_slots, unified)
    train = model.n_ctx_train if "n_ctx_per_seq" not in params else None
    n_ctx_slot = _n_ctx_slot(facts, train, n_ctx, n_ctx_seq, n_slots)
    return Context(
        n_ctx=n_ctx,
        n_ctx_seq=n_ctx_seq,
        n_slots=n_slots,
        n_ctx_slot=n_ctx_slot,
        kv_unified=unified,
        capped=_capped(facts, n_ctx_seq, n_ctx_slot),
        n_batch=_integer(params.get("n_batch")),
        n_ubatch=_integer(params.get("n_ubatch")),
        flash_attn=_flash(context, params),
        n_outputs_max=_integer(params.get("n_outputs_max")),
        spec_types=facts.spec_types,
    )


def _n_slots(facts: RunFacts, load: LoadFacts | None, context: ContextFacts | None) -> int | None:
    main = _main_cache(context) or next(iter(_caches(context)), None)
    direct = _first(
        _integer((facts.slots or {}).get("n_slots")),
        len(facts.slot_ids) or None,
        _integer((facts.auto_slots or {}).get("n_slots")),
        _integer(context.params.get("n_seq_max")) if context else None,
        _integer((main.size or {}).get("n_seq")) if main else None,
    )
    if direct is not None or context is None:
        return direct
    per_slot_line = facts.slot_ctx is not None
    return 1 if per_slot_line else None


def _unified(
    facts: RunFacts, context: ContextFacts | None, params: Mapping[str, str], n_slots: int | None
) -> bool | None:
    printed = params.get("kv_unified") or (facts.slots or {}).get("kv_unified")
    if printed in ("true", "false"):
        return printed == "true"
    main = _main_cache(context)
    n_seq = _integer((main.size or {}).get("n_seq")) if main else None
    n_stream = _integer((main.size or {}).get("n_stream")) if main else None
    if n_seq is not None and n_stream is not None and n_seq > 1:
        return n_stream == 1
    automatic = (facts.auto_slots or {}).get("kv_unified")
    return automatic == "true" if automatic else None


def _n_ctx(
    facts: RunFacts,
    context: ContextFacts | None,
    params: Mapping[str, str],
    n_ctx_seq: int | None,
    n_slots: int | None,
    unified: bool | None,
) -> int | None:
    printed = _integer(params.get("n_ctx"))
    if printed is not None:
        return printed
    main = _main_cache(context)
    cells = (_integer((main.size or {}).get("cells")) or main.cells) if main else None
    streams = _streams(main) if main else None
    if cells is not None and streams is not None:
        return cells * streams
    kv_size = _integer((context.kv_size or {}).get("cells")) if context else None
    if kv_size is not None:
        return kv_size
    if n_ctx_seq is not None and (unified or n_slots == 1):
        return n_ctx_seq
    slot = _integer((facts.slots or {}).get("n_ctx_slot"))
    if slot is None or n_slots is None or unified is None or facts.capping is not None:
        return None
    return slot if unified else slot * n_slots


def _n_ctx_slot(
    facts: RunFacts, cap: int | None, n_ctx: int | None, n_ctx_seq: int | None, n_slots: int | None
) -> int | None:
    if facts.slot_ctx is not None:
        return facts.slot_ctx
    printed = _integer((facts.slots or {}).get("n_ctx_slot"))
    if printed is not None:
        return printed
    if n_ctx_seq is not None:
        return min(n_ctx_seq, cap) if cap else n_ctx_seq
    if facts.slots is not None and n_ctx is not None and n_slots:
        return n_ctx // n_slots
    return None


def _capped(facts: RunFacts, n_ctx_seq: int | None, n_ctx_slot: int | None) -> bool | None:
    if facts.capping is not None:
        return True
    if n_ctx_seq is not None and n_ctx_slot is not None:
        return n_ctx_slot < n_ctx_seq
    return False if n_ctx_slot is not None else None


def _flash(context: ContextFacts | None, params: Mapping[str, str]) -> str | None:
    if context and context.flash:
        return context.flash
    printed = params.get("flash_attn")
    return {"0": "disabled", "1": "enabled"}.get(printed, printed) if printed else None


def _kv_cache(context: ContextFacts | None, used: Context) -> KVCache:
    caches = _caches(context)
    parts = [_part(cache, caches) for cache in caches if cache.size or cache.buffers]
    attention = [part for part in parts if part.kind != "recurrent"]
    type_k, type_v = _cache_types(context, caches)
    total = round(sum(part.mib or 0 for part in attention), 2) if attention else None
    if context and context.kv_self:
        total = float(context.kv_self["mib"] or 0)
        total = round(total + (context.indexer_mib or 0), 2)
        parts = [_self_part(context, used)]
    if total is None and context and context.device_kv:
        total = round(sum(mib for _, mib, _ in context.device_kv), 2)
    per_slot = round(total / used.n_slots, 2) if total is not None and used.n_slots else None
    return KVCache(type_k, type_v, total, per_slot, parts)


def _part(cache: CacheFacts, caches: list[CacheFacts]) -> KVPart:
    size = cache.size or {}
    printed = size.get("mib")
    mib = float(printed) if printed else round(sum(entry.mib for entry in cache.buffers), 2)
    k_mib, v_mib = size.get("m1"), size.get("m2")
    return KVPart(
        kind=_part_kind(cache, caches),
        cells=_first(_integer(size.get("cells")), cache.cells),
        layers=_integer(size.get("layers")),
        streams=_streams(cache),
        mib=mib,
        k_mib=float(k_mib) if k_mib else None,
        v_mib=float(v_mib) if v_mib else None,
    )


def _self_part(context: ContextFacts, used: Context) -> KVPart:
    fields = context.kv_self or {}
    k_mib = fields.get("m1") or fields.get("mc") or fields.get("mk")
    cells = _first(_integer((context.kv_size or {}).get("cells")), used.n_ctx)
    return KVPart(
        kind="mla" if fields.get("mc") or fields.get("mk") else "full",
        cells=cells,
        layers=_integer((context.kv_size or {}).get("n_layer")),
        streams=1,
        mib=float(fields["mib"] or 0),
        k_mib=float(k_mib) if k_mib else None,
        v_mib=float(fields["m2"]) if fields.get("m2") else None,  # type: ignore[arg-type]
    )


def _cache_types(context: ContextFacts | None, caches: list[CacheFacts]) -> tuple[str | None, str | None]:
    for cache in caches:
        if not cache.recurrent and cache.size and cache.size.get("t1"):
            return cache.size["t1"], cache.size["t2"]
    sources = [context.kv_self, context.kv_size] if context else []
    for fields in sources:
        if fields and (fields.get("t1") or fields.get("tc") or fields.get("tk")):
            return fields.get("t1") or fields.get("tc") or fields.get("tk"), fields.get("t2")
    return None, None


def _buffers(facts: RunFacts) -> list[Buffer]:
    loads = [load for load in facts.loads if load.role != "model" and not load.is_probe]
    target = _target(facts)
    loads = [target, *loads] if target else loads
    names = [entry.buffer for load in loads for entry in load.weights]
    devices = merged_devices(facts, names)
    found: dict[tuple[str, str, str, str | None], Buffer] = {}
    for buffer in _all_buffers(facts, loads, devices):
        key = (buffer.kind, buffer.buffer, buffer.role, buffer.part)
        known = found.get(key)
        mib = round(known.mib + buffer.mib, 2) if known else buffer.mib
        found[key] = Buffer(*key[:2], buffer.device, buffer.role, buffer.part, mib, buffer.line)
    return list(found.values())


def _all_buffers(facts: RunFacts, loads: list[LoadFacts], devices: Mapping[str, DeviceFacts]) -> Iterable[Buffer]:
    def buffer(kind: str, name: str, role: str, mib: float, line: int, part: str | None = None) -> Buffer:
        return Buffer(kind, name, owner(name, devices), role, part, mib, line)

    for load in loads:
        for entry in load.weights:
            yield buffer("weights", entry.buffer, load.role, entry.mib, entry.line)
        for entry in load.lora:
            yield buffer("weights", entry.buffer, "lora", entry.mib, entry.line)
        for context in load.contexts:
            if not context.is_probe:
                yield from _context_buffers(context, devices)
    yield from _unnamed_buffers(facts, loads)
    if facts.clip_size and facts.clip_size.buffer:
        yield buffer("weights", facts.clip_size.buffer, "mmproj", facts.clip_size.mib, facts.clip_size.line)
    for entry in facts.clip_compute.values():
        yield buffer("compute", entry.buffer, "mmproj", entry.mib, entry.line)


UNNAMED_TOTALS = (
    ("mem_required", "weights", "CPU"),
    ("vram_used", "weights", "VRAM"),
    ("compute_total", "compute", "total"),
)
"""Builds before b1843 print sums without a buffer's name: the fact, its kind, and the name used for it."""


def _unnamed_buffers(facts: RunFacts, loads: list[LoadFacts]) -> Iterable[Buffer]:
    if not facts.mem_total or any(load.weights for load in loads):
        return
    for fact, kind, name in UNNAMED_TOTALS:
        entry = facts.mem_total.get(fact)
        if entry is not None:
            yield Buffer(kind, name, _unnamed_owner(facts, name), "model", None, entry.mib, entry.line)
    for context in (context for load in loads for context in load.contexts):
        named = any(cache.buffers for cache in context.caches) or context.device_kv
        if context.kv_self and context.kv_self_line and not named:
            mib = float(context.kv_self["mib"] or 0)
            yield Buffer("kv", "total", "unknown", context.role, "full", mib, context.kv_self_line)


def _unnamed_owner(facts: RunFacts, name: str) -> str:
    listed = [device for device in facts.devices if device != "CPU"]
    if name == "VRAM":
        return listed[0] if len(listed) == 1 else name
    return "unknown" if name == "total" else name


def _context_buffers(context: ContextFacts, devices: Mapping[str, DeviceFacts]) -> Iterable[Buffer]:
    role = context.role
    caches = _caches(context)
    for cache in caches:
        kind = "recurrent" if cache.recurrent else "kv"
        part = None if cache.recurrent else _buffer_part(_part_kind(cache, caches))
        split = bool(context.device_kv)
        for entry in cache.buffers:
            if entry.mib > 0 and not (split and entry.buffer.endswith("_Split")):
                yield Buffer(kind, entry.buffer, owner(entry.buffer, devices), role, part, entry.mib, entry.line)
    for index, mib, line in context.device_kv:
        yield Buffer("kv", f"CUDA{index}", f"CUDA{index}", role, "full", mib, line)  # a fork of CUDA machines only
    groups = (("compute", context.compute), ("output", context.output), ("other", context.inputs))
    for kind, entries in groups:
        for entry in entries.values():
            yield Buffer(kind, entry.buffer, owner(entry.buffer, devices), role, None, entry.mib, entry.line)


def _buffer_part(kind: str) -> str | None:
    return kind if kind in ("full", "non-swa", "swa", "mla") else None
