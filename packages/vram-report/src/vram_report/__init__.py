"""Reads a llama-server start-up log and explains what the VRAM went to.

The names in `__all__` are the package's public API; everything else may change. They are loaded when first used, so
that a command which needs few of them starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram_report.capacity import largest_context_that_fitted
    from vram_report.comparison import Comparison, compare, comparison_document
    from vram_report.control_characters import visible
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
        Prediction,
        Requests,
        Run,
        Source,
    )
    from vram_report.errors import (
        CommandNotStarted,
        GPUNotWatched,
        LogNotFound,
        LogNotRecognized,
        ModelNotRead,
        SelectionNotFound,
        VRAMReportError,
    )
    from vram_report.formats import render_csv, render_html, render_markdown
    from vram_report.gpu_watch import GPUProbe, GPUReading, open_nvml
    from vram_report.grammar import READY_REGEX
    from vram_report.prediction import read_model, with_model
    from vram_report.reader import read_log, read_stream
    from vram_report.render import SECTIONS, Page, Table, render_tables, report_page
    from vram_report.report import parse, report_document
    from vram_report.stages import error_line, is_port_taken, start_stage

__all__ = [
    "READY_REGEX",
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
    "GPUNotWatched",
    "GPUProbe",
    "GPUReading",
    "KVCache",
    "KVPart",
    "LogNotFound",
    "LogNotRecognized",
    "LogReport",
    "Model",
    "ModelNotRead",
    "Offload",
    "Page",
    "Prediction",
    "Requests",
    "Run",
    "SelectionNotFound",
    "Source",
    "Table",
    "VRAMReportError",
    "compare",
    "comparison_document",
    "error_line",
    "is_port_taken",
    "largest_context_that_fitted",
    "open_nvml",
    "parse",
    "read_log",
    "read_model",
    "read_stream",
    "render_csv",
    "render_html",
    "render_markdown",
    "render_tables",
    "report_document",
    "report_page",
    "start_stage",
    "visible",
    "with_model",
]

_HOMES = {
    **dict.fromkeys(("largest_context_that_fitted",), "capacity"),
    **dict.fromkeys(("Comparison", "compare", "comparison_document"), "comparison"),
    "visible": "control_characters",
    **dict.fromkeys(
        (
            *("Buffer", "Build", "Capacity", "Context", "Device", "Failure", "Finding", "FullReprocessing", "KVCache"),
            *("KVPart", "LogReport", "Model", "Offload", "Prediction", "Requests", "Run", "Source"),
        ),
        "document",
    ),
    **dict.fromkeys(
        (
            *(
                "CommandNotStarted",
                "GPUNotWatched",
                "LogNotFound",
                "LogNotRecognized",
                "ModelNotRead",
                "SelectionNotFound",
            ),
            "VRAMReportError",
        ),
        "errors",
    ),
    **dict.fromkeys(("render_csv", "render_html", "render_markdown"), "formats"),
    **dict.fromkeys(("GPUProbe", "GPUReading", "open_nvml"), "gpu_watch"),
    **dict.fromkeys(("read_model", "with_model"), "prediction"),
    **dict.fromkeys(("read_log", "read_stream"), "reader"),
    **dict.fromkeys(("SECTIONS", "Page", "Table", "render_tables", "report_page"), "render"),
    **dict.fromkeys(("parse", "report_document"), "report"),
    "READY_REGEX": "grammar",
    **dict.fromkeys(("error_line", "is_port_taken", "start_stage"), "stages"),
}
"""The module of each public name. No module may have the name of a public function: it would hide it."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
