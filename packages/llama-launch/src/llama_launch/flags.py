"""A profile as llama-server's command line, and that command line checked against what a server knows.

Everything here is computed from values alone: a profile, and the text of the server's own `--help`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_launch.profile import Profile

__all__ = [
    "Flag",
    "FlagProblem",
    "ServerFlag",
    "check_flags",
    "owned_flags",
    "profile_flags",
    "read_help",
    "server_argv",
]


@dataclass(frozen=True)
class Flag:
    """One flag that a profile asks for.

    Attributes:
        words: The flag and its value, as on the command line.
        why: What it is there for.
        key: The profile's key that it comes from.
    """

    words: tuple[str, ...]
    why: str
    key: str


_Words = Callable[[Profile], tuple[str, ...]]
# Every flag but the ones that only a start knows (model, port, folder): key, words, why.
_FLAGS: tuple[tuple[str, _Words, str], ...] = (
    ("host", lambda p: ("--host", p.host), "the address; loopback keeps other machines out"),
    ("n_slots", lambda p: ("--parallel", str(p.n_slots)), "how many requests are answered at once"),
    (
        "n_ctx_slot",
        lambda p: ("--ctx-size", str(p.n_ctx)),
        "context of all slots together: slots x tokens per slot",
    ),
    (
        "kv_unified",
        lambda p: ("--kv-unified" if p.kv_unified else "--no-kv-unified",),
        "unified: all slots share one pool, one alone may use all of it; divided: each slot has its fixed share. "
        "An explicit --parallel divides the cache unless this says otherwise",
    ),
    ("cache_type_k", lambda p: ("--cache-type-k", p.cache_type_k), "type of the cached keys; q8_0 nearly halves f16"),
    (
        "cache_type_v",
        lambda p: ("--cache-type-v", p.cache_type_v),
        "type of the cached values; anything but f16, bf16 and f32 needs flash attention",
    ),
    (
        "cache_ram_mib",
        lambda p: ("--cache-ram", str(p.cache_ram_mib)),
        "host RAM that keeps prompts which left their slot; with 0 an erased slot is really cold",
    ),
    ("flash_attn", lambda p: ("--flash-attn", p.flash_attn), "flash attention: less compute memory, quantized values"),
    (
        "n_gpu_layers",
        lambda p: () if p.n_gpu_layers is None else ("--n-gpu-layers", str(p.n_gpu_layers)),
        "layers kept in VRAM; a number above the model's layers means all",
    ),
    (
        "verbosity",
        lambda p: ("--verbosity", str(p.verbosity)),
        "at 4 and above the log has the memory lines that vram-report reads",
    ),
    ("jinja", lambda p: ("--jinja",) if p.jinja else (), "the model's own chat template, which tool calls need"),
    ("metrics", lambda p: ("--metrics",) if p.metrics else (), "counters at /metrics"),
    (
        "api_key_file",
        lambda p: ("--api-key-file", p.api_key_file) if p.api_key_file else (),
        "keys that clients must send; read from a file, so that no process list shows them",
    ),
    (
        "rpc",
        lambda p: ("--rpc", ",".join(p.rpc)) if p.rpc else (),
        "workers on other machines, which hold a part of the model",
    ),
    ("extra_flags", lambda p: p.extra_flags, "given as they are"),
)


def profile_flags(profile: Profile) -> list[Flag]:
    """The flags that follow from a profile's values, each with its reason."""
    flags = [Flag(words(profile), why, key) for key, words, why in _FLAGS]
    return [flag for flag in flags if flag.words]


def server_argv(
    executable: Path, profile: Profile, *, model: Path, port: int, slot_save_path: Path | None
) -> list[str]:
    """The whole command line of an external llama-server.

    Args:
        executable: The program.
        profile: What to run.
        model: The model file.
        port: The port to listen on.
        slot_save_path: Folder for saved slots; without it slots cannot be erased either.
    """
    argv = [str(executable), "--model", str(model), "--port", str(port)]
    if slot_save_path is not None:
        # llama.cpp joins this text and the file's name as they are.
        argv += ["--slot-save-path", f"{slot_save_path}/"]
    return [*argv, *(word for flag in profile_flags(profile) for word in flag.words)]


# Flags that a profile's own keys or the start itself decide; as an extra flag they would contradict what is shown and
# watched, or put a secret into the process list and the log.
_OWNED = {
    "--api-key": "it would stand in the process list: use the profile's api_key_file",
    "--hf-token": "it would stand in the process list: set HF_TOKEN in the environment",
    "-hft": "it would stand in the process list: set HF_TOKEN in the environment",
    "--model": "use --set model=PATH",
    "-m": "use --set model=PATH",
    "--host": "use --set host=ADDRESS",
    "--port": "use --port N",
    "--parallel": "use --set n_slots=N",
    "-np": "use --set n_slots=N",
    "--ctx-size": "use --set n_ctx_slot=N: the context is slots x tokens per slot",
    "-c": "use --set n_ctx_slot=N: the context is slots x tokens per slot",
    "--slot-save-path": "use --set slot_save=true; the folder is the run's",
    "--log-file": "the log is the run's server.log",
    "--log-disable": "readiness and memory are read from the log",
}


def owned_flags(extra_flags: Iterable[str]) -> list[FlagProblem]:
    """Those of a profile's extra flags that something else decides, each with what to use instead."""
    names = [word.partition("=")[0] for word in extra_flags]
    return [FlagProblem(name, f"{name} cannot be an extra flag", _OWNED[name]) for name in names if name in _OWNED]


@dataclass(frozen=True)
class ServerFlag:
    """A flag in a server's `--help`.

    Attributes:
        takes_value: Whether a value follows it, whether or not it may be left out.
        removed: What the help says of a flag that is kept only to say that it is gone; empty for a living one.
    """

    takes_value: bool
    removed: str = ""


@dataclass(frozen=True)
class FlagProblem:
    """A flag that the installed server does not take as it is written."""

    flag: str
    message: str
    hint: str


_DECLARATION = re.compile(r"^(?P<names>-[^\s,]+(?:,?[ ]+-[^\s,]+)*),?[ ]*(?P<rest>.*)$")
_HELP_COLUMN = 40


def read_help(text: str) -> dict[str, ServerFlag]:
    """Every spelling of every flag in the text of `llama-server --help` (its layout since 2024, common/arg.cpp)."""
    flags: dict[str, ServerFlag] = {}
    names: list[str] = []
    for line in text.splitlines():
        match = _DECLARATION.match(line)
        if match is not None:
            names = re.split(r",?[ ]+", match["names"])
            flags |= dict.fromkeys(names, ServerFlag(takes_value=bool(_value_in(line, match.start("rest")))))
            line = line[_HELP_COLUMN:]
        elif not line.startswith(" "):
            names = []
        if "has been removed" in line or any(flags[name].removed for name in names):
            for name in names:
                said = f"{flags[name].removed} {line.strip()}".strip()
                flags[name] = ServerFlag(flags[name].takes_value, said if "(env:" not in line else flags[name].removed)
    return flags


def _value_in(line: str, start: int) -> str:
    """What a declaration calls the flag's value; one that reaches the text's column has its text on the next line."""
    has_text = start <= _HELP_COLUMN < len(line) and line[_HELP_COLUMN - 1] == " "
    return (line[start:_HELP_COLUMN] if has_text else line[start:]).strip()


def check_flags(argv: Iterable[str], known: Mapping[str, ServerFlag]) -> list[FlagProblem]:
    """The flags of a command line (without the program) that a server with these flags would refuse."""
    words = list(argv)
    problems = []
    for position, word in enumerate(words):
        if _is_flag(word):
            following = words[position + 1 : position + 2]
            problems += _problems_of(word.partition("=")[0], following, known)
    return problems


def _is_flag(word: str) -> bool:
    return re.match(r"-{1,2}[A-Za-z]", word) is not None


def _problems_of(flag: str, following: Sequence[str], known: Mapping[str, ServerFlag]) -> list[FlagProblem]:
    if flag not in known:
        # The flag that says the opposite is the closest of all, and never what is meant.
        same_sense = [name for name in known if name.startswith("--no-") == flag.startswith("--no-")]
        close = difflib.get_close_matches(flag, same_sense, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]}?" if close else "leave it out, or install a newer llama.cpp"
        return [FlagProblem(flag, f"this llama-server does not know {flag}", hint)]
    if known[flag].removed:
        return [FlagProblem(flag, f"{flag}: {known[flag].removed}", "replace it as the server says")]
    has_value = bool(following) and not _is_flag(following[0])
    if has_value and not known[flag].takes_value:
        return [FlagProblem(flag, f"{flag} takes no value in this llama-server", f"leave {following[0]!r} out")]
    return []
