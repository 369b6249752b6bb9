r"""The line formats of llama-server, as one table.

The rule: a fact's format is one row of `FORMATS`. To support a new wording, add a row and a fixture log; nothing
else changes. A row's `trigger` is a literal that every matching line contains: lines without any trigger are
skipped without trying a pattern. Patterns are searched, not anchored, because messages are glued behind progress
dots, log prefixes and each other; so each pattern must end where its value provably ends (`END`, a unit, a quote):
a number cut by the end of a file or by a glued line then does not match instead of losing digits.

Message texts follow llama.cpp from b670 (June 2023) to b11549 (October 2026) and ik_llama.cpp; `since` names the
first build that prints a row's wording, as far as known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

__all__ = [
    "ERROR_SIGNS",
    "FORMATS",
    "FORMATS_BY_TRIGGER",
    "LINE_STARTS",
    "QUIET_STARTS",
    "READY_REGEX",
    "SLOT_TAILS",
    "STAGES",
    "STYLES",
    "LineFormat",
]

END = r"(?=[\s,;|)\]}\"']|$)"
MIB = r"\d+\.\d+"

STYLES: tuple[str, ...] = (
    "unknown",
    "ggjt-2023",
    "llm_load-2023",
    "server-json-2024",
    "print_info-2025",
    "kv-cells-2025",
    "prefixed-2026",
    "ik_llama.cpp",
)
"""Generations of line formats, oldest first; a run's style is the newest that one of its lines shows."""


@dataclass(frozen=True)
class LineFormat:
    """One wording of one fact.

    Attributes:
        kind: The fact; several rows may share it.
        trigger: A literal that every line of this wording contains.
        regex: Its named groups are the record's fields.
        since: First build with this wording, "" where unknown or always.
        style: The generation of `STYLES` that this wording proves, "" where it proves none.
    """

    kind: str
    trigger: str
    regex: str
    since: str = ""
    style: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled expression; most logs need a third of the table, so rows are compiled when first met."""
        return re.compile(self.regex)


def _row(kind: str, trigger: str, pattern: str, since: str = "", style: str = "") -> LineFormat:
    return LineFormat(kind, trigger, pattern, since, style)


_BUILD = (
    _row("build", "build: ", r"\bbuild: (?P<number>\d+) \((?P<commit>\w+)\)", "b3761"),
    _row("build", "build_info: b", rf"build_info: b(?P<number>\d+)-(?P<commit>\w+){END}", "b8668"),
    _row("build", "print_info: build ", r"print_info: build (?P<number>\d+) \((?P<commit>\w+)\)", "b9151"),
    _row("build", "main: build = ", r"main: build = (?P<number>\d+) \((?P<commit>\w+)\)", "b670"),
    _row(
        "build_text",
        "build info |",
        rf'build info \|.*?\bbuild="?(?P<number>\d+)"? commit="?(?P<commit>\w+){END}',
        "b694",
        "server-json-2024",
    ),
)

_DEVICES = (
    _row("banner", " devices", r"(?i:found) (?P<count>\d+) (?P<backend>CUDA|ROCm|MUSA|SYCL|Vulkan) devices"),
    _row(
        "cuda_device",
        ", compute capability ",
        r"Device (?P<index>\d+): (?P<desc>[^,\n]+), compute capability [\d.]+(?:, VMM: (?:yes|no))?"
        r"(?:, Wave Size: \d+)?(?:, VRAM: (?P<total>\d+) MiB)?",
    ),
    _row(
        "rocm_device",
        ", gfx",
        r"Device (?P<index>\d+): (?P<desc>[^,\n]+), gfx\S+ \(0x[0-9a-f]+\)(?:, VMM: (?:yes|no))?"
        r"(?:, Wave Size: \d+)?(?:, VRAM: (?P<total>\d+) MiB)?",
    ),
    _row(
        "vulkan_device",
        "ggml_vulkan: ",
        r"ggml_vulkan: (?P<index>\d+) = (?P<desc>.+) \([^()|]*\) \| uma: (?P<uma>[01])",
    ),
    _row("metal_name", "GPU name: ", r"GPU name: +(?P<name>\S.*?)\s*$"),
    _row("metal_found", "ggml_metal_init: found device: ", r"found device: (?P<desc>\S.*?)\s*$"),
    _row(
        "metal_working_set",
        "recommendedMaxWorkingSetSize",
        r"recommendedMaxWorkingSetSize += +(?P<mb>\d+\.\d+) MB",
    ),
    _row(
        "sycl_device",
        "level_zero:",
        r"\| *(?P<index>\d+)\| *\[level_zero:(?P<type>\w+):\d+\]\| *(?P<desc>[^|]+?) *\|.*?\| *(?P<mb>\d+)M\|",
    ),
    _row("opencl_device", "ggml_opencl: device: '", r"ggml_opencl: device: '(?P<desc>[^']+)'"),
    _row("opencl_memory", "global mem size: ", r"ggml_opencl: global mem size: (?P<mb>\d+) MB"),
    _row(
        "device_info",
        " MiB free)",
        r" - (?P<name>[A-Za-z]\S*) *: (?P<desc>.*) \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)",
        "b9151",
    ),
    _row(
        "using_device",
        "using device ",
        r"using device (?P<name>\S+) \((?P<desc>.*?)\)(?: \((?:[0-9a-fA-F:.]+|unknown id)\))? - (?P<free>\d+) MiB free",
        "b3933",
    ),
    _row("using_device", "using device ", r"using device (?P<name>\S+) - (?P<free>\d+) MiB free", "", "ik_llama.cpp"),
)

_KEYS = (
    "arch|general.name|file type|model ftype|ftype|model params|file size|model size|n_ctx_train|n_layer|n_embd|n_head|"
    "n_head_kv|n_embd_head_k|n_embd_head_v|n_swa|n_ff|n_vocab|n_expert|n_expert_used|rope scaling|freq_base_train|"
    "freq_scale_train|n_ctx_orig_yarn|n_yarn_orig_ctx|no_alloc|n_layer_all"
)

_MODEL = (
    _row("loading_draft", "loading draft model '", r"loading draft model '(?P<path>[^']+)'", "b4164"),
    _row("loading", "loading model '", r"load_model: loading model '(?P<path>[^']+)'", "b4164"),
    _row("local_path", "local path '", r"local path '(?P<path>[^']+)'", "b9829"),
    _row(
        "load",
        "loaded meta data with ",
        r"loaded meta data with \d+ key-value pairs and \d+ tensors from (?P<path>.+?) \(version",
    ),
    _row("load_old", "llama.cpp: loading model from ", r"loading model from (?P<path>\S.*?)\s*$", "b670", "ggjt-2023"),
    _row(
        "meta_old",
        "llama_model_load_internal: ",
        rf"load_internal: (?P<key>n_vocab|n_ctx|n_embd|n_head|n_layer|n_ff) += (?P<value>\d+){END}",
        "b670",
        "ggjt-2023",
    ),
    _row(
        "meta",
        "llm_load_print_meta: ",
        rf"llm_load_print_meta: (?P<key>{_KEYS}) += *(?P<value>\S.*?)\s*$",
        "b1041",
        "llm_load-2023",
    ),
    _row(
        "meta",
        "print_info: ",
        rf"(?<!\w)print_info: (?P<key>{_KEYS}) += *(?P<value>\S.*?)\s*$",
        "b4463",
        "print_info-2025",
    ),
    _row(
        "gguf_kv",
        "- kv ",
        r"- kv +\d+: +(?P<key>\S+) (?P<type>u32|i32|u64|str|f32) += (?P<value>\S.*?)\s*$",
    ),
    _row("router_meta", '"n_ctx_train":', r'"n_ctx_train":(?P<n_ctx_train>\d+)[,}]', "b7454"),
    _row("router_meta", '"n_params":', r'"n_params":(?P<n_params>\d+)[,}]', "b7454"),
)

_WEIGHTS = (
    _row("tensors", "loading model tensors", r"loading model tensors", "b4463"),
    _row("offloaded", "offloaded ", r"offloaded (?P<layers>\d+)/(?P<of>\d+) layers to GPU"),
    _row(
        "buffer",
        "buffer size",
        r"(?:(?P<fn>[\w~]+): +)?(?P<buf>[A-Za-z]\w*(?:\([^)]*\))?(?:\[[^\]]+\])?) +"
        r"(?:(?P<what>model|KV|RS|LoRA|input|output|compute|DSV4 \w+ state) )?buffer size += +"
        rf"(?P<mib>{MIB}) MiB",
        "b1843",
    ),
    _row("compute_total", "compute buffer total size", rf"compute buffer total size += +(?P<mib>{MIB}) M", "b1041"),
    _row("mem_required", "mem required ", rf"mem required += +(?P<mib>{MIB}) M", "b670"),
    _row("vram_used", "VRAM used", rf"(?<!total )VRAM used: +(?P<mib>{MIB}) M", "b1041"),
    _row("vram_total", "total VRAM used", r"total VRAM used: +(?P<mib>\d+(?:\.\d+)?) MB", "b670"),
    _row(
        "realloc",
        "reallocating ",
        rf"reallocating (?P<buf>\S+) buffer from size {MIB} MiB to (?P<mib>{MIB}) MiB",
        "",
    ),
    _row("clip_device", "CLIP using ", r"CLIP using (?P<buf>\S+) backend"),
    _row("clip_size", "load_hparams: model size:", rf"load_hparams: model size: +(?P<mib>{MIB}) MiB"),
    _row("multimodal", "loaded multimodal model", r"loaded multimodal model, '(?P<path>[^']+)'"),
)

_CONTEXT_KEYS = (
    "n_seq_max|n_ctx|n_ctx_seq|n_ctx_per_seq|n_batch|n_ubatch|flash_attn|kv_unified|freq_base|freq_scale|n_outputs_max"
)

_CONTEXT = (
    _row("context", "constructing llama_context", r"constructing llama_context", "b4881"),
    *(
        _row("ctx", f"{fn}: ", rf"{fn}: (?P<key>{_CONTEXT_KEYS}) += (?P<value>[\w.+-]+){END}")
        for fn in ("llama_context", "llama_init_from_model", "llama_new_context_with_model")
    ),
    _row("host_app", " source=", r"^time=\S+ level=\w+ source=\S+ msg="),
    _row("ik_mark", "fused_moe", r"fused_moe += \d", "", "ik_llama.cpp"),
    _row("ik_mark", "mla_attn", r"mla_attn += \d", "", "ik_llama.cpp"),
    _row("ik_mark", "buffer type overriden", r"buffer type overriden", "", "ik_llama.cpp"),
    _row(
        "train_warning",
        "n_ctx_train (",
        r"(?:n_ctx_per_seq|n_ctx_pre_seq|n_ctx_seq) \((?P<n_ctx_seq>\d+)\) [<>] n_ctx_train \((?P<n_ctx_train>\d+)\)",
        "b4014",
    ),
    _row(
        "creating",
        "creating ",
        r"creating +(?P<what>non-SWA|SWA|main|indexer|DSA|DSV4 [\w -]+?)(?: KV cache)?"
        r"(?:, size = (?P<cells>\d+) cells|(?<= KV cache)|\s*$)",
        "b5429",
    ),
    _row(
        "cache",
        " cells,",
        rf"\bsize = +(?P<mib>{MIB}) MiB \( *(?P<cells>\d+) cells,"
        r"(?: +(?P<layers>\d+) layers, +(?P<n_seq>\d+)(?:/ *(?P<n_stream>\d+))? seqs(?: +(?P<rs_seq>\d+) rs_seq)?\)"
        rf"(?:, (?P<n1>[KR]) \((?P<t1>\w+)\): +(?P<m1>{MIB}) MiB, [VS] \((?P<t2>\w+)\): +(?P<m2>{MIB}) MiB)?)?",
        "b5429",
        "kv-cells-2025",
    ),
    _row(
        "kv_self",
        "KV self size ",
        rf"KV self size += +(?P<mib>{MIB}) MiB(?:, (?:K \((?P<t1>\w+)\): +(?P<m1>{MIB}) MiB, "
        rf"V \((?P<t2>\w+)\): +(?P<m2>{MIB}) MiB|c\^KV \((?P<tc>\w+)\): +(?P<mc>{MIB}) MiB"
        rf"|K-only \((?P<tk>\w+)\): +(?P<mk>{MIB}) MiB))?",
        "b1619",
    ),
    _row("kv_indexer", "KV self indexer size", rf"KV self indexer size += +(?P<mib>{MIB}) MiB \((?P<t1>\w+)\)"),
    _row("kv_self", "kv self size ", rf"kv self size += +(?P<mib>{MIB}) MB", "b670"),
    _row(
        "kv_size",
        "kv_size = ",
        r"kv_size = (?P<cells>\d+), offload = [01], type_k = '(?P<t1>\w+)', type_v = '(?P<t2>\w+)'"
        rf"(?:, n_layer = (?P<n_layer>\d+){END})?",
        "b4408",
    ),
    _row("kv_per_device", "KV cache size per device", r"KV cache size per device", "", "ik_llama.cpp"),
    _row("ik_device_mib", "Device ", rf"Device (?P<index>\d+): +(?P<mib>{MIB}) MiB"),
    _row("swa_full", "using full-size SWA cache", r"using full-size SWA cache"),
    _row("flash", "Flash Attention", r"Flash Attention (?:was auto, set to )?(?P<value>enabled|disabled)"),
    _row("flash_off", "Flash Attention not supported", r"Flash Attention not supported, set to disabled", "b9924"),
    _row("graph_splits", "graph splits", rf"graph splits(?: \(measure\))?(?: *=|:) (?P<splits>\d+){END}"),
    _row("graph_splits", "graph: nodes", r"graph: nodes = \d+, splits = (?P<splits>\d+),", "b11549"),
    _row(
        "spec_type",
        "adding speculative implementation '",
        r"adding speculative implementation '"
        r"(?P<type>draft-(?:simple|eagle3|mtp|dflash)|ngram-(?:simple|map-k|map-k4v|mod|cache))'",
    ),
    _row("pipeline", "sched copies = ", rf"sched copies = (?P<copies>\d+){END}", "b7746"),
)

_SLOTS = (
    _row(
        "slots",
        "initializing",
        rf"initializing(?: slots)?, n_slots = (?P<n_slots>\d+){END}"
        r"(?:, n_ctx_slot = (?P<n_ctx_slot>\d+), kv_unified = '(?P<kv_unified>true|false)')?",
        "b3761",
    ),
    _row("slots", "initializing slots |", rf'initializing slots \|.*?\bn_slots="?(?P<n_slots>\d+){END}', "b694"),
    _row(
        "slot",
        "new slot",
        rf"id +(?P<id>\d+) \| task -1 \| new slot,? n_ctx(?:_slot)? = (?P<n_ctx_slot>\d+){END}",
        "b3761",
    ),
    _row(
        "slot",
        "new slot |",
        rf'new slot \|(?=.*?\b(?:id_slot|slot_id)="?(?P<id>\d+)).*?\bn_ctx_slot="?(?P<n_ctx_slot>\d+){END}',
        "b694",
    ),
    _row("slot", " - max context: ", rf"-> Slot (?P<id>\d+) - max context: (?P<n_ctx_slot>\d+){END}", "b1413"),
    _row(
        "auto_slots",
        "n_parallel",
        r"(?:n_parallel is set to auto, using|setting) n_parallel = (?P<n_slots>\d+) and kv_unified = "
        r"(?P<kv_unified>true|false)",
        "b6925",
    ),
    _row(
        "capping",
        "exceeds the training context",
        r"the slot context \((?P<n_ctx_seq>\d+)\) exceeds the training context of the model \((?P<n_ctx_train>\d+)\)",
        "b6925",
    ),
    _row(
        "prompt_cache",
        "prompt cache is enabled",
        r"prompt cache is enabled, size limit: (?:(?P<mib>\d+) MiB|no limit)",
        "b6723",
    ),
    _row(
        "checkpoints",
        "context checkpoints enabled",
        r"context checkpoints enabled, max = (?P<max>\d+),",
        "b9310",
    ),
)

_FIT = (
    _row("fit_start", "fitting params to device memory", r"fitting params to device memory", "b7407"),
    _row("fit_trial", "getting device memory data for", r"getting device memory data for", "b7407"),
    _row("fit_end", "fitting params to free memory took", r"fitting params to free memory took", "b7407"),
    _row("fit_end", "successfully fit params", r"successfully fit params", "b7407"),
    _row("fit_failed", "failed to fit params", r"failed to fit params to free device memory: (?P<reason>.+?)\s*$"),
    _row(
        "fit_device",
        " used, ",
        r" - (?P<name>\S+) \((?P<desc>.*)\): +(?P<total>\d+) total, +(?P<used>\d+) used, +(?P<free>-?\d+) free "
        r"vs\. target of +(?P<target>\d+)",
        "b7407",
    ),
    _row(
        "table_start",
        "memory breakdown",
        r"(?P<fn>\w+): (?:\| )?memory breakdown(?: \[MiB\]|:)",
        "b6569",
    ),
    *(
        _row(
            kind,
            "_breakdown_print: ",
            rf"breakdown_print: \| +- {name} +\| {columns}",
            "b6569",
        )
        for kind, name, columns in (
            (
                "table_device",
                r"(?P<name>[^|(]+?)(?: \((?P<desc>.*)\))?",
                r"*(?P<total>\d+) = *(?P<free>\d+) \+ \( *(?P<self>\d+) = *(?P<model>\d+) \+ *(?P<context>\d+) \+ *"
                r"(?P<compute>\d+)\) \+ *(?P<unaccounted>-?\d+) *\|",
            ),
            (
                "table_host",
                r"(?P<name>[^|]+?)",
                r"+(?P<self>\d+) = *(?P<model>\d+) \+ *(?P<context>\d+) \+ *(?P<compute>\d+) +\|",
            ),
        )
    ),
    _row(
        "table_device",
        "llama_print_memory_breakdown: ",
        r"- (?P<name>[^|(]+?)(?: \((?P<desc>.*)\))?: +(?P<total>\d+) = *(?P<free>\d+) \+ \( *(?P<self>\d+) = *"
        rf"(?P<model>\d+) \+ *(?P<context>\d+) \+ *(?P<compute>\d+)\) \+ *(?P<unaccounted>-?\d+){END}",
    ),
    _row(
        "table_host",
        "llama_print_memory_breakdown: ",
        r"- (?P<name>[^|(]+?)(?: \((?P<desc>.*)\))?: +(?P<total>\d+) +(?P<self>\d+) = *(?P<model>\d+) \+ *"
        rf"(?P<context>\d+) \+ *(?P<compute>\d+){END}",
    ),
)

_STATE = (
    _row("warming_up", "warming up the model", r"warming up the model"),
    _row("loaded", "model loaded", r"model loaded\s*(?:\||$)"),
    _row("ready", "starting the main loop", r"starting the main loop"),
    _row("ready", "listening on http", r"(?<!router server is )listening on https?://", "b3761"),
    _row("http_listening", "HTTP server listening", r"HTTP server listening \|", "b694"),
    _row("ready", "all slots are idle", r"all slots are idle"),
    _row("router", "starting router server", r"starting router server", "b7218"),
    _row("router", "starting server in router mode", r"starting server in router mode", "b10573"),
    _row("router", "router server is listening", r"router server is listening", "b7218"),
    _row("exit", "cleaning up before exit", r"cleaning up before exit"),
    _row("sleep", "entering sleeping state", r"server is entering sleeping state", "b7492"),
)

_FAILURES = (
    _row(
        "oom_alloc",
        "failed: ",
        rf"allocating (?P<mib>{MIB}) MiB on device (?P<index>\d+): \w+ failed: (?P<text>.+?)\s*$",
    ),
    _row("oom_buffer", "failed to allocate ", rf"failed to allocate (?P<buf>\S+) buffer of size (?P<bytes>\d+){END}"),
    _row("oom_weights", "unable to allocate ", r"(?P<text>unable to allocate (?P<buf>\S+) buffer)"),
    _row("oom_kv", "failed to allocate buffer for kv cache", r"(?P<text>failed to allocate buffer for kv cache)"),
    _row("oom_compute", "failed to allocate compute ", r"(?P<text>failed to allocate compute (?:pp |tg )?buffers)"),
    _row(
        "oom_host",
        "insufficient memory (attempted",
        rf"insufficient memory \(attempted to allocate +(?P<mib>{MIB}) MB\)",
    ),
    _row(
        "oom_vulkan",
        "ggml_vulkan: Device memory allocation of size ",
        r"Device memory allocation of size (?P<bytes>\d+) failed",
    ),
    _row(
        "oom_limit",
        "Requested buffer size exceeds",
        r"(?P<text>Requested buffer size exceeds device (?:buffer size|memory allocation) limit)",
    ),
    _row("oom_metal", "failed to allocate buffer, size", rf"failed to allocate buffer, size = +(?P<mib>{MIB}) MiB"),
    _row("oom_run", "kIOGPUCommandBufferCallbackErrorOutOfMemory", r"(?P<text>Insufficient Memory \(\w+:\w+\))"),
    _row("oom_sycl", "Bytes of memory on device", r"can't allocate (?P<bytes>\d+) Bytes of memory on device"),
    _row("oom_run", "error: out of memory", r"(?P<text>(?:CUDA|ROCm|MUSA) error: out of memory)"),
    _row("retry", "retrying without pipeline parallelism", r"retrying without pipeline parallelism"),
    _row("fail_file", "failed to open GGUF file '", r"(?P<text>failed to open GGUF file '[^']*' \([^)]*\))"),
    _row("fail_file", "gguf_init_from_", r"gguf_init_from_\w+: (?P<text>failed to read [\w -]+?)\s*$"),
    _row(
        "fail_arch",
        "model architecture: '",
        r"(?P<text>(?:unknown|unsupported) model architecture: '[^']*')",
    ),
    _row("fail_load", "error loading model: ", r"error loading model: (?P<text>\S.*?)\s*$"),
    _row("fail_context", "failed to initialize the context: ", r"failed to initialize the context: (?P<text>.+?)\s*$"),
    _row("fail_context", "failed to create context with model", r"(?P<text>failed to create context with model)"),
    _row("fail_load", "failed to load model", r"(?P<text>failed to load model)"),
    _row("fail_load", "unable to load model", r"(?P<text>unable to load model)"),
    _row("fail_load", "exiting due to model loading error", r"(?P<text>exiting due to model loading error)"),
    _row("fail_assert", "GGML_ASSERT(", r"(?P<text>GGML_ASSERT\(.*?\) failed)"),
    _row("fail_abort", ": fatal error", r"(?P<text>\S+\.(?:cpp|cu|c|m|h):\d+: fatal error)"),
    _row("fail_gpu", " error: ", r"(?P<text>(?:CUDA|ROCm|MUSA) error: \S.*?)\s*$"),
    _row(
        "fail_port",
        "couldn't bind",
        r"(?P<text>couldn't bind (?:HTTP server|to server) socket(?:, hostname: \S+, port: \d+)?)",
    ),
    _row("fail_http", "exiting due to HTTP server error", r"(?P<text>exiting due to HTTP server error)"),
    _row("fail_arguments", "error: ", r"^error: (?P<text>(?:invalid|unknown) argument: \S+)"),
    _row(
        "fail_arguments", "error while handling argument", r'(?P<text>error while handling argument "[^"]+": .+?)\s*$'
    ),
    _row(
        "fail_settings",
        "quantized V cache requires flash_attn",
        r"(?P<text>quantized V cache requires flash_attn to be enabled)",
    ),
    _row(
        "fail_settings",
        "V cache quantization requires flash_attn",
        r"(?P<text>V cache quantization requires flash_attn)",
    ),
    _row(
        "fail_settings",
        "does not divide n_embd_head",
        r"(?P<text>[KV] cache type \w+ with block size \d+ does not divide n_embd_head_[kv]=\d+)",
    ),
)

_SLOT_TASK = r"id +(?P<slot>\d+) \| task (?P<task>\d+) \| "

_REQUESTS = (
    _row(
        "req_select",
        "selected slot by ",
        r"id +(?P<slot>\d+) \| task -1 \| selected slot by (?P<how>LRU|LCP similarity|id)",
    ),
    _row("req_clear", "clearing prompt", r"id +(?P<slot>\d+) \| task -1 \| clearing prompt(?! with 0 tokens)"),
    _row("req_save", "saving prompt with length ", rf"saving prompt with length (?P<tokens>\d+){END}", "b6723"),
    _row("req_launch", "processing task", rf"{_SLOT_TASK}processing task", "b3761"),
    _row(
        "req_launch",
        "slot is processing task |",
        r"slot is processing task \|(?=.*?\bid_slot=\"?(?P<slot>\d+)).*?\bid_task=\"?(?P<task>\d+)",
        "b2259",
    ),
    _row("req_launch", " is processing [task id:", r"slot (?P<slot>\d+) is processing \[task id: (?P<task>\d+)\]"),
    _row(
        "req_prompt",
        "new prompt,",
        rf"{_SLOT_TASK}new prompt, n_ctx_slot = \d+, n_keep = -?\d+, "
        rf"(?:task\.n_tokens|n_prompt_tokens) = (?P<tokens>\d+){END}",
        "b3761",
    ),
    _row(
        "req_kept",
        ", end)",
        rf"{_SLOT_TASK}(?:(?:cached )?n_tokens = \d+, )?(?:memory_seq_rm|kv cache rm) \[(?P<tokens>\d+), end\)",
        "b3761",
    ),
    _row("req_done", "prompt processing done", rf"{_SLOT_TASK}prompt processing done", "b5000"),
    _row("req_timing", "print_timing: id", r"print_timing: id +(?P<slot>\d+) \| task (?P<task>\d+) \|", "b3761"),
    _row(
        "req_prompt_time",
        "prompt eval time",
        rf"(?<!print: )prompt eval time += +(?P<ms>{MIB}) ms / +(?P<tokens>\d+) tokens",
    ),
    _row(
        "req_eval_time",
        " eval time ",
        rf"(?<!prompt)(?<!print:       ) eval time += +(?P<ms>{MIB}) ms / +(?P<tokens>\d+) (?:tokens|runs)",
    ),
    _row(
        "req_release",
        "stop processing: ",
        rf"{_SLOT_TASK}stop processing: (?:n_tokens|n_past) = (?P<tokens>\d+), truncated = (?P<truncated>[01])",
        "b3761",
    ),
    _row(
        "req_release",
        "slot released |",
        r"slot released \|(?=.*?\bid_slot=\"?(?P<slot>\d+))(?=.*?\bid_task=\"?(?P<task>\d+))"
        rf"(?=.*?\btruncated=(?P<truncated>\w+)).*?\bn_past=\"?(?P<tokens>\d+){END}",
        "b2259",
    ),
    _row(
        "req_full",
        "forcing full prompt re-processing",
        r"forcing full prompt re-processing due to (?P<reason>[\w -]+?)(?: \(likely due to (?P<detail>[^,)]+)|\s*$)",
    ),
    _row(
        "req_exceeded",
        "Context size has been exceeded",
        r"error: (?P<text>Context size has been exceeded)",
    ),
    _row(
        "req_exceeded",
        "exceeds the available context size",
        r"error: (?P<text>[^\n]*exceeds the available context size)",
    ),
)
"""What the server prints after its start; their kinds begin with `req_`."""

FORMATS: tuple[LineFormat, ...] = (
    *_BUILD,
    *_DEVICES,
    *_MODEL,
    *_WEIGHTS,
    *_CONTEXT,
    *_SLOTS,
    *_FIT,
    *_STATE,
    *_FAILURES,
    *_REQUESTS,
)
"""Every line format, in the order in which rows of one line are tried."""


QUIET_STARTS: tuple[str, ...] = (
    "srv  log_server_r: done request",
    "srv  params_from_: ",
    "srv        update: ",
    "srv          load: ",
    "srv  get_availabl: ",
    "srv          stop: cancel task",
    "slot init_sampler: ",
    "slot create_check: ",
    "slot slot_save_an: ",
    "slot process_sing: ",
    "reasoning-budget: ",
    "      total time = ",
    "load: control token: ",
    "llama_model_loader: - type ",
)
"""Starts of lines, behind the log prefix, that carry no fact: they are most of a long log and are skipped first."""

SLOT_TAILS: dict[str, tuple[str, ...]] = {
    "new promp": ("new prompt,",),
    "n_tokens ": (", end)",),
    "cached n_": (", end)",),
    "processin": ("processing task",),
    "stop proc": ("stop processing: ",),
    "selected ": ("selected slot by ",),
    "prompt processing p": (),
    "prompt processing d": ("prompt processing done",),
    "n_past = ": (),
    "created c": (),
    "restored ": (),
    "Checking ": (),
    "erased in": (),
    "sampler c": (),
    "init samp": (),
    "n_decoded": (),
    "      tot": (),
    "   graphs": (),
    "\n": ("print_timing: id",),
}
"""The first 9 (or 19) characters behind the last bar of a slot's line, and the triggers to try on such a line.

A shortcut for the lines of which a long log consists: a slot's line with any other text is read like all lines.
"""


LINE_STARTS: dict[str, tuple[str, ...]] = {
    "prompt ev": ("prompt eval time",),
    "       ev": (" eval time ",),
    "srv  upda": ("all slots are idle",),
}
"""The same for the first 9 characters of lines behind the log prefix."""


READY_REGEX = "|".join(row.regex for row in FORMATS if row.kind == "ready")
"""What a line says once a server answers requests, as a regular expression to search lines with.

For a program that watches the output of a server and has no parser at hand. `stages.start_stage` knows more: builds of
2024 that say that they listen before their model is loaded, and routers, whose readiness is no server's.
"""

STAGES: dict[str, str] = {
    **dict.fromkeys(("loading", "loading_draft", "load", "load_old", "tensors", "clip_device", "fit_end"), "loading"),
    **dict.fromkeys(("context", "ctx", "kv_self", "cache"), "making the context"),
    "warming_up": "warming up",
}
"""The facts that begin a stage of a start, and its name."""

ERROR_SIGNS: tuple[str, ...] = (
    r"^(?:[\d.]+ )?(?-i:E) (?!.*exiting due to)",
    r"^(?!(?:[\d.]+ )?(?-i:[DIWE]) |.*exiting due to).*\b(?:error|failed|failure|fatal|invalid|exception|abort(?:ed)?|"
    r"out of memory|cannot|can't|couldn't|unable to|terminate called|segmentation fault|core dumped|killed)\b",
)
"""What an error line looks like without its wrappers: its level says so, or its words where it has no level."""


def _by_trigger() -> dict[str, tuple[LineFormat, ...]]:
    table: dict[str, tuple[LineFormat, ...]] = {}
    for row in FORMATS:
        table[row.trigger] = (*table.get(row.trigger, ()), row)
    return table


FORMATS_BY_TRIGGER: dict[str, tuple[LineFormat, ...]] = _by_trigger()
"""The rows to try for each trigger found in a line."""
