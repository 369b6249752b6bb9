"""Whether a start fits into the memory of the GPUs, and what would fit, before anything is started.

The prediction is gguf-info's, the free memory is the driver's (NVML, extra `gpu`). Where there is no NVIDIA driver, or
the model cannot be predicted, nothing is refused: the server is then the judge.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import gguf_info
import vram_report

from llama_launch.errors import ModelError
from llama_launch.flags import profile_flags
from llama_launch.profile import Profile

__all__ = ["Fit", "fit_of", "free_gpu_mib", "together", "visible_gpus"]

_MIB = 1 << 20
_CTX_STEP = 256


@dataclass(frozen=True)
class Fit:
    """The answer.

    Attributes:
        fits: Whether every GPU has the room; None when that cannot be said.
        lines: The figures of each GPU, for a person; or why nothing can be said.
        remedies: Changes to the profile with which it would fit, as words for `--set`.
    """

    fits: bool | None
    lines: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


def free_gpu_mib(gpus: str = "") -> dict[str, float]:
    """Free memory of each GPU by the name that llama.cpp gives it, in MiB; empty without an NVIDIA driver.

    Args:
        gpus: The GPUs that the server may see, as CUDA_VISIBLE_DEVICES has them by number; all when empty.
    """
    try:
        readings = list(vram_report.open_nvml().read())
    except vram_report.GPUNotWatched:
        return {}
    wanted = [int(word) for word in gpus.split(",") if word.strip().isdigit()] or range(len(readings))
    seen = [readings[index] for index in wanted if index < len(readings)]
    return {f"CUDA{place}": reading.total_mib - reading.used_mib for place, reading in enumerate(seen)}


def visible_gpus(profile: Profile) -> str:
    """The GPUs that the profile's server will see, as CUDA_VISIBLE_DEVICES has them."""
    return profile.gpus or os.environ.get("CUDA_VISIBLE_DEVICES", "")


def fit_of(
    profile: Profile,
    summary: gguf_info.Summary,
    flags: Sequence[str],
    free_mib: Mapping[str, float],
    build: int | None = None,
) -> Fit:
    """Whether the start fits.

    Args:
        profile: What would be started, for the names of what to change.
        summary: The model.
        flags: The server's whole command line, without the program.
        free_mib: Free memory of each GPU; empty when it is not known.
        build: llama.cpp's build number, where known.
    """
    if not free_mib:
        return Fit(None, ("no GPU's free memory is known",))
    try:
        start = gguf_info.planned_start(summary, flags, memory_mib=free_mib, build=build)
        prediction = start.predict(start.settings)
        lines = tuple(_line(device) for device in prediction.devices)
        if prediction.fits is not False:
            return Fit(prediction.fits, lines)
        return Fit(False, lines, tuple(_remedies(profile, summary, start)))
    except gguf_info.GGUFError as error:
        return Fit(None, (f"the memory cannot be predicted: {error}",))


def together(
    starts: Sequence[tuple[gguf_info.Summary, Profile]], free_mib: Mapping[str, float]
) -> list[tuple[int, ...]]:
    """The largest sets of starts that fit into the GPUs at the same time, as indexes.

    Raises:
        ModelError: A model cannot be predicted.
    """
    try:
        planned = [
            gguf_info.planned_start(
                summary, [word for flag in profile_flags(profile) for word in flag.words], memory_mib=free_mib
            )
            for summary, profile in starts
        ]
        predictions = [start.predict(start.settings) for start in planned]
        return gguf_info.resident_sets([summary.file.path for summary, _ in starts], predictions)
    except gguf_info.GGUFError as error:
        raise ModelError(f"model {error}", hint=error.hint) from error


def _line(device: gguf_info.DeviceMemory) -> str:
    parts = (
        ("weights", device.weights_bytes),
        ("KV", device.kv_bytes + device.recurrent_bytes),
        ("compute", device.compute.bytes),
    )
    shown = ", ".join(f"{name} {size / _MIB:,.0f}" for name, size in parts)
    free = "?" if device.total_bytes is None else f"{device.total_bytes / _MIB:,.0f}"
    return f"{device.name}: needs {device.used_high_bytes / _MIB:,.0f} MiB ({shown}) of {free} MiB free"


def _remedies(profile: Profile, summary: gguf_info.Summary, start: gguf_info.PlannedStart) -> list[str]:
    found = [remedy(profile, summary, start) for remedy in _REMEDIES]
    return [words for words in found if words]


def _smaller_context(profile: Profile, summary: gguf_info.Summary, start: gguf_info.PlannedStart) -> str:
    largest = gguf_info.find_largest(summary, start.settings, "ctx-size", start.predict).value
    n_ctx_slot = (largest or 0) // profile.n_slots // _CTX_STEP * _CTX_STEP
    return f"--set n_ctx_slot={n_ctx_slot}" if 0 < n_ctx_slot < profile.n_ctx_slot else ""


def _smaller_cache_type(profile: Profile, summary: gguf_info.Summary, start: gguf_info.PlannedStart) -> str:
    if profile.cache_type_k != "f16" or profile.cache_type_v != "f16":
        return ""
    smaller = replace(start.settings, cache_type_k="q8_0", cache_type_v="q8_0", flash_attn="on")
    if not start.predict(smaller).fits:
        return ""
    return "--set cache_type_k=q8_0 --set cache_type_v=q8_0 --set flash_attn=on"


def _fewer_layers(profile: Profile, summary: gguf_info.Summary, start: gguf_info.PlannedStart) -> str:
    largest = gguf_info.find_largest(summary, start.settings, "n-gpu-layers", start.predict).value
    return "" if largest is None else f"--set n_gpu_layers={largest}"


# The cheapest first: a shorter context, a cache of half the size, then layers on the CPU, which is slow.
_REMEDIES = (_smaller_context, _smaller_cache_type, _fewer_layers)
