"""A profile: how a server is started. The context is never given; it is slots x tokens per slot.

A profile is laid together from files of the same name, later ones winning key by key: the package's, the user's
(`profiles/` in llama-launch's configuration folder), the project's (`.llama-launch/` in the current folder or the
nearest one above it), then what the command line sets. `extends` names a profile that lies below all of them.
"""

from __future__ import annotations

import difflib
import importlib.resources
import re
import shlex
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from llama_launch.errors import ProfileError
from llama_launch.toml_file import parsed_toml, toml_text

__all__ = [
    "DEFAULT_MODEL",
    "DEFAULT_PROFILE",
    "PROJECT_FOLDER",
    "LoadedProfile",
    "Profile",
    "ProfileFile",
    "closest",
    "load_profile",
    "profile_files",
    "profile_names",
    "profile_of",
    "read_profile",
    "user_folder",
]

DEFAULT_PROFILE = "smollm2-135m"
# The model value that stands for the small model that llama-launch fetches itself.
DEFAULT_MODEL = "default"
PROJECT_FOLDER = ".llama-launch"


@dataclass(frozen=True)
class Profile:
    """How a server is started; names follow llama-server's flags and log.

    Attributes:
        name: The profile's name.
        model: Path of a GGUF file, or `default`.
        model_source: Where to get that file, for a person who does not have it.
        description: One sentence.
        n_slots: `--parallel`.
        n_ctx_slot: Tokens per slot; `--ctx-size` is n_slots x n_ctx_slot.
        kv_unified: Whether all slots share one pool.
        cache_type_k: `--cache-type-k`.
        cache_type_v: `--cache-type-v`.
        cache_ram_mib: `--cache-ram`, MiB of host RAM that keeps prompts; 0 switches it off, -1 lifts the limit.
        slot_save: Whether slots can be erased, saved and restored (`--slot-save-path`, below the run's folder).
        host: Address to listen on.
        port: Port, or 0 for a free one.
        api_key_file: File with the API keys that the server asks for, one a line; empty for none.
        root: Folder that holds every file of every run.
        verbosity: `--verbosity`.
        flash_attn: `--flash-attn`: on, off or auto.
        n_gpu_layers: `--n-gpu-layers`, or None for the server's own default.
        jinja: `--jinja`.
        metrics: `--metrics`.
        gpus: GPUs that the server may see, as CUDA_VISIBLE_DEVICES has them; empty for all.
        rpc: Workers (`ggml-rpc-server`) as HOST:PORT, for `--rpc`.
        n_agents: How many agents will work at once; 0 when that is not known.
        log_max_mib: Size at which the log is continued in a new piece, which begins with the start-up part.
        log_keep: How many older pieces of the log are kept.
        extra_flags: Further flags of llama-server, as typed.
    """

    name: str
    model: str
    model_source: str = ""
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
    api_key_file: str = ""
    root: str = "/tmp/llama-server"
    verbosity: int = 4
    flash_attn: str = "auto"
    n_gpu_layers: int | None = None
    jinja: bool = True
    metrics: bool = True
    gpus: str = ""
    rpc: tuple[str, ...] = ()
    n_agents: int = 0
    log_max_mib: int = 64
    log_keep: int = 3
    extra_flags: tuple[str, ...] = ()

    @property
    def n_ctx(self) -> int:
        """Tokens of context in all: `--ctx-size`."""
        return self.n_slots * self.n_ctx_slot


@dataclass(frozen=True)
class ProfileFile:
    """One file of a profile.

    Attributes:
        place: What messages call it: its path, or `package:NAME.toml`.
        layer: `package`, `user`, `project` or `file`.
        text: What is in it.
        folder: What relative paths in it start from; None for the package's, which start from the current folder.
    """

    place: str
    layer: str
    text: str
    folder: Path | None


@dataclass(frozen=True)
class LoadedProfile:
    """A profile with where it came from.

    Attributes:
        profile: The profile.
        origins: For each key that was given anywhere: the place and line that won.
        files: The files that it was laid together from, lowest first.
    """

    profile: Profile
    origins: Mapping[str, str]
    files: tuple[ProfileFile, ...]


def user_folder() -> Path:
    """Where the user's own profiles are."""
    return Path(platformdirs.user_config_dir("llama-launch")) / "profiles"


def profile_names() -> list[str]:
    """Names of all profiles: the package's, the user's and the project's."""
    shipped = importlib.resources.files("llama_launch").joinpath("profiles")
    names = {entry.name for entry in shipped.iterdir()}
    for folder in (user_folder(), _project_folder()):
        names |= {path.name for path in folder.glob("*.toml")} if folder else set()
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def profile_files(name: str) -> list[ProfileFile]:
    """The files of that name, lowest layer first.

    Raises:
        ProfileError: A file cannot be read.
    """
    found = []
    shipped = importlib.resources.files("llama_launch").joinpath(f"profiles/{name}.toml")
    if shipped.is_file():
        found.append(ProfileFile(f"package:{name}.toml", "package", shipped.read_text(encoding="utf-8"), None))
    for layer, folder in (("user", user_folder()), ("project", _project_folder())):
        path = folder / f"{name}.toml" if folder else None
        if path is not None and path.is_file():
            found.append(_read_file(path, layer))
    return found


def load_profile(name_or_path: str, overrides: Mapping[str, object] | None = None, *, place: str = "--set") -> Profile:
    """The profile of that name, or the one in a TOML file (anything with a `/` or ending in `.toml`).

    Args:
        name_or_path: Name or path.
        overrides: Values that replace the files'; text is read as the field's type.
        place: Where the overrides come from, for messages.

    Raises:
        ProfileError: There is no such profile, or a key or value is wrong; names the file and line.
    """
    return read_profile(name_or_path, overrides, place=place).profile


def read_profile(
    name_or_path: str, overrides: Mapping[str, object] | None = None, *, place: str = "--set"
) -> LoadedProfile:
    """`load_profile`, with the origin of every value.

    Raises:
        ProfileError: There is no such profile, or a key or value is wrong; names the file and line.
    """
    name, files = _with_bases(name_or_path, ())
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for file in files:
        for key, value in parsed_toml(file.text, file.place).items():
            if key != "extends":
                origins[key] = f"{file.place}:{_line_of(file.text, key)}"
                values[key] = _absolute(file, key, _checked(origins[key], key, value))
    for key, value in (overrides or {}).items():
        values[key], origins[key] = _checked(place, key, value), place
    values.setdefault("name", name)
    if "model" not in values:
        raise ProfileError(f"{files[-1].place}: 'model' is missing", hint='name a GGUF file: model = "PATH"')
    return LoadedProfile(Profile(**values), origins, tuple(files))


def profile_of(values: Mapping[str, object]) -> Profile:
    """The profile with these values, such as a record holds them.

    Raises:
        ProfileError: A key or value is wrong.
    """
    return Profile(**{key: _checked("record", key, value) for key, value in values.items() if value is not None})


def _with_bases(name_or_path: str, below: tuple[str, ...]) -> tuple[str, list[ProfileFile]]:
    """The profile's name and its files, those that it extends first."""
    if name_or_path in below:
        raise ProfileError("profiles extend each other in a circle: " + " -> ".join([*below, name_or_path]))
    name, files = _files(name_or_path)
    bases: list[ProfileFile] = []
    for file in files:
        base = parsed_toml(file.text, file.place).get("extends")
        if base is not None:
            place = f"{file.place}:{_line_of(file.text, 'extends')}"
            bases = _base_files(place, file, base, (*below, name_or_path))
    return name, [*bases, *files]


def _base_files(place: str, file: ProfileFile, base: object, below: tuple[str, ...]) -> list[ProfileFile]:
    if not isinstance(base, str):
        raise ProfileError(f"{place}: extends: {base!r} is not the name of a profile")
    if _is_path(base) and file.folder is not None:
        base = str(file.folder / Path(base).expanduser())
    try:
        return _with_bases(base, below)[1]
    except ProfileError as error:
        raise ProfileError(f"{place}: {error}", hint=error.hint) from error


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or name_or_path.endswith(".toml")


def _files(name_or_path: str) -> tuple[str, list[ProfileFile]]:
    if name_or_path.endswith(".gguf"):
        raise ProfileError(
            f"{name_or_path}: a model, not a profile", hint=f"llama-launch serve --set model={name_or_path}"
        )
    if _is_path(name_or_path):
        path = Path(name_or_path).expanduser()
        return path.stem, [_read_file(path, "file")]
    files = profile_files(name_or_path)
    if not files:
        raise ProfileError(
            f"no profile is called {name_or_path!r}", hint=closest(name_or_path, profile_names(), "profiles: ")
        )
    return name_or_path, files


def _read_file(path: Path, layer: str) -> ProfileFile:
    return ProfileFile(str(path), layer, toml_text(path, "name a TOML file or a profile"), path.resolve().parent)


def _line_of(text: str, key: str) -> int:
    """Line of the key in a TOML text; a profile has no tables, so the first line that assigns it is the one."""
    match = re.search(rf"^[ \t]*[\"']?{re.escape(key)}[\"']?[ \t]*=|^[ \t]*\[+[ \t]*{re.escape(key)}\b", text, re.M)
    return text.count("\n", 0, match.start()) + 1 if match else 1


def _project_folder() -> Path | None:
    here = Path.cwd()
    return next(
        (folder / PROJECT_FOLDER for folder in (here, *here.parents) if (folder / PROJECT_FOLDER).is_dir()), None
    )


def _absolute(file: ProfileFile, key: str, value: object) -> object:
    """A path in a file starts from the file's folder."""
    if key not in ("model", "api_key_file", "root") or not value or file.folder is None:
        return value
    return value if value == DEFAULT_MODEL else str(file.folder / Path(str(value)).expanduser())


_TYPES: Mapping[str, Any] = typing.get_type_hints(Profile)
_LIMITS = {
    "n_slots": (1, 256),
    "n_ctx_slot": (1, 2**31 - 1),
    "port": (0, 65535),
    "cache_ram_mib": (-1, 2**31 - 1),
    "n_gpu_layers": (-2, 2**31 - 1),
    # Readiness and memory are read from the log: below 3 the server does not say that it is ready.
    "verbosity": (3, 5),
    "n_agents": (0, 4096),
    "log_max_mib": (1, 2**20),
    "log_keep": (1, 100),
}
_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_CHOICES = {"cache_type_k": _CACHE_TYPES, "cache_type_v": _CACHE_TYPES, "flash_attn": ("on", "off", "auto")}


def _checked(place: str, key: str, value: object) -> Any:
    """`value` as the type of the field `key`."""
    if key not in _TYPES:
        raise ProfileError(f"{place}: unknown key {key!r}", hint=closest(key, _TYPES, "known keys: "))
    try:
        converted = _CONVERSIONS[_plain_type(_TYPES[key])](value)
    except (TypeError, ValueError) as error:
        raise ProfileError(f"{place}: {key}: {value!r} is not {error}", hint=_in_full(value)) from error
    low, high = _LIMITS.get(key, (None, None))
    if isinstance(converted, int) and low is not None and high is not None and not low <= converted <= high:
        raise ProfileError(f"{place}: {key}: {converted} is not between {low} and {high}")
    if key in _CHOICES and converted not in _CHOICES[key]:
        raise ProfileError(
            f"{place}: {key}: unknown value {converted!r}", hint=closest(str(converted), _CHOICES[key], "one of ")
        )
    return converted


def _in_full(value: object) -> str:
    """A hint for a number that was given with a unit, such as 32k."""
    match = re.fullmatch(r"(\d{1,9})\s*([kKmM])(?:i?[bB])?", value) if isinstance(value, str) else None
    return f"write {int(match[1]) * 1024 ** (1 if match[2] in 'kK' else 2)}" if match else ""


def closest(word: str, known: typing.Iterable[str], label: str) -> str:
    """A hint for a word that is not known: the closest of those that are, else all of them behind the label."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else label + ", ".join(known)


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
    if isinstance(value, str):
        return tuple(shlex.split(value))
    if not isinstance(value, list | tuple):
        raise TypeError("a list of words")
    return tuple(_as_text(item) for item in value)


_CONVERSIONS = {int: _as_int, bool: _as_bool, str: _as_text, tuple: _as_flags}
