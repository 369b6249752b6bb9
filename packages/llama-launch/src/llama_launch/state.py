"""What runs where: one small JSON file for each run, in one folder of the user.

A run is known by its name. Its file says which process watches over it and when that process began, so that a number
which the system has given to another process since is never taken for it, and never signalled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

import platformdirs
import psutil

from llama_launch.errors import RunError
from llama_launch.small_file import read_small_file

__all__ = [
    "RunRecord",
    "RunState",
    "begin_run",
    "chosen_run",
    "end_watcher",
    "find_runs",
    "process_start",
    "state_folder",
    "update_run",
    "wait_until_ended",
]

RunState = Literal["starting", "ready", "restarting", "failed", "stopped"]
_ENDED = ("failed", "stopped")
_KEPT_ENDED = 20
_STOP_GRACE_S = 10.0
_POLL_S = 0.02
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class RunRecord:
    """One run.

    Attributes:
        name: What it is called in commands.
        pid: The process that watches over the server: the command itself, or the supervisor of a detached run.
        process_start: When that process began, as the system counts it.
        is_detached: Whether it goes on when its terminal closes.
        state: What it said last.
        message: Why, where there is something to say.
        profile: The profile's values, with the changes that were made on the way.
        options: What else the run was started with.
        run_dir: Its folder.
        log_path: The server's log.
        folder: The folder that the start was asked from.
        started_at: Local time in ISO 8601.
        url: The server's address; empty before the first readiness.
        model_path: The model file; empty before the first readiness.
        version: What runs; empty before the first readiness.
        argv: The server's command line; empty before the first readiness.
        n_restarts: How often the server was started again.
    """

    name: str
    pid: int
    process_start: str
    is_detached: bool
    state: RunState
    message: str
    profile: dict[str, Any]
    options: dict[str, Any]
    run_dir: str
    log_path: str
    folder: str
    started_at: str
    url: str = ""
    model_path: str = ""
    version: str = ""
    argv: tuple[str, ...] = ()
    n_restarts: int = 0

    @property
    def is_alive(self) -> bool:
        """Whether its watching process is there, and the same."""
        return self.state not in _ENDED and process_start(self.pid) == self.process_start


_TYPES = {
    name: str if get_origin(hint) is Literal else get_origin(hint) or hint
    for name, hint in get_type_hints(RunRecord).items()
}


def state_folder() -> Path:
    """Where the records are: `runs` in llama-launch's state folder of the user."""
    return Path(platformdirs.user_state_dir("llama-launch")) / "runs"


def process_start(pid: int) -> str | None:
    """When a process began, as text to compare; None when there is none, or it only waits to be collected.

    On Linux this is the boot and the clock tick in it, which no change of the clock moves (proc(5), `starttime`).
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if psutil.LINUX:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            return f"{boot} {stat.rpartition(')')[2].split()[19]}"
        return f"{process.create_time():.2f}"
    except (psutil.Error, OSError):
        return None


def wait_until_ended(pid: int, start: str | None, timeout_s: float) -> bool:
    """Wait until the process that began then is gone; returns whether it is.

    It may be a child of this process: its status is left for whoever started it.
    """
    deadline = time.monotonic() + timeout_s
    while start is not None and process_start(pid) == start:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def find_runs() -> list[RunRecord]:
    """All records, oldest first. What is no record is passed over: the folder may hold anything."""
    records = []
    for path in state_folder().glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            record = _record(json.loads(read_small_file(path)))
            if record.name == path.stem:
                records.append(record)
    return sorted(records, key=lambda record: (record.started_at, record.name))


def _record(values: dict[str, Any]) -> RunRecord:
    """The record that a file holds.

    Raises:
        TypeError, KeyError: It holds something else.
    """
    record = RunRecord(**{**values, "argv": tuple(values["argv"])})
    for field in dataclasses.fields(RunRecord):
        value = getattr(record, field.name)
        if type(value) is not _TYPES[field.name]:
            raise TypeError(f"{field.name}: {value!r}")
    if not 0 < record.pid < 1 << 31:
        raise TypeError(f"pid: {record.pid}")
    return record


def begin_run(
    wanted: str,
    *,
    is_explicit: bool,
    is_detached: bool,
    profile: dict[str, Any],
    options: dict[str, Any],
    run_dir: Path,
) -> RunRecord:
    """Write the record of a run that this process watches over.

    Args:
        wanted: Its name; `-2` and so on is added when a living run has it, unless it was asked for.
        is_explicit: Whether a person asked for that name.
        is_detached: Whether it goes on when its terminal closes.
        profile: The profile's values.
        options: What else it is started with.
        run_dir: Its folder.

    Raises:
        RunError: A living run has that name or that folder, it is no name, or the record cannot be written.
    """
    if not _NAME.fullmatch(wanted):
        raise RunError(f"{wanted!r} cannot be a run's name", hint="letters, digits, '.', '_' and '-'")
    try:
        with _locked():
            runs = find_runs()
            living = {record.name: record for record in runs if record.is_alive}
            _refuse_twice(living, wanted if is_explicit else None, run_dir)
            name = _free_name(wanted, set(living))
            record = RunRecord(
                name=name,
                pid=os.getpid(),
                process_start=process_start(os.getpid()) or "",
                is_detached=is_detached,
                state="starting",
                message="",
                profile=profile,
                options=options,
                run_dir=str(run_dir),
                log_path=str(run_dir / "server.log"),
                folder=str(Path.cwd()),
                started_at=time.strftime("%Y-%m-%dT%H:%M:%S"),
            )
            _write(record)
            ended = [run for run in runs if run.name not in living and run.name != name]
            for old in ended[: max(0, len(ended) - _KEPT_ENDED)]:
                _path(old.name).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot keep the record of this run in {state_folder()}: {error.strerror}",
            hint="make room there, or set XDG_STATE_HOME to a folder that can be written",
        ) from error
    return record


def update_run(record: RunRecord, **changes: Any) -> RunRecord:
    """The record with changes, written; a full disk keeps the older one on disk."""
    changed = dataclasses.replace(record, **changes)
    with contextlib.suppress(OSError):
        _write(changed)
    return changed


def chosen_run(name: str | None, *, living: bool = False) -> RunRecord:
    """The run of that name; without one, the only living run, else the last one.

    Args:
        name: The name, or None.
        living: Whether it must be alive.

    Raises:
        RunError: There is none, it has ended, or several are alive and none is named.
    """
    records = find_runs()
    alive = [record for record in records if record.is_alive]
    if name is not None:
        found = [record for record in records if record.name == name]
        if not found:
            known = ", ".join(record.name for record in records)
            raise RunError(f"no run is called {name!r}", hint=f"runs: {known}" if known else "none was ever started")
    else:
        if len(alive) > 1:
            raise RunError("several servers run", hint="name one: " + ", ".join(record.name for record in alive))
        found = alive or ([] if living else records[-1:])
        if not found:
            raise RunError("no server runs that llama-launch started", hint="llama-launch serve --detach")
    if living and not found[0].is_alive:
        raise RunError(f"{found[0].name} does not run", hint=f"llama-launch report {found[0].name} says what it was")
    return found[0]


def end_watcher(record: RunRecord) -> None:
    """End a run: SIGTERM to its watching process, SIGKILL after a grace period; its server ends with it.

    Raises:
        RunError: It belongs to another user, or is not the process that it was.
    """
    try:
        process = psutil.Process(record.pid)
        if process_start(record.pid) != record.process_start:
            raise RunError(f"{record.name} does not run")
        process.terminate()
        if not wait_until_ended(record.pid, record.process_start, _STOP_GRACE_S):
            process.kill()
            wait_until_ended(record.pid, record.process_start, _STOP_GRACE_S)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied as error:
        raise RunError(f"process {record.pid} of {record.name} belongs to another user") from error


def _refuse_twice(living: dict[str, RunRecord], name: str | None, run_dir: Path) -> None:
    if name in living:
        raise RunError(f"a run called {name!r} is alive", hint=f"llama-launch stop {name}, or choose another --name")
    for record in living.values():
        if Path(record.run_dir).resolve() == run_dir.resolve():
            raise RunError(f"{run_dir} is the folder of {record.name}, which runs", hint="choose another --run-dir")


def _free_name(wanted: str, taken: set[str]) -> str:
    names = (wanted if number == 1 else f"{wanted}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def _path(name: str) -> Path:
    return state_folder() / f"{name}.json"


def _write(record: RunRecord) -> None:
    """Whole or not at all: a reader never sees half a record."""
    folder = state_folder()
    fd, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            json.dump(dataclasses.asdict(record), stream, indent=2)
        Path(temporary).replace(_path(record.name))
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One process at a time: two starts at once must not both find a name free."""
    folder = state_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
