"""Reads a llama-server start-up log and explains what the VRAM went to.

The names in `__all__` are the package's public API; everything else may change.
"""

from __future__ import annotations

from vram_report.compare import Comparison, compare, comparison_document
from vram_report.document import (
    Buffer,
    Build,
    Capacity,
    Context,
    Device,
    Failure,
    Finding,
    FullReprocessing,
    KVCache,
    KVPart,
    LogReport,
    Model,
    Offload,
    Requests,
    Run,
    Source,
)
from vram_report.errors import CommandNotStarted, LogNotFound, LogNotRecognized, SelectionNotFound, VRAMReportError
from vram_report.formats import render_csv, render_html, render_markdown
from vram_report.reader import read_log, read_stream
from vram_report.render import SECTIONS, Page, Table, render_tables, report_page
from vram_report.report import parse, report_document

__all__ = [
    "SECTIONS",
    "Buffer",
    "Build",
    "Capacity",
    "CommandNotStarted",
    "Comparison",
    "Context",
    "Device",
    "Failure",
    "Finding",
    "FullReprocessing",
    "KVCache",
    "KVPart",
    "LogNotFound",
    "LogNotRecognized",
    "LogReport",
    "Model",
    "Offload",
    "Page",
    "Requests",
    "Run",
    "SelectionNotFound",
    "Source",
    "Table",
    "VRAMReportError",
    "compare",
    "comparison_document",
    "parse",
    "read_log",
    "read_stream",
    "render_csv",
    "render_html",
    "render_markdown",
    "render_tables",
    "report_document",
    "report_page",
]
