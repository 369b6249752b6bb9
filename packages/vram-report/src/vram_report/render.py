"""The report as text tables.

The rule: a section is one function from a run to titled tables of strings; what draws them knows nothing of their
meaning. Text from the log is shown with control characters made visible. A dash is "the log does not say".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vram_report.control_characters import visible
from vram_report.document import Device, KVPart, LogReport, Run
from vram_report.errors import SelectionNotFound

__all__ = [
    "DASH",
    "SECTIONS",
    "Page",
    "Table",
    "draw_tables",
    "render_tables",
    "report_page",
    "run_tables",
    "select_run",
]

DASH = "–"
BORDERS = {
    "horizontal_char": "─",
    "vertical_char": "│",
    "junction_char": "┼",
    "top_junction_char": "┬",
    "bottom_junction_char": "┴",
    "left_junction_char": "├",
    "right_junction_char": "┤",
    "top_left_junction_char": "┌",
    "top_right_junction_char": "┐",
    "bottom_left_junction_char": "└",
    "bottom_right_junction_char": "┘",
}
ASCII = str.maketrans({"–": "-", "×": "x", "·": "|", "→": "->", "…": "...", "‘": "'", "’": "'"})
MESSAGE_WIDTH = 92


@dataclass(frozen=True)
class Table:
    """A titled table; `numeric` columns are set flush right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...] = ()


def _text(value: object) -> str:
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return visible(str(value))


def _heads(value: int | list[int] | None) -> str:
    if isinstance(value, list):
        low, high = min(value), max(value)
        return f"{low} to {high} by layer" if low != high else str(low)
    return _text(value)


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    return Table(title, ("", "value"), tuple(rows))


def _with_unit(value: float | None, unit: str) -> str:
    return DASH if value is None else f"{value:,.2f} {unit}"


def _server(run: Run) -> list[Table]:
    build, model, context = run.build, run.model, run.context
    number = (
        f"{build.flavor} {build.number} ({_text(build.commit)})" if build.number else f"{build.flavor}, build unknown"
    )
    types = (run.kv_cache.type_k, run.kv_cache.type_v)
    quantization = DASH if types == (None, None) else f"K {_text(types[0])}, V {_text(types[1])}"
    rows = [
        ("outcome", run.outcome),
        ("model", _text(model.name or model.path)),
        ("file", _text(model.path)),
        ("file type", _text(model.file_type)),
        ("size", _with_unit(model.size_mib, "MiB")),
        ("context length", _text(context.n_ctx)),
        ("training context", _text(model.n_ctx_train)),
        ("KV quantization", quantization),
        ("flash attention", _text(context.flash_attn)),
        ("batch / ubatch", f"{_text(context.n_batch)} / {_text(context.n_ubatch)}"),
        ("speculation", ", ".join(context.spec_types) or DASH),
        ("layers offloaded", f"{_text(run.offload.layers)} of {_text(run.offload.of)}"),
        ("build", number),
        ("log style", run.log_style),
    ]
    return [_pairs("Model and server", rows)]


def _architecture(run: Run) -> list[Table]:
    model = run.model
    percent = DASH if model.expert_used_percent is None else f"{model.expert_used_percent:.2f} %"
    rows = [
        ("architecture", _text(model.architecture)),
        ("parameters", _text(model.parameters)),
        ("layers", _text(model.n_layer)),
        ("SWA window", _text(model.n_swa)),
        ("embedding dimension", _text(model.n_embd)),
        ("Q heads", _heads(model.n_head)),
        ("KV heads", _heads(model.n_head_kv)),
        ("head dimensions K / V", f"{_text(model.n_embd_head_k)} / {_text(model.n_embd_head_v)}"),
        ("feed-forward dimension", _heads(model.n_ff)),
        ("experts", _text(model.n_expert)),
        ("active experts", _text(model.n_expert_used)),
        ("expert utilization", percent),
        ("RoPE scaling", _text(model.rope_scaling)),
        ("RoPE scaling factor", DASH if model.rope_scaling_factor is None else f"{model.rope_scaling_factor:g}"),
        ("RoPE frequency base", DASH if model.rope_freq_base is None else f"{model.rope_freq_base:g}"),
    ]
    return [_pairs("Architecture", rows)]


def _sum_of(run: Run, device: Device, kind: str, parts: tuple[str | None, ...], name_end: str | None = None) -> str:
    found = [
        buffer.mib
        for buffer in run.buffers
        if buffer.device == device.name
        and buffer.kind == kind
        and buffer.part in parts
        and (name_end is None or buffer.buffer.endswith(name_end))
    ]
    return f"{sum(found):,.2f}" if found else DASH


def _breakdown(run: Run) -> list[Table]:
    columns = [_device_column(run, device) for device in run.devices]
    rows = tuple((label, *cells) for label, *cells in zip(BREAKDOWN_ROWS, *columns, strict=True))
    names = tuple((d.name, _text(d.description), d.kind) for d in run.devices)
    head = ("MiB", *(visible(device.name) for device in run.devices))
    return [
        Table("VRAM breakdown", head, rows, tuple(range(1, len(head)))),
        Table("Devices", ("device", "description", "kind"), names),
        *_predicted(run),
    ]


def _predicted(run: Run) -> list[Table]:
    if not run.predictions:
        return []
    rows = tuple(
        (
            item.quantity,
            _text(item.predicted_mib),
            DASH if item.low_mib == item.high_mib else f"{_text(item.low_mib)} to {_text(item.high_mib)}",
            _text(item.observed_mib),
            _text(item.agrees),
        )
        for item in run.predictions
    )
    return [
        Table("Predicted from the model file", ("MiB", "predicted", "range", "observed", "agrees"), rows, (1, 2, 3))
    ]


BREAKDOWN_ROWS = (
    "total",
    "free before the load",
    "weights",
    "  of them CPU mapped",
    "KV non-SWA",
    "KV SWA",
    "recurrent state",
    "compute buffer",
    "output buffer",
    "other",
    "total used",
    "  known as",
    "free after load",
    "  known as",
)


def _device_column(run: Run, device: Device) -> tuple[str, ...]:
    in_buffers = any(buffer.device == device.name for buffer in run.buffers)
    kv = _sum_of(run, device, "kv", ("full", "non-swa", "mla", None)) if in_buffers else _text(device.kv_mib)
    return (
        _text(device.total_mib),
        _text(device.free_mib),
        _text(device.weights_mib),
        _sum_of(run, device, "weights", (None,), "CPU_Mapped"),
        kv,
        _sum_of(run, device, "kv", ("swa",)),
        _text(device.recurrent_mib),
        _text(device.compute_mib),
        _text(device.output_mib),
        _text(device.other_mib),
        _text(device.used_mib),
        _text(device.used_basis),
        _text(device.free_after_load_mib),
        _text(device.free_after_load_basis),
    )


def _sharing(run: Run) -> str:
    unified = run.context.kv_unified
    if unified is None:
        return DASH
    return "unified: one pool for all slots" if unified else "divided: each slot has its own part"


def _slots(run: Run) -> list[Table]:
    context, cache = run.context, run.kv_cache
    note = "capped to the training context" if context.capped else ""
    slot = _text(context.n_ctx_slot) + (f" ({note})" if note else "")
    cost = _with_unit(cache.per_slot_mib, "MiB")
    if context.kv_unified and cache.per_slot_mib is not None:
        cost += " (a scheduling budget: the pool is shared)"
    rows = [
        ("slots", _text(context.n_slots)),
        ("KV cache", _sharing(run)),
        ("context", _text(context.n_ctx)),
        ("context per slot", slot),
        ("KV total", _with_unit(cache.total_mib, "MiB")),
        ("KV per slot", cost),
    ]
    parts = tuple(_part_row(part) for part in cache.parts)
    tables = [_pairs("Context and slots", rows)]
    if parts:
        columns = ("cache", "cells", "layers", "streams", "MiB", "K MiB", "V MiB")
        tables.append(Table("Caches", columns, parts, tuple(range(1, len(columns)))))
    return tables


def _part_row(part: KVPart) -> tuple[str, ...]:
    values = (part.cells, part.layers, part.streams, part.mib, part.k_mib, part.v_mib)
    return (part.kind, *(_text(value) for value in values))


def _capacity(run: Run) -> list[Table]:
    capacity = run.capacity
    slots = _text(capacity.additional_slots)
    if run.context.kv_unified:
        slots = "nearly free: slots share the pool"
    rows = [
        ("device that fills first", _text(capacity.device)),
        ("safety margin", _with_unit(capacity.margin_mib, "MiB")),
        ("usable headroom", _with_unit(capacity.headroom_mib, "MiB")),
        ("additional slots", slots),
        ("additional --ctx-size tokens", _text(capacity.additional_ctx_tokens)),
        ("additional full conversations", _text(capacity.additional_conversations)),
        ("what binds", _text(capacity.binding)),
        ("basis", visible(capacity.basis)),
    ]
    return [_pairs("Capacity", rows)]


def _requests(run: Run) -> list[Table]:
    requests = run.requests
    if requests is None:
        return [_pairs("Requests", [("requests", "none: the log ends with the start")])]
    rows = [
        ("requests", _text(requests.count)),
        ("prompt tokens computed", _text(requests.prompt_tokens_computed)),
        ("prompt tokens reused", _text(requests.prompt_tokens_reused)),
        ("prompt tokens per second", _text(requests.prompt_tokens_per_second)),
        ("generated tokens", _text(requests.generated_tokens)),
        ("tokens per second", _text(requests.tokens_per_second)),
        ("full re-processings", _text(len(requests.full_reprocessings))),
        ("truncated generations", _text(requests.truncated)),
        ("context-size errors", _text(requests.context_exceeded)),
        ("most tokens in a slot", _text(requests.max_slot_tokens)),
    ]
    tables = [_pairs("Requests", rows)]
    if requests.full_reprocessings:
        full = tuple((_text(item.line), visible(item.reason)) for item in requests.full_reprocessings)
        tables.append(Table("Full re-processings", ("line", "reason"), full, (0,)))
    return tables


def _findings(run: Run) -> list[Table]:
    rows = tuple((f.severity, f.code, visible(f.message)) for f in run.findings)
    return [Table("Findings", ("severity", "code", "message"), rows or (("", "none", "nothing to report"),))]


Section = Callable[[Run], "list[Table]"]

SECTION_TABLE: dict[str, Section] = {
    "server": _server,
    "architecture": _architecture,
    "vram": _breakdown,
    "slots": _slots,
    "capacity": _capacity,
    "requests": _requests,
    "findings": _findings,
}

SECTIONS: tuple[str, ...] = tuple(SECTION_TABLE)
"""Names that `--section` takes, in report order."""


def select_run(report: LogReport, number: int | None = None) -> tuple[int, Run]:
    """The run to show and its number from 1: the one asked for, else the last that came up, else the last.

    Args:
        report: The log's report.
        number: 1 for the first run; -1 for the last.

    Raises:
        SelectionNotFound: If there is no such run.
    """
    count = len(report.runs)
    if number is not None:
        index = number - 1 if number > 0 else count + number
        if not 0 <= index < count or number == 0:
            raise SelectionNotFound("run", str(number), [str(n + 1) for n in range(count)])
        return index + 1, report.runs[index]
    return count, report.runs[-1]


def run_tables(run: Run, sections: Sequence[str] | None = None) -> list[Table]:
    """The tables of a run's sections.

    Raises:
        SelectionNotFound: If a section's name is unknown.
    """
    tables: list[Table] = []
    for name in sections or SECTIONS:
        if name not in SECTION_TABLE:
            raise SelectionNotFound("section", name, list(SECTIONS))
        tables += SECTION_TABLE[name](run)
    return tables


@dataclass(frozen=True)
class Page:
    """What is shown together: a heading, the run it is about (None for several), and tables."""

    head: str
    run: Run | None
    tables: list[Table]


def report_page(
    report: LogReport,
    *,
    sections: Sequence[str] | None = None,
    run: int | None = None,
    device: str | None = None,
) -> Page:
    """Choose one run of a report and lay out its sections, for any format.

    Args:
        report: The log's report.
        sections: Names out of `SECTIONS`; all of them by default.
        run: Number of the run from 1, negative from the end; the last by default.
        device: Show only this device.

    Raises:
        SelectionNotFound: If the run, a section or the device is not there.
    """
    number, chosen = select_run(report, run)
    if device is not None:
        chosen = _only_device(chosen, device)
    of = f"run {number} of {len(report.runs)}, lines {chosen.first_line} to {chosen.last_line}"
    return Page(f"{visible(report.source.path)} · {of}", chosen, run_tables(chosen, sections))


def render_tables(
    report: LogReport,
    *,
    ascii_only: bool = False,
    sections: Sequence[str] | None = None,
    run: int | None = None,
    device: str | None = None,
) -> str:
    """Draw one run of a report as text tables.

    Args:
        report: The log's report.
        ascii_only: Draw with ASCII characters instead of box drawing.
        sections: Names out of `SECTIONS`; all of them by default.
        run: Number of the run from 1, negative from the end; the last by default.
        device: Show only this device's row.

    Raises:
        SelectionNotFound: If the run, a section or the device is not there.
    """
    page = report_page(report, sections=sections, run=run, device=device)
    return draw_tables(page.head, page.tables, ascii_only=ascii_only)


def draw_tables(head: str, tables: Sequence[Table], *, ascii_only: bool) -> str:
    """Draw titled tables below a heading line."""
    drawn = [f"{table.title}\n{_draw(table, ascii_only)}" for table in tables]
    text = "\n\n".join([head, *drawn]) + "\n"
    return text.translate(ASCII).encode("ascii", "backslashreplace").decode("ascii") if ascii_only else text


def _only_device(run: Run, name: str) -> Run:
    devices = [device for device in run.devices if device.name == name]
    if not devices:
        raise SelectionNotFound("device", name, [device.name for device in run.devices])
    return replace(run, devices=devices, buffers=[buffer for buffer in run.buffers if buffer.device == name])


def _draw(table: Table, ascii_only: bool) -> str:
    # Imported here: only text tables need it, and it costs more than reading a log.
    from prettytable import PrettyTable

    drawn = PrettyTable()
    drawn.field_names = [name or " " for name in table.columns]
    drawn.align = "l"
    for index in table.numeric:
        drawn.align[drawn.field_names[index]] = "r"
    if not ascii_only:
        for attribute, character in BORDERS.items():
            setattr(drawn, attribute, character)
    drawn.header = any(table.columns[:1])
    drawn.max_width = MESSAGE_WIDTH
    drawn.add_rows([list(row) for row in table.rows])
    return str(drawn.get_string())
