"""Reads a llama-server start-up log and explains what the VRAM went to.

The names in `__all__` are the package's public API; everything else may change.
"""

from __future__ import annotations

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
from vram_report.errors import LogNotFound, LogNotRecognized, SelectionNotFound, VRAMReportError
from vram_report.reader import read_log, read_stream
from vram_report.render import SECTIONS, render_tables
from vram_report.report import parse, report_document

__all__ = [
    "SECTIONS",
    "Buffer",
    "Build",
    "Capacity",
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
    "Requests",
    "Run",
    "SelectionNotFound",
    "Source",
    "VRAMReportError",
    "parse",
    "read_log",
    "read_stream",
    "render_tables",
    "report_document",
]
