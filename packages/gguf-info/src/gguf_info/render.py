"""Tables for the terminal, Markdown and CSV. Text from the file is shown with control characters made visible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prettytable import PrettyTable, TableStyle

from gguf_info.constants import type_name
from gguf_info.summary import Summary

__all__ = ["SECTIONS", "render_csv", "render_markdown", "render_tables", "visible"]

Rows = Sequence[Sequence[str]]
_LONGEST_TEXT = 100
_DASH = "–"


def visible(text: str) -> str:
    """`text` with control and other unprintable characters written as escapes, on one line."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def render_tables(
    summary: Summary, *, ascii_only: bool = False, sections: Sequence[str] | None = None, tensors: str | None = None
) -> str:
    """All sections, or those named, as boxed tables.

    Args:
        summary: The model.
        ascii_only: Draw with plain ASCII.
        sections: Names out of `SECTIONS`; sections with nothing in them are left out either way.
        tensors: Also list the tensors whose name holds this text ("" lists all).
    """
    style = TableStyle.DEFAULT if ascii_only else TableStyle.SINGLE_BORDER
    text = "\n\n".join(_drawn(*table, style) for table in _tables(summary, sections, tensors))
    return text.replace(_DASH, "-") if ascii_only else text


def render_markdown(summary: Summary, *, sections: Sequence[str] | None = None, tensors: str | None = None) -> str:
    """The same as Markdown tables."""
    parts = []
    for title, names, rows in _tables(summary, sections, tensors):
        lines = [f"## {title}", "", _markdown_row(names), _markdown_row(["---"] * len(names))]
        parts.append("\n".join([*lines, *(_markdown_row(row) for row in rows)]))
    return "\n\n".join(parts)


def render_csv(summary: Summary, *, sections: Sequence[str] | None = None, tensors: str | None = None) -> str:
    """The same as comma-separated values, the section's name first in each row."""
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for title, names, rows in _tables(summary, sections, tensors):
        writer.writerow(["section", *names])
        writer.writerows([title, *row] for row in rows)
    return buffer.getvalue().rstrip("\n")


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _drawn(title: str, names: Sequence[str], rows: Rows, style: TableStyle) -> str:
    table = PrettyTable(list(names))
    table.set_style(style)
    table.align = "l"
    for name in names[1:] if len(names) > 2 else ():
        table.align[name] = "r"
    table.header = len(names) > 2
    table.add_rows([list(row) for row in rows])
    return f"{title}\n{table}"


def _tables(
    summary: Summary, sections: Sequence[str] | None, tensors: str | None
) -> Iterator[tuple[str, Sequence[str], Rows]]:
    for name in sections or SECTIONS:
        title, columns, rows = SECTIONS[name]
        found = rows(summary)
        if found:
            yield title, columns, found
    if tensors is not None:
        yield "Tensors", ("tensor", "type", "shape", "parameters"), _tensor_rows(summary, tensors)


def _number(value: Any) -> str:
    if value is None:
        return _DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return _runs(value)
    if isinstance(value, Mapping):
        return f"{value['length']:,} items of {value['array']}"
    shown = visible(str(value))
    return shown if len(shown) <= _LONGEST_TEXT else shown[:_LONGEST_TEXT] + "…"


def _runs(values: list[Any]) -> str:
    """A list by layer with its repetitions folded: `8 x 5, 0, 8`."""
    folded: list[tuple[Any, int]] = []
    for value in values:
        if folded and folded[-1][0] == value:
            folded[-1] = (value, folded[-1][1] + 1)
        else:
            folded.append((value, 1))
    parts = [_number(value) if count == 1 else f"{_number(value)} x {count}" for value, count in folded]
    text = ", ".join(parts)
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def _pairs(section: Mapping[str, Any] | None, labels: Mapping[str, str]) -> Rows:
    """Rows of a section: labelled fields first and in that order, then whatever else the file has."""
    if section is None:
        return []
    names = [*labels, *(name for name in section if name not in labels and name != "derived")]
    derived = section.get("derived", [])
    return [
        (labels.get(name, name.replace("_", " ")), _number(section.get(name)) + (" (derived)" * (name in derived)))
        for name in names
        if name in labels or section.get(name) is not None
    ]


def _file_rows(summary: Summary) -> Rows:
    header = summary.header
    rows = [
        ("file", visible(str(header.path))),
        ("GGUF version", f"{header.version}, {header.endianness}-endian"),
        ("size", f"{summary.present_bytes:,} bytes"),
        ("header", f"{header.data_offset:,} bytes, alignment {header.alignment}"),
    ]
    if len(summary.shards) + len(summary.missing_shards) > 1:
        missing = f", missing: {', '.join(map(visible, summary.missing_shards))}" if summary.missing_shards else ""
        rows.append(("shards", f"{len(summary.shards)} here{missing}"))
    if summary.is_complete is False and summary.expected_bytes is not None:
        lacking = summary.expected_bytes - summary.present_bytes
        rows.append(("data", f"incomplete: {lacking:,} bytes are not there" if lacking > 0 else "incomplete"))
    return rows


def _general_rows(summary: Summary) -> Rows:
    shown = {
        "architecture": "architecture",
        "name": "name",
        "file_type": "file type",
        "quantization_version": "quantization version",
        "size_label": "size label",
        "license": "licence",
    }
    return [row for row in _pairs(summary.general, shown) if row[1] != _DASH]


def _tensor_type_rows(summary: Summary) -> Rows:
    rows = [
        (row.type, row.tensors, row.parameters, _percent(row.percent), row.bytes, _bits(row.bits_per_weight))
        for row in summary.tensor_types
    ]
    sizes = [row.bytes for row in summary.tensor_types]
    total_bytes = None if None in sizes else sum(size for size in sizes if size is not None)
    parameters = sum(row.parameters for row in summary.tensor_types)
    bits = total_bytes * 8 / parameters if total_bytes is not None and parameters else None
    if len(rows) > 1:
        rows.append(("total", len(summary.tensors), parameters, "100 %", total_bytes, _bits(bits)))
    return [[cell if isinstance(cell, str) else _number(cell) for cell in row] for row in rows]


def _percent(value: float) -> str:
    return f"{value:.1f} %" if value >= 1 or value == 0 else f"{value:.2f} %"


def _bits(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"


def _tensor_rows(summary: Summary, text: str) -> Rows:
    return [
        (
            visible(tensor.name),
            type_name(tensor.type_number),
            " x ".join(map(str, tensor.shape)),
            f"{tensor.parameters:,}",
        )
        for tensor in summary.tensors
        if text in tensor.name
    ]


_ATTENTION = {
    "head_count": "Q heads",
    "head_count_kv": "KV heads",
    "key_length": "head dimension K",
    "value_length": "head dimension V",
    "sliding_window": "sliding window",
    "sliding_window_pattern": "sliding window pattern",
    "layer_norm_rms_epsilon": "RMS norm epsilon",
}
_ARCHITECTURE = {
    "context_length": "context length",
    "embedding_length": "embedding dimension",
    "feed_forward_length": "feed-forward length",
    "vocab_size": "vocabulary size",
    "block_count": "block count",
}
_MOE = {
    "expert_count": "experts",
    "expert_used_count": "experts used",
    "expert_used_percent": "utilization %",
    "expert_group_count": "expert groups",
    "expert_shared_count": "shared experts",
    "expert_feed_forward_length": "expert feed-forward length",
}
_ROPE = {
    "scaling_type": "scaling type",
    "scaling_factor": "scaling factor",
    "original_context_length": "original context length",
    "context_extension": "context extension multiplier",
    "freq_base": "frequency base",
    "dimension_count": "dimensions",
}
_TOKENIZER = {
    "model": "model",
    "pre": "pre-tokenizer",
    "tokens": "tokens",
    "merges": "merges",
    "chat_template": "chat template",
}
_TYPE_COLUMNS = ("type", "tensors", "parameters", "of all", "bytes", "bits per weight")

# By name: title, columns, and the rows for a model.
SECTIONS: Mapping[str, tuple[str, Sequence[str], Callable[[Summary], Rows]]] = {
    "file": ("File", ("what", "value"), _file_rows),
    "general": ("General", ("what", "value"), _general_rows),
    "architecture": ("Architecture", ("what", "value"), lambda summary: _pairs(summary.architecture, _ARCHITECTURE)),
    "attention": ("Attention", ("what", "value"), lambda summary: _pairs(summary.attention, _ATTENTION)),
    "moe": ("Mixture of experts", ("what", "value"), lambda summary: _pairs(summary.moe, _MOE)),
    "rope": ("RoPE", ("what", "value"), lambda summary: _pairs(summary.rope, _ROPE)),
    "tokenizer": ("Tokenizer", ("what", "value"), lambda summary: _pairs(summary.tokenizer, _TOKENIZER)),
    "tensors": ("Tensors by quantization type", _TYPE_COLUMNS, _tensor_type_rows),
}
