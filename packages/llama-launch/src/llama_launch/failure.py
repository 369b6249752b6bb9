"""Why a server did not come up, or went away: what vram-report reads from its log, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import vram_report

__all__ = ["ServerFailure", "failure_in"]

_MEMORY_KINDS = ("out-of-memory", "buffer-limit")
_SHOWN_CHARS = 400
# What the cause says, and what to do; where nothing fits, the log is all there is.
_REMEDIES = (
    (r"missing tensor|tensor .* not found|wrong number of tensors|wrong shape",
     "the file is incomplete or made for another llama.cpp: download it again, or install the llama.cpp that it was "
     "made for"),
    (r"unknown (?:model )?architecture|unknown pre-tokenizer|invalid ggml type", "this llama.cpp is older than the "
     "model: install a newer one"),
    (r"V cache quantization requires|quantized V cache", 'set flash_attn = "on", or cache_type_v = "f16"'),
    (r"magic|data is not within|corrupted|not within the file bounds", "the model file is damaged: download it again"),
    (r"could ?n.t bind|[Aa]ddress already in use", "stop the other program, or choose a free port: --port 0"),
    (r"unknown argument|invalid argument|error while handling argument", "leave that flag out of extra_flags"),
    (r"chat template|jinja", "the model's chat template cannot be used: give one with -- --chat-template-file FILE"),
)  # fmt: skip


@dataclass(frozen=True)
class ServerFailure:
    """What a log says of a failure.

    Attributes:
        message: The cause, with its line where vram-report found it.
        remedy: What to do, or an empty string.
        is_out_of_memory: Whether an allocation failed.
    """

    message: str
    remedy: str = ""
    is_out_of_memory: bool = False


def failure_in(log_path: Path) -> ServerFailure:
    """The failure of the last run in a log; the line that looks most like one where vram-report knows none."""
    return _reported(log_path) or _guessed(log_path)


def _reported(log_path: Path) -> ServerFailure | None:
    try:
        run = vram_report.read_log(log_path).runs[-1]
    except (vram_report.VRAMReportError, IndexError):
        return None
    if run.failure is None:
        return None
    advice = next((finding.message for finding in run.findings if finding.code == "out-of-memory"), "")
    message = f"{run.failure.message} (line {run.failure.line})"
    return ServerFailure(message, advice or _remedy(run.failure.message), run.failure.kind in _MEMORY_KINDS)


def _guessed(log_path: Path) -> ServerFailure:
    try:
        text = log_path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        return ServerFailure(f"its log cannot be read: {error.strerror}")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("# ")]
    chosen = vram_report.error_line(lines) or (lines or ["it said nothing"])[-1]
    return ServerFailure(vram_report.visible(chosen)[:_SHOWN_CHARS], _remedy(chosen))


def _remedy(message: str) -> str:
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, message)), "")
