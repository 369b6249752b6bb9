"""One pytest session over scenario files: its arguments, the trials that it reports, and what pytest's exit means.

With several jobs the scenarios run in pytest-xdist's workers; what is collected here comes from their reports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from opencode_harness.answer_source import Oracle
from opencode_harness.errors import HarnessError
from opencode_harness.outcomes import Outcome
from opencode_harness.run_document import TrialRecord
from opencode_harness.scenario import Scenario
from opencode_harness.verdict import KvMode

__all__ = ["SessionSpec", "run_session"]


@dataclass(frozen=True)
class SessionSpec:
    """What to run, with which server.

    Attributes:
        scenarios: The scenarios.
        folder: Receives pytest's files, and the trials' folders below `trials/`.
        opencode: The executable.
        server_url: The server's address without `/v1`, or None for none.
        server_log: Its log, or None.
        api_key_file: File whose first line is the key that it asks for.
        profile: The profile that it was started from, or None.
        jobs: How many trials at once; `auto` for as many as there are cores.
        repeat: How often each scenario is run.
        kv_mode: What is claimed of the server's cache.
        oracle: Answer with solutions, or with an agent that does nothing.
        guided: Make the server say the turns of scenarios that can be guided.
        live: Let the server answer where there is a cassette, too.
        more: Further arguments for pytest.
    """

    scenarios: Sequence[Scenario]
    folder: Path
    opencode: Path
    server_url: str | None = None
    server_log: Path | None = None
    api_key_file: Path | None = None
    profile: str | None = None
    jobs: int | Literal["auto"] = 1
    repeat: int = 1
    kv_mode: KvMode = "cold"
    oracle: Oracle | None = None
    guided: bool = False
    live: bool = False
    more: Sequence[str] = field(default=())


def run_session(spec: SessionSpec) -> list[TrialRecord]:
    """Run scenario files with pytest; the pytest configuration of the current folder has no say.

    Returns:
        Every attempt, in the order in which they were over.

    Raises:
        HarnessError: Nothing was selected, or pytest could not do its work.
        KeyboardInterrupt: It was interrupted.
    """
    configuration = spec.folder / "pytest.ini"
    configuration.write_text("[pytest]\n", encoding="utf-8")
    collector = _Collector(spec)
    try:
        code = pytest.ExitCode(pytest.main(_arguments(spec, configuration), plugins=[collector]))
    except OSError as error:
        # junit.xml could not be written, and pytest tells nothing more: what the trials said must not be lost.
        told = [message for trial in collector.trials for message in trial.messages]
        message = "\n".join([*told, f"{error.filename or spec.folder}: {error.strerror or error}"])
        raise HarnessError(message, hint="free some space there, or name another run folder") from error
    if code is pytest.ExitCode.INTERRUPTED:
        # pytest also calls it an interruption when files could not be collected; each is told by then.
        if collector.has_faulty_files:
            raise HarnessError("not every scenario file could be read", hint="opencode-harness validate PATH")
        raise KeyboardInterrupt
    if code is pytest.ExitCode.NO_TESTS_COLLECTED:
        hint = "opencode-harness list PATH shows names and tags; -k and tags after -- select among them"
        raise NothingSelected("no scenario was selected", hint=hint)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise HarnessError(f"pytest ended with {code.name}", hint="what it said is above")
    return collector.trials


class NothingSelected(HarnessError):
    """The selection leaves nothing to run."""

    exit_code = 2


def _arguments(spec: SessionSpec, configuration: Path) -> list[str]:
    options = {
        "--oc-opencode": spec.opencode,
        "--oc-server": spec.server_url,
        "--oc-server-log": spec.server_log,
        "--oc-api-key-file": spec.api_key_file,
        "--oc-kv-mode": spec.kv_mode,
        "--oc-oracle": spec.oracle,
        "--oc-repeat": spec.repeat,
    }
    flags = {"--oc-no-server": spec.server_url is None, "--oc-guided": spec.guided, "--oc-live": spec.live}
    # As many workers as are asked for; each takes one scenario after the other, and none waits for a long one.
    parallel = [] if spec.jobs == 1 else [f"--numprocesses={spec.jobs}", "--dist=worksteal"]
    paths = [scenario.path for scenario in spec.scenarios]
    return [
        *map(str, paths),
        "--verbose",
        "--no-header",
        # Scenarios print nothing, and their progress is to be seen.
        "--capture=no",
        # Scenarios hold no assert statements; without this pytest warns that the harness is imported already.
        "--assert=plain",
        f"--config-file={configuration}",
        f"--rootdir={_root_of(paths)}",
        f"--basetemp={spec.folder / 'trials'}",
        f"--junitxml={spec.folder / 'junit.xml'}",
        "-pno:cacheprovider",
        *parallel,
        *(f"{name}={value}" for name, value in options.items() if value is not None),
        *(name for name, is_set in flags.items() if is_set),
        *spec.more,
    ]


def _root_of(scenarios: Sequence[Path]) -> Path:
    """The folder that scenario names are shown relative to: this one, or the deepest that holds them all."""
    absolute = [path.absolute() for path in scenarios]
    if all(path.is_relative_to(Path.cwd()) for path in absolute):
        return Path.cwd()
    return Path(os.path.commonpath([path.parent for path in absolute]))


class _Collector:
    """A pytest plugin of this process: notes every attempt that a report tells of."""

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        self.trials: list[TrialRecord] = []
        self.has_faulty_files = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Files that cannot be read."""
        self.has_faulty_files |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Trials that are over, and those that could not even begin."""
        told = dict(report.user_properties)
        attempts = [Path(str(value)) for name, value in report.user_properties if name == "artefacts"]
        if report.when == "call" and attempts:
            for number, artefacts in enumerate(attempts, start=1):
                self.trials.append(self._record(told, artefacts, number, is_last=number == len(attempts)))
        elif report.failed:
            name = report.nodeid.rpartition("::")[2]
            path = report.location[0] or report.nodeid.partition("::")[0]
            message = f"{path}: {report.longreprtext.strip()}"
            self.trials.append(
                TrialRecord(path, name, self._spec.profile, 1, 1, True, Outcome.INFRA, (message,), None, {})
            )

    def _record(self, told: dict[str, Any], artefacts: Path, attempt: int, *, is_last: bool) -> TrialRecord:
        result = json.loads((artefacts / "result.json").read_text(encoding="ascii"))
        return TrialRecord(
            scenario=result["scenario"],
            name=str(told["scenario"]),
            profile=self._spec.profile,
            repeat=int(told["repeat"]),
            attempt=attempt,
            is_last=is_last,
            outcome=Outcome(result["outcome"]),
            messages=tuple(result["messages"]),
            artefacts=artefacts.relative_to(self._spec.folder),
            result=result,
        )
