"""The llama.cpp server inside the `xllamacpp` wheel, as a process of its own: `python -m llama_launch.embedded`.

It reads a JSON object of settings from its command line (no secret is among them), serves until SIGTERM or SIGINT,
and prints llama.cpp's own log on stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llama_launch.client import read_api_keys
from llama_launch.errors import FlagsRefused
from llama_launch.profile import Profile

__all__ = ["embedded_argv", "embedded_version", "main"]


def embedded_version() -> str | None:
    """Version of the installed xllamacpp, whose last part is llama.cpp's build number; None when not installed."""
    from importlib.metadata import PackageNotFoundError, version  # takes a while, and an external server needs none

    try:
        return version("xllamacpp")
    except PackageNotFoundError:
        return None


# Flags of llama-server that the embedded server takes too: the field of its parameters, and the value or its type.
_EXTRA_FLAGS: dict[str, tuple[str, Any]] = {
    "--batch-size": ("n_batch", int),
    "--cache-reuse": ("n_cache_reuse", int),
    "--cache-type-k-draft": ("draft_cache_type_k", str),
    "--cache-type-v-draft": ("draft_cache_type_v", str),
    "--ctx-checkpoints": ("n_ctx_checkpoints", int),
    "--model-draft": ("draft_model", str),
    "--no-cache-prompt": ("cache_prompt", False),
    "--no-repack": ("no_extra_bufts", True),
    "--no-warmup": ("warmup", False),
    "--sleep-idle-seconds": ("sleep_idle_seconds", int),
    "--slot-prompt-similarity": ("slot_prompt_similarity", float),
    "--swa-full": ("swa_full", True),
    "--threads": ("n_threads", int),
    "--threads-batch": ("n_threads_batch", int),
    "--ubatch-size": ("n_ubatch", int),
}


def _extra_settings(extra_flags: Sequence[str]) -> dict[str, Any]:
    """A profile's extra flags as fields of the embedded server's parameters.

    Raises:
        FlagsRefused: The embedded server has nothing like that flag.
    """
    settings: dict[str, Any] = {}
    words = list(extra_flags)
    while words:
        flag = words.pop(0)
        if flag not in _EXTRA_FLAGS:
            hint = "leave it out, or install llama.cpp; it takes " + " ".join(_EXTRA_FLAGS)
            raise FlagsRefused(f"the embedded server has no {flag}", flags=(flag,), hint=hint)
        field, value = _EXTRA_FLAGS[flag]
        settings[field] = value if isinstance(value, bool) else _value(flag, value, words)
    return settings


def _value(flag: str, kind: Callable[[str], Any], words: list[str]) -> Any:
    word = words.pop(0) if words else ""
    try:
        return kind(word)
    except ValueError as error:
        raise FlagsRefused(f"{flag} {word}: not a number", flags=(flag,), hint="give it a number") from error


def embedded_argv(profile: Profile, *, model: Path, port: int, slot_save_path: Path | None) -> list[str]:
    """The command line of the embedded server for `profile`.

    Raises:
        FlagsRefused: One of the profile's values or extra flags has no counterpart there.
    """
    if profile.rpc:
        raise FlagsRefused("the embedded server has no --rpc", flags=("--rpc",), hint="install llama.cpp")
    settings = {
        "model": str(model),
        "host": profile.host,
        "port": port,
        "n_parallel": profile.n_slots,
        "n_ctx": profile.n_ctx,
        "kv_unified": profile.kv_unified,
        "cache_type_k": profile.cache_type_k,
        "cache_type_v": profile.cache_type_v,
        "cache_ram_mib": profile.cache_ram_mib,
        "flash_attn": profile.flash_attn,
        "n_gpu_layers": profile.n_gpu_layers,
        # llama.cpp joins this text and the file's name as they are.
        "slot_save_path": f"{slot_save_path}/" if slot_save_path else None,
        "use_jinja": profile.jinja,
        "endpoint_metrics": profile.metrics,
        "verbosity": profile.verbosity,
        "api_key_file": profile.api_key_file or None,
        **_extra_settings(profile.extra_flags),
    }
    return [sys.executable, "-m", "llama_launch.embedded", json.dumps(settings)]


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes, or the parent ends."""
    import xllamacpp

    settings: dict[str, Any] = json.loads(arguments[0])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The server's threads do not look at signals while they compute; nothing here needs unwinding.
        signal.signal(number, lambda number, frame: os._exit(0))
    server = xllamacpp.Server(_parameters(xllamacpp, settings))
    print(f"embedded server at {server.listening_address}", flush=True)
    # The leash ends it by a signal; where the kernel has none for a leash that was killed, the parent's change tells.
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    return 0


def _parameters(xllamacpp: Any, settings: dict[str, Any]) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings.pop("model")
    parameters.hostnames = [settings.pop("host")]
    parameters.endpoint_slots = True
    flash_attn = settings.pop("flash_attn")
    parameters.flash_attn_type = getattr(
        xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{_FLASH_ATTN[flash_attn]}"
    )
    for key in ("cache_type_k", "cache_type_v"):
        setattr(parameters, key, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{settings.pop(key).upper()}"))
    api_key_file = settings.pop("api_key_file")
    if api_key_file is not None:
        parameters.api_keys = read_api_keys(Path(api_key_file))
    for pool, name in ((parameters.cpuparams, "n_threads"), (parameters.cpuparams_batch, "n_threads_batch")):
        if name in settings:
            pool.n_threads = settings.pop(name)
    _set_draft(xllamacpp, parameters.speculative, settings)
    for key, value in settings.items():
        if value is not None:
            setattr(parameters, key, value)
    return parameters


def _set_draft(xllamacpp: Any, speculative: Any, settings: dict[str, Any]) -> None:
    for key in ("cache_type_k", "cache_type_v"):
        if f"draft_{key}" in settings:
            name = f"GGML_TYPE_{settings.pop(f'draft_{key}').upper()}"
            setattr(speculative.draft, key, getattr(xllamacpp.ggml_type, name))
    if "draft_model" in settings:
        speculative.draft.mparams.path = settings.pop("draft_model")
        speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]


_FLASH_ATTN = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
