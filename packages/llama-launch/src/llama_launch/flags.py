"""A profile as llama-server's command line; computed from values alone."""

from __future__ import annotations

from pathlib import Path

from llama_launch.profile import Profile

__all__ = ["server_argv"]


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
    values: dict[str, object | None] = {
        "--model": model,
        "--host": profile.host,
        "--port": port,
        "--parallel": profile.n_slots,
        "--ctx-size": profile.n_ctx,
        "--cache-type-k": profile.cache_type_k,
        "--cache-type-v": profile.cache_type_v,
        "--cache-ram": profile.cache_ram_mib,
        "--flash-attn": profile.flash_attn,
        "--n-gpu-layers": profile.n_gpu_layers,
        "--slot-save-path": slot_save_path,
        "--verbosity": profile.verbosity,
    }
    switches = {
        "--kv-unified": profile.kv_unified,
        "--no-kv-unified": not profile.kv_unified,
        "--jinja": profile.jinja,
        "--metrics": profile.metrics,
    }
    argv = [str(executable)]
    for flag, value in values.items():
        argv += [flag, str(value)] if value is not None else []
    argv += [flag for flag, wanted in switches.items() if wanted]
    return [*argv, *profile.extra_flags]
