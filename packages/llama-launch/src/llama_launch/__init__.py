"""Starts llama-server from a reviewed profile, waits until it is ready and stops it cleanly.

`load_profile` reads a profile, `start_server` starts it and waits, `Client` calls a running server.
"""

from llama_launch.backend import Backend, find_llama_server
from llama_launch.client import Client, Erased, Props, Saved, Slot, read_api_keys
from llama_launch.default_model import fetch_default_model
from llama_launch.errors import (
    DoesNotFit,
    FlagsRefused,
    LlamaLaunchError,
    ModelError,
    ProfileError,
    RunError,
    ServerError,
    ServerRefused,
    ServerStartError,
    ServerUnreachable,
)
from llama_launch.flags import server_argv
from llama_launch.preflight import Footgun, footguns
from llama_launch.probe import wilson_interval
from llama_launch.profile import LoadedProfile, Profile, load_profile, profile_names, read_profile
from llama_launch.server import RunningServer, planned_argv, start_server

__all__ = [
    "Backend",
    "Client",
    "DoesNotFit",
    "Erased",
    "FlagsRefused",
    "Footgun",
    "LlamaLaunchError",
    "LoadedProfile",
    "ModelError",
    "Profile",
    "ProfileError",
    "Props",
    "RunError",
    "RunningServer",
    "Saved",
    "ServerError",
    "ServerRefused",
    "ServerStartError",
    "ServerUnreachable",
    "Slot",
    "fetch_default_model",
    "find_llama_server",
    "footguns",
    "load_profile",
    "planned_argv",
    "profile_names",
    "read_api_keys",
    "read_profile",
    "server_argv",
    "start_server",
    "wilson_interval",
]
