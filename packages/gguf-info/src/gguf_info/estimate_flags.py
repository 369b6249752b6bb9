"""llama-server's own flags, as far as they decide memory, and what they mean for an estimate.

The rule: a flag keeps the name, the short forms and the default that llama-server has, so that a command line can be
pasted; what no flag says is left to the rules of the build.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import get_args

from gguf_info.companions import DraftModel, Projector, with_companions
from gguf_info.fitting import Goal
from gguf_info.memory import CACHE_TYPES, Estimate, Settings, estimate
from gguf_info.model import Summary, read_summary

__all__ = ["add_estimate_flags", "predictor", "settings_from"]


def add_estimate_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a start to a parser."""
    default = Settings()
    add = parser.add_argument
    add("-c", "--ctx-size", type=_whole(0), default=0, metavar="N", help="context of all slots (default: the build's)")
    add("-np", "--parallel", type=_whole(-1), metavar="N", help="slots (default: the build's)")
    add("-kvu", "--kv-unified", action=argparse.BooleanOptionalAction, help="one cache for all slots")
    add("-ctk", "--cache-type-k", choices=CACHE_TYPES, default="f16", help="type of K (default: f16)")
    add("-ctv", "--cache-type-v", choices=CACHE_TYPES, default="f16", help="type of V (default: f16)")
    add("-b", "--batch-size", type=_whole(1), default=default.batch_size, metavar="N", help="default: %(default)s")
    add("-ub", "--ubatch-size", type=_whole(1), default=default.ubatch_size, metavar="N", help="default: %(default)s")
    add("-fa", "--flash-attn", choices=("on", "off", "auto"), default="auto", help="default: auto, taken as on")
    add("-ngl", "--n-gpu-layers", type=_layers, metavar="N", help="layers on devices, `all` or `auto` (default: all)")
    add("-ncmoe", "--n-cpu-moe", type=_whole(0), default=0, metavar="N", help="experts of N first layers on the host")
    add("-cmoe", "--cpu-moe", action="store_true", help="all experts on the host")
    add("-ot", "--override-tensor", type=_overrides, action="extend", metavar="REGEX=BUFFER,...", help="by tensor")
    add("-ts", "--tensor-split", type=_shares, default=(), metavar="N,N,...", help="share of each device")
    add("--swa-full", action="store_true", help="sliding-window layers keep the whole context")
    add("-kvo", "--kv-offload", action=argparse.BooleanOptionalAction, default=True, help="caches on devices")
    add(
        "-cram", "--cache-ram", type=_whole(-1), default=default.cache_ram_mib, metavar="MiB", help="prompt cache limit"
    )
    add("-md", "--model-draft", metavar="FILE", help="draft model, started with the model's context and slots")
    add("-ctkd", "--cache-type-k-draft", choices=CACHE_TYPES, default="f16", help="the draft's type of K")
    add("-ctvd", "--cache-type-v-draft", choices=CACHE_TYPES, default="f16", help="the draft's type of V")
    add("-ngld", "--n-gpu-layers-draft", type=_layers, metavar="N", help="the draft's layers on devices (default: all)")
    add("-mm", "--mmproj", metavar="FILE", help="multimodal projector")
    add("--mmproj-offload", action=argparse.BooleanOptionalAction, default=True, help="projector on the first device")
    add("--memory", type=_memory, action="append", metavar="NAME=MiB", help="free memory of a device; one flag each")
    add("--context-mib", type=_size_mib, metavar="MiB", help="what the driver takes on each device, if you know it")
    add("--build", type=_whole(1), default=default.build, metavar="N", help="llama.cpp's build (default: %(default)s)")
    search = parser.add_mutually_exclusive_group()
    goals = get_args(Goal)
    search.add_argument("--largest", choices=goals, help="find the largest that fits, and the flags to type")
    search.add_argument(
        "--sweep", nargs="?", type=_contexts, const=(), metavar="N,N,...", help="a table over contexts and cache types"
    )
    add("--sweep-types", type=_types, default=("f16", "q8_0", "q4_0"), metavar="T,T", help="default: f16,q8_0,q4_0")


def settings_from(options: argparse.Namespace) -> Settings:
    """The settings that parsed flags stand for."""
    every_layer = 1_000_000
    return Settings(
        ctx_size=options.ctx_size,
        parallel=options.parallel,
        kv_unified=options.kv_unified,
        cache_type_k=options.cache_type_k,
        cache_type_v=options.cache_type_v,
        batch_size=options.batch_size,
        ubatch_size=options.ubatch_size,
        flash_attn=options.flash_attn,
        n_gpu_layers=None if options.n_gpu_layers is None or options.n_gpu_layers < 0 else options.n_gpu_layers,
        n_cpu_moe=every_layer if options.cpu_moe else options.n_cpu_moe,
        override_tensor=tuple(options.override_tensor or ()),
        tensor_split=options.tensor_split,
        swa_full=options.swa_full,
        kv_offload=options.kv_offload,
        cache_ram_mib=options.cache_ram,
        memory_mib=dict(options.memory or ()),
        context_mib=options.context_mib,
        build=options.build,
    )


def predictor(summary: Summary, options: argparse.Namespace) -> Callable[[Settings], Estimate]:
    """Estimates starts of a model with the draft model and projector of parsed flags beside it.

    Raises:
        GGUFError: A file cannot be read.
    """
    draft = projector = None
    if options.model_draft is not None:
        layers = options.n_gpu_layers_draft
        draft = DraftModel(
            read_summary(options.model_draft),
            options.cache_type_k_draft,
            options.cache_type_v_draft,
            None if layers is None or layers < 0 else layers,
        )
    if options.mmproj is not None:
        projector = Projector(read_summary(options.mmproj), options.mmproj_offload)
    return lambda settings: with_companions(estimate(summary, settings), draft=draft, projector=projector)


def _whole(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    number.__name__ = "number"  # argparse names the type in its messages
    return number


def _layers(text: str) -> int:
    return -1 if text in ("all", "auto") else _whole(-1)(text)


def _size_mib(text: str) -> float:
    value = float(text)
    if not 0 <= value < 2**40:
        raise argparse.ArgumentTypeError(f"{text} is no size in MiB")
    return value


def _memory(text: str) -> tuple[str, float]:
    name, _, size = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=MiB, such as CUDA0=24000")
    return name, _size_mib(size)


def _contexts(text: str) -> tuple[int, ...]:
    return tuple(_whole(1)(part) for part in text.split(","))


def _types(text: str) -> tuple[str, ...]:
    types = tuple(text.split(","))
    unknown = [name for name in types if name not in CACHE_TYPES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(CACHE_TYPES)}")
    return types


def _shares(text: str) -> tuple[float, ...]:
    shares = tuple(_size_mib(part) for part in re.split(r"[,/]", text))
    if not any(shares):
        raise argparse.ArgumentTypeError("at least one share must be above 0")
    return shares


def _overrides(text: str) -> list[tuple[str, str]]:
    found = []
    for part in text.split(","):
        pattern, _, name = part.rpartition("=")
        try:
            re.compile(pattern)
        except re.error as error:
            raise argparse.ArgumentTypeError(f"{pattern!r} is no regular expression: {error}") from error
        if not pattern:
            raise argparse.ArgumentTypeError(f"{part!r} is not REGEX=BUFFER")
        found.append((pattern, name))
    return found
