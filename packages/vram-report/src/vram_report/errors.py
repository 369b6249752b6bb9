"""What can go wrong when a log is read, as one tree.

    VRAMReportError            every error that this package raises on purpose
    ├── LogNotFound            the path cannot be opened
    ├── LogNotRecognized       the input holds no line that a llama.cpp server prints
    ├── ModelNotRead           the model's file cannot be read, or gguf-info is missing
    ├── BuildWithoutModel      a build was given, but no model file whose sizes depend on it
    ├── GPUNotWatched          the driver does not answer, or nvidia-ml-py is missing
    ├── CommandNotStarted      the command to follow cannot be started
    ├── NothingToFollow        neither a log nor a command was given to follow, or both
    └── SelectionNotFound      a run, section or device that was asked for is not in the report

Each message names the thing and what was found; `hint` says what to do about it.
"""

from __future__ import annotations

__all__ = [
    "BuildWithoutModel",
    "CommandNotStarted",
    "GPUNotWatched",
    "LogNotFound",
    "LogNotRecognized",
    "ModelNotRead",
    "NothingToFollow",
    "SelectionNotFound",
    "VRAMReportError",
]


class VRAMReportError(Exception):
    """Root of this package's errors.

    Attributes:
        message: What happened, with the path or name it happened to.
        hint: What the reader can do about it.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class LogNotFound(VRAMReportError):
    """The path cannot be opened or read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path}: cannot read the log: {reason}", "Give the path of a llama-server log, or - for stdin."
        )
        self.path = path


class LogNotRecognized(VRAMReportError):
    """The input holds no line of a llama.cpp server."""

    def __init__(self, path: str, lines: int) -> None:
        super().__init__(
            f"{path}: no llama-server start in {lines} lines",
            "Record one with: llama-server -lv 4 ... 2>&1 | tee server.log",
        )
        self.path = path
        self.lines = lines


class SelectionNotFound(VRAMReportError):
    """A run, section or device that was asked for is not there."""

    def __init__(self, kind: str, wanted: str, available: list[str]) -> None:
        super().__init__(f"no {kind} {wanted!r} in this report", f"Available: {', '.join(available) or 'none'}.")
        self.kind = kind
        self.wanted = wanted
        self.available = available


class ModelNotRead(VRAMReportError):
    """The model's file cannot be read, or gguf-info, which reads it, is not installed."""


class BuildWithoutModel(VRAMReportError):
    """A build was given without the model's file, whose sizes alone depend on it."""

    def __init__(self) -> None:
        super().__init__("--build says by which rules a model's sizes are predicted", "Give the file: --model GGUF.")


class GPUNotWatched(VRAMReportError):
    """The GPUs that were asked for cannot be watched."""


class CommandNotStarted(VRAMReportError):
    """The command to follow cannot be started."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"{command}: cannot start it: {reason}", "Check the path of the server's executable.")
        self.command = command


class NothingToFollow(VRAMReportError):
    """Neither a log nor a command was given to follow, or both."""

    def __init__(self) -> None:
        super().__init__("follow takes either a log or a command", "vram-report follow LOG, or follow -- COMMAND ...")
