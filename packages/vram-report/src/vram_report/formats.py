"""The report as Markdown, as CSV and as one HTML page.

The rule: these are other drawings of the same tables that the text report shows. Everything that comes from the log
is escaped for its format; the HTML page needs no network, no script and no other file.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Sequence

from vram_report.document import Device, Run
from vram_report.render import DASH, Page, Table

__all__ = ["render_csv", "render_html", "render_markdown"]

PRINTED_NUMBER = re.compile(r"-?\d{1,3}(?:,\d{3})*(?:\.\d+)?")
MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#])")


def render_markdown(pages: Sequence[Page]) -> str:
    """The pages as Markdown with pipe tables."""
    return "\n".join(_markdown_page(page) for page in pages)


def _markdown_page(page: Page) -> str:
    parts = [f"# {_markdown(page.head)}\n"]
    for table in page.tables:
        aligns = ["---:" if index in table.numeric else "---" for index in range(len(table.columns))]
        lines = [table.columns, aligns, *([_markdown(cell) for cell in row] for row in table.rows)]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"## {table.title}\n\n{body}\n")
    return "\n".join(parts)


def _markdown(text: str) -> str:
    return MARKDOWN_SPECIAL.sub(r"\\\1", text)


def render_csv(pages: Sequence[Page]) -> str:
    """The pages as CSV, one value a line: log and run, table, row, column, value; unknown values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("log", "table", "row", "column", "value"))
    for page in pages:
        for table in page.tables:
            for row in table.rows:
                for column, cell in zip(table.columns[1:], row[1:], strict=True):
                    writer.writerow((page.head, table.title, row[0].strip(), column, _plain(cell)))
    return text.getvalue()


def _plain(cell: str) -> str:
    if cell == DASH:
        return ""
    return cell.replace(",", "") if PRINTED_NUMBER.fullmatch(cell) else cell


BAR_PARTS: tuple[tuple[str, str, str], ...] = (
    ("weights_mib", "weights", "#4c78a8"),
    ("kv_mib", "KV cache", "#f58518"),
    ("recurrent_mib", "recurrent state", "#b279a2"),
    ("compute_mib", "compute", "#54a24b"),
    ("output_mib", "output", "#9d755d"),
    ("other_mib", "other", "#bab0ac"),
)
"""Device field, label and colour of each part of a bar, from the left."""

FREE_COLOUR = "#e4e4e4"

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.15rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
table { border-collapse: collapse; }
th, td { border: 1px solid #8886; padding: .2rem .6rem; text-align: left; vertical-align: top; white-space: pre-wrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: 1.7rem; border: 1px solid #8888; border-radius: .2rem; overflow: hidden; }
.bar span { display: block; height: 100%; min-width: 0; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .4rem 0 1rem; padding: 0; list-style: none; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .35rem; }
.device { margin: .8rem 0 .2rem; }
"""


def render_html(pages: Sequence[Page]) -> str:
    """The pages as one self-contained HTML document with a stacked bar for each device."""
    body = "\n".join(_html_page(page) for page in pages)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>vram-report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _html_page(page: Page) -> str:
    shows_memory = any(table.title == "VRAM breakdown" for table in page.tables)
    bars = _bars(page.run) if shows_memory and page.run else ""
    tables = "\n".join(_html_table(table) for table in page.tables)
    return f"<section>\n<h1>{html.escape(page.head)}</h1>\n{bars}{tables}\n</section>"


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "\n".join(f"<tr>{''.join(_cell(table, i, cell) for i, cell in enumerate(row))}</tr>" for row in table.rows)
    header = f"<thead><tr>{head}</tr></thead>\n" if any(table.columns[:1]) else ""
    return f"<h2>{html.escape(table.title)}</h2>\n<table>\n{header}<tbody>\n{rows}\n</tbody>\n</table>"


def _cell(table: Table, index: int, text: str) -> str:
    kind = ' class="number"' if index in table.numeric else ""
    return f"<td{kind}>{html.escape(text)}</td>"


def _bars(run: Run) -> str:
    bars = [_bar(device) for device in run.devices]
    return "".join(bar for bar in bars if bar)


def _bar(device: Device) -> str:
    parts = [(label, colour, getattr(device, field) or 0.0) for field, label, colour in BAR_PARTS]
    held = sum(mib for _, _, mib in parts)
    if held <= 0:
        return ""
    whole = max(device.total_mib or 0.0, held)
    rest = whole - held
    known_total = device.total_mib is not None
    segments = [*parts, ("free or used by others", FREE_COLOUR, rest if known_total else 0.0)]
    shown = [(label, colour, mib) for label, colour, mib in segments if mib > 0]
    spans = "".join(
        f'<span style="width:{100 * mib / whole:.3f}%;background:{colour}" title="{label}: {mib:,.2f} MiB"></span>'
        for label, colour, mib in shown
    )
    legend = "".join(f'<li><i style="background:{c}"></i>{label} {mib:,.0f} MiB</li>' for label, c, mib in shown)
    name = html.escape(f"{device.name} {device.description or ''}".strip())
    of = f", {whole:,.0f} MiB in all" if known_total else ", total unknown"
    return (
        f'<div class="device"><strong>{name}</strong>{of}</div>\n'
        f'<div class="bar" role="img" aria-label="memory of {name}">{spans}</div>\n<ul class="legend">{legend}</ul>\n'
    )
