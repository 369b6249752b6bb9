"""The package's errors: every one names the thing, the place and the remedy.

LlamaLaunchError
├── ProfileError         a profile is missing or wrong: file, line where known
├── FlagsRefused         the installed server does not take these flags
├── ModelError           the model file is missing, or the default model could not be fetched
├── DoesNotFit           the GPUs lack the memory: how much is missing, and what would fit
├── RunError             there is no such run, or it cannot be asked this
├── ServerStartError     the server did not become ready; names the cause and the log
└── ServerError
├── ServerUnreachable    nothing answers at the address
└── ServerRefused        the server answered with an error status
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama_launch.failure import ServerFailure

__all__ = [
    "DoesNotFit",
    "FlagsRefused",
    "LlamaLaunchError",
    "ModelError",
    "ProfileError",
    "RunError",
    "ServerError",
    "ServerRefused",
    "ServerStartError",
    "ServerUnreachable",
]


class LlamaLaunchError(Exception):
    """Base of all errors that this package raises for the person at the keyboard.

    Attributes:
        hint: What to do about it, or an empty string.
        exit_code: The command's exit status: 2 for bad input, 3 when the environment is at fault,
            1 when the answer is no.
    """

    exit_code = 3

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ProfileError(LlamaLaunchError):
    """A profile that does not exist or cannot be used."""

    exit_code = 2


class FlagsRefused(LlamaLaunchError):
    """Flags that the server which would be started does not take.

    Attributes:
        flags: Which.
    """

    exit_code = 2

    def __init__(self, message: str, *, flags: tuple[str, ...], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.flags = flags


class ModelError(LlamaLaunchError):
    """A model file that is not there, or cannot be fetched."""


class DoesNotFit(LlamaLaunchError):
    """A start that needs more memory than the GPUs have free."""

    exit_code = 1


class RunError(LlamaLaunchError):
    """A run that does not exist, or that cannot be asked this in its state."""


class ServerStartError(LlamaLaunchError):
    """A server that did not become ready.

    Attributes:
        log_path: Its log, or None when it never started.
        failure: What the log says of the failure, None when there is none to read.
    """

    def __init__(
        self, message: str, *, log_path: Path | None = None, hint: str = "", failure: ServerFailure | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.log_path = log_path
        self.failure = failure


class ServerError(LlamaLaunchError):
    """A call to a running server that failed."""


class ServerUnreachable(ServerError):
    """Nothing answers at the address, or not in time."""


class ServerRefused(ServerError):
    """The server answered with an error.

    Attributes:
        status: HTTP status.
        body: The answer's text, shortened.
    """

    def __init__(self, message: str, *, status: int, body: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.body = body
