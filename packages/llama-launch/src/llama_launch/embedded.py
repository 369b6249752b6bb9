"""The llama.cpp server inside the `xllamacpp` wheel, as a process of its own: `python -m llama_launch.embedded`.

It reads a JSON object of settings from its command line (no secret is among them), serves until SIGTERM or SIGINT,
and prints llama.cpp's own log on stderr.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_launch.profile import Profile

__all__ = ["embedded_argv", "embedded_version", "main"]


def embedded_version() -> str | None:
    """Version of the installed xllamacpp, whose last part is llama.cpp's build number; None when not installed."""
    try:
        return importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        return None


def embedded_argv(profile: Profile, *, model: Path, port: int, slot_save_path: Path | None) -> list[str]:
    """The command line of the embedded server for `profile`."""
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
    }
    return [sys.executable, "-m", "llama_launch.embedded", json.dumps(settings)]


def main(arguments: Sequence[str]) -> int:
    """Serve; ends by signal alone."""
    import xllamacpp

    settings: dict[str, Any] = json.loads(arguments[0])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The server's threads do not look at signals while they compute; nothing here needs unwinding.
        signal.signal(number, lambda number, frame: os._exit(0))
    server = xllamacpp.Server(_parameters(xllamacpp, settings))
    print(f"embedded server at {server.listening_address}", flush=True)
    while True:
        signal.pause()


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
    for key, value in settings.items():
        if value is not None:
            setattr(parameters, key, value)
    return parameters


_FLASH_ATTN = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
