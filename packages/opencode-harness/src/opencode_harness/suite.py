"""A whole run: start a server, run scenarios against it with pytest, then report what the server used.

A run has one folder, outside of any git repository (OpenCode would take the repository for the project):

    RUN/server/          the server's log and slot files
    RUN/trials/NAME0/    one folder a scenario; its artefacts/ hold screens, recording, logs and result.json
"""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf_info
import llama_launch
import vram_report

from opencode_harness.errors import HarnessError
from opencode_harness.pytest_plugin import run_scenarios

__all__ = ["ServerChoice", "SuiteSpec", "new_run_folder", "run_suite"]


@dataclass(frozen=True)
class ServerChoice:
    """Which server a run uses.

    Attributes:
        url: Address of a server that runs already, or None to start one.
        backend: `auto`, `embedded` or `external`, for one that is started.
        profile: Name or path of the llama-launch profile, for one that is started.
        api_key_file: File with the key of a server that runs already, if it asks for one.
    """

    url: str | None
    backend: llama_launch.Backend
    profile: str
    api_key_file: Path | None = None


@dataclass(frozen=True)
class SuiteSpec:
    """What to run.

    Attributes:
        scenarios: Files and folders.
        server: Which server.
        opencode: The executable.
        run_dir: The run's folder, new or empty.
        pytest_arguments: Passed on to pytest.
    """

    scenarios: Sequence[Path]
    server: ServerChoice
    opencode: Path
    run_dir: Path
    pytest_arguments: Sequence[str] = ()


def new_run_folder() -> Path:
    """A fresh run folder below the system's temporary folder, readable by its owner alone.

    Raises:
        HarnessError: The folder of all runs belongs to somebody else, or cannot be made.
    """
    home = Path(tempfile.gettempdir()) / f"opencode-harness-{os.getuid()}"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        if home.is_symlink() or home.stat().st_uid != os.getuid():
            raise HarnessError(f"{home} belongs to another user", hint="choose a folder: --run-dir DIR")
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-")
        return Path(tempfile.mkdtemp(prefix=stamp, dir=home))
    except OSError as error:
        raise HarnessError(f"cannot make {home}: {error.strerror}", hint="choose a folder: --run-dir DIR") from error


def run_suite(spec: SuiteSpec, say: Callable[[str], None]) -> int:
    """Run scenarios and report; returns the exit status.

    Args:
        spec: What to run.
        say: Receives lines for the person at the keyboard.

    Raises:
        HarnessError: The run could not begin.
        llama_launch.LlamaLaunchError: The server could not be started.
    """
    try:
        with _server(spec, say) as server:
            url = spec.server.url if server is None else server.url
            status = run_scenarios(
                spec.scenarios,
                run_dir=spec.run_dir,
                server_url=str(url),
                opencode=spec.opencode,
                api_key_file=spec.server.api_key_file if server is None else _key_file(server),
                more=spec.pytest_arguments,
            )
        if server is not None:
            _report(server, say)
    finally:
        say(f"logs and screens: {spec.run_dir}")
    return status


@contextlib.contextmanager
def _server(spec: SuiteSpec, say: Callable[[str], None]) -> Iterator[llama_launch.RunningServer | None]:
    """The server that this run starts, or None when one was named."""
    if spec.server.url is not None:
        _look_at(spec.server, say)
        yield None
        return
    profile = llama_launch.load_profile(spec.server.profile)
    run_dir = spec.run_dir / "server"
    run_dir.mkdir(parents=True, exist_ok=True)
    with llama_launch.start_server(profile, run_dir=run_dir, backend=spec.server.backend, progress=say) as server:
        yield server


def _look_at(choice: ServerChoice, say: Callable[[str], None]) -> None:
    """Say so at once when the server that was named is not there: only scenarios with turns can do without it."""
    key = llama_launch.read_api_keys(choice.api_key_file)[0] if choice.api_key_file else None
    try:
        is_healthy = llama_launch.Client(str(choice.url), key).is_healthy()
    except llama_launch.LlamaLaunchError as error:
        say(f"warning: {error}; scenarios without turns will fail")
        return
    if not is_healthy:
        say(f"warning: the server at {choice.url} is not ready; scenarios without turns may fail")


def _key_file(server: llama_launch.RunningServer) -> Path | None:
    return Path(server.profile.api_key_file) if server.profile.api_key_file else None


def _report(server: llama_launch.RunningServer, say: Callable[[str], None]) -> None:
    """What the server used, from its log, and what its model is, from its file."""
    say(f"\nVRAM report of {server.log_path}")
    say(vram_report.render_tables(vram_report.read_log(server.log_path)))
    say(f"\nModel {server.model_path}")
    say(gguf_info.render_tables(gguf_info.read_summary(server.model_path)))
