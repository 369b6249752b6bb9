"""What is in a GGUF model file, and what it will need, without a server.

The rule: the header alone is read, in bounded reads, and every number says where it comes from.
"""

from gguf_info.companions import DraftModel, PredictingLayers, Projector, with_companions
from gguf_info.diff import Change, ModelDiff, diff_models
from gguf_info.document import estimate_document, summary_document
from gguf_info.errors import GGUFError
from gguf_info.faults import Fault, tensor_digests, verify
from gguf_info.fitting import Largest, SweepRow, find_largest, sweep
from gguf_info.memory import Estimate, ExtraModel, Settings, estimate
from gguf_info.model import Summary, read_summary, tensor_bytes
from gguf_info.reader import Array, Header, Tensor, read_header
from gguf_info.render import SECTIONS, render_tables
from gguf_info.residency import resident_sets

__all__ = [
    "SECTIONS",
    "Array",
    "Change",
    "DraftModel",
    "Estimate",
    "ExtraModel",
    "Fault",
    "GGUFError",
    "Header",
    "Largest",
    "ModelDiff",
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
