"""Which running server a command is for, and the key that it asks for."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from llama_launch.client import Client, read_api_keys
from llama_launch.state import RunRecord, find_runs

__all__ = ["add_server_arguments", "api_key", "chosen_client", "run_client"]

_DEFAULT_URL = "http://127.0.0.1:8080"


def add_server_arguments(command: argparse.ArgumentParser) -> None:
    """Add `--url` and `--api-key-file`."""
    command.add_argument(
        "--url",
        help=f"address; $LLAMA_SERVER_URL, else the one server that llama-launch runs, else {_DEFAULT_URL}",
    )
    command.add_argument("--api-key-file", type=Path, metavar="FILE", help="file whose first key is sent")


def chosen_client(options: argparse.Namespace, timeout_s: float = 10.0) -> Client:
    """The server that the arguments name.

    Raises:
        ProfileError: The file of the API key cannot be read.
    """
    if options.url is None and "LLAMA_SERVER_URL" not in os.environ:
        running = [record for record in find_runs() if record.is_alive and record.url]
        if len(running) == 1:
            return run_client(running[0], timeout_s, api_key(options))
    url = options.url or os.environ.get("LLAMA_SERVER_URL", _DEFAULT_URL)
    return Client(url, api_key=api_key(options), timeout_s=timeout_s)


def api_key(options: argparse.Namespace) -> str | None:
    """The key of `--api-key-file`, else of $LLAMA_API_KEY.

    Raises:
        ProfileError: The file cannot be read.
    """
    return read_api_keys(options.api_key_file)[0] if options.api_key_file else os.environ.get("LLAMA_API_KEY")


def run_client(record: RunRecord, timeout_s: float = 10.0, key: str | None = None) -> Client:
    """Calls to the server of a run, with the key of its own profile unless one is given.

    Raises:
        ProfileError: The file of the API key cannot be read.
    """
    key_file = record.profile.get("api_key_file")
    if key is None and key_file:
        key = read_api_keys(Path(record.folder) / Path(str(key_file)).expanduser())[0]
    return Client(record.url, api_key=key, timeout_s=timeout_s)
