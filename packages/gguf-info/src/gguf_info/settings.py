"""A start of llama-server by its own flag names and defaults, and what of it depends on the build.

The rule: a setting that no flag gives is what llama-server would take; None stands for "not given".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gguf_info.context import NEWEST_BUILD

__all__ = [
    "CACHE_TYPES",
    "HOST",
    "MOST_SLOTS",
    "SPEC_TYPES",
    "Settings",
    "drafted_tokens",
    "flags_to_type",
    "has_flash_attention",
    "rollback_tokens",
]

MOST_SLOTS = 256
"""llama.cpp's limit of sequences."""
HOST = "CPU"
"""What an estimate calls the host, as a device."""
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""Types that `--cache-type-k` and `--cache-type-v` take."""
_FLASH_ATTENTION_AUTO_SINCE = 6325


@dataclass(frozen=True)
class _SpecType:
    """A way to draft tokens.

    Attributes:
        drafted: Tokens that it drafts at once by default; None where `--spec-draft-n-max` says it.
        has_model: Whether it needs a draft model.
        rolls_back: Whether a recurrent model keeps a state for each drafted token, to go back to.
    """

    drafted: int | None = None
    has_model: bool = False
    rolls_back: bool = False


SPEC_TYPES = {
    "none": _SpecType(0),
    "draft-simple": _SpecType(has_model=True),
    "draft-eagle3": _SpecType(has_model=True, rolls_back=True),
    "draft-mtp": _SpecType(rolls_back=True),
    "draft-dflash": _SpecType(has_model=True, rolls_back=True),
    "ngram-simple": _SpecType(48),
    "ngram-map-k": _SpecType(48),
    "ngram-map-k4v": _SpecType(48),
    "ngram-mod": _SpecType(64),
    "ngram-cache": _SpecType(8),
}
"""What `--spec-type` takes (llama.cpp's common/speculative.cpp, build 11549; the numbers are those of its log)."""


@dataclass(frozen=True)
class Settings:
    """A start of llama-server, by its own flag names and defaults.

    Attributes:
        ctx_size: `--ctx-size`; 0 is the default of the build.
        parallel: `--parallel`; None when not given.
        kv_unified: `--kv-unified` or `--no-kv-unified`; None when not given.
        cache_type_k: `--cache-type-k`.
        cache_type_v: `--cache-type-v`.
        batch_size: `--batch-size`.
        ubatch_size: `--ubatch-size`.
        flash_attn: `--flash-attn`; `auto` is taken as on, which it is where the device can.
        n_gpu_layers: `--n-gpu-layers`; None is all of them.
        n_cpu_moe: `--n-cpu-moe`; experts of so many first layers stay on the host.
        override_tensor: `--override-tensor`: regular expression and buffer (`CPU` or a device's name).
        tensor_split: `--tensor-split`; empty is in proportion to the devices' memory.
        split_mode: `--split-mode`: `layer` deals layers out to all devices, `none` uses the main one.
        main_gpu: `--main-gpu`, the place of the main device; counts with `none` alone.
        swa_full: `--swa-full`.
        kv_offload: Off for `--no-kv-offload`.
        op_offload: Off for `--no-op-offload`: devices do not compute with weights that lie on the host.
        cache_ram_mib: `--cache-ram`, the limit of the prompt cache in host memory; -1 is no limit.
        ctx_checkpoints: `--ctx-checkpoints`, the most context checkpoints of a slot, in host memory.
        spec_type: `--spec-type`.
        spec_draft_n_max: `--spec-draft-n-max`, tokens that a model drafts at once.
        embedding: `--embedding` or `--reranking`: every token of a batch has an output.
        memory_mib: Free memory of each device by name; None where it is not known. Empty: one device `GPU0`.
        context_mib: What the driver takes on each device for a process; None when not known.
        build: llama.cpp's build number.
    """

    ctx_size: int = 0
    parallel: int | None = None
    kv_unified: bool | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    batch_size: int = 2048
    ubatch_size: int = 512
    flash_attn: Literal["on", "off", "auto"] = "auto"
    n_gpu_layers: int | None = None
    n_cpu_moe: int = 0
    override_tensor: tuple[tuple[str, str], ...] = ()
    tensor_split: tuple[float, ...] = ()
    split_mode: Literal["layer", "none"] = "layer"
    main_gpu: int = 0
    swa_full: bool = False
    kv_offload: bool = True
    op_offload: bool = True
    cache_ram_mib: int = 8192
    ctx_checkpoints: int = 32
    spec_type: tuple[str, ...] = ()
    spec_draft_n_max: int = 3
    embedding: bool = False
    memory_mib: Mapping[str, float | None] = field(default_factory=dict)
    context_mib: float | None = None
    build: int = NEWEST_BUILD


_FLAGS = (
    ("--ctx-size", "ctx_size"),
    ("--parallel", "parallel"),
    ("--cache-type-k", "cache_type_k"),
    ("--cache-type-v", "cache_type_v"),
    ("--batch-size", "batch_size"),
    ("--ubatch-size", "ubatch_size"),
    ("--flash-attn", "flash_attn"),
    ("--n-gpu-layers", "n_gpu_layers"),
    ("--n-cpu-moe", "n_cpu_moe"),
    ("--split-mode", "split_mode"),
    ("--main-gpu", "main_gpu"),
    ("--cache-ram", "cache_ram_mib"),
    ("--ctx-checkpoints", "ctx_checkpoints"),
    ("--spec-draft-n-max", "spec_draft_n_max"),
)
_SWITCHES = (
    ("--kv-unified", "kv_unified", True),
    ("--no-kv-unified", "kv_unified", False),
    ("--swa-full", "swa_full", True),
    ("--no-kv-offload", "kv_offload", False),
    ("--no-op-offload", "op_offload", False),
    ("--embedding", "embedding", True),
)


def flags_to_type(settings: Settings, first: str) -> tuple[str, ...]:
    """The server's flags for settings that are not its defaults.

    Args:
        settings: The start.
        first: The flag that comes first, whatever its value.
    """
    usual = Settings()
    pairs = sorted(_FLAGS, key=lambda pair: pair[0] != first)
    given = [
        (flag, str(getattr(settings, name)))
        for flag, name in pairs
        if flag == first or getattr(settings, name) != getattr(usual, name)
    ]
    switches = [
        flag
        for flag, name, value in _SWITCHES
        if getattr(settings, name) is value and getattr(usual, name) is not value
    ]
    lists = [
        ("--tensor-split", ",".join(f"{share:g}" for share in settings.tensor_split)),
        ("--override-tensor", ",".join(f"{pattern}={name}" for pattern, name in settings.override_tensor)),
        ("--spec-type", ",".join(settings.spec_type)),
    ]
    said = [*given, *((flag, text) for flag, text in lists if text)]
    return (*(word for pair in said for word in pair), *switches)


def has_flash_attention(settings: Settings) -> bool:
    """Whether flash attention is used; `auto` is older than the build where it became the default's meaning."""
    if settings.flash_attn == "auto":
        return settings.build >= _FLASH_ATTENTION_AUTO_SINCE
    return settings.flash_attn == "on"


def drafted_tokens(settings: Settings) -> int:
    """Tokens that a slot may have drafted at once; each needs logits of its own."""
    known = (SPEC_TYPES[name].drafted for name in settings.spec_type)
    return max((settings.spec_draft_n_max if drafted is None else drafted for drafted in known), default=0)


def rollback_tokens(settings: Settings) -> int:
    """Tokens that a recurrent state can be rolled back by, each with a state kept for it."""
    rolls_back = any(SPEC_TYPES[name].rolls_back for name in settings.spec_type)
    return settings.spec_draft_n_max if rolls_back else 0
