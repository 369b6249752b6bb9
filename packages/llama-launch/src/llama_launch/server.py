"""Starting, watching and stopping one server; external and embedded behind one interface.

Ready means that the log says so *and* /health answers on the server's port while the process lives, so that somebody
else's server on the same port is never mistaken for this one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import vram_report

from llama_launch.client import Client, read_api_keys
from llama_launch.default_model import fetch_default_model
from llama_launch.embedded import embedded_argv, embedded_version
from llama_launch.errors import FlagsRefused, ServerStartError, ServerUnreachable
from llama_launch.flags import check_flags, owned_flags, read_help, server_argv
from llama_launch.leash import leashed
from llama_launch.preflight import ModelFile, check_port, footguns, free_port, read_model, writable_folder
from llama_launch.profile import DEFAULT_MODEL, Profile

__all__ = ["Backend", "RunningServer", "find_llama_server", "planned_argv", "start_server"]

Backend = Literal["auto", "embedded", "external"]

_GRACE_S = 2.0
_POLL_S = 0.05
_PROGRESS_EVERY_S = 2.0
_READY = re.compile(rb"listening on http|all slots are idle|embedded server at")
_ERROR_LINE = re.compile(r"^(?:[\d.]+ )?E |error|failed|out of memory|invalid", re.IGNORECASE)
_PORT_TAKEN = re.compile(rb"couldn't bind (?:HTTP )?server socket|[Aa]ddress already in use")
_PORT_ATTEMPTS = 3
# What a start is doing, by the last of these that the log holds.
_STAGES = (
    ("starting", re.compile(rb"")),
    ("loading the model", re.compile(rb"load_model: loading model|loaded meta data with")),
    ("making the context", re.compile(rb"constructing llama_context")),
    ("warming up", re.compile(rb"warming up the model")),
)


class _PortTaken(ServerStartError):
    """Another program took the port between the choice and the start."""


@dataclass(frozen=True)
class _Choice:
    """Which server is started: its kind, the program of an external one, and what it says of its version."""

    kind: Literal["embedded", "external"]
    executable: Path | None
    version: str | None


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
    """

    url: str
    pid: int
    log_path: Path
    backend: Literal["embedded", "external"]
    version: str | None
    profile: Profile
    model_path: Path
    client: Client
    _process: subprocess.Popen[bytes] = field(repr=False)
    _leash_fd: int | None = field(repr=False)

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the server to end by itself; returns its exit status.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """End the server and all its processes: SIGTERM, then SIGKILL after a grace period. Safe to call twice."""
        _release(self._process, self._leash_fd)
        self._leash_fd = None


def find_llama_server() -> Path | None:
    """The external server: $LLAMA_SERVER, else `llama-server` on PATH, else None.

    Raises:
        ServerStartError: $LLAMA_SERVER names no program.
    """
    named = os.environ.get("LLAMA_SERVER")
    found = shutil.which(named or "llama-server")
    if named and not found:
        raise ServerStartError(f"LLAMA_SERVER={named}: no such program", hint="correct it, or unset it")
    return Path(found).absolute() if found else None


def start_server(
    profile: Profile,
    *,
    run_dir: Path,
    backend: Backend = "auto",
    progress: Callable[[str], None] | None = None,
    timeout_s: float = 600.0,
) -> RunningServer:
    """Start a server and wait until it is ready.

    Args:
        profile: How to start it.
        run_dir: Receives `server.log` and the folder of saved slots.
        backend: `external` (llama-server on PATH), `embedded` (the xllamacpp wheel), or `auto`: the first there is.
        progress: Receives a line every few seconds.
        timeout_s: How long it may take to become ready.

    Raises:
        ModelError: There is no model file.
        FlagsRefused: The installed server does not take a flag of the profile.
        ServerStartError: No server is installed, or it did not become ready; names the cause and the log.
    """
    say = progress or (lambda line: None)
    choice = _choose(backend, say)
    model = _model(profile, say)
    for footgun in footguns(profile, n_ctx_train=model.n_ctx_train):
        say(f"warning: {footgun.message} [{footgun.code}]")
    writable_folder(run_dir)
    if profile.port:
        check_port(profile.host, profile.port)
    for attempt in range(1 if profile.port else _PORT_ATTEMPTS):
        port = profile.port or free_port(profile.host)
        try:
            return _start(choice, profile, model.path, port, run_dir, say, timeout_s)
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
    choice = _choose(backend, lambda line: None)
    name = "DEFAULT-MODEL.gguf" if profile.model == DEFAULT_MODEL else profile.model
    slots = Path(profile.root) / "RUN" / "slots" if profile.slot_save else None
    argv = _command(choice, profile, Path(name).expanduser(), profile.port or 8080, slots)
    _check_flags(choice, profile, argv)
    return argv


def _start(
    choice: _Choice,
    profile: Profile,
    model: Path,
    port: int,
    run_dir: Path,
    say: Callable[[str], None],
    timeout_s: float,
) -> RunningServer:
    slot_save_path = writable_folder(run_dir / "slots") if profile.slot_save else None
    argv = _command(choice, profile, model, port, slot_save_path)
    _check_flags(choice, profile, argv)
    client = Client(f"http://{_in_url(profile.host)}:{port}", api_key=_api_key(profile))
    log_path = run_dir / "server.log"
    version = choice.version or "of unknown version"
    say(f"starting {choice.kind} server {version} with {model.name}, {profile.n_slots} slots, log {log_path}")
    process, leash_fd = _spawn(argv, log_path, f"# {choice.kind} server {version}\n# {shlex.join(argv)}\n")
    server = RunningServer(
        client.base_url, process.pid, log_path, choice.kind, choice.version, profile, model, client, process, leash_fd
    )
    try:
        _wait_until_ready(server, say, timeout_s)
    except BaseException:
        server.stop()
        raise
    return server


def _command(choice: _Choice, profile: Profile, model: Path, port: int, slot_save_path: Path | None) -> list[str]:
    if choice.executable is not None:
        return server_argv(choice.executable, profile, model=model, port=port, slot_save_path=slot_save_path)
    return embedded_argv(profile, model=model, port=port, slot_save_path=slot_save_path)


def _check_flags(choice: _Choice, profile: Profile, argv: list[str]) -> None:
    """Hold the command line against the external server's own help; one that prints none is not checked."""
    known = {} if choice.executable is None else read_help(_said_by(choice.executable, "--help"))
    problems = owned_flags(profile.extra_flags) or (check_flags(argv[1:], known) if known else [])
    if problems:
        raise FlagsRefused(
            f"{choice.executable}: " + "; ".join(problem.message for problem in problems),
            flags=tuple(problem.flag for problem in problems),
            hint="; ".join(problem.hint for problem in problems),
        )


def _model(profile: Profile, say: Callable[[str], None]) -> ModelFile:
    if profile.model == DEFAULT_MODEL:
        return read_model(fetch_default_model(say))
    return read_model(Path(profile.model).expanduser(), profile.model_source)


def _api_key(profile: Profile) -> str | None:
    return read_api_keys(Path(profile.api_key_file))[0] if profile.api_key_file else None


def _in_url(host: str) -> str:
    """The host as an address to call: a server that listens everywhere is called on the loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _choose(backend: Backend, say: Callable[[str], None]) -> _Choice:
    executable = None if backend == "embedded" else find_llama_server()
    if executable is not None:
        return _Choice("external", executable, _external_version(executable))
    if backend == "external":
        raise ServerStartError("llama-server is not on PATH", hint="install llama.cpp, or set LLAMA_SERVER=PATH")
    version = embedded_version()
    if version is None:
        raise ServerStartError(
            "no llama-server on PATH, and the embedded server is not installed",
            hint="pip install 'llama-launch[embedded]'",
        )
    if backend == "auto":
        say("no llama-server on PATH: using the embedded server")
    return _Choice("embedded", None, version)


def _external_version(executable: Path) -> str | None:
    """One line: what `--version` says of the version, without its label and its compiler."""
    match = re.search(r"^version: *(.+)$", _said_by(executable, "--version"), re.MULTILINE)
    return _printable(match.group(1).strip()) if match else None


def _said_by(executable: Path, flag: str) -> str:
    try:
        done = subprocess.run(
            [executable, flag], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")


def _spawn(argv: list[str], log_path: Path, header: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start `argv` on a leash, in a session of its own; returns it and the end of the pipe to hold."""
    read_fd, write_fd = os.pipe()
    try:
        with log_path.open("wb") as log:
            log.write(header.encode("utf-8", "surrogateescape"))
            log.flush()
            process = subprocess.Popen(
                leashed(argv, read_fd, _GRACE_S),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[read_fd],
                start_new_session=True,
            )
    except OSError as error:
        os.close(write_fd)
        raise ServerStartError(f"cannot start {argv[0]}: {error}", log_path=log_path) from error
    finally:
        os.close(read_fd)
    return process, write_fd


def _release(process: subprocess.Popen[bytes], leash_fd: int | None) -> None:
    if leash_fd is not None:
        os.close(leash_fd)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S + 1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(server: RunningServer, say: Callable[[str], None], timeout_s: float) -> None:
    started = said = time.monotonic()
    while True:
        is_alive = server.is_alive()
        log = server.log_path.read_bytes()
        if not is_alive:
            if _PORT_TAKEN.search(log):
                raise _PortTaken(f"port {server.url.rpartition(':')[2]} is in use", log_path=server.log_path)
            raise _start_error(server, f"the server ended with status {server.wait()}", log)
        if _READY.search(log) and _is_healthy(server.client):
            say(f"ready at {server.url} after {time.monotonic() - started:.1f} s")
            return
        now = time.monotonic()
        if now - started > timeout_s:
            raise _start_error(server, f"the server was not ready after {now - started:.0f} s", log)
        if now - said >= _PROGRESS_EVERY_S:
            stage = [name for name, sign in _STAGES if sign.search(log)][-1]
            say(f"{stage} ({now - started:.0f} s)")
            said = now
        time.sleep(_POLL_S)


def _is_healthy(client: Client) -> bool:
    try:
        return client.is_healthy()
    except ServerUnreachable:
        return False


def _start_error(server: RunningServer, what: str, log: bytes) -> ServerStartError:
    cause = _failure_in(server.log_path) or _last_error(log)
    return ServerStartError(f"{what}: {cause}", log_path=server.log_path, hint=f"read {server.log_path}")


def _failure_in(log_path: Path) -> str | None:
    """The failure that vram-report reads from the log: which allocation, file or setting."""
    try:
        runs = vram_report.read_log(log_path).runs
    except vram_report.VRAMReportError:
        return None
    failures = [run.failure for run in runs if run.failure is not None]
    return f"{failures[-1].message} (line {failures[-1].line})" if failures else None


def _last_error(log: bytes) -> str:
    """The last line of the log that looks like an error, else its last line; control characters visible."""
    text = log.decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("# ")]
    errors = [line for line in lines if _ERROR_LINE.search(line)]
    chosen = (errors or lines or ["it said nothing"])[-1].strip()
    return _printable(chosen)[:400]


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
