"""A whole run: start servers, run scenarios against them with pytest, then report what happened and what was used.

A run has one folder, outside of any git repository (OpenCode would take the repository for the project):

    RUN/server/          the server's log and slot files
    RUN/trials/…/NAME0/  one folder an attempt; its artefacts/ hold screens, recording, logs and result.json
    RUN/run.json         every attempt, rates over repetitions
    RUN/junit.xml        the same for CI
    RUN/report.html      the same for a person, with the recordings

With several profiles there is one such pair of folders for each, below RUN/PROFILE/.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf_info
import llama_launch
import vram_report

from opencode_harness.answer_source import choose_source
from opencode_harness.errors import HarnessError
from opencode_harness.html_report import render_html
from opencode_harness.isolation import version_in_isolation
from opencode_harness.outcomes import POLICIES, Outcome, exit_code
from opencode_harness.run_document import TrialRecord, run_document, summary_lines, write_run_document
from opencode_harness.scenario import Scenario, load_scenario
from opencode_harness.session import SessionSpec, run_session
from opencode_harness.slots import WarmCache, check_cold
from opencode_harness.whole_file import write_whole
from opencode_harness.workspace import check_place

__all__ = ["ServerChoice", "SuiteSpec", "key_file_of", "new_run_folder", "run_suite", "select", "the_server"]

# Three prompts on two cores.
_PROBE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class ServerChoice:
    """Which server a run uses.

    Attributes:
        url: Address of a server that runs already, or None to start one.
        backend: `auto`, `embedded` or `external`, for one that is started.
        profiles: Names or paths of the llama-launch profiles to start, one after the other.
        api_key_file: File with the key of a server that runs already, if it asks for one.
        log: The log of a server that runs already, if it is at hand.
        is_wanted: Whether there may be a server at all.
    """

    url: str | None
    backend: llama_launch.Backend
    profiles: Sequence[str]
    api_key_file: Path | None = None
    log: Path | None = None
    is_wanted: bool = True


@dataclass(frozen=True)
class SuiteSpec:
    """What to run.

    Attributes:
        server: Which server.
        session: How scenarios are run; its folder is the run's, new or empty, and its server is this run's to name.
    """

    server: ServerChoice
    session: SessionSpec


def select(paths: Sequence[Path], tags: Sequence[str], skipped_tags: Sequence[str]) -> list[Scenario]:
    """The scenarios that carry one of the tags, and none of those to skip; without tags all of them."""
    scenarios = [load_scenario(path) for path in paths]
    return [
        scenario
        for scenario in scenarios
        if (not tags or set(tags) & set(scenario.tags)) and not set(skipped_tags) & set(scenario.tags)
    ]


def new_run_folder() -> Path:
    """A fresh run folder below the system's temporary folder, readable by its owner alone.

    Raises:
        HarnessError: The folder of all runs belongs to somebody else, cannot be made, or lies where OpenCode would
            read what is no trial's.
    """
    home = Path(tempfile.gettempdir()) / f"opencode-harness-{os.getuid()}"
    check_place(home)
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        if home.is_symlink() or home.stat().st_uid != os.getuid():
            raise HarnessError(f"{home} belongs to another user", hint="choose a folder: --run-dir DIR")
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-")
        return Path(tempfile.mkdtemp(prefix=stamp, dir=home))
    except OSError as error:
        raise HarnessError(f"cannot make {home}: {error.strerror}", hint="choose a folder: --run-dir DIR") from error


def run_suite(spec: SuiteSpec, say: Callable[[str], None]) -> int:
    """Run scenarios and report; returns the exit status, which the worst outcome decides.

    Args:
        spec: What to run.
        say: Receives lines for the person at the keyboard.

    Raises:
        HarnessError: The run could not begin.
        llama_launch.LlamaLaunchError: The server could not be started.
    """
    started, zero_s = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    trials: list[TrialRecord] = []
    servers: list[dict[str, Any]] = []
    version = version_in_isolation(spec.session.opencode)
    try:
        for session, server in _sessions(spec, say):
            trials += [_below(spec.session.folder, session, trial) for trial in run_session(session)]
            if server is not None:
                _report(server, say)
            servers.append(_about(session, server))
    finally:
        about = {
            "started": started.isoformat(timespec="seconds"),
            "duration_s": round(time.monotonic() - zero_s, 3),
            "opencode": version,
            "kv_mode": spec.session.kv_mode,
            "servers": servers,
        }
        unwritten = _write_reports(spec.session.folder, trials, about)
        say("")
        for line in summary_lines(trials):
            say(line)
        say(unwritten or f"report: {spec.session.folder / 'report.html'}")
        say(f"logs and screens: {spec.session.folder}")
    if unwritten:
        raise HarnessError(unwritten, hint="free some space there, or name another run folder")
    last = [trial for trial in trials if trial.is_last]
    if spec.session.oracle == "nothing":
        return _nothing_done(last, say)
    return exit_code(trial.outcome for trial in last)


def _write_reports(run_dir: Path, trials: Sequence[TrialRecord], about: dict[str, Any]) -> str:
    """Write run.json and report.html; says why that could not be done, and hides no other error by its own."""
    try:
        write_run_document(run_dir / "run.json", run_document(trials, about))
        write_whole(run_dir / "report.html", render_html(trials, about, run_dir))
    except OSError as error:
        return f"the reports could not be written in {run_dir}: {error.strerror or error}"
    return ""


def _nothing_done(trials: Sequence[TrialRecord], say: Callable[[str], None]) -> int:
    """The exit status of a run in which nothing was done: what passed all the same proves nothing."""
    for trial in trials:
        if trial.outcome is Outcome.PASS:
            say(f"{trial.scenario}: passes though nothing was done; expect something of it that has to be done")
    unclear = [trial.outcome for trial in trials if not POLICIES[trial.outcome].counts]
    return 1 if any(trial.outcome is Outcome.PASS for trial in trials) else exit_code(unclear)


def _sessions(
    spec: SuiteSpec, say: Callable[[str], None]
) -> Iterator[tuple[SessionSpec, llama_launch.RunningServer | None]]:
    """The sessions of a run, each while its server is running."""
    asking = [scenario for scenario in spec.session.scenarios if _asks_server(spec.session, scenario)]
    if not spec.server.is_wanted or (spec.server.url is None and not asking):
        yield spec.session, None
        return
    if spec.server.url is not None:
        _look_at(spec, say, is_asked=bool(asking))
        choice = spec.server
        yield (
            replace(
                spec.session,
                server_url=choice.url,
                server_log=choice.log,
                api_key_file=choice.api_key_file,
            ),
            None,
        )
        return
    is_matrix = len(spec.server.profiles) > 1
    for number, name in enumerate(spec.server.profiles):
        folder = spec.session.folder / re.sub(r"[^\w.-]", "_", Path(name).stem) if is_matrix else spec.session.folder
        folder.mkdir(exist_ok=True)
        with the_server(spec.server, name, folder, say, kv_mode=spec.session.kv_mode) as server:
            session = replace(
                spec.session,
                # What no server answers is the same with every profile.
                scenarios=spec.session.scenarios if number == 0 else asking,
                folder=folder,
                server_url=server.url,
                server_log=server.log_path,
                api_key_file=key_file_of(server),
                profile=Path(name).stem,
            )
            yield session, server


def _asks_server(session: SessionSpec, scenario: Scenario) -> bool:
    source = choose_source(
        scenario,
        has_server=True,
        has_cassette=scenario.cassette.exists(),
        oracle=session.oracle,
        guided=session.guided,
        live=session.live,
    )
    return source.asks_server


def _below(run_dir: Path, session: SessionSpec, trial: TrialRecord) -> TrialRecord:
    if trial.artefacts is None:
        return trial
    return replace(trial, artefacts=(session.folder / trial.artefacts).relative_to(run_dir))


def _about(session: SessionSpec, server: llama_launch.RunningServer | None) -> dict[str, Any]:
    return {
        "url": session.server_url,
        "profile": session.profile,
        "log": None if session.server_log is None else str(session.server_log),
        "model": None if server is None else Path(server.model_path).name,
    }


@contextlib.contextmanager
def the_server(
    choice: ServerChoice, profile_name: str, folder: Path, say: Callable[[str], None], *, kv_mode: str
) -> Iterator[llama_launch.RunningServer]:
    """A server that is started from a profile and stopped again, with its log below `folder/server`.

    Raises:
        WarmCache: A cold run was asked for, and the profile keeps prompts in host RAM.
        llama_launch.LlamaLaunchError: It could not be started.
    """
    profile = llama_launch.load_profile(profile_name)
    if kv_mode == "cold" and profile.cache_ram_mib != 0:
        raise WarmCache(
            f"profile {profile_name}: cache_ram_mib is {profile.cache_ram_mib}, so prompts come back after their slot "
            "was erased, and no trial is cold",
            hint="set cache_ram_mib = 0 (--cache-ram 0), or run with --kv-mode shared, which claims no cold start",
        )
    run_dir = folder / "server"
    run_dir.mkdir(parents=True, exist_ok=True)
    with llama_launch.start_server(profile, run_dir=run_dir, backend=choice.backend, progress=say) as server:
        yield server


def _look_at(spec: SuiteSpec, say: Callable[[str], None], *, is_asked: bool) -> None:
    """Say at once when the server that was named is not there, and make sure that a cold run can be cold."""
    choice = spec.server
    key = llama_launch.read_api_keys(choice.api_key_file)[0] if choice.api_key_file else None
    try:
        is_healthy = llama_launch.Client(str(choice.url), key).is_healthy()
    except llama_launch.LlamaLaunchError as error:
        say(f"warning: {error}; scenarios without turns will fail")
        return
    if not is_healthy:
        say(f"warning: the server at {choice.url} is not ready; scenarios without turns may fail")
    elif is_asked and spec.session.kv_mode == "cold":
        try:
            check_cold(llama_launch.Client(str(choice.url), key, _PROBE_TIMEOUT_S))
        except llama_launch.LlamaLaunchError as error:
            say(f"warning: cannot tell whether the server's KV cache can be emptied: {error}")


def key_file_of(server: llama_launch.RunningServer) -> Path | None:
    """The file with the keys that a started server asks for, if it asks for one."""
    return Path(server.profile.api_key_file) if server.profile.api_key_file else None


def _report(server: llama_launch.RunningServer, say: Callable[[str], None]) -> None:
    """What the server used, from its log, and what its model is, from its file."""
    say(f"\nVRAM report of {server.log_path}")
    say(vram_report.render_tables(vram_report.read_log(server.log_path)))
    say(f"\nModel {server.model_path}")
    say(gguf_info.render_tables(gguf_info.read_summary(server.model_path)))
