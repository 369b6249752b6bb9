"""A sweep as a picture: memory over contexts, a line for each cache type.

matplotlib is an optional extra and loads slowly, so it is imported only here and only when a picture is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gguf_info.errors import GGUFError
from gguf_info.fitting import SweepRow

__all__ = ["PLOT_SUFFIXES", "write_plot"]

PLOT_SUFFIXES = (".svg", ".png")
_GIB = 2**30


def write_plot(rows: Sequence[SweepRow], path: str, title: str, free_bytes: int | None = None) -> None:
    """Draw a sweep into a file, whose suffix says the kind of picture.

    Args:
        rows: The sweep.
        path: Where to write, with one of `PLOT_SUFFIXES`; a file that is there is replaced.
        title: The line above the picture, in plain text.
        free_bytes: The devices' free memory together, drawn as a line; None when it is not known.

    Raises:
        GGUFError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        hint = "pip install 'gguf-info[plot]', or use --format csv"
        raise GGUFError(path, None, expected="matplotlib to draw a plot", found="none", hint=hint) from error
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for cache_type in dict.fromkeys(row.cache_type for row in rows):
        points = sorted((row.ctx_size, row.used_bytes / _GIB) for row in rows if row.cache_type == cache_type)
        axes.plot(*zip(*points, strict=True), marker="o", label=cache_type)
    if free_bytes is not None:
        axes.axhline(free_bytes / _GIB, linestyle="--", color="black", label="free")
    axes.set_title(title.replace("$", r"\$"), fontsize=10)
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("used on devices, GiB")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(title="cache type")
    # The same sweep gives the same file.
    undated = {"Date": None} if Path(path).suffix.lower() == ".svg" else {"Software": None}
    try:
        with rc_context({"svg.hashsalt": "gguf-info"}):
            figure.savefig(path, metadata=undated)
    except OSError as error:
        found = (error.strerror or str(error)).lower()
        raise GGUFError(path, None, expected="a file to write the plot to", found=found, hint="check --plot") from error
