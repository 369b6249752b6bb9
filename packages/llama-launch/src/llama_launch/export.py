"""A profile in the form that another program starts servers from: llama.cpp's router, systemd, or Docker Compose.

Pure: text in, text out. No form holds a secret; each listens on loopback as far as other machines are concerned,
unless the profile says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llama_launch.errors import ProfileError
from llama_launch.flags import profile_flags
from llama_launch.profile import Profile

__all__ = ["ExportedModel", "compose_file", "preset_file", "systemd_unit"]

_CONTAINER_PORT = 8080
# The router listens, and gives each of its servers an address of its own.
_ROUTER_OWNS = ("host", "api_key_file")


@dataclass(frozen=True)
class ExportedModel:
    """A profile with the path of its model file."""

    profile: Profile
    model: Path


def preset_file(models: Sequence[ExportedModel], notes: Sequence[str] = ()) -> str:
    """The INI file for `llama-server --models-preset` (llama.cpp's docs/preset.md): a section for each profile.

    Args:
        models: The profiles.
        notes: Lines for the head of the file.

    Raises:
        ProfileError: A value cannot be written in that format, or two profiles have one name.
    """
    names = [model.profile.name for model in models]
    if len(set(names)) < len(names):
        raise ProfileError(f"two profiles are called {next(name for name in names if names.count(name) > 1)!r}")
    head = ["; llama-server --models-preset THIS-FILE", *(f"; {note}" for note in notes), "version = 1"]
    return "\n".join([*head, *(_section(model) for model in models)]) + "\n"


def _section(exported: ExportedModel) -> str:
    flags = [flag for flag in profile_flags(exported.profile) if flag.key not in _ROUTER_OWNS]
    words = ["--model", str(exported.model), *(word for flag in flags for word in flag.words)]
    lines = [f"{key} = {_ini_value(exported.profile, key, value)}" for key, value in _pairs(words)]
    return "\n".join(["", f"[{exported.profile.name}]", *lines])


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Flags as keys: what has no value is true, and what begins with `--no-` is false."""
    pairs: list[tuple[str, str]] = []
    for position, word in enumerate(words):
        if not _is_flag(word):
            continue
        key, has_value, value = word.partition("=")
        following = words[position + 1] if position + 1 < len(words) else "--"
        if has_value:
            pairs.append((key.lstrip("-"), value))
        elif not _is_flag(following):
            pairs.append((key.lstrip("-"), following))
        elif key.startswith("--no-"):
            pairs.append((key.removeprefix("--no-"), "false"))
        else:
            pairs.append((key.lstrip("-"), "true"))
    return pairs


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word.lstrip("-")[:1].isdigit()


def _ini_value(profile: Profile, key: str, value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise ProfileError(f"{profile.name}: {key}: {value!r} cannot be written into a preset", hint="rename the file")
    return value


def systemd_unit(profile: Profile, command: Sequence[str], folder: Path) -> str:
    """A unit for `systemctl --user` that runs a command in the foreground.

    Args:
        profile: For its description.
        command: The command line, its program by an absolute path.
        folder: Where it runs.
    """
    line = " ".join(_systemd_word(word) for word in command)
    return f"""\
[Unit]
Description={_systemd_text(f"llama-server with profile {profile.name}")}
After=network.target

[Service]
Type=exec
WorkingDirectory={_systemd_text(str(folder))}
ExecStart={line}
Restart=on-failure
RestartSec=5
TimeoutStopSec=15

[Install]
WantedBy=default.target
"""


def _systemd_text(text: str) -> str:
    """A value in which systemd's specifiers mean nothing."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown.replace("%", "%%")


def _systemd_word(word: str) -> str:
    """One argument, as systemd.service(5) quotes it: specifiers and variables mean nothing."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    escaped = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in escaped)
    return f'"{escaped}"'


def compose_file(models: Sequence[ExportedModel]) -> str:
    """A file for `docker compose`: a service for each profile, with llama.cpp's own image from $LLAMA_SERVER_IMAGE.

    Raises:
        ProfileError: A profile asks for workers, which no container could reach.
    """
    head = """\
# LLAMA_SERVER_IMAGE names llama.cpp's server image for your GPU. Ports are this machine's own.
# docker compose up
services:
"""
    return head + "".join(_service(exported, place) for place, exported in enumerate(models))


def _service(exported: ExportedModel, place: int) -> str:
    profile = exported.profile
    if profile.rpc:
        raise ProfileError(f"{profile.name}: workers (rpc) cannot be used from a container", hint="leave rpc out")
    inside = replace(profile, host="0.0.0.0", api_key_file="/run/keys" if profile.api_key_file else "")
    words = ["--model", f"/models/{exported.model.name}", "--port", str(_CONTAINER_PORT)]
    words += ["--slot-save-path", "/slots/"] if profile.slot_save else []
    words += [word for flag in profile_flags(inside) for word in flag.words]
    volumes = [f"{exported.model.parent}:/models:ro"]
    volumes += [f"{Path(profile.api_key_file).expanduser().absolute()}:/run/keys:ro"] if profile.api_key_file else []
    lines = [
        f"  {_yaml(profile.name)}:",
        '    image: "${LLAMA_SERVER_IMAGE:?name the image of llama.cpp}"',
        "    command:",
        *(f"      - {_yaml(word)}" for word in words),
        "    ports:",
        f"      - {_yaml(f'{_published(profile)}:{profile.port or _CONTAINER_PORT + place}:{_CONTAINER_PORT}')}",
        "    volumes:",
        *(f"      - {_yaml(volume)}" for volume in volumes),
        *(["    tmpfs:", '      - "/slots"'] if profile.slot_save else []),
        "    restart: unless-stopped",
        *(_gpus(profile) if profile.n_gpu_layers != 0 else []),
    ]
    return "\n".join(lines) + "\n"


def _published(profile: Profile) -> str:
    return f"[{profile.host}]" if ":" in profile.host else profile.host.replace("localhost", "127.0.0.1")


def _gpus(profile: Profile) -> list[str]:
    which = [word.strip() for word in profile.gpus.split(",") if word.strip()]
    chosen = f"device_ids: {json.dumps(which)}" if which else "count: all"
    return [
        "    deploy:",
        "      resources:",
        "        reservations:",
        "          devices:",
        f"            - driver: nvidia\n              {chosen}\n              capabilities: [gpu]",
    ]


def _yaml(text: str) -> str:
    """A quoted scalar (JSON is YAML) in which compose replaces no variable."""
    return json.dumps(text.replace("$", "$$"))
