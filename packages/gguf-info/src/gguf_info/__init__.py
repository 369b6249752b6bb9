"""What is in a GGUF model file, read from its header without a server.

`read_summary` reads a model, `summary_document` gives it as JSON has it, `render_tables` as a terminal shows it;
`read_header` is the plain header.
"""

from gguf_info.errors import GGUFError
from gguf_info.reader import ArrayRef, Header, Tensor, read_header
from gguf_info.render import SECTIONS, render_csv, render_markdown, render_tables
from gguf_info.summary import Summary, TensorType, read_summary, summary_document

__all__ = [
    "SECTIONS",
    "ArrayRef",
    "GGUFError",
    "Header",
    "Summary",
    "Tensor",
    "TensorType",
    "read_header",
    "read_summary",
    "render_csv",
    "render_markdown",
    "render_tables",
    "summary_document",
]
