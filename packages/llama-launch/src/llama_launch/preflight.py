"""What is looked at before a server starts: nothing that is known to fail is started.

Two kinds of answer: an error where the start cannot work, and a warning (`Footgun`) where it would work and surprise.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

import gguf_info

from llama_launch.errors import ModelError, ServerStartError
from llama_launch.profile import Profile

__all__ = [
    "Footgun",
    "ModelFile",
    "check_port",
    "footguns",
    "free_port",
    "private_folder",
    "read_model",
    "writable_folder",
]

# Faults of gguf-info that no server survives; of the others the server is the judge.
_INCOMPLETE = ("data-short", "part-missing")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PLAIN_TYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Footgun:
    """A setting that works and surprises.

    Attributes:
        code: Short name.
        message: What will happen, and what to set instead.
    """

    code: str
    message: str


@dataclass(frozen=True)
class ModelFile:
    """A model file that can be started.

    Attributes:
        path: Where it is.
        n_ctx_train: The context that the model was trained for, None where the file does not say.
    """

    path: Path
    n_ctx_train: int | None


def footguns(profile: Profile, *, n_ctx_train: int | None = None, n_agents: int | None = None) -> list[Footgun]:
    """The surprises in a profile.

    Args:
        profile: What will run.
        n_ctx_train: Context that the model was trained for, where known.
        n_agents: How many agents will work at once, where known.
    """
    found = [
        Footgun(
            "divided-kv",
            f"the KV cache is divided: no slot can use more than {profile.n_ctx_slot} of {profile.n_ctx} tokens, "
            "whatever the others need; kv_unified = true shares them",
        )
        if not profile.kv_unified and profile.n_slots > 1
        else None,
        Footgun(
            "context-over-training",
            f"a slot has {profile.n_ctx_slot} tokens, but the model was trained for {n_ctx_train}: the server cuts it "
            "to that; set n_ctx_slot to no more",
        )
        if n_ctx_train is not None and profile.n_ctx_slot > n_ctx_train
        else None,
        Footgun(
            "quantized-v-without-flash-attention",
            f'cache_type_v = "{profile.cache_type_v}" needs flash attention: the server will refuse to start; '
            'set flash_attn = "on"',
        )
        if profile.cache_type_v not in _PLAIN_TYPES and profile.flash_attn == "off"
        else None,
        Footgun(
            "mixed-cache-types",
            f"keys are {profile.cache_type_k} and values {profile.cache_type_v}: most GPU builds have no kernel for "
            "mixed types, and attention then runs on the CPU",
        )
        if profile.cache_type_k != profile.cache_type_v
        else None,
        Footgun(
            "prompt-cache-brings-back",
            "cache_ram_mib is not 0: the server keeps prompts in host RAM, so an erased slot may be filled again "
            "from there",
        )
        if profile.slot_save and profile.cache_ram_mib != 0
        else None,
        Footgun(
            "fewer-slots-than-agents",
            f"{n_agents} agents share {profile.n_slots} slots: they push each other's prompts out of the cache",
        )
        if n_agents is not None and profile.n_slots < n_agents
        else None,
        Footgun(
            "open-without-key",
            f"{profile.host} can be reached from other machines, and no API key is asked for; set api_key_file",
        )
        if profile.host not in _LOOPBACK and not profile.api_key_file
        else None,
    ]
    return [footgun for footgun in found if footgun is not None]


def read_model(model: Path, source: str = "") -> ModelFile:
    """The model's file, once its header is known to be right and the file to be whole.

    Args:
        model: Its path.
        source: Where to get it.

    Raises:
        ModelError: It is missing, cut, or no GGUF file.
    """
    elsewhere = "name the file that you have: --set model=PATH"
    hint = f"get {source}, or {elsewhere}" if source else elsewhere
    try:
        if not stat.S_ISREG(model.stat().st_mode):  # opening a pipe would wait for a writer
            raise ModelError(f"model {model}: not a regular file", hint=hint)
        with model.open("rb"):
            summary = gguf_info.read_summary(model)
            faults = gguf_info.verify(summary)
    except OSError as error:
        raise ModelError(f"model {model}: {error.strerror}", hint=hint) from error
    except gguf_info.GGUFError as error:
        raise ModelError(f"model {error}", hint=error.hint or hint) from error
    missing = [fault for fault in faults if fault.code in _INCOMPLETE]
    if missing:
        raise ModelError(f"model {missing[0].path} is not whole: {missing[0].message}", hint="download it again")
    architecture = summary.architecture
    return ModelFile(model.absolute(), None if architecture is None else architecture.context_length)


def check_port(host: str, port: int) -> None:
    """Make sure that the address can be listened on.

    Raises:
        ServerStartError: Another program has it, or it is not this machine's.
    """
    try:
        _bind(host, port).close()
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise ServerStartError(
            f"port {port} of {host} is in use" if taken else f"cannot listen on {host} port {port}: {error.strerror}",
            hint="stop the other program, or choose a free port: --port 0" if taken else "set host to 127.0.0.1",
        ) from error


def free_port(host: str) -> int:
    """A port that nothing listens on now; another program may still take it first.

    Raises:
        ServerStartError: The address is not this machine's.
    """
    check_port(host, 0)
    with _bind(host, 0) as probe:
        return int(probe.getsockname()[1])


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def private_folder(path: Path) -> Path:
    """The folder, made if need be, that only this user may look into.

    Raises:
        ServerStartError: Another user owns it, it is no folder, or it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if ours and status.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise ServerStartError(f"{path}: {error.strerror}", hint="choose another folder: --set root=DIR") from error
    if not ours:
        raise ServerStartError(
            f"{path} belongs to another user, or is a link", hint="choose another folder: --set root=DIR"
        )
    return path


def writable_folder(path: Path) -> Path:
    """The folder, made if need be.

    Raises:
        ServerStartError: It cannot be made or written to.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ServerStartError(f"{path}: {error.strerror}", hint="choose another folder: --run-dir DIR") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ServerStartError(f"{path}: cannot be written", hint="choose another folder: --run-dir DIR")
    return path
