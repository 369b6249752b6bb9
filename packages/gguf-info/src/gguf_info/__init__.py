"""What is in a GGUF model file, and what it will need, without a server.

The rule: the header alone is read, in bounded reads, and every number says where it comes from. The names in `__all__`
are the public API; everything else may change. They are loaded when first used, so that a command starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gguf_info.companions import DraftModel, PredictingLayers, Projector, with_companions
    from gguf_info.diff import Change, ModelDiff, diff_models
    from gguf_info.document import summary_document
    from gguf_info.errors import GGUFError
    from gguf_info.estimate_views import estimate_document
    from gguf_info.faults import Fault, tensor_digests, verify
    from gguf_info.fitting import Largest, SweepRow, find_largest, sweep
    from gguf_info.memory import DeviceMemory, Estimate, ExtraModel, estimate
    from gguf_info.model import Summary, read_summary, tensor_bytes
    from gguf_info.reader import Array, Header, Tensor, read_header
    from gguf_info.render import SECTIONS, render_tables
    from gguf_info.residency import resident_sets
    from gguf_info.settings import Settings
    from gguf_info.starts import PlannedStart, planned_start

__all__ = [
    "SECTIONS",
    "Array",
    "Change",
    "DeviceMemory",
    "DraftModel",
    "Estimate",
    "ExtraModel",
    "Fault",
    "GGUFError",
    "Header",
    "Largest",
    "ModelDiff",
    "PlannedStart",
    "PredictingLayers",
    "Projector",
    "Settings",
    "Summary",
    "SweepRow",
    "Tensor",
    "diff_models",
    "estimate",
    "estimate_document",
    "find_largest",
    "planned_start",
    "read_header",
    "read_summary",
    "render_tables",
    "resident_sets",
    "summary_document",
    "sweep",
    "tensor_bytes",
    "tensor_digests",
    "verify",
    "with_companions",
]

_HOMES = {
    **dict.fromkeys(("DraftModel", "PredictingLayers", "Projector", "with_companions"), "companions"),
    **dict.fromkeys(("Change", "ModelDiff", "diff_models"), "diff"),
    **dict.fromkeys(("summary_document",), "document"),
    **dict.fromkeys(("GGUFError",), "errors"),
    **dict.fromkeys(("estimate_document",), "estimate_views"),
    **dict.fromkeys(("Fault", "tensor_digests", "verify"), "faults"),
    **dict.fromkeys(("Largest", "SweepRow", "find_largest", "sweep"), "fitting"),
    **dict.fromkeys(("DeviceMemory", "Estimate", "ExtraModel", "estimate"), "memory"),
    **dict.fromkeys(("Summary", "read_summary", "tensor_bytes"), "model"),
    **dict.fromkeys(("Array", "Header", "Tensor", "read_header"), "reader"),
    **dict.fromkeys(("SECTIONS", "render_tables"), "render"),
    **dict.fromkeys(("resident_sets",), "residency"),
    **dict.fromkeys(("Settings",), "settings"),
    **dict.fromkeys(("PlannedStart", "planned_start"), "starts"),
}
"""The module of each public name. No module may have the name of a public function: it would hide it."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
