"""A profile: how a server is started. The context is never given; it is slots x tokens per slot."""

from __future__ import annotations

import difflib
import importlib.resources
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_launch.errors import ProfileError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["DEFAULT_MODEL", "DEFAULT_PROFILE", "Profile", "load_profile", "profile_names"]

DEFAULT_PROFILE = "smollm2-135m"
# The model value that stands for the small model that llama-launch fetches itself.
DEFAULT_MODEL = "default"


@dataclass(frozen=True)
class Profile:
    """How a server is started; names follow llama-server's flags and log.

    Attributes:
        name: The profile's name.
        model: Path of a GGUF file, or `default`.
        description: One sentence.
        n_slots: `--parallel`.
        n_ctx_slot: Tokens per slot; `--ctx-size` is n_slots x n_ctx_slot.
        kv_unified: Whether all slots share one pool.
        cache_type_k: `--cache-type-k`.
        cache_type_v: `--cache-type-v`.
        cache_ram_mib: `--cache-ram`, MiB of host RAM that keeps prompts; 0 switches it off.
        slot_save: Whether slots can be erased, saved and restored (`--slot-save-path`, below the run's folder).
        host: Address to listen on.
        port: Port, or 0 for a free one.
        verbosity: `--verbosity`.
        flash_attn: `--flash-attn`: on, off or auto.
        n_gpu_layers: `--n-gpu-layers`, or None for the server's own default.
        jinja: `--jinja`.
        metrics: `--metrics`.
        extra_flags: Further flags of llama-server, as typed.
    """

    name: str
    model: str
    description: str = ""
    n_slots: int = 4
    n_ctx_slot: int = 8192
    kv_unified: bool = True
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    cache_ram_mib: int = 0
    slot_save: bool = True
    host: str = "127.0.0.1"
    port: int = 0
    verbosity: int = 4
    flash_attn: str = "auto"
    n_gpu_layers: int | None = None
    jinja: bool = True
    metrics: bool = True
    extra_flags: tuple[str, ...] = ()

    @property
    def n_ctx(self) -> int:
        """Tokens of context in all: `--ctx-size`."""
        return self.n_slots * self.n_ctx_slot


def profile_names() -> list[str]:
    """Names of the profiles that ship with the package."""
    folder = importlib.resources.files("llama_launch").joinpath("profiles")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_profile(name_or_path: str, overrides: Mapping[str, object] | None = None) -> Profile:
    """A shipped profile by name, or one from a TOML file (anything with a `/` or ending in `.toml`).

    Args:
        name_or_path: Name or path.
        overrides: Values that replace the file's; text is read as the field's type.

    Raises:
        ProfileError: There is no such profile, or a key or value is wrong.
    """
    name, text = _read(name_or_path)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{name_or_path}: not TOML: {error}") from error
    values = {**values, **(overrides or {})}
    values.setdefault("name", name)
    if "model" not in values:
        raise ProfileError(f"{name_or_path}: 'model' is missing", hint='name a GGUF file: model = "PATH"')
    checked: dict[str, Any] = {key: _checked(name_or_path, key, value) for key, value in values.items()}
    return Profile(**checked)


def _read(name_or_path: str) -> tuple[str, str]:
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        path = Path(name_or_path).expanduser()
        try:
            return path.stem, path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"{path}: {error}", hint="name a TOML file or a shipped profile") from error
    if name_or_path not in profile_names():
        close = difflib.get_close_matches(name_or_path, profile_names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "profiles: " + ", ".join(profile_names())
        raise ProfileError(f"no profile is called {name_or_path!r}", hint=hint)
    entry = importlib.resources.files("llama_launch").joinpath(f"profiles/{name_or_path}.toml")
    return name_or_path, entry.read_text(encoding="utf-8")


_TYPES: Mapping[str, Any] = typing.get_type_hints(Profile)
_LIMITS = {"n_slots": (1, 256), "n_ctx_slot": (1, 2**31), "port": (0, 65535), "cache_ram_mib": (-1, 2**31)}


def _checked(source: str, key: str, value: object) -> object:
    """`value` as the type of the field `key`."""
    if key not in _TYPES:
        close = difflib.get_close_matches(key, _TYPES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "known keys: " + ", ".join(_TYPES)
        raise ProfileError(f"{source}: unknown key {key!r}", hint=hint)
    try:
        converted = _CONVERSIONS[_plain_type(_TYPES[key])](value)
    except (TypeError, ValueError) as error:
        raise ProfileError(f"{source}: {key}: {value!r} is not {error}") from error
    low, high = _LIMITS.get(key, (None, None))
    if isinstance(converted, int) and low is not None and high is not None and not low <= converted <= high:
        raise ProfileError(f"{source}: {key}: {converted} is not between {low} and {high}")
    return converted


def _plain_type(hint: Any) -> type:
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    plain: type = typing.get_origin(hint) or hint
    return plain


def _as_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError("a whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError("a whole number") from None


def _as_bool(value: object) -> bool:
    words = {"true": True, "on": True, "false": False, "off": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if not isinstance(value, bool):
        raise TypeError("true or false")
    return value


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("text")
    return value


def _as_flags(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise TypeError("a list of flags")
    return tuple(_as_text(item) for item in value)


_CONVERSIONS = {int: _as_int, bool: _as_bool, str: _as_text, tuple: _as_flags}
