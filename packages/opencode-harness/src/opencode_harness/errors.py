"""The package's errors: every one names the thing, the place and the remedy.

    HarnessError
    ├── ScenarioError        a scenario file is wrong: file, line, column
    ├── OpenCodeNotFound     no OpenCode executable
    ├── OpenCodeInstallError npm is missing or failed
    ├── ProxyError           the proxy cannot be started
    └── WorkspaceError       a trial's folders cannot be laid out

Modules that own a subject (terminal, turns, cassettes) define their own subclasses beside it.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "HarnessError",
    "OpenCodeInstallError",
    "OpenCodeNotFound",
    "ProxyError",
    "ScenarioError",
    "WorkspaceError",
]


class HarnessError(Exception):
    """Base of all errors that this package raises for the person at the keyboard.

    Attributes:
        hint: What to do about it, or an empty string.
        exit_code: The command's exit status: 2 for bad input, 3 when the environment is at fault.
    """

    exit_code = 3

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ScenarioError(HarnessError):
    """A scenario file that cannot be used.

    Attributes:
        path: The file.
        line: 1-based line of the fault, or None when the file could not be read at all.
        column: 1-based column.
    """

    exit_code = 2

    def __init__(self, path: Path, line: int | None, column: int | None, message: str, *, hint: str = "") -> None:
        place = str(path) if line is None else f"{path}:{line}:{column}"
        super().__init__(f"{place}: {message}", hint=hint)
        self.path = path
        self.line = line
        self.column = column


class OpenCodeNotFound(HarnessError):
    """No usable OpenCode executable."""


class OpenCodeInstallError(HarnessError):
    """npm could not install what package.json pins."""


class WorkspaceError(HarnessError):
    """A trial's folders cannot be made, or a path would leave them."""


class ProxyError(HarnessError):
    """The proxy cannot be started: a wrong upstream address, or a journal that cannot be written."""
