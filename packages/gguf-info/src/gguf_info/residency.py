"""Which of several models can be in memory at the same time, each in a server of its own.

The rule: a set fits when on every device the most that each model may use (the high end of its compute range) adds up
to no more than the device's memory. Only the largest sets are told: what is part of one fits too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from gguf_info.errors import GGUFError
from gguf_info.memory import Estimate

__all__ = ["residency_document", "resident_sets"]

_MOST_MODELS = 16


def resident_sets(paths: Sequence[str], predictions: Sequence[Estimate]) -> list[tuple[int, ...]]:
    """The largest sets of models that fit together, as indexes in ascending order, the biggest set first.

    Args:
        paths: The models' files, for messages.
        predictions: Their estimates, for the same devices.

    Raises:
        GGUFError: The memory of a device is not given, or there are more models than can be tried.
    """
    if len(predictions) > _MOST_MODELS:
        raise GGUFError(paths[0], None, expected=f"at most {_MOST_MODELS} models", found=str(len(predictions)))
    totals = [device.total_bytes for device in predictions[0].devices]
    if None in totals:
        hint = "give --memory NAME=MiB"
        raise GGUFError(paths[0], None, expected="the memory of each device", found="none", hint=hint)
    found: list[tuple[int, ...]] = []
    for size in range(len(predictions), 0, -1):
        for chosen in combinations(range(len(predictions)), size):
            if not any(set(chosen) <= set(larger) for larger in found) and _fit(chosen, predictions, totals):
                found.append(chosen)
    return found


def _fit(chosen: Sequence[int], predictions: Sequence[Estimate], totals: Sequence[int | None]) -> bool:
    return all(
        sum(predictions[index].devices[place].used_high_bytes for index in chosen) <= (total or 0)
        for place, total in enumerate(totals)
    )


def residency_document(
    paths: Sequence[str], predictions: Sequence[Estimate], sets: Sequence[tuple[int, ...]]
) -> dict[str, Any]:
    """The document that `gguf-info estimate A B C --format json` prints; sizes in bytes, at most."""
    models = [
        {
            "path": path,
            "devices": [
                {"name": device.name, "total_bytes": device.total_bytes, "used_high_bytes": device.used_high_bytes}
                for device in prediction.devices
            ],
            "host_bytes": prediction.host.used_bytes,
        }
        for path, prediction in zip(paths, predictions, strict=True)
    ]
    together = [[paths[index] for index in chosen] for chosen in sets]
    return {"schema_version": 1, "models": models, "together": together}
