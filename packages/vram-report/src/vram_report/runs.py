"""From records to runs: which record belongs to which server start, load, context and cache.

The rule: this module groups and never calculates. A log may hold several starts, and a start several loads: trial
loads of the automatic fit (probes), the target model, a draft model. What is a probe is decided when everything is
known, because the proof (buffers of 0.00 MiB beside a cache with a size) comes late.

Everything here is mutable working state; `report` turns it into the frozen document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from vram_report.grammar import STAGES, STYLES
from vram_report.records import Record
from vram_report.requests import REQUEST_KINDS, RequestFacts, take_request, take_stretch
from vram_report.serving import Stretch

__all__ = [
    "BreakdownTable",
    "CacheFacts",
    "ContextFacts",
    "DeviceFacts",
    "Entry",
    "FailureFacts",
    "LoadFacts",
    "RunFacts",
    "RunSplitter",
    "split_runs",
]

START_KINDS = frozenset(
    {"build", "build_text", "banner", "device_info", "using_device", "loading", "load", "load_old", "fit_start"}
    | {"auto_slots", "tensors", "context", "fail_arguments", "metal_name", "metal_working_set", "opencl_device"}
)
"""Records that begin a new run when they follow a finished one."""

NOISE_KINDS = frozenset({"exit", "router", "fit_end", "sleep", "prompt_cache", "checkpoints", "fail_abort"})
"""Records that alone do not make a server start."""

LLM_FUNCTIONS = frozenset(
    {"sched_reserve", "llama_context", "llama_init_from_model", "llama_new_context_with_model", "llama_init_from_file"}
)
"""Functions whose compute-buffer lines are the language model's; other named functions are an encoder's."""


@dataclass(eq=False, repr=False)
class Entry:
    """A printed buffer."""

    buffer: str
    mib: float
    line: int


@dataclass(eq=False, repr=False)
class CacheFacts:
    """One cache of a context: its announcement, its buffers and its summary line."""

    what: str | None = None
    cells: int | None = None
    buffers: list[Entry] = field(default_factory=list)
    size: Mapping[str, str | None] | None = None
    recurrent: bool = False

    @property
    def is_probe(self) -> bool:
        """True where the summary says MiB that the buffers did not get."""
        mib = float((self.size or {}).get("mib") or 0)
        return bool(self.buffers) and mib > 0.02 and sum(entry.mib for entry in self.buffers) == 0


@dataclass(eq=False, repr=False)
class ContextFacts:
    """One llama_context."""

    role: str = "model"
    params: dict[str, str] = field(default_factory=dict)
    caches: list[CacheFacts] = field(default_factory=list)
    compute: dict[str, Entry] = field(default_factory=dict)
    output: dict[str, Entry] = field(default_factory=dict)
    inputs: dict[str, Entry] = field(default_factory=dict)
    kv_self: Mapping[str, str | None] | None = None
    kv_self_line: int | None = None
    kv_size: Mapping[str, str | None] | None = None
    indexer_mib: float | None = None
    device_kv: list[tuple[int, float, int]] = field(default_factory=list)
    swa_full: bool = False
    flash: str | None = None
    graph_splits: int | None = None
    sched_copies: int | None = None

    @property
    def is_probe(self) -> bool:
        """True where no memory was really allocated for this context."""
        return any(cache.is_probe for cache in self.caches)


@dataclass(eq=False, repr=False)
class LoadFacts:
    """One load of a model file."""

    role: str = "model"
    in_fit: bool = False
    path: str | None = None
    meta: dict[str, str] = field(default_factory=dict)
    gguf: dict[str, str] = field(default_factory=dict)
    weights: list[Entry] = field(default_factory=list)
    contexts: list[ContextFacts] = field(default_factory=list)
    offloaded: tuple[int, int] | None = None
    lora: list[Entry] = field(default_factory=list)

    @property
    def is_probe(self) -> bool:
        """True for a trial load that allocated nothing."""
        resident = sum(entry.mib for entry in self.weights)
        if self.meta.get("no_alloc") == "1" or (self.in_fit and resident == 0):
            return True
        if self.weights and resident == 0:
            return True
        return not self.weights and bool(self.contexts) and all(context.is_probe for context in self.contexts)


@dataclass(eq=False, repr=False)
class DeviceFacts:
    """What start-up lines say about a device before anything is loaded."""

    name: str
    desc: str | None = None
    total: float | None = None
    free_before: float | None = None
    free_info: float | None = None
    uma: bool = False


@dataclass(eq=False, repr=False)
class BreakdownTable:
    """One printed memory breakdown; a projection unless it was printed after the load."""

    measured: bool
    devices: dict[str, Mapping[str, str | None]] = field(default_factory=dict)
    hosts: dict[str, Mapping[str, str | None]] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class FailureFacts:
    """The failure as known so far."""

    kind: str
    message: str
    line: int
    buffer: str | None = None
    device_index: int | None = None
    requested_mib: float | None = None


@dataclass(eq=False, repr=False)
class RunFacts:
    """Everything that the lines of one server start say."""

    first_line: int
    last_line: int
    port: str | None = None
    style: str = "unknown"
    stage: str = "starting"
    build: tuple[int | None, str | None] | None = None
    is_ik: bool = False
    is_other: bool = False
    is_router: bool = False
    substance: bool = False
    devices: dict[str, DeviceFacts] = field(default_factory=dict)
    backend: str | None = None
    metal: dict[str, str] = field(default_factory=dict)
    loading_path: str | None = None
    local_path: str | None = None
    loads: list[LoadFacts] = field(default_factory=list)
    next_role: str = "model"
    in_fit: bool = False
    fit_failed: str | None = None
    tables: list[BreakdownTable] = field(default_factory=list)
    clip_device: str | None = None
    clip_size: Entry | None = None
    clip_compute: dict[str, Entry] = field(default_factory=dict)
    slots: Mapping[str, str | None] | None = None
    slot_ids: set[int] = field(default_factory=set)
    slot_ctx: int | None = None
    auto_slots: Mapping[str, str | None] | None = None
    train_warning: Mapping[str, str | None] | None = None
    capping: Mapping[str, str | None] | None = None
    capping_line: int | None = None
    router_meta: dict[str, str] = field(default_factory=dict)
    prompt_cache: str | None = None
    checkpoints: int | None = None
    spec_types: list[str] = field(default_factory=list)
    mem_total: dict[str, Entry] = field(default_factory=dict)
    requests: RequestFacts = field(default_factory=RequestFacts)
    failure: FailureFacts | None = None
    loaded: bool = False
    listening: bool = False
    ready_line: int | None = None
    exit_line: int | None = None
    clock_s: float | None = None

    @property
    def finished(self) -> bool:
        """True once the start has come to an end, good or bad."""
        return self.ready_line is not None or self.exit_line is not None or self.failure is not None

    def load(self) -> LoadFacts:
        """The load in progress, begun here when its first line was cut off."""
        if not self.loads:
            self.loads.append(LoadFacts(in_fit=self.in_fit))
        return self.loads[-1]

    def context(self) -> ContextFacts:
        """The context in progress."""
        load = self.load()
        if not load.contexts:
            load.contexts.append(ContextFacts(role=load.role))
        return load.contexts[-1]

    def cache(self, recurrent: bool) -> CacheFacts:
        """The cache in progress; a complete one is followed by the next."""
        caches = self.context().caches
        if not caches or caches[-1].size is not None or caches[-1].recurrent != recurrent:
            caches.append(CacheFacts(recurrent=recurrent))
        return caches[-1]


Fields = Mapping[str, str | None]


class RunSplitter:
    """Groups records by server start as they come: restarts and router children are runs of their own."""

    def __init__(self) -> None:
        self._current: dict[str | None, RunFacts] = {}
        self._all: list[RunFacts] = []
        self._last_port: str | None = None

    def take_stretch(self, stretch: Stretch) -> None:
        """Add a stretch of request lines to the run in progress."""
        run = self._current.get(None) or RunFacts(stretch.line, stretch.line)
        idle = [offset for offset in stretch.idle_offsets() if offset >= 0]
        if idle and run.ready_line is None:
            _take(run, Record(stretch.line_at(idle[0]), "ready", {}, "", None, None))
        said = sorted((*idle, *(take_stretch(run.requests, stretch) or ())))
        if not said:
            return
        if self._current.get(None) is not run:
            run.first_line = stretch.line_at(said[0])
            self._current[None] = run
            self._all.append(run)
        run.substance = True
        run.last_line = stretch.line_at(said[-1])

    def take(self, record: Record) -> RunFacts:
        """Add a record to the run it belongs to, and return that run."""
        port = record.port
        run = self._current.get(port)
        if run is not None and record.kind in REQUEST_KINDS:
            run.last_line = record.line
            take_request(run.requests, record)
            return run
        if port is not None:
            self._last_port = port
        elif record.kind == "router_meta":
            port = self._last_port
        run = self._current.get(port)
        if run is None or _begins_run(run, record):
            run = self._current[port] = RunFacts(record.line, record.line, port)
            self._all.append(run)
        _take(run, record)
        return run

    @property
    def runs(self) -> list[RunFacts]:
        """The server starts so far, in the order of their first lines."""
        found = [run for run in self._all if run.substance and not (run.is_router and not run.loads)]
        return sorted(found, key=lambda run: run.first_line)


def split_runs(records: Iterable[Record | Stretch]) -> list[RunFacts]:
    """Group the records of a whole log by server start."""
    splitter = RunSplitter()
    for record in records:
        if isinstance(record, Stretch):
            splitter.take_stretch(record)
        else:
            splitter.take(record)
    return splitter.runs


def _begins_run(run: RunFacts, record: Record) -> bool:
    if record.kind not in START_KINDS:
        return False
    if run.finished:
        return not run.in_fit
    went_back = record.clock_s is not None and run.clock_s is not None and record.clock_s < run.clock_s - 0.5
    return went_back and run.substance


def _take(run: RunFacts, record: Record) -> None:
    run.last_line = record.line
    run.clock_s = record.clock_s if record.clock_s is not None else run.clock_s
    run.substance = run.substance or record.kind not in NOISE_KINDS
    if record.kind in REQUEST_KINDS:
        take_request(run.requests, record)
        return
    if record.style and STYLES.index(record.style) > STYLES.index(run.style):
        run.style = record.style
    run.stage = STAGES.get(record.kind, run.stage)
    HANDLERS[record.kind](run, record, record.fields)


def _text(fields: Fields, key: str) -> str:
    return fields[key] or ""


def _on_build(run: RunFacts, record: Record, fields: Fields) -> None:
    number = int(_text(fields, "number"))
    if record.kind == "build_text" and number >= IK_FIRST_BUILD:
        run.is_ik = True
    commit = fields["commit"] if fields["commit"] != "unknown" else None
    if number > 1 or (commit and run.build is None):
        run.build = (number if number > 1 else None, commit)


IK_FIRST_BUILD = 3600
"""ik_llama.cpp kept the `INFO [main] build info |` line, which llama.cpp dropped before its build 3761."""


def _device(run: RunFacts, name: str) -> DeviceFacts:
    return run.devices.setdefault(name, DeviceFacts(name))


def _on_banner(run: RunFacts, record: Record, fields: Fields) -> None:
    run.backend = fields["backend"]


def _on_listed_device(run: RunFacts, record: Record, fields: Fields) -> None:
    backend = {"rocm_device": "ROCm", "vulkan_device": "Vulkan", "sycl_device": "SYCL"}.get(record.kind, "CUDA")
    if record.kind == "cuda_device" and run.backend in ("CUDA", "ROCm", "MUSA"):
        backend = run.backend
    device = _device(run, f"{backend}{fields['index']}")
    device.desc = fields["desc"]
    device.uma = fields.get("uma") == "1"
    if fields.get("total"):
        device.total = float(_text(fields, "total"))
    if fields.get("mb"):
        device.total = round(int(_text(fields, "mb")) * 1e6 / 2**20, 2)


def _on_metal(run: RunFacts, record: Record, fields: Fields) -> None:
    run.metal.update({key: value for key, value in fields.items() if value})


def _on_opencl(run: RunFacts, record: Record, fields: Fields) -> None:
    device = _device(run, "OpenCL")
    if record.kind == "opencl_device":
        device.desc = fields["desc"]
    else:
        device.total = float(_text(fields, "mb"))


def _on_device_info(run: RunFacts, record: Record, fields: Fields) -> None:
    device = _device(run, _text(fields, "name"))
    device.desc = fields["desc"]
    device.total = float(_text(fields, "total"))
    device.free_info = float(_text(fields, "free"))


def _on_using_device(run: RunFacts, record: Record, fields: Fields) -> None:
    device = _device(run, _text(fields, "name"))
    device.desc = fields.get("desc") or device.desc
    device.free_before = float(_text(fields, "free"))


def _on_loading(run: RunFacts, record: Record, fields: Fields) -> None:
    if record.kind == "loading_draft":
        run.next_role = "draft"
    elif record.kind == "local_path":
        run.local_path = fields["path"]
    else:
        run.loading_path = fields["path"]


def _on_load(run: RunFacts, record: Record, fields: Fields) -> None:
    path = _text(fields, "path")
    role = run.next_role
    previous = [load for load in run.loads if not load.is_probe and load.role == "model"]
    if role == "model" and previous and previous[-1].path not in (None, path) and _complete(previous[-1]):
        role = "draft"
    run.next_role = "model"
    run.loads.append(LoadFacts(role=role, in_fit=run.in_fit, path=path))


def _complete(load: LoadFacts) -> bool:
    return any(context.compute for context in load.contexts)


def _on_tensors(run: RunFacts, record: Record, fields: Fields) -> None:
    if run.loads and (run.loads[-1].contexts or run.loads[-1].weights):
        run.loads.append(LoadFacts(in_fit=run.in_fit))


def _on_meta(run: RunFacts, record: Record, fields: Fields) -> None:
    if run.loads and _complete(run.loads[-1]):
        run.loads.append(LoadFacts(in_fit=run.in_fit))
    run.load().meta[_text(fields, "key")] = _text(fields, "value")


def _on_meta_old(run: RunFacts, record: Record, fields: Fields) -> None:
    key, value = _text(fields, "key"), _text(fields, "value")
    if key == "n_ctx":
        run.context().params[key] = value
    else:
        run.load().meta[key] = value


def _on_gguf_kv(run: RunFacts, record: Record, fields: Fields) -> None:
    run.load().gguf[_text(fields, "key")] = _text(fields, "value")


def _on_router_meta(run: RunFacts, record: Record, fields: Fields) -> None:
    run.router_meta.update({key: value for key, value in fields.items() if value})


def _on_offloaded(run: RunFacts, record: Record, fields: Fields) -> None:
    run.load().offloaded = (int(_text(fields, "layers")), int(_text(fields, "of")))


def _on_buffer(run: RunFacts, record: Record, fields: Fields) -> None:
    function, what = fields["fn"] or "", fields["what"]
    entry = Entry(_text(fields, "buf"), float(_text(fields, "mib")), record.line)
    if function.startswith("ggml_"):
        return
    if what in (None, "model"):
        _add_weights(run, entry)
    elif what == "LoRA":
        run.load().lora.append(entry)
    elif what == "compute" and function and function not in LLM_FUNCTIONS:
        run.clip_compute[entry.buffer] = entry
    elif what in ("compute", "output", "input"):
        _named(run.context(), what)[entry.buffer] = entry
    elif what.startswith("DSV4"):
        run.context().caches.append(CacheFacts(what=what, buffers=[entry]))
    else:
        run.cache(recurrent=what == "RS").buffers.append(entry)


def _named(context: ContextFacts, what: str) -> dict[str, Entry]:
    return {"compute": context.compute, "output": context.output, "input": context.inputs}[what]


def _add_weights(run: RunFacts, entry: Entry) -> None:
    if run.loads and run.loads[-1].contexts:
        run.loads.append(LoadFacts(in_fit=run.in_fit))
    run.load().weights.append(entry)


def _on_total(run: RunFacts, record: Record, fields: Fields) -> None:
    run.mem_total[record.kind] = Entry("", float(_text(fields, "mib")), record.line)


def _on_realloc(run: RunFacts, record: Record, fields: Fields) -> None:
    entry = Entry(_text(fields, "buf"), float(_text(fields, "mib")), record.line)
    if entry.buffer in run.context().compute:
        run.context().compute[entry.buffer] = entry


def _on_clip(run: RunFacts, record: Record, fields: Fields) -> None:
    if record.kind == "clip_device":
        run.clip_device = fields["buf"]
    else:
        run.clip_size = Entry(run.clip_device or "", float(_text(fields, "mib")), record.line)


def _on_context(run: RunFacts, record: Record, fields: Fields) -> None:
    load = run.load()
    if not load.contexts:
        load.contexts.append(ContextFacts(role=load.role))
    elif load.contexts[-1].compute:
        load.contexts.append(ContextFacts(role="mtp" if load.role == "model" else load.role))
    else:
        load.contexts[-1] = ContextFacts(role=load.contexts[-1].role)


def _on_ctx(run: RunFacts, record: Record, fields: Fields) -> None:
    key, value = _text(fields, "key"), _text(fields, "value")
    context = run.context()
    if key in context.params and (context.caches or context.compute):
        _on_context(run, record, fields)
        context = run.context()
    context.params[key] = value


def _on_creating(run: RunFacts, record: Record, fields: Fields) -> None:
    cells = fields["cells"]
    run.context().caches.append(CacheFacts(what=fields["what"], cells=int(cells) if cells else None))


def _on_cache(run: RunFacts, record: Record, fields: Fields) -> None:
    recurrent = fields["n1"] == "R"
    run.cache(recurrent).size = fields


def _on_kv_self(run: RunFacts, record: Record, fields: Fields) -> None:
    context = run.context()
    context.kv_self, context.kv_self_line = fields, record.line


def _on_kv_size(run: RunFacts, record: Record, fields: Fields) -> None:
    run.context().kv_size = fields


def _on_kv_indexer(run: RunFacts, record: Record, fields: Fields) -> None:
    run.context().indexer_mib = float(_text(fields, "mib"))


def _on_device_mib(run: RunFacts, record: Record, fields: Fields) -> None:
    if run.load().contexts:
        run.context().device_kv.append((int(_text(fields, "index")), float(_text(fields, "mib")), record.line))


def _on_ik(run: RunFacts, record: Record, fields: Fields) -> None:
    run.is_ik = True


def _on_host_app(run: RunFacts, record: Record, fields: Fields) -> None:
    run.is_other = True


def _on_context_flag(run: RunFacts, record: Record, fields: Fields) -> None:
    context = run.context()
    if record.kind == "swa_full":
        context.swa_full = True
    elif record.kind == "flash":
        context.flash = fields["value"]
    elif record.kind == "flash_off":
        context.flash = "disabled"
    elif record.kind == "graph_splits":
        context.graph_splits = int(_text(fields, "splits"))
    else:
        context.sched_copies = int(_text(fields, "copies"))


def _on_train_warning(run: RunFacts, record: Record, fields: Fields) -> None:
    run.train_warning = fields


def _on_slots(run: RunFacts, record: Record, fields: Fields) -> None:
    run.slots = fields
    run.failure, run.in_fit = None, False


def _on_slot(run: RunFacts, record: Record, fields: Fields) -> None:
    if fields["id"]:
        run.slot_ids.add(int(_text(fields, "id")))
    run.slot_ctx = int(_text(fields, "n_ctx_slot"))


def _on_auto_slots(run: RunFacts, record: Record, fields: Fields) -> None:
    run.auto_slots = fields


def _on_capping(run: RunFacts, record: Record, fields: Fields) -> None:
    run.capping, run.capping_line = fields, record.line


def _on_host_budget(run: RunFacts, record: Record, fields: Fields) -> None:
    if record.kind == "prompt_cache":
        run.prompt_cache = fields["mib"] or "no limit"
    else:
        run.checkpoints = int(_text(fields, "max"))


def _on_spec_type(run: RunFacts, record: Record, fields: Fields) -> None:
    if fields["type"] not in run.spec_types:
        run.spec_types.append(_text(fields, "type"))


def _on_fit(run: RunFacts, record: Record, fields: Fields) -> None:
    run.in_fit = record.kind in ("fit_start", "fit_trial")
    if record.kind == "fit_failed":
        run.fit_failed = fields["reason"]
    if not run.in_fit:
        run.failure = None


def _on_fit_device(run: RunFacts, record: Record, fields: Fields) -> None:
    device = _device(run, _text(fields, "name"))
    device.desc = device.desc or fields["desc"]
    if device.total is None:
        device.total = float(_text(fields, "total"))


def _on_table_start(run: RunFacts, record: Record, fields: Fields) -> None:
    loaded = any(_complete(load) for load in run.loads if not load.is_probe)
    measured = fields["fn"] == "llama_print_memory_breakdown" or run.exit_line is not None or loaded
    run.tables.append(BreakdownTable(measured and not run.in_fit))


def _on_table_row(run: RunFacts, record: Record, fields: Fields) -> None:
    if not run.tables:
        return
    rows = run.tables[-1].devices if record.kind == "table_device" else run.tables[-1].hosts
    rows[_text(fields, "name").strip()] = fields


def _on_state(run: RunFacts, record: Record, fields: Fields) -> None:
    if record.kind == "exit":
        run.exit_line = record.line
        return
    run.loaded = run.loaded or record.kind == "loaded"
    run.listening = run.listening or record.kind == "http_listening"
    has_model = run.loaded or run.slots is not None or any(_complete(load) for load in run.loads)
    is_ready = record.kind == "ready" or (run.listening and has_model)
    if is_ready and run.ready_line is None:
        run.ready_line, run.failure, run.in_fit = record.line, None, False


def _on_router(run: RunFacts, record: Record, fields: Fields) -> None:
    run.is_router = True


def _ignore(run: RunFacts, record: Record, fields: Fields) -> None:
    """The record only proves a generation."""


def _on_oom(run: RunFacts, record: Record, fields: Fields) -> None:
    requested = _requested_mib(fields)
    index = fields.get("index")
    known = run.failure if run.failure and run.failure.kind in ("out-of-memory", "buffer-limit") else None
    if known is None or record.kind == "oom_alloc":
        kind = "buffer-limit" if record.kind == "oom_limit" else "out-of-memory"
        known = run.failure = FailureFacts(kind, "", record.line)
    known.requested_mib = known.requested_mib if known.requested_mib is not None else requested
    known.buffer = fields.get("buf") or known.buffer or ("CPU" if record.kind == "oom_host" else None)
    known.device_index = int(index) if index else known.device_index
    if not known.message:
        known.message = fields.get("text") or "an allocation failed"
    elif record.kind in ("oom_weights", "oom_kv", "oom_compute"):
        known.message = f"{known.message.split('; ')[0]}; {fields['text']}"


def _requested_mib(fields: Fields) -> float | None:
    if fields.get("mib"):
        return float(_text(fields, "mib"))
    if fields.get("bytes"):
        return round(int(_text(fields, "bytes")) / 2**20, 2)
    return None


def _on_retry(run: RunFacts, record: Record, fields: Fields) -> None:
    run.failure = None


def _on_failure(run: RunFacts, record: Record, fields: Fields) -> None:
    kind = record.kind.removeprefix("fail_")
    known = run.failure
    if known is None:
        run.failure = FailureFacts(FAILURE_KINDS.get(kind, kind), _text(fields, "text"), record.line)
    elif known.kind == "model" and kind in ("file", "arch", "settings"):
        run.failure = FailureFacts(FAILURE_KINDS[kind], _text(fields, "text"), record.line)


FAILURE_KINDS = {
    "file": "model-file",
    "arch": "architecture",
    "load": "model",
    "context": "context",
    "assert": "assert",
    "abort": "assert",
    "gpu": "device-fault",
    "port": "port",
    "http": "port",
    "arguments": "arguments",
    "settings": "settings",
}

OOM_KINDS = ("alloc", "buffer", "weights", "kv", "compute", "host", "vulkan", "limit", "metal", "run", "sycl")

Handler = Callable[[RunFacts, Record, Fields], None]

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("build", "build_text"), _on_build),
    "banner": _on_banner,
    **dict.fromkeys(("cuda_device", "rocm_device", "vulkan_device", "sycl_device"), _on_listed_device),
    **dict.fromkeys(("metal_name", "metal_found", "metal_working_set"), _on_metal),
    **dict.fromkeys(("opencl_device", "opencl_memory"), _on_opencl),
    "device_info": _on_device_info,
    "using_device": _on_using_device,
    **dict.fromkeys(("loading", "loading_draft", "local_path"), _on_loading),
    **dict.fromkeys(("load", "load_old"), _on_load),
    "tensors": _on_tensors,
    "meta": _on_meta,
    "meta_old": _on_meta_old,
    "gguf_kv": _on_gguf_kv,
    "router_meta": _on_router_meta,
    "offloaded": _on_offloaded,
    "buffer": _on_buffer,
    **dict.fromkeys(("compute_total", "mem_required", "vram_used", "vram_total"), _on_total),
    "realloc": _on_realloc,
    **dict.fromkeys(("clip_device", "clip_size"), _on_clip),
    **dict.fromkeys(("multimodal", "warming_up"), _ignore),
    "context": _on_context,
    "ctx": _on_ctx,
    "creating": _on_creating,
    "cache": _on_cache,
    "kv_self": _on_kv_self,
    "kv_size": _on_kv_size,
    "kv_indexer": _on_kv_indexer,
    "ik_device_mib": _on_device_mib,
    **dict.fromkeys(("ik_mark", "kv_per_device"), _on_ik),
    **dict.fromkeys(("swa_full", "flash", "flash_off", "graph_splits", "pipeline"), _on_context_flag),
    "host_app": _on_host_app,
    "train_warning": _on_train_warning,
    "slots": _on_slots,
    "slot": _on_slot,
    "auto_slots": _on_auto_slots,
    "capping": _on_capping,
    **dict.fromkeys(("prompt_cache", "checkpoints"), _on_host_budget),
    "spec_type": _on_spec_type,
    **dict.fromkeys(("fit_start", "fit_trial", "fit_end", "fit_failed"), _on_fit),
    "fit_device": _on_fit_device,
    "table_start": _on_table_start,
    **dict.fromkeys(("table_device", "table_host"), _on_table_row),
    **dict.fromkeys(("loaded", "ready", "http_listening", "exit"), _on_state),
    "sleep": _ignore,
    "router": _on_router,
    **dict.fromkeys(
        (f"oom_{kind}" for kind in OOM_KINDS),
        _on_oom,
    ),
    "retry": _on_retry,
    **dict.fromkeys((f"fail_{kind}" for kind in FAILURE_KINDS), _on_failure),
}
