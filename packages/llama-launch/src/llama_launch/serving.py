"""One run from its request to its end: the record that others read, the supervisor, and what a person is told.

The foreground command and the supervisor of a detached run both go through `serve_run`.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llama_launch.backend import Backend
from llama_launch.client_config import DEFAULT_PROVIDER, provider_block, served_model, write_config
from llama_launch.errors import LlamaLaunchError, ServerStartError
from llama_launch.preflight import is_free, private_folder, writable_folder
from llama_launch.profile import Profile, profile_of
from llama_launch.server import RunningServer, start_server
from llama_launch.state import RunRecord, begin_run, update_run
from llama_launch.supervisor import OnOom, RestartPolicy, supervise

__all__ = ["ServeRequest", "new_run_dir", "serve_run"]

_SHOWN_CHARS = 500


@dataclass(frozen=True)
class ServeRequest:
    """What is to run.

    Attributes:
        profile: How the server is started.
        run_dir: Its folder.
        backend: Which server.
        name: The run's name; empty for the profile's.
        force: Whether it is started although the memory does not suffice.
        restarts: Whether it is started again after a crash.
        on_oom: What follows when an allocation fails.
        client_config: OpenCode's configuration file, whose limits follow the context; empty for none.
        last_port: Where the profile leaves the port open, the one to try first, so that clients find the server again.
    """

    profile: Profile
    run_dir: Path
    backend: Backend = "auto"
    name: str = ""
    force: bool = False
    restarts: bool = False
    on_oom: OnOom = "stop"
    client_config: str = ""
    last_port: int = 0

    def document(self) -> dict[str, Any]:
        """As JSON holds it; no secret is in it."""
        return {**dataclasses.asdict(self), "run_dir": str(self.run_dir)}

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> ServeRequest:
        """What `document` wrote.

        Raises:
            ProfileError: A value is not what a profile takes.
            TypeError: It is not what `document` wrote.
        """
        values = dict(document)
        values["profile"] = profile_of(values["profile"])
        values["run_dir"] = Path(values["run_dir"])
        return ServeRequest(**values)


def new_run_dir(profile: Profile) -> Path:
    """A folder of one run alone, below the root that only its owner can look into.

    Raises:
        ServerStartError: The root belongs to somebody else, or cannot be made.
    """
    root = private_folder(Path(profile.root).expanduser())
    try:
        return Path(tempfile.mkdtemp(prefix=f"{profile.name}-{time.strftime('%Y%m%d-%H%M%S')}-", dir=root))
    except OSError as error:
        raise ServerStartError(f"{root}: {error.strerror}", hint="choose another folder: --set root=DIR") from error


def serve_run(
    request: ServeRequest,
    say: Callable[[str], None],
    *,
    is_detached: bool,
    on_ready: Callable[[RunRecord], None] = lambda record: None,
) -> None:
    """Run a server until it is interrupted, or cannot be kept up.

    Args:
        request: What to run.
        say: Receives lines for a person.
        is_detached: Whether it goes on when its terminal closes.
        on_ready: Told each time that the server is ready.

    Raises:
        KeyboardInterrupt: It was interrupted; the server is stopped.
        LlamaLaunchError: It could not be started, or kept up.
    """
    writable_folder(request.run_dir)
    document = request.document()
    record = begin_run(
        request.name or request.profile.name,
        is_explicit=bool(request.name),
        is_detached=is_detached,
        profile=document.pop("profile"),
        options=document,
        run_dir=request.run_dir.absolute(),
    )
    last_port = request.last_port
    told = _Told(record, request, say, on_ready)

    def start(profile: Profile) -> RunningServer:
        nonlocal last_port
        wanted = replace(profile, port=profile.port or (last_port if is_free(profile.host, last_port) else 0))
        server = start_server(
            wanted, run_dir=request.run_dir, backend=request.backend, progress=say, force=request.force
        )
        last_port = int(server.url.rpartition(":")[2])
        return server

    try:
        supervise(request.profile, start, RestartPolicy(request.restarts, request.on_oom), told)
    except LlamaLaunchError as error:
        told.ended("failed", str(error))
        raise
    except BaseException:
        told.ended("stopped", "")
        raise


class _Told:
    """Writes what happens into the run's record, and says it."""

    def __init__(
        self,
        record: RunRecord,
        request: ServeRequest,
        say: Callable[[str], None],
        on_ready: Callable[[RunRecord], None],
    ) -> None:
        self._record, self._request, self._say, self._on_ready = record, request, say, on_ready

    def starting(self, profile: Profile, n_restarts: int, why: str) -> None:
        if why:
            self._say(f"starting again: {why}")
        self._update(
            state="restarting" if n_restarts else "starting",
            message=why[:_SHOWN_CHARS],
            n_restarts=n_restarts,
            profile=dataclasses.asdict(profile),
        )

    def ready(self, server: RunningServer) -> None:
        self._update(
            state="ready",
            url=server.url,
            model_path=str(server.model_path),
            version=server.version or "",
            argv=server.argv,
        )
        profile = server.profile
        kind = "in one pool" if profile.kv_unified else "divided"
        context = f"{profile.n_slots} x {profile.n_ctx_slot} = {profile.n_ctx} tokens of context {kind}"
        self._say(f"{server.url}  {profile.n_slots} slots, {context}")
        if self._request.client_config:
            self._tell_client(server)
        self._on_ready(self._record)

    def _tell_client(self, server: RunningServer) -> None:
        """Let OpenCode's limits follow the context; a file that cannot be written stops no server."""
        path = Path(self._request.client_config)
        try:
            served = served_model(server.client, needs_key=server.client.has_key)
            limits = served.limits()
            write_config(path, DEFAULT_PROVIDER, provider_block(served, limits))
        except LlamaLaunchError as error:
            self._say(f"warning: {error} [client-config]")
        else:
            self._say(f"{path}: OpenCode compacts at {limits.compacts_at} of {limits.context} tokens")

    def waiting(self, why: str, delay_s: float) -> None:
        self._update(state="restarting", message=why[:_SHOWN_CHARS])
        self._say(f"{why}; starting again in {delay_s:g} s")

    def ended(self, state: str, message: str) -> None:
        self._update(state=state, message=message[:_SHOWN_CHARS])

    def _update(self, **changes: Any) -> None:
        self._record = update_run(self._record, **changes)
