"""llama-server's own flags, as far as they decide memory, and what they mean for an estimate.

The rule: a flag keeps the name, the short forms and the default that llama-server has, so that a command line can be
pasted; what no flag says is left to the rules of the build.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import get_args

from gguf_info.companions import DraftModel, PredictingLayers, Projector, with_companions
from gguf_info.fitting import Goal
from gguf_info.memory import Estimate, Settings, estimate
from gguf_info.model import Summary, read_summary
from gguf_info.settings import CACHE_TYPES, SPEC_TYPES

__all__ = ["add_estimate_flags", "companion_inputs", "predictor", "settings_from"]

_EVERY_LAYER = 1_000_000


def add_estimate_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a start to a parser."""
    _add_context(parser.add_argument_group("context and caches"))
    _add_devices(parser.add_argument_group("devices"))
    _add_companions(parser.add_argument_group("beside the model"))
    asked = parser.add_argument_group("what is asked")
    add = asked.add_argument
    add("--memory", type=_memory, action="append", metavar="NAME=MiB", help="free memory of a device; one flag each")
    add("--context-mib", type=_size_mib, metavar="MiB", help="what the driver takes on each device, if you know it")
    add("--build", type=_whole(1), default=Settings().build, metavar="N", help="llama.cpp's (default: %(default)s)")
    search = asked.add_mutually_exclusive_group()
    search.add_argument("--largest", choices=get_args(Goal), help="find the largest that fits, and the flags to type")
    search.add_argument(
        "--sweep", nargs="?", type=_contexts, const=(), metavar="N,N,...", help="a table over contexts and cache types"
    )
    add("--sweep-types", type=_types, default=("f16", "q8_0", "q4_0"), metavar="T,T", help="default: f16,q8_0,q4_0")
    add("--plot", metavar="FILE.svg", help="also draw the sweep, as .svg or .png (needs gguf-info[plot])")


def _add_context(group: argparse._ArgumentGroup) -> None:
    default, add = Settings(), group.add_argument
    add("-c", "--ctx-size", type=_whole(0), default=0, metavar="N", help="context of all slots (default: the build's)")
    add("-np", "--parallel", type=_whole(-1), metavar="N", help="slots (default: the build's)")
    add("-kvu", "--kv-unified", action=argparse.BooleanOptionalAction, help="one cache for all slots")
    add("-no-kvu", dest="kv_unified", action="store_false", default=None, help=argparse.SUPPRESS)
    add("-ctk", "--cache-type-k", choices=CACHE_TYPES, default="f16", help="type of K (default: f16)")
    add("-ctv", "--cache-type-v", choices=CACHE_TYPES, default="f16", help="type of V (default: f16)")
    add("-b", "--batch-size", type=_whole(1), default=default.batch_size, metavar="N", help="default: %(default)s")
    add("-ub", "--ubatch-size", type=_whole(1), default=default.ubatch_size, metavar="N", help="default: %(default)s")
    add("-fa", "--flash-attn", choices=("on", "off", "auto"), default="auto", help="default: auto, taken as on")
    add("--swa-full", action="store_true", help="sliding-window layers keep the whole context")
    add(
        *("--embedding", "--embeddings", "--rerank", "--reranking"),
        dest="embedding",
        action="store_true",
        help="every token has an output, as embeddings and reranking need",
    )
    cache_ram = default.cache_ram_mib
    add(
        "-cram", "--cache-ram", type=_whole(-1), default=cache_ram, metavar="MiB", help="prompt cache limit in host RAM"
    )
    add(
        "-ctxcp",
        "--ctx-checkpoints",
        "--swa-checkpoints",
        type=_whole(0),
        default=default.ctx_checkpoints,
        metavar="N",
        help="context checkpoints of a slot, in host RAM (default: %(default)s)",
    )


def _add_devices(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "-ngl",
        "--n-gpu-layers",
        "--gpu-layers",
        type=_layers,
        metavar="N",
        help="layers on devices, `all` or `auto` (default: all)",
    )
    add("-dev", "--device", type=_names, default=(), metavar="NAME,...", help="of those of --memory; none: the host")
    add("-sm", "--split-mode", choices=("layer", "none"), default="layer", help="default: layer")
    add("-mg", "--main-gpu", type=_whole(0), default=0, metavar="INDEX", help="the device of --split-mode none")
    add("-ts", "--tensor-split", type=_shares, default=(), metavar="N,N,...", help="share of each device")
    add("-ncmoe", "--n-cpu-moe", type=_whole(0), default=0, metavar="N", help="experts of N first layers on the host")
    add("-cmoe", "--cpu-moe", action="store_true", help="all experts on the host")
    add("-ot", "--override-tensor", type=_overrides, action="extend", metavar="REGEX=BUFFER,...", help="by tensor")
    add("-kvo", "--kv-offload", action=argparse.BooleanOptionalAction, default=True, help="caches on devices")
    add("--op-offload", action=argparse.BooleanOptionalAction, default=True, help="devices compute with host weights")
    add("-nkvo", dest="kv_offload", action="store_false", help=argparse.SUPPRESS)


def _add_companions(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--spec-type",
        type=_spec_types,
        default=(),
        metavar="TYPE,...",
        help=f"speculative decoding: {', '.join(SPEC_TYPES)}",
    )
    add("-md", "--model-draft", "--spec-draft-model", metavar="FILE", help="draft model, or one of predicting layers")
    for letter, name in (("k", "K"), ("v", "V")):
        add(
            f"-ct{letter}d",
            f"--cache-type-{letter}-draft",
            f"--spec-draft-type-{letter}",
            choices=CACHE_TYPES,
            default="f16",
            help=f"the draft's type of {name}",
        )
    add(
        "-ngld",
        "--n-gpu-layers-draft",
        "--gpu-layers-draft",
        "--spec-draft-ngl",
        type=_layers,
        metavar="N",
        help="the draft's layers on devices (default: all)",
    )
    add(
        "-devd",
        "--device-draft",
        "--spec-draft-device",
        type=_names,
        default=(),
        metavar="NAME,...",
        help="its devices",
    )
    add(
        "-ncmoed",
        "--n-cpu-moe-draft",
        "--spec-draft-n-cpu-moe",
        type=_whole(0),
        default=0,
        metavar="N",
        help="its experts",
    )
    add("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe", action="store_true", help="all its experts on the host")
    add(
        "-otd",
        "--override-tensor-draft",
        "--spec-draft-override-tensor",
        type=_overrides,
        action="extend",
        metavar="REGEX=BUFFER,...",
        help="by the draft's tensors",
    )
    default = Settings().spec_draft_n_max
    add(
        "--spec-draft-n-max", type=_whole(0), default=default, metavar="N", help="tokens drafted (default: %(default)s)"
    )
    add("-mm", "--mmproj", metavar="FILE", help="multimodal projector")
    add("--mmproj-offload", action=argparse.BooleanOptionalAction, default=True, help="projector on a device")
    add("--mmproj-device", metavar="NAME", help="its device (default: the first)")


def settings_from(options: argparse.Namespace) -> Settings:
    """The settings that parsed flags stand for.

    Raises:
        argparse.ArgumentTypeError: Flags that do not go together.
    """
    memory_mib, n_gpu_layers = _chosen_devices(options)
    spec_type = tuple(name for name in options.spec_type if name != "none")
    drafts = [name for name in spec_type if name.startswith("draft-")]
    if options.model_draft is not None and not drafts:
        spec_type = (*spec_type, "draft-simple")
    if options.model_draft is None and any(SPEC_TYPES[name].has_model for name in drafts):
        raise argparse.ArgumentTypeError(f"--spec-type {drafts[0]} needs --model-draft")
    return Settings(
        ctx_size=options.ctx_size,
        parallel=options.parallel,
        kv_unified=options.kv_unified,
        cache_type_k=options.cache_type_k,
        cache_type_v=options.cache_type_v,
        batch_size=options.batch_size,
        ubatch_size=options.ubatch_size,
        flash_attn=options.flash_attn,
        n_gpu_layers=n_gpu_layers,
        n_cpu_moe=_EVERY_LAYER if options.cpu_moe else options.n_cpu_moe,
        override_tensor=tuple(options.override_tensor or ()),
        tensor_split=options.tensor_split,
        split_mode=options.split_mode,
        main_gpu=options.main_gpu,
        swa_full=options.swa_full,
        kv_offload=options.kv_offload,
        op_offload=options.op_offload and options.device != ("none",),
        cache_ram_mib=options.cache_ram,
        ctx_checkpoints=options.ctx_checkpoints,
        spec_type=spec_type,
        spec_draft_n_max=options.spec_draft_n_max,
        embedding=options.embedding,
        memory_mib=memory_mib,
        context_mib=options.context_mib,
        build=options.build,
    )


def _chosen_devices(options: argparse.Namespace) -> tuple[Mapping[str, float | None], int | None]:
    """The devices in the order that `--device` names them, and the layers on them."""
    memory_mib: dict[str, float | None] = dict(options.memory or ())
    wanted = options.n_gpu_layers
    n_gpu_layers = None if wanted is None or wanted < 0 else wanted
    if options.device == ("none",):
        return memory_mib, 0
    if memory_mib and (unknown := [name for name in options.device if name not in memory_mib]):
        raise argparse.ArgumentTypeError(f"--device {unknown[0]} is not among those of --memory")
    return {name: memory_mib.get(name) for name in options.device} or memory_mib, n_gpu_layers


def companion_inputs(options: argparse.Namespace) -> dict[str, object]:
    """The flags of what is loaded beside the model, as far as they matter, for an answer's assumptions."""
    inputs: dict[str, object] = {}
    if options.model_draft is not None or "draft-mtp" in options.spec_type:
        inputs = {
            "model_draft": options.model_draft,
            "cache_type_k_draft": options.cache_type_k_draft,
            "cache_type_v_draft": options.cache_type_v_draft,
            "n_gpu_layers_draft": options.n_gpu_layers_draft,
            "device_draft": list(options.device_draft),
        }
    if options.mmproj is not None:
        inputs |= {
            "mmproj": options.mmproj,
            "mmproj_offload": options.mmproj_offload,
            "mmproj_device": options.mmproj_device,
        }
    return inputs


def predictor(summary: Summary, options: argparse.Namespace) -> Callable[[Settings], Estimate]:
    """Estimates starts of a model with what parsed flags load beside it.

    Raises:
        GGUFError: A file cannot be read.
    """
    beside = None if options.model_draft is None else read_summary(options.model_draft)
    projector = None
    if options.mmproj is not None:
        projector = Projector(read_summary(options.mmproj), options.mmproj_offload, options.mmproj_device)
    draft = predicting = None
    if "draft-mtp" in options.spec_type:
        predicting = _predicting_layers(summary, beside, options)
    elif beside is not None:
        draft = _draft_model(beside, options)

    def predict(settings: Settings) -> Estimate:
        prediction = estimate(summary, settings)
        return with_companions(prediction, draft=draft, projector=projector, predicting=predicting)

    return predict


def _draft_model(summary: Summary, options: argparse.Namespace) -> DraftModel:
    layers = options.n_gpu_layers_draft
    return DraftModel(
        summary,
        options.cache_type_k_draft,
        options.cache_type_v_draft,
        None if layers is None or layers < 0 else layers,
        options.device_draft,
        _EVERY_LAYER if options.cpu_moe_draft else options.n_cpu_moe_draft,
        tuple(options.override_tensor_draft or ()),
    )


def _predicting_layers(summary: Summary, beside: Summary | None, options: argparse.Namespace) -> PredictingLayers:
    layers = options.n_gpu_layers_draft
    return PredictingLayers(
        summary if beside is None else beside,
        beside is None,
        options.cache_type_k_draft,
        options.cache_type_v_draft,
        None if layers is None or layers < 0 else layers,
        options.device_draft,
    )


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


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or ("none" in names and len(names) > 1):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of devices, such as CUDA0,CUDA1")
    return names


def _spec_types(text: str) -> tuple[str, ...]:
    types = tuple(text.split(","))
    unknown = [name for name in types if name not in SPEC_TYPES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(SPEC_TYPES)}")
    return types


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
