"""Several servers from one file: which profiles run, with what changed, under which names.

[servers.big]
profile = "gpt-oss-20b"
port = 8080
gpus = "0"

[servers.small]
profile = "smollm2-135m"
port = 8081
backend = "embedded"
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from llama_launch.backend import Backend
from llama_launch.errors import ProfileError
from llama_launch.profile import DEFAULT_PROFILE, Profile, closest, load_profile
from llama_launch.supervisor import OnOom
from llama_launch.toml_file import parsed_toml, toml_text

__all__ = ["FleetServer", "read_fleet"]

_CHOICES: dict[str, tuple[str, ...]] = {"backend": get_args(Backend), "on_oom": get_args(OnOom)}


@dataclass(frozen=True)
class FleetServer:
    """One server of a fleet.

    Attributes:
        name: The run's name.
        profile: How it is started.
        backend: Which server.
        on_oom: What follows when an allocation fails.
    """

    name: str
    profile: Profile
    backend: Backend
    on_oom: OnOom


def read_fleet(path: Path) -> list[FleetServer]:
    """The servers of a file, in its order.

    Raises:
        ProfileError: It cannot be read, a value is wrong, or two servers have one port.
    """
    text = toml_text(path, "name a TOML file with [servers.NAME] tables")
    tables = parsed_toml(text, str(path)).get("servers")
    if not isinstance(tables, dict) or not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise ProfileError(f"{path}: no servers in it", hint='begin with [servers.NAME] and profile = "PROFILE"')
    servers = [_server(path, text, name, dict(table)) for name, table in tables.items()]
    _refuse_shared_ports(path, servers)
    return servers


def _server(path: Path, text: str, name: str, table: dict[str, Any]) -> FleetServer:
    place = f"{path}:{_line_of(text, name)}: servers.{name}"
    words = {key: _word(place, key, table.pop(key, choices[0])) for key, choices in _CHOICES.items()}
    profile = table.pop("profile", DEFAULT_PROFILE)
    if not isinstance(profile, str):
        raise ProfileError(f"{place}: profile: {profile!r} is not the name of a profile")
    if profile.endswith(".toml"):
        profile = str(path.parent / Path(profile).expanduser())
    try:
        loaded = load_profile(profile, table, place=place)
    except ProfileError as error:
        message = str(error) if str(error).startswith(place) else f"{place}: {error}"
        raise ProfileError(message, hint=error.hint) from error
    return FleetServer(name, loaded, words["backend"], words["on_oom"])


def _word(place: str, key: str, value: object) -> Any:
    if value not in _CHOICES[key]:
        raise ProfileError(
            f"{place}: {key}: unknown value {value!r}", hint=closest(str(value), _CHOICES[key], "one of ")
        )
    return value


def _line_of(text: str, name: str) -> int:
    match = re.search(rf"^[ \t]*\[[ \t]*servers[ \t]*\.[ \t]*[\"']?{re.escape(name)}[\"']?[ \t]*\]", text, re.M)
    return text.count("\n", 0, match.start()) + 1 if match else 1


def _refuse_shared_ports(path: Path, servers: list[FleetServer]) -> None:
    taken: dict[int, str] = {}
    for server in servers:
        port = server.profile.port
        if port and port in taken:
            raise ProfileError(f"{path}: {taken[port]} and {server.name} have port {port}", hint="give each its own")
        taken[port] = server.name
