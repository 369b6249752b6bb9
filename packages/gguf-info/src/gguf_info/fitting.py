"""Searches over estimates: the largest value of one setting that fits, and a table over contexts and cache types.

The rule: nothing is extrapolated. Each value in an answer was estimated as a whole, so what is said to fit is what
`estimate` says of the same flags. Searches rest on memory growing with the setting, which it does for all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from gguf_info.errors import GGUFError
from gguf_info.layers import layer_count
from gguf_info.memory import Estimate, Settings, estimate
from gguf_info.model import Summary
from gguf_info.settings import MOST_SLOTS, flags_to_type

__all__ = ["Goal", "Largest", "SweepRow", "find_largest", "sweep"]

Goal = Literal["ctx-size", "parallel", "n-gpu-layers"]
Predict = Callable[[Settings], Estimate]
_CTX_STEP = 256


@dataclass(frozen=True)
class Largest:
    """The answer of a search.

    Attributes:
        goal: The setting.
        value: Its largest value that fits, or None if not even the smallest does.
        flags: The flags to type for it: its own first, then those that are not the server's defaults.
        prediction: The estimate for that value; for the smallest, if it does not fit.
    """

    goal: Goal
    value: int | None
    flags: tuple[str, ...]
    prediction: Estimate


@dataclass(frozen=True)
class SweepRow:
    """One line of a sweep; `ctx_size` is as it was applied, K and V have the same type."""

    ctx_size: int
    cache_type: str
    kv_bytes: int
    compute_high_bytes: int
    used_bytes: int
    fits: bool | None


def find_largest(summary: Summary, settings: Settings, goal: Goal, predict: Predict | None = None) -> Largest:
    """The largest context, number of slots, or number of layers on devices that fits.

    Args:
        summary: The model.
        settings: All other settings.
        goal: What is to be as large as can be.
        predict: Estimates a start; `estimate` when left out. Another one may count what is loaded beside the model.

    A context is searched up to the training context of every slot, the slots up to llama.cpp's limit; when slots are
    divided and a context is given, they divide it.

    Raises:
        GGUFError: The memory of a device is not given, or the model cannot be estimated.
    """
    if not settings.memory_mib or None in settings.memory_mib.values():
        raise GGUFError(
            summary.file.path,
            None,
            expected=f"the memory of each device to find the largest {goal}",
            found="none",
            hint="give --memory NAME=MiB",
        )
    predict = predict or partial(estimate, summary)
    values, apply = _SEARCHES[goal](summary, settings)
    fitting = _last_fitting(predict, values, apply)
    shown = values[0] if fitting is None else fitting
    return Largest(goal, fitting, flags_to_type(apply(shown), f"--{goal}"), predict(apply(shown)))


def sweep(
    summary: Summary,
    settings: Settings,
    contexts: Sequence[int] | None,
    cache_types: Sequence[str],
    predict: Predict | None = None,
) -> Iterator[SweepRow]:
    """Estimates over contexts and cache types.

    Args:
        summary: The model.
        settings: All other settings.
        contexts: Values of `--ctx-size`; powers of two up to the training context when None.
        cache_types: Types of both K and V.
        predict: Estimates a start; `estimate` when left out.

    Raises:
        GGUFError: The model cannot be estimated.
    """
    predict = predict or partial(estimate, summary)
    for cache_type in cache_types:
        for ctx_size in contexts or _powers_of_two(summary):
            started = replace(settings, ctx_size=ctx_size, cache_type_k=cache_type, cache_type_v=cache_type)
            prediction = predict(started)
            yield SweepRow(
                ctx_size=prediction.slots.n_ctx,
                cache_type=cache_type,
                kv_bytes=prediction.kv_bytes,
                compute_high_bytes=prediction.compute.high_bytes,
                used_bytes=sum(device.used_bytes for device in prediction.devices),
                fits=prediction.fits,
            )


_Search = tuple[Sequence[int], Callable[[int], Settings]]


def _context_search(summary: Summary, settings: Settings) -> _Search:
    # The training context of one slot, or of each when they divide the cache.
    slots = estimate(summary, replace(settings, ctx_size=_CTX_STEP)).slots
    most = _trained(summary) * slots.streams
    return range(_CTX_STEP * slots.streams, most + 1, _CTX_STEP * slots.streams), lambda value: replace(
        settings, ctx_size=value
    )


def _slot_search(summary: Summary, settings: Settings) -> _Search:
    return range(1, MOST_SLOTS + 1), lambda value: replace(settings, parallel=value)


def _layer_search(summary: Summary, settings: Settings) -> _Search:
    return range(layer_count(summary) + 2), lambda value: replace(settings, n_gpu_layers=value)


_SEARCHES: dict[Goal, Callable[[Summary, Settings], _Search]] = {
    "ctx-size": _context_search,
    "parallel": _slot_search,
    "n-gpu-layers": _layer_search,
}


def _last_fitting(predict: Predict, values: Sequence[int], apply: Callable[[int], Settings]) -> int | None:
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if predict(apply(values[middle])).fits:
            low = middle + 1
        else:
            high = middle
    return values[low - 1] if low else None


def _trained(summary: Summary) -> int:
    trained = summary.architecture.context_length if summary.architecture else None
    return max(trained or 4096, _CTX_STEP)


def _powers_of_two(summary: Summary) -> list[int]:
    trained = _trained(summary)
    return sorted({min(2**exponent, trained) for exponent in range(12, trained.bit_length() + 1)})
