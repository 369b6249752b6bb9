"""A summary as text: tables, Markdown and CSV.

The rule: a section is one function from a summary to rows of label and text; what draws them knows nothing of their
meaning. Text from the file is shown with control characters made visible. A dash is "the file does not say".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prettytable import PrettyTable

from gguf_info.constants import type_name
from gguf_info.document import flat_fields, summary_document
from gguf_info.model import Summary, tensor_bytes
from gguf_info.reader import Array, Tensor, Value

if TYPE_CHECKING:
    from gguf_info.diff import ModelDiff
    from gguf_info.faults import Fault
    from gguf_info.request import TemplateAnswer

__all__ = [
    "DASH",
    "SECTIONS",
    "Table",
    "csv_text",
    "diff_tables",
    "draw",
    "heading",
    "metadata_table",
    "render_csv",
    "render_tables",
    "section_tables",
    "shown",
    "template_tables",
    "tensor_table",
    "verify_tables",
    "visible",
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
ASCII = str.maketrans({"–": "-", "×": "x", "·": "|", "…": "..."})
LONGEST_TEXT = 76


@dataclass(frozen=True)
class Table:
    """A titled table; `numeric` columns are set flush right; columns without names have no header row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...] = ()


def visible(text: str) -> str:
    """Text with control and bidirectional characters as escapes, safe to print on a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def render_tables(
    summary: Summary, *, ascii_only: bool = False, sections: Sequence[str] | None = None, markdown: bool = False
) -> str:
    """Draw a summary as tables.

    Args:
        summary: What `read_summary` read.
        ascii_only: Draw with ASCII characters instead of box drawing.
        sections: Names out of `SECTIONS`; all of them by default. A section with nothing in it has no table.
        markdown: Draw Markdown tables instead.
    """
    return draw(section_tables(summary, sections), head=heading(summary), ascii_only=ascii_only, markdown=markdown)


def draw(tables: Iterable[Table], *, head: str = "", ascii_only: bool = False, markdown: bool = False) -> str:
    """Draw tables below a heading line."""
    drawn = [_markdown(table) if markdown else f"{table.title}\n{_boxed(table, ascii_only)}" for table in tables]
    text = "\n\n".join([f"# {head}" if markdown and head else head, *drawn] if head else drawn) + "\n"
    return text.translate(ASCII).encode("ascii", "backslashreplace").decode("ascii") if ascii_only else text


def section_tables(summary: Summary, sections: Sequence[str] | None = None) -> list[Table]:
    """The tables of the sections that have something in them."""
    return [table for name in sections or SECTIONS for table in SECTION_TABLE[name](summary) if table.rows]


def tensor_table(tensors: Sequence[Tensor]) -> Table:
    """The tensor table of a model; shapes are fastest first."""
    rows = tuple(
        (
            visible(tensor.name),
            " × ".join(map(str, tensor.shape)),
            type_name(tensor.type_number),
            f"{tensor.parameters:,}",
            shown(tensor_bytes(tensor)),
            f"{tensor.offset:,}",
        )
        for tensor in tensors
    )
    return Table("Tensors", ("name", "shape", "type", "parameters", "bytes", "offset"), rows, (1, 3, 4, 5))


def metadata_table(metadata: Mapping[str, Value]) -> Table:
    """Every metadata key; long text is cut, long arrays are summarised."""
    return Table("Metadata", ("key", "value"), tuple((visible(key), shown(value)) for key, value in metadata.items()))


def verify_tables(faults: Sequence[Fault], digests: Mapping[str, str] | None) -> list[Table]:
    """What `verify` found, and the digests that were asked for."""
    rows = tuple((f.severity, f.code, visible(f.tensor or Path(f.path).name), visible(f.message)) for f in faults)
    tables = [Table("Faults", ("severity", "code", "where", "message"), rows)] if rows else []
    if digests is not None:
        lines = tuple((visible(name), digest) for name, digest in digests.items())
        tables.append(Table("SHA-256 by tensor", ("tensor", "SHA-256"), lines))
    return tables


def diff_tables(difference: ModelDiff) -> list[Table]:
    """What `diff` found, without the chat template, which is a text diff."""
    parts = (("Metadata", difference.metadata), ("Tensors", difference.tensors), ("Types", difference.types))
    return [
        Table(
            title,
            ("name", "", "before", "after"),
            tuple((visible(c.name), c.kind, _side(c.before), _side(c.after)) for c in changes),
        )
        for title, changes in parts
        if changes
    ]


def template_tables(answer: TemplateAnswer) -> list[Table]:
    """What a chat template does."""
    checks = tuple((check.rule, check.outcome, visible(check.message) or DASH) for check in answer.checks)
    tables = [Table("What the template takes", ("request", "rendered", "the template's words"), checks)]
    if answer.rendering is not None:
        prompt = answer.rendering.prompt
        rows = (
            ("taken", "no" if prompt is None else "yes"),
            ("refused", visible(answer.refusal) or DASH),
            ("characters", DASH if prompt is None else f"{len(prompt):,}"),
            ("tokens", shown(answer.n_tokens)),
            ("of them for tools", shown(answer.n_tool_tokens)),
        )
        tables.append(Table("The request", ("", ""), rows))
    return tables


def _side(value: object) -> str:
    if isinstance(value, dict) and "shape" in value:
        return f"{value['type']} {' × '.join(map(str, value['shape']))}"
    if isinstance(value, dict):
        first = value.get("first_difference")
        text = f"{value['length']:,} × {value['array']}"
        return text if first is None else f"{text}, differs from item {first:,} on"
    return shown(value)


def render_csv(summary: Summary, sections: Sequence[str] | None = None) -> str:
    """A summary as CSV: one line a field, with its section."""
    document = summary_document(summary)
    rows = [
        (section, visible(name), "" if value is None else visible(str(value)))
        for section in (sections or ("file", *SECTIONS))
        for name, value in flat_fields(document[section])
        if name
    ]
    return csv_text(("section", "field", "value"), rows)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV with a header line."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return stream.getvalue()


def heading(summary: Summary) -> str:
    """The line above the tables: path, format and size, then what is missing of the file."""
    file = summary.file
    parts = f" · {len(file.shards)} of {len(file.shards) + len(file.missing_shards)} parts" if file.shards else ""
    lines = [
        f"{visible(file.path)} · GGUF v{file.version}, {file.endianness}-endian{parts}"
        f" · {_size(file.size_bytes)}, header {_size(file.header_bytes)}"
    ]
    if file.missing_bytes:
        lines.append(
            f"The data is short of {file.missing_bytes:,} bytes: a download that has not ended, or a cut file."
        )
    lines += [f"Part missing: {visible(path)}" for path in file.missing_shards]
    return "\n".join(lines)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.2f} MiB" if n_bytes >= 2**20 else f"{n_bytes:,} bytes"


def shown(value: object) -> str:
    """A value as a table shows it: a dash for None, thousands apart, control characters visible."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, Array):
        return _array_text(value)
    if isinstance(value, tuple):
        return _by_layer(value)
    text = visible(str(value)[: LONGEST_TEXT + 1])
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _array_text(array: Array) -> str:
    if array.items and array.item_type == "str":
        return shown(", ".join(map(str, array.items)))
    if array.items and array.length <= 64 and array.item_type not in ("f32", "f64"):
        return _by_layer(tuple(int(item) for item in array.items))
    return f"{array.length:,} × {array.item_type}"


def _by_layer(values: tuple[int, ...]) -> str:
    """Numbers by layer, runs of one value drawn together: `8 × 3, 0, 8 × 3`."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    text = ", ".join(f"{value} × {count}" if count > 1 else str(value) for value, count in runs)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _pairs(title: str, rows: Iterable[tuple[str, object]], other: Mapping[str, Value] | None = None) -> list[Table]:
    said = [(label, shown(value)) for label, value in rows if value is not None]
    said += [(visible(key).replace("_", " "), shown(value)) for key, value in (other or {}).items()]
    return [Table(title, ("", ""), tuple(said))]


def _general(summary: Summary) -> list[Table]:
    general = summary.general
    rows = [
        ("architecture", general.architecture),
        ("name", general.name),
        ("file type", general.file_type),
        ("quantization version", general.quantization_version),
        ("size label", general.size_label),
        ("license", general.license),
    ]
    return _pairs("General", rows, general.other)


def _architecture(summary: Summary) -> list[Table]:
    architecture = summary.architecture
    if architecture is None:
        return []
    rows = [
        ("context length", architecture.context_length),
        ("embedding dimension", architecture.embedding_length),
        ("feed-forward length", architecture.feed_forward_length),
        ("vocabulary size", architecture.vocab_size),
        ("block count", architecture.block_count),
    ]
    return _pairs("Architecture", rows, architecture.other)


def _attention(summary: Summary) -> list[Table]:
    attention = summary.attention
    if attention is None:
        return []
    rows = [
        ("Q heads", attention.head_count),
        ("KV heads", attention.head_count_kv),
        ("head dimension K", attention.key_length),
        ("head dimension V", attention.value_length),
        ("sliding-window size", attention.sliding_window),
        ("sliding-window pattern", attention.sliding_window_pattern),
        ("sliding-window layers", _windowed(summary) if attention.sliding_window else None),
        ("RMS norm epsilon", attention.layer_norm_rms_epsilon),
    ]
    return _pairs("Attention", rows, attention.other)


def _windowed(summary: Summary) -> str | None:
    # Only files with a window need the rules of architectures.
    from gguf_info.layers import layer_count, windowed_layer_count

    count = windowed_layer_count(summary)
    return None if count is None else f"{count} of {layer_count(summary)}"


def _moe(summary: Summary) -> list[Table]:
    moe = summary.moe
    if moe is None:
        return []
    percent = moe.expert_used_percent
    rows = [
        ("experts", moe.expert_count),
        ("experts used", moe.expert_used_count),
        ("expert utilization", None if percent is None else f"{percent:.2f} %"),
        ("expert groups", moe.expert_group_count),
        ("shared experts", moe.expert_shared_count),
        ("expert feed-forward length", moe.expert_feed_forward_length),
    ]
    return _pairs("Mixture of experts", rows, moe.other)


def _rope(summary: Summary) -> list[Table]:
    rope = summary.rope
    if rope is None:
        return []
    extension = rope.context_extension
    rows = [
        ("dimension count", rope.dimension_count),
        ("frequency base", rope.freq_base),
        ("scaling type", rope.scaling_type),
        ("scaling factor", rope.scaling_factor),
        ("original context length", rope.original_context_length),
        ("context extension", None if extension is None else f"× {extension:g}"),
    ]
    return _pairs("RoPE", rows, rope.other)


def _tokenizer(summary: Summary) -> list[Table]:
    tokenizer = summary.tokenizer
    if tokenizer is None:
        return []
    rows = [
        ("model", tokenizer.model),
        ("pre-tokenizer", tokenizer.pre),
        ("tokens", tokenizer.tokens),
        ("merges", tokenizer.merges),
        ("chat template", tokenizer.chat_template),
    ]
    return _pairs("Tokenizer", rows, tokenizer.other)


def _tensors(summary: Summary) -> list[Table]:
    facts = summary.tensors
    if facts is None:
        return []
    rows = [
        (
            share.type,
            f"{share.tensors:,}",
            f"{share.parameters:,}",
            _percent(share.percent),
            shown(share.bytes),
            DASH if share.bits_per_weight is None else f"{share.bits_per_weight:.2f}",
        )
        for share in facts.by_type
    ]
    bits = 8 * facts.bytes / facts.parameters if facts.bytes is not None and facts.parameters else None
    total = ("all", f"{facts.count:,}", f"{facts.parameters:,}", "100 %", shown(facts.bytes))
    rows.append((*total, DASH if bits is None else f"{bits:.2f}"))
    columns = ("type", "tensors", "parameters", "% of parameters", "bytes", "bits per weight")
    return [Table("Tensors by type", columns, tuple(rows), (1, 2, 3, 4, 5))]


def _percent(percent: float) -> str:
    """One decimal, two where one would say 0.0."""
    return f"{percent:.1f} %" if percent >= 0.05 or percent == 0 else f"{percent:.2f} %"


SECTION_TABLE: dict[str, Callable[[Summary], list[Table]]] = {
    "general": _general,
    "architecture": _architecture,
    "attention": _attention,
    "moe": _moe,
    "rope": _rope,
    "tokenizer": _tokenizer,
    "tensors": _tensors,
}

SECTIONS: tuple[str, ...] = tuple(SECTION_TABLE)
"""Names that `--section` takes, in the order of the tables."""


def _boxed(table: Table, ascii_only: bool) -> str:
    drawn = PrettyTable()
    drawn.field_names = [name or " " * (index + 1) for index, name in enumerate(table.columns)]
    drawn.align = "l"
    for index in table.numeric:
        drawn.align[drawn.field_names[index]] = "r"
    if not ascii_only:
        for attribute, character in BORDERS.items():
            setattr(drawn, attribute, character)
    drawn.header = any(table.columns)
    drawn.add_rows([list(row) for row in table.rows])
    return str(drawn.get_string())


def _markdown(table: Table) -> str:
    columns = [name or ("field", "value")[index] for index, name in enumerate(table.columns)]
    rule = ["---:" if index in table.numeric else "---" for index in range(len(columns))]
    lines = [columns, rule, *([cell.replace("|", "\\|") for cell in row] for row in table.rows)]
    return f"## {table.title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)
