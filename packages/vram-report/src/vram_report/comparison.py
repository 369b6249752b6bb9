"""Several logs side by side, and what their sizes say about other context sizes.

The rule: logs of one set-up (model, build, cache types, ubatch, flash attention, slots and their sharing) that differ
in context size lie on a line: KV cache and compute buffer are each a constant plus a slope times n_ctx. Two points
give the line exactly, more give least squares, and the residual says how good the line is. Predictions use the free
memory of the first log of the set-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from vram_report.capacity import DEFAULT_MARGIN_MIB
from vram_report.control_characters import visible
from vram_report.document import Device, LogReport, Run
from vram_report.render import DASH, Table, select_run

__all__ = ["Comparison", "Fit", "Line", "Row", "compare", "comparison_document", "comparison_tables"]

Value = float | int | str | bool | None


@dataclass(frozen=True)
class Row:
    """One quantity over all logs; `differences` are against the first log, None for text and unknowns."""

    name: str
    values: list[Value]
    differences: list[float | None]


@dataclass(frozen=True)
class Line:
    """MiB as a function of n_ctx, with the largest distance of a point from the line."""

    constant_mib: float
    bytes_per_token: float
    max_residual_mib: float


@dataclass(frozen=True)
class Fit:
    """What one device of one set-up holds by context size.

    Attributes:
        device: The device's name.
        logs: Numbers of the logs on the line, from 1.
        n_ctx: Their context sizes.
        kv: All caches on the device together.
        compute: The compute buffer.
        free_mib: Free memory before the load, or None.
        largest_ctx: Largest n_ctx that leaves the margin free.
        oom_ctx: n_ctx at which the device is full.
    """

    device: str
    logs: list[int]
    n_ctx: list[int]
    kv: Line
    compute: Line
    free_mib: float | None
    largest_ctx: int | None
    oom_ctx: int | None


@dataclass(frozen=True)
class Comparison:
    """The compared logs, their quantities, and the lines through logs of one set-up."""

    logs: list[str]
    rows: list[Row]
    fits: list[Fit]


QUANTITIES: tuple[tuple[str, Callable[[Run], Value]], ...] = (
    ("outcome", lambda run: run.outcome),
    ("model", lambda run: run.model.name or run.model.path),
    ("build", lambda run: run.build.number),
    ("context length", lambda run: run.context.n_ctx),
    ("context per slot", lambda run: run.context.n_ctx_slot),
    ("slots", lambda run: run.context.n_slots),
    ("KV unified", lambda run: run.context.kv_unified),
    ("K type", lambda run: run.kv_cache.type_k),
    ("V type", lambda run: run.kv_cache.type_v),
    ("flash attention", lambda run: run.context.flash_attn),
    ("ubatch", lambda run: run.context.n_ubatch),
    ("KV cache, MiB", lambda run: run.kv_cache.total_mib),
)

DEVICE_QUANTITIES: tuple[tuple[str, Callable[[Device], Value]], ...] = (
    ("free before", lambda device: device.free_mib),
    ("weights", lambda device: device.weights_mib),
    ("KV", lambda device: device.kv_mib),
    ("recurrent", lambda device: device.recurrent_mib),
    ("compute", lambda device: device.compute_mib),
    ("used", lambda device: device.used_mib),
    ("free after load", lambda device: device.free_after_load_mib),
)


def compare(reports: Sequence[LogReport], *, margin_mib: float = DEFAULT_MARGIN_MIB) -> Comparison:
    """Compare the last runs of several logs.

    Args:
        reports: Two or more reports.
        margin_mib: MiB to keep free on each device in the prediction.
    """
    runs = [select_run(report)[1] for report in reports]
    rows = [_row(name, [read(run) for run in runs]) for name, read in QUANTITIES]
    names = list(dict.fromkeys(device.name for run in runs for device in run.devices))
    for name in names:
        devices = [next((d for d in run.devices if d.name == name), None) for run in runs]
        for label, read_device in DEVICE_QUANTITIES:
            values = [read_device(device) if device else None for device in devices]
            if any(value is not None for value in values):
                rows.append(_row(f"{name} {label}, MiB", values))
    return Comparison([report.source.path for report in reports], rows, _fits(runs, margin_mib))


def _row(name: str, values: list[Value]) -> Row:
    return Row(name, values, [_difference(values[0], value) for value in values])


def _difference(first: Value, value: Value) -> float | None:
    both = [first, value]
    if any(isinstance(item, bool) or not isinstance(item, (int, float)) for item in both):
        return None
    return round(float(value or 0) - float(first or 0), 2)


def _setup(run: Run) -> tuple[object, ...]:
    """What must be equal for logs to lie on one line."""
    model, context, cache = run.model, run.context, run.kv_cache
    return (
        *(model.architecture, model.name, model.n_layer, model.size_mib, run.build.number, run.offload),
        *(cache.type_k, cache.type_v, context.n_ubatch, context.flash_attn, context.n_slots, context.kv_unified),
    )


def _fits(runs: list[Run], margin_mib: float) -> list[Fit]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(runs):
        if run.context.n_ctx and run.kv_cache.total_mib is not None and run.outcome != "out-of-memory":
            groups.setdefault(_setup(run), []).append(index)
    fits = []
    for indices in groups.values():
        members = [runs[index] for index in indices]
        if len({run.context.n_ctx for run in members}) < 2:
            continue
        for device in members[0].devices:
            fit = _fit(device.name, [index + 1 for index in indices], members, margin_mib)
            if fit is not None:
                fits.append(fit)
    return fits


def _fit(name: str, logs: list[int], runs: list[Run], margin_mib: float) -> Fit | None:
    devices = [next((d for d in run.devices if d.name == name), None) for run in runs]
    known = [device for device in devices if device is not None and device.kv_mib is not None]
    if len(known) < len(runs):
        return None
    n_ctx = [run.context.n_ctx or 0 for run in runs]
    kv = _line(n_ctx, [device.kv_mib or 0.0 for device in known])
    compute = _line(n_ctx, [device.compute_mib or 0.0 for device in known])
    first = known[0]
    parts = (first.weights_mib, first.recurrent_mib, first.output_mib, first.other_mib)
    fixed = sum(part or 0.0 for part in parts) + kv.constant_mib + compute.constant_mib
    slope_mib = (kv.bytes_per_token + compute.bytes_per_token) / 2**20
    free = first.free_mib
    return Fit(
        device=name,
        logs=logs,
        n_ctx=n_ctx,
        kv=kv,
        compute=compute,
        free_mib=free,
        largest_ctx=_solve(free, fixed + margin_mib, slope_mib),
        oom_ctx=_solve(free, fixed, slope_mib),
    )


def _line(xs: list[int], ys: list[float]) -> Line:
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    constant = mean_y - slope * mean_x
    residual = max(abs(y - constant - slope * x) for x, y in zip(xs, ys, strict=True))
    return Line(round(constant, 4), round(slope * 2**20, 3), round(residual, 4))


def _solve(free: float | None, fixed: float, slope_mib: float) -> int | None:
    if free is None or slope_mib <= 0:
        return None
    return max(0, int((free - fixed) / slope_mib)) // 256 * 256


def comparison_document(comparison: Comparison) -> dict[str, object]:
    """The comparison as the JSON document of `compare --format json`."""
    return {"schema_version": 1, **asdict(comparison)}


def comparison_tables(comparison: Comparison) -> list[Table]:
    """The comparison as tables for any format."""
    names = tuple(f"{number}" for number in range(1, len(comparison.logs) + 1))
    logs = tuple((number, visible(path)) for number, path in zip(names, comparison.logs, strict=True))
    columns = ("", *names)
    rows = tuple((row.name, *_cells(row)) for row in comparison.rows)
    tables = [
        Table("Logs", ("number", "log"), logs),
        Table("Side by side (difference from 1)", ("quantity", *names), rows, tuple(range(1, len(columns)))),
    ]
    if comparison.fits:
        tables.append(_fit_table(comparison.fits))
    return tables


def _cells(row: Row) -> list[str]:
    cells = []
    for value, difference in zip(row.values, row.differences, strict=True):
        text = _text(value)
        cells.append(f"{text} ({difference:+,.10g})" if difference else text)
    return cells


def _text(value: Value) -> str:
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return visible(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _fit_table(fits: list[Fit]) -> Table:
    columns = (
        *("device", "logs", "KV bytes a token", "KV constant MiB", "compute bytes a token", "compute constant MiB"),
        *("largest residual MiB", "largest --ctx-size", "out of memory at"),
    )
    rows = tuple(
        (
            visible(fit.device),
            ", ".join(map(str, fit.logs)),
            f"{fit.kv.bytes_per_token:,.1f}",
            f"{fit.kv.constant_mib:,.2f}",
            f"{fit.compute.bytes_per_token:,.1f}",
            f"{fit.compute.constant_mib:,.2f}",
            f"{max(fit.kv.max_residual_mib, fit.compute.max_residual_mib):,.2f}",
            _text(fit.largest_ctx),
            _text(fit.oom_ctx),
        )
        for fit in fits
    )
    return Table("Slopes and prediction (logs of one set-up)", columns, rows, tuple(range(2, len(columns))))
