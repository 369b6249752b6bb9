"""Workers that hold a part of a model: `ggml-rpc-server`, here or on other machines.

What a profile's `rpc` names: `HOST:PORT` is a worker that runs already, `local` (or `local:DEVICE`) one that is started
here, `ssh:DESTINATION` one that is started there and reached through the same ssh connection. The protocol has no
password, so those that are started listen on loopback alone. Each is asked for its protocol version before it is used
(RPC_CMD_HELLO of llama.cpp's ggml-rpc.cpp).
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_launch.errors import ProfileError, ServerStartError
from llama_launch.failure import failure_in
from llama_launch.preflight import free_port
from llama_launch.server_process import ServerProcess

__all__ = ["WorkerSpec", "Workers", "planned_endpoints", "read_workers", "start_workers", "worker_version"]

_HELLO = 14
# Builds before conn_caps send nothing behind the command, later ones their capabilities.
_HELLO_SIZES = (0, 24)
_ANSWER_S = 3.0
_START_S = 60.0
_POLL_S = 0.05
_LOOPBACK = "127.0.0.1"
_PROGRAMS = ("ggml-rpc-server", "rpc-server")
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})")
_LOCAL = re.compile(r"local(?::(?P<device>[A-Za-z0-9_.-]+))?")
# No destination may begin with a dash: ssh would take it for an option.
_SSH = re.compile(r"ssh:(?P<destination>[A-Za-z0-9_][A-Za-z0-9._@-]*)")


@dataclass(frozen=True)
class WorkerSpec:
    """One entry of a profile's `rpc`.

    Attributes:
        text: The entry.
        endpoint: HOST:PORT of one that runs already, else empty.
        device: The device of one that is started here, or empty for all.
        destination: Where ssh starts it, or empty.
    """

    text: str
    endpoint: str = ""
    device: str = ""
    destination: str = ""


def read_workers(entries: Sequence[str]) -> list[WorkerSpec]:
    """The workers that a profile names.

    Raises:
        ProfileError: An entry is none of the three forms.
    """
    return [_spec(entry) for entry in entries]


def _spec(entry: str) -> WorkerSpec:
    if found := _LOCAL.fullmatch(entry):
        return WorkerSpec(entry, device=found["device"] or "")
    if found := _SSH.fullmatch(entry):
        return WorkerSpec(entry, destination=found["destination"])
    if (found := _HOST_PORT.fullmatch(entry)) and 0 < int(found["port"]) < 65536:
        return WorkerSpec(entry, endpoint=entry)
    raise ProfileError(
        f"rpc: {entry!r} names no worker",
        hint='"HOST:PORT" of one that runs, "local", "local:CUDA1" or "ssh:USER@HOST"',
    )


def planned_endpoints(entries: Sequence[str]) -> tuple[str, ...]:
    """What `--rpc` would be given, with stand-ins for ports that only a start knows.

    Raises:
        ProfileError: An entry is none of the three forms.
    """
    specs = read_workers(entries)
    return tuple(spec.endpoint or f"{_LOOPBACK}:{50052 + place}" for place, spec in enumerate(specs))


def worker_version(endpoint: str, timeout_s: float = _ANSWER_S) -> str | None:
    """The protocol version of the worker at HOST:PORT, None when no worker answers there."""
    host, _, port = endpoint.rpartition(":")
    for size in _HELLO_SIZES:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as connection:
                connection.sendall(struct.pack("<BQ", _HELLO, size) + bytes(size))
                answer = _received(connection, 11)
        except OSError:
            continue
        if len(answer) == 11 and 3 <= struct.unpack_from("<Q", answer)[0] <= 64:
            return ".".join(map(str, answer[8:11]))
    return None


def _received(connection: socket.socket, n_bytes: int) -> bytes:
    found = b""
    while len(found) < n_bytes and (more := connection.recv(n_bytes - len(found))):
        found += more
    return found


class Workers:
    """The workers of one server: those that were started end with `stop`."""

    def __init__(self) -> None:
        self.endpoints: tuple[str, ...] = ()
        self._started: dict[str, ServerProcess] = {}

    def add(self, endpoint: str, process: ServerProcess | None = None) -> None:
        """Take a worker in."""
        self.endpoints = (*self.endpoints, endpoint)
        if process is not None:
            self._started[endpoint] = process

    def started(self, endpoint: str) -> ServerProcess | None:
        """The process of a worker that was started here, None for one that ran already."""
        return self._started.get(endpoint)

    def stop(self) -> None:
        """End those that were started here."""
        for process in self._started.values():
            process.release()


def start_workers(entries: Sequence[str], run_dir: Path, say: Callable[[str], None]) -> Workers:
    """Start the workers that are to be started, and make sure that each answers.

    Args:
        entries: A profile's `rpc`.
        run_dir: Receives their logs.
        say: Receives a line for each.

    Raises:
        ProfileError: An entry is none of the three forms.
        ServerStartError: A worker does not answer; those that were started are gone.
    """
    workers = Workers()
    try:
        for number, spec in enumerate(read_workers(entries)):
            endpoint = spec.endpoint
            log_path = run_dir / f"worker-{number}.log"
            if not endpoint:
                port = free_port(_LOOPBACK)
                endpoint = f"{_LOOPBACK}:{port}"
                workers.add(endpoint, _started(_command(spec, port), log_path))
            else:
                workers.add(endpoint)
            version = _wait_for(spec, endpoint, workers, log_path)
            say(f"worker {spec.text} answers at {endpoint}, protocol {version}")
    except BaseException:
        workers.stop()
        raise
    return workers


def _command(spec: WorkerSpec, port: int) -> list[str]:
    serving = ["-H", _LOOPBACK, "-p", str(port)]
    if spec.destination:
        forward = f"{port}:{_LOOPBACK}:{port}"
        # A terminal (-tt) there: when this connection ends, the worker is hung up on.
        options = ["-tt", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-L", forward]
        return [_found("ssh"), *options, spec.destination, "--", _PROGRAMS[0], *serving]
    return [_local_program(), *serving, *(["-d", spec.device] if spec.device else [])]


def _local_program() -> str:
    named = os.environ.get("GGML_RPC_SERVER")
    found = next((path for name in ([named] if named else _PROGRAMS) if (path := shutil.which(name))), None)
    if found is None:
        raise ServerStartError(
            f"{named or _PROGRAMS[0]} is not installed",
            hint="build llama.cpp with -DGGML_RPC=ON, or set GGML_RPC_SERVER=PATH",
        )
    return found


def _found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ServerStartError(
            f"{name} is not installed", hint=f"install {name}, or name a worker that runs: HOST:PORT"
        )
    return path


def _started(command: Sequence[str], log_path: Path) -> ServerProcess:
    return ServerProcess(command, log_path=log_path, header="", ready=r"endpoint +: ", log_max_mib=16, log_keep=1)


def _wait_for(spec: WorkerSpec, endpoint: str, workers: Workers, log_path: Path) -> str:
    deadline = time.monotonic() + _START_S
    process = workers.started(endpoint)
    while True:
        version = worker_version(endpoint)
        if version is not None:
            return version
        if process is None:
            raise ServerStartError(f"no ggml-rpc-server answers at {endpoint}", hint="start it there, or correct rpc")
        if not process.is_alive() or time.monotonic() > deadline:
            failure = failure_in(log_path)
            raise ServerStartError(
                f"worker {spec.text} does not answer: {failure.message}", log_path=log_path, hint=f"read {log_path}"
            )
        process.wait_for_news(_POLL_S)
