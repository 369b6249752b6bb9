"""Estimates as documents and as tables.

The rule: a document has bytes and the contract's keys; a table has MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gguf_info.compute import COMPUTE_BASIS, ByteRange
from gguf_info.document import SCHEMA_VERSION, plain_value
from gguf_info.fitting import Largest, SweepRow
from gguf_info.memory import DeviceMemory, Estimate, ExtraModel
from gguf_info.render import DASH, Table, shown, visible
from gguf_info.settings import HOST

__all__ = ["estimate_document", "estimate_tables", "largest_document", "residency_tables", "sweep_table"]


def estimate_document(prediction: Estimate, further: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The document that `gguf-info estimate --format json` prints; sizes in bytes.

    Args:
        prediction: The estimate.
        further: What else it rests on, such as the files beside the model; part of `assumptions`.
    """
    compute = prediction.compute
    host = prediction.host
    return {
        "schema_version": SCHEMA_VERSION,
        "assumptions": {**plain_value(prediction.settings), **(further or {}), "compute_basis": COMPUTE_BASIS},
        "weights": {
            "total_bytes": prediction.weights_total_bytes,
            "gpu_bytes": prediction.weights_gpu_bytes,
            "host_bytes": prediction.weights_host_bytes,
        },
        "kv_cache": {"total_bytes": prediction.kv_bytes, "parts": plain_value(prediction.cache)},
        "recurrent": {"total_bytes": prediction.recurrent_bytes},
        "output": {"bytes": prediction.output_bytes},
        "compute": {"bytes": compute.bytes, "low_bytes": compute.low_bytes, "high_bytes": compute.high_bytes},
        "extra_models": [_extra_object(extra) for extra in prediction.extra_models],
        "devices": [_device_object(device) for device in prediction.devices],
        "host": {
            "used_bytes": host.used_bytes,
            "compute_bytes": prediction.host_compute.bytes,
            "parts": [{"kind": kind, "bytes": size} for kind, size in host.parts.items()],
        },
        "slots": plain_value(prediction.slots),
    }


def _extra_object(extra: ExtraModel) -> dict[str, Any]:
    compute = extra.compute
    return {
        "role": extra.role,
        "path": extra.path,
        "device": extra.device,
        "weights_bytes": extra.weights_bytes,
        "kv_bytes": extra.kv_bytes,
        "compute_bytes": compute.bytes if compute else None,
    }


def largest_document(answer: Largest, further: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The document that `gguf-info estimate --largest --format json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "largest": {"goal": answer.goal, "value": answer.value, "flags": list(answer.flags)},
        "estimate": estimate_document(answer.prediction, further),
    }


def _device_object(device: DeviceMemory) -> dict[str, Any]:
    return {
        "name": device.name,
        "total_bytes": device.total_bytes,
        "weights_bytes": device.weights_bytes,
        "kv_bytes": device.kv_bytes,
        "recurrent_bytes": device.recurrent_bytes,
        "compute_bytes": device.compute.bytes,
        "compute_low_bytes": device.compute.low_bytes,
        "compute_high_bytes": device.compute.high_bytes,
        "context_bytes": device.context_bytes,
        "used_bytes": device.used_bytes,
        "used_high_bytes": device.used_high_bytes,
        "fits": device.fits,
    }


def estimate_tables(prediction: Estimate) -> list[Table]:
    """What a start will take, in MiB."""
    slots, compute = prediction.slots, prediction.compute
    sharing = "unified: one pool for all" if slots.kv_unified else "divided: each slot has its own part"
    rows = [
        ("slots", f"{slots.n_slots:,}, {sharing}" if slots.n_slots > 1 else "1"),
        ("context", f"{slots.n_ctx:,}"),
        (
            "context per slot",
            f"{slots.n_ctx_slot:,}" + (" (capped: the model's training context)" if slots.capped else ""),
        ),
        ("weights", f"{_mib(prediction.weights_total_bytes)} MiB"),
        ("KV cache", f"{_mib(prediction.kv_bytes)} MiB"),
        ("compute", f"{_mib(compute.bytes)} MiB, from {_mib(compute.low_bytes)} to {_mib(compute.high_bytes)}"),
        ("compute rests on", COMPUTE_BASIS),
        ("build", f"{prediction.settings.build}"),
    ]
    caches = [
        (part.kind, f"{part.cells:,}", str(part.layers), str(part.streams), _mib(part.bytes))
        for part in prediction.cache
    ]
    if prediction.recurrent_bytes:
        caches.append(("recurrent", str(slots.n_slots), DASH, DASH, _mib(prediction.recurrent_bytes)))
    return [
        Table("Start", ("", ""), tuple(rows)),
        Table("Caches", ("cache", "cells", "layers", "streams", "MiB"), tuple(caches), (1, 2, 3, 4)),
        *_extra_tables(prediction),
        _device_table(prediction),
        Table(
            "Host, MiB",
            ("kind", "MiB"),
            _host_rows(prediction),
            (1,),
        ),
    ]


def _host_rows(prediction: Estimate) -> tuple[tuple[str, str], ...]:
    host, beside = prediction.host, [extra for extra in prediction.extra_models if extra.device == HOST]
    limits = ("prompt-cache", "checkpoints")
    rows = [(kind, size) for kind, size in host.parts.items() if kind not in limits]
    rows += [("compute", prediction.host_compute.bytes), ("beside the model", sum(one.used_bytes for one in beside))]
    shown = [(kind, _mib(size)) for kind, size in rows if size]
    shown.append(("used", _mib(host.used_bytes)))
    for kind in limits:
        limit = host.parts[kind]
        if limit != 0:
            shown.append((f"{kind}, later, at most", "no limit" if limit is None else _mib(limit)))
    return tuple(shown)


def _extra_tables(prediction: Estimate) -> list[Table]:
    rows = tuple(
        (
            extra.role,
            visible(extra.device),
            _mib(extra.weights_bytes),
            _mib(extra.kv_bytes),
            _mib_range(extra.compute) if extra.compute else DASH,
        )
        for extra in prediction.extra_models
    )
    columns = ("role", "device", "weights", "KV", "compute")
    return [Table("Beside the model, MiB", columns, rows, (2, 3, 4))] if rows else []


def residency_tables(
    paths: Sequence[str], predictions: Sequence[Estimate], sets: Sequence[tuple[int, ...]]
) -> list[Table]:
    """What each of several models uses at most, and which fit together."""
    names = [device.name for device in predictions[0].devices]
    rows = tuple(
        (visible(path), *(_mib(device.used_high_bytes) for device in prediction.devices))
        for path, prediction in zip(paths, predictions, strict=True)
    )
    free = ("free", *(_mib(device.total_bytes or 0) for device in predictions[0].devices))
    together = tuple((", ".join(visible(paths[index]) for index in chosen),) for chosen in sets)
    return [
        Table("At most, MiB", ("model", *map(visible, names)), (*rows, free), tuple(range(1, len(names) + 1))),
        Table("Fit together", ("models",), together or (("none",),)),
    ]


def sweep_table(rows: Iterable[SweepRow]) -> Table:
    """A sweep, in MiB."""
    columns = ("context", "cache type", "KV", "compute at most", "used on devices", "fits")
    lines = tuple(
        (
            f"{row.ctx_size:,}",
            row.cache_type,
            _mib(row.kv_bytes),
            _mib(row.compute_high_bytes),
            _mib(row.used_bytes),
            shown(row.fits),
        )
        for row in rows
    )
    return Table("Contexts and cache types, MiB", columns, lines, (0, 2, 3, 4))


def _device_table(prediction: Estimate) -> Table:
    rows = [
        (
            visible(device.name),
            DASH if device.total_bytes is None else _mib(device.total_bytes),
            _mib(device.weights_bytes),
            _mib(device.kv_bytes),
            _mib(device.recurrent_bytes),
            _mib_range(device.compute),
            DASH if device.context_bytes is None else _mib(device.context_bytes),
            _mib(device.used_bytes),
            shown(device.fits),
        )
        for device in prediction.devices
    ]
    columns = ("device", "free", "weights", "KV", "recurrent", "compute", "driver", "used", "fits")
    return Table("Devices, MiB", columns, tuple(rows), tuple(range(1, 8)))


def _mib_range(compute: ByteRange) -> str:
    return f"{_mib(compute.bytes)} ({_mib(compute.low_bytes)} to {_mib(compute.high_bytes)})"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.2f}"
