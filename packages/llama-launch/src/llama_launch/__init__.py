"""Starts llama-server from a reviewed profile, waits until it is ready and stops it cleanly.

`load_profile` reads a profile, `start_server` starts it and waits, `Client` calls a running server.
"""

from llama_launch.client import Client, Erased, Props, Slot
from llama_launch.default_model import fetch_default_model
from llama_launch.errors import (
    LlamaLaunchError,
    ModelError,
    ProfileError,
    ServerError,
    ServerRefused,
    ServerStartError,
    ServerUnreachable,
)
from llama_launch.flags import server_argv
from llama_launch.profile import Profile, load_profile, profile_names
from llama_launch.server import Backend, RunningServer, find_llama_server, start_server

__all__ = [
    "Backend",
    "Client",
    "Erased",
    "LlamaLaunchError",
    "ModelError",
    "Profile",
    "ProfileError",
    "Props",
    "RunningServer",
    "ServerError",
    "ServerRefused",
    "ServerStartError",
    "ServerUnreachable",
    "Slot",
    "fetch_default_model",
    "find_llama_server",
    "load_profile",
    "profile_names",
    "server_argv",
    "start_server",
]
