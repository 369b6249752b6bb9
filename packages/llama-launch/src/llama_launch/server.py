"""Starting, watching and stopping one server; external and embedded behind one interface.

Ready means that the log says so *and* /health answers on the server's port while the process lives, so that somebody
else's server on the same port is never mistaken for this one.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Literal

import vram_report

from llama_launch.backend import Backend, ServerChoice, choosing
from llama_launch.client import Client, read_api_keys
from llama_launch.default_model import fetch_default_model
from llama_launch.embedded import embedded_argv
from llama_launch.errors import DoesNotFit, FlagsRefused, ServerStartError
from llama_launch.failure import failure_in
from llama_launch.fit import fit_of, free_gpu_mib, visible_gpus
from llama_launch.flags import check_flags, owned_flags, server_argv
from llama_launch.preflight import ModelFile, check_port, footguns, free_port, read_model, writable_folder
from llama_launch.profile import DEFAULT_MODEL, Profile
from llama_launch.server_process import ServerProcess
from llama_launch.workers import Workers, planned_endpoints, start_workers

__all__ = ["RunningServer", "planned_argv", "start_server"]

_POLL_S = 0.05
_HEALTH_S = 10.0
_PROGRESS_EVERY_S = 2.0
_PORT_ATTEMPTS = 3
_EMBEDDED_READY = "embedded server at"
# What a person reads of a stage whose name in vram-report is short.
_STAGE_NAMES = {"loading": "loading the model", "fitting": "fitting into memory"}


class _PortTaken(ServerStartError):
    """Another program took the port between the choice and the start."""


@dataclass
class RunningServer:
    """A server that this process started; a context manager that stops it.

    Attributes:
        url: Its address without `/v1`.
        pid: Process id of the leash that it runs on, which is the leader of its process group.
        log_path: Its output, llama.cpp's log.
        backend: `embedded` or `external`.
        version: What runs: the wheel's or the executable's version, None when it does not say.
        profile: How it was started.
        model_path: The model file.
        client: Typed calls to it.
        argv: Its command line.
    """

    url: str
    pid: int
    log_path: Path
    backend: Literal["embedded", "external"]
    version: str | None
    profile: Profile
    model_path: Path
    client: Client
    argv: tuple[str, ...]
    _process: ServerProcess = field(repr=False)
    _workers: Workers = field(repr=False)

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    def fileno(self) -> int:
        """A file descriptor that becomes readable when the server ends, for select(); -1 once it is stopped."""
        return self._process.fileno()

    def has_lost_log(self) -> bool:
        """Whether lines of the log could not be written, as on a full disk."""
        return self._process.has_said("lost")

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the server to end by itself; returns its exit status.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """End the server and all its processes: SIGTERM, then SIGKILL after a grace period. Safe to call twice."""
        self._process.release()
        self._workers.stop()


def start_server(
    profile: Profile,
    *,
    run_dir: Path,
    backend: Backend = "auto",
    progress: Callable[[str], None] | None = None,
    timeout_s: float = 600.0,
    force: bool = False,
) -> RunningServer:
    """Start a server and wait until it is ready.

    Args:
        profile: How to start it.
        run_dir: Receives `server.log` and the folder of saved slots.
        backend: `external` (llama-server on PATH), `embedded` (the xllamacpp wheel), or `auto`: the first there is.
        progress: Receives a line every few seconds.
        timeout_s: How long it may take to become ready.
        force: Start it although the GPUs lack the memory that it is predicted to take.

    Raises:
        ModelError: There is no model file.
        DoesNotFit: The GPUs lack the memory, and `force` is not given.
        FlagsRefused: The installed server does not take a flag of the profile.
        ServerStartError: No server is installed, or it did not become ready; names the cause and the log.
    """
    say = progress or (lambda line: None)
    with choosing(backend, say) as chosen:
        model = _model(profile, say)
        choice = chosen()
    for footgun in footguns(profile, model=model.summary, is_embedded=choice.executable is None):
        say(f"warning: {footgun.message} [{footgun.code}]")
    writable_folder(run_dir)
    if profile.port:
        check_port(profile.host, profile.port)
    for attempt in range(1 if profile.port else _PORT_ATTEMPTS):
        port = profile.port or free_port(profile.host)
        try:
            return _start(choice, profile, model, port, run_dir, say, timeout_s, force)
        except _PortTaken as taken:
            error = taken
            say(f"port {port} was taken by another program meanwhile (attempt {attempt + 1})")
    raise error


def planned_argv(profile: Profile, backend: Backend = "auto") -> list[str]:
    """The command line that `start_server` would run, with stand-ins for what only a start knows.

    Raises:
        FlagsRefused: The installed server does not take these flags.
        ServerStartError: No server is installed.
    """
    with choosing(backend, lambda line: None) as chosen:
        choice = chosen()
    name = "DEFAULT-MODEL.gguf" if profile.model == DEFAULT_MODEL else profile.model
    slots = Path(profile.root) / "RUN" / "slots" if profile.slot_save else None
    planned = replace(profile, rpc=planned_endpoints(profile.rpc))
    argv = _command(choice, planned, Path(name).expanduser(), profile.port or 8080, slots)
    _check_flags(choice, profile, argv)
    return argv


def _start(
    choice: ServerChoice,
    profile: Profile,
    model: ModelFile,
    port: int,
    run_dir: Path,
    say: Callable[[str], None],
    timeout_s: float,
    force: bool,
) -> RunningServer:
    slot_save_path = writable_folder(run_dir / "slots") if profile.slot_save else None
    planned = replace(profile, rpc=planned_endpoints(profile.rpc))
    argv = _command(choice, planned, model.path, port, slot_save_path)
    _check_flags(choice, profile, argv)
    if choice.executable is not None:
        _check_fit(choice, profile, model, argv, say, force)
    workers = start_workers(profile.rpc, run_dir, say)
    argv = _command(choice, replace(profile, rpc=workers.endpoints), model.path, port, slot_save_path)
    client = Client(f"http://{_in_url(profile.host)}:{port}", api_key=_api_key(profile))
    log_path = run_dir / "server.log"
    version = choice.version or "of unknown version"
    say(f"starting {choice.kind} server {version} with {model.path.name}, {profile.n_slots} slots, log {log_path}")
    try:
        process = ServerProcess(
            argv,
            log_path=log_path,
            header=f"# {choice.kind} server {version}\n# {shlex.join(argv)}\n",
            ready=f"{vram_report.READY_REGEX}|{_EMBEDDED_READY}",
            log_max_mib=profile.log_max_mib,
            log_keep=profile.log_keep,
            environment={**os.environ, "CUDA_VISIBLE_DEVICES": profile.gpus} if profile.gpus else None,
        )
    except BaseException:
        workers.stop()
        raise
    server = RunningServer(
        client.base_url,
        process.pid,
        log_path,
        choice.kind,
        choice.version,
        profile,
        model.path,
        client,
        tuple(argv),
        process,
        workers,
    )
    try:
        _wait_until_ready(server, process, say, timeout_s)
    except BaseException:
        server.stop()
        raise
    return server


def _command(choice: ServerChoice, profile: Profile, model: Path, port: int, slot_save_path: Path | None) -> list[str]:
    if choice.executable is not None:
        return server_argv(choice.executable, profile, model=model, port=port, slot_save_path=slot_save_path)
    return embedded_argv(profile, model=model, port=port, slot_save_path=slot_save_path)


def _check_flags(choice: ServerChoice, profile: Profile, argv: list[str]) -> None:
    """Hold the command line against the external server's own help; one that prints none is not checked."""
    known = choice.known_flags
    problems = owned_flags(profile.extra_flags) or (check_flags(argv[1:], known) if known else [])
    if problems:
        raise FlagsRefused(
            f"{choice.executable}: " + "; ".join(problem.message for problem in problems),
            flags=tuple(problem.flag for problem in problems),
            hint="; ".join(problem.hint for problem in problems),
        )


def _check_fit(
    choice: ServerChoice, profile: Profile, model: ModelFile, argv: list[str], say: Callable[[str], None], force: bool
) -> None:
    """Hold gguf-info's prediction against the free memory of the GPUs that the server will see."""
    free_mib = free_gpu_mib(visible_gpus(profile))
    if not free_mib or profile.rpc:  # what workers have free, nobody here knows
        return
    fit = fit_of(profile, model.summary, argv[1:], free_mib, choice.build)
    for line in fit.lines:
        say(line)
    if fit.fits is not False:
        return
    remedies = ", or ".join(fit.remedies)
    if not force:
        raise DoesNotFit(
            "the GPUs lack the memory: " + "; ".join(fit.lines),
            hint=f"{remedies}; --force starts it all the same" if remedies else "--force starts it all the same",
        )
    say(f"warning: it is predicted not to fit; {remedies} would [does-not-fit]")


def _model(profile: Profile, say: Callable[[str], None]) -> ModelFile:
    if profile.model == DEFAULT_MODEL:
        return read_model(fetch_default_model(say))
    return read_model(Path(profile.model).expanduser(), profile.model_source)


def _api_key(profile: Profile) -> str | None:
    return read_api_keys(Path(profile.api_key_file))[0] if profile.api_key_file else None


def _callable_host(host: str) -> str:
    """The host to call: a server that listens everywhere is called on the loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _in_url(host: str) -> str:
    host = _callable_host(host)
    return f"[{host}]" if ":" in host else host


def _wait_until_ready(
    server: RunningServer, process: ServerProcess, say: Callable[[str], None], timeout_s: float
) -> None:
    started = said = time.monotonic()
    host, port = _callable_host(server.profile.host), int(server.url.rpartition(":")[2])
    while True:
        is_alive = server.is_alive()
        if not is_alive:
            if vram_report.is_port_taken(_log_lines(server)):
                raise _PortTaken(f"port {port} is in use", log_path=server.log_path)
            raise _start_error(server, f"the server ended with status {server.wait()}")
        if process.has_said("ready") and _is_healthy(host, port):
            say(f"ready at {server.url} after {time.monotonic() - started:.1f} s")
            if server.has_lost_log():
                say(f"warning: {server.log_path} could not be written in full; make room on its disk [log-lost]")
            return
        now = time.monotonic()
        if now - started > timeout_s:
            raise _start_error(server, f"the server was not ready after {now - started:.0f} s")
        if now - said >= _PROGRESS_EVERY_S:
            say(f"{_stage(server)} ({now - started:.0f} s)")
            said = now
        process.wait_for_news(_POLL_S)


def _log_lines(server: RunningServer) -> list[str]:
    try:
        return server.log_path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except OSError:
        return []


def _stage(server: RunningServer) -> str:
    stage = vram_report.start_stage(_log_lines(server))
    return _STAGE_NAMES.get(stage, stage)


def _is_healthy(host: str, port: int) -> bool:
    """Whether /health says that the model is loaded, asked without the client, whose library takes long to load."""
    connection = HTTPConnection(host, port, timeout=_HEALTH_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _start_error(server: RunningServer, what: str) -> ServerStartError:
    failure = failure_in(server.log_path)
    remedy = f"{failure.remedy}; the log is {server.log_path}" if failure.remedy else f"read {server.log_path}"
    return ServerStartError(f"{what}: {failure.message}", log_path=server.log_path, hint=remedy, failure=failure)
