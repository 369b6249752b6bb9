"""What is looked at before a server starts: nothing that is known to fail is started.

Two kinds of answer: an error where the start cannot work, and a warning (`Footgun`) where it would work and surprise.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
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
    "is_free",
    "private_folder",
    "read_model",
    "writable_folder",
]

# Faults of gguf-info that no server survives; of the others the server is the judge.
_INCOMPLETE = ("data-short", "part-missing")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PLAIN_TYPES = ("f32", "f16", "bf16")
_GPU_PAIRS = {(kind, kind) for kind in (*_PLAIN_TYPES, "q8_0", "q4_0")}


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
        summary: What its header says.
    """

    path: Path
    summary: gguf_info.Summary


@dataclass(frozen=True)
class _Situation:
    """What the rules of footguns look at."""

    profile: Profile
    n_ctx_train: int | None
    n_predicting_layers: int
    is_embedded: bool


def footguns(profile: Profile, *, model: gguf_info.Summary | None = None, is_embedded: bool = False) -> list[Footgun]:
    """The surprises in a profile.

    Args:
        profile: What will run.
        model: The model, where it is known.
        is_embedded: Whether the embedded server will run it.
    """
    architecture = model.architecture if model is not None else None
    situation = _Situation(
        profile,
        architecture.context_length if architecture is not None else None,
        _predicting_layers(model),
        is_embedded,
    )
    return [Footgun(code, message) for code, rule in _FOOTGUNS.items() if (message := rule(situation))]


def _predicting_layers(model: gguf_info.Summary | None) -> int:
    """Layers that predict further tokens (MTP): the header's `nextn_predict_layers`."""
    values = model.metadata if model is not None else {}
    found = next((value for key, value in values.items() if key.endswith(".nextn_predict_layers")), 0)
    return found if isinstance(found, int) else 0


def _divided(it: _Situation) -> str:
    profile = it.profile
    if profile.kv_unified or profile.n_slots == 1:
        return ""
    return (
        f"the KV cache is divided: no slot can use more than {profile.n_ctx_slot} of {profile.n_ctx} tokens, "
        "whatever the others need; kv_unified = true shares them"
    )


def _over_training(it: _Situation) -> str:
    if it.n_ctx_train is None or it.profile.n_ctx_slot <= it.n_ctx_train:
        return ""
    return (
        f"a slot has {it.profile.n_ctx_slot} tokens, but the model was trained for {it.n_ctx_train}: the server cuts "
        "it to that; set n_ctx_slot to no more"
    )


def _quantized_v(it: _Situation) -> str:
    if it.profile.cache_type_v in _PLAIN_TYPES or it.profile.flash_attn != "off":
        return ""
    return (
        f'cache_type_v = "{it.profile.cache_type_v}" needs flash attention: the server will refuse to start; set '
        'flash_attn = "on"'
    )


def _cache_types(it: _Situation) -> str:
    """llama.cpp#28456: CUDA builds have kernels for these pairs alone, unless built with GGML_CUDA_FA_ALL_QUANTS."""
    pair = (it.profile.cache_type_k, it.profile.cache_type_v)
    if pair in _GPU_PAIRS:
        return ""
    return (
        f"keys are {pair[0]} and values {pair[1]}: most GPU builds have no kernel for that, and attention then runs "
        "on the CPU; use f16, q8_0 or q4_0 for both"
    )


def _prompt_cache(it: _Situation) -> str:
    if not it.profile.slot_save or it.profile.cache_ram_mib == 0:
        return ""
    return (
        "cache_ram_mib is not 0: the server keeps prompts in host RAM, so an erased slot may be filled again from there"
    )


def _few_slots(it: _Situation) -> str:
    if it.profile.n_agents <= it.profile.n_slots:
        return ""
    return (
        f"{it.profile.n_agents} agents share {it.profile.n_slots} slots: they push each other's prompts out of the "
        "cache; set n_slots to no fewer"
    )


def _open_without_key(it: _Situation) -> str:
    if it.profile.host in _LOOPBACK or it.profile.api_key_file:
        return ""
    return f"{it.profile.host} can be reached from other machines, and no API key is asked for; set api_key_file"


def _predicting(it: _Situation) -> str:
    if not it.n_predicting_layers or not any("draft-mtp" in word for word in it.profile.extra_flags):
        return ""
    return (
        f"the model has {it.n_predicting_layers} layers that predict further tokens (MTP): this start runs them, with "
        "a cache and a compute buffer of their own, which builds that do not know --spec-type draft-mtp never took"
    )


def _no_gpu(it: _Situation) -> str:
    if not it.is_embedded or not (it.profile.n_gpu_layers or it.profile.gpus):
        return ""
    return "the embedded server runs on the CPU: n_gpu_layers and gpus have no effect; install llama.cpp for the GPU"


_FOOTGUNS: dict[str, Callable[[_Situation], str]] = {
    "divided-kv": _divided,
    "context-over-training": _over_training,
    "quantized-v-without-flash-attention": _quantized_v,
    "cache-types-on-cpu": _cache_types,
    "prompt-cache-brings-back": _prompt_cache,
    "fewer-slots-than-agents": _few_slots,
    "open-without-key": _open_without_key,
    "mtp-layers": _predicting,
    "gpu-without-effect": _no_gpu,
}


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
    return ModelFile(model.absolute(), summary)


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


def is_free(host: str, port: int) -> bool:
    """Whether the address can be listened on now."""
    try:
        check_port(host, port)
    except ServerStartError:
        return False
    return True


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
