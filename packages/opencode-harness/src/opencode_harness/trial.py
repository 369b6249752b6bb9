"""One trial: a scenario, run once with the real OpenCode in folders of its own.

`TrialSpec` in, `TrialResult` out, free of pytest. Whatever happens, the trial's folder holds what there is to see:
the recording, the screens, stdout, stderr, the proxy's journal, OpenCode's log, evidence.json and result.json.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_launch import Client
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from vram_report import visible

from opencode_harness.accounting import answer_figures, called_tools, lane_totals, request_figures
from opencode_harness.answer_source import AnswerSource, Oracle, choose_source
from opencode_harness.cassette import Recorder, Tape
from opencode_harness.checks import CheckFailure, evaluate
from opencode_harness.diagnosis import Diagnosis, Facts, diagnose
from opencode_harness.errors import WorkspaceError
from opencode_harness.evidence import Evidence, ToolOutcome, write_evidence
from opencode_harness.isolation import DEFAULT_LIMITS, ModelLimits, opencode_config, opencode_environment
from opencode_harness.opencode import opencode_version, search_path
from opencode_harness.opencode_log import OpenCodeLog
from opencode_harness.outcomes import POLICIES, Outcome, Policy
from opencode_harness.proxy import Proxy
from opencode_harness.scenario import Scenario
from opencode_harness.server_log import lines_since, log_mark, vram_of
from opencode_harness.slots import slot_tokens
from opencode_harness.tui import Start, Timeouts, TuiRun, run_opencode_tui
from opencode_harness.turns import substitute
from opencode_harness.verdict import KvMode, Problem, contamination, outcome_of, terminal_problem
from opencode_harness.whole_file import write_whole
from opencode_harness.workspace import (
    FileState,
    TrialLayout,
    commit_all,
    create_layout,
    lay_files,
    paths_below,
    snapshot_files,
)

__all__ = ["TrialResult", "TrialSpec", "asks_server", "run_trial"]

# Longer than a cold prompt of OpenCode takes on two cores with the tiny model.
_STALL_S = 240.0
# Timeouts that are not the terminal's.
_OWN_TIMEOUTS = frozenset({"stall"})


@dataclass(frozen=True)
class TrialSpec:
    """What a trial needs.

    Attributes:
        scenario: What to run.
        root: The trial's own folder, new or empty.
        opencode: The executable.
        upstream: The server's address without `/v1`; None where there is none.
        limits: What OpenCode is told about the model.
        api_key: What the server asks for; OpenCode never sees it, and it is never recorded.
        kv_mode: `cold` claims an empty KV cache, which the server's timings must prove; `warm` and `shared` do not.
        slots: Slots of the server that are this trial's own; empty for no lease.
        guided: Make the server say the turns of a scenario that can be guided.
        live: Let the server answer even where there is a cassette.
        oracle: Answer with the scenario's solution, or with an agent that does nothing; None for neither.
        speed: How fast a cassette is played: 0 at once, 1 as recorded.
        record: Where the cassette comes from, for its header; None to record nothing.
        server_log: The server's log, which a diagnosis quotes; None where it is not known.
        n_ctx_slot: Tokens that a slot of the server really holds; None where it is not known.
    """

    scenario: Scenario
    root: Path
    opencode: Path
    upstream: str | None
    limits: ModelLimits = DEFAULT_LIMITS
    api_key: str | None = field(default=None, repr=False)
    kv_mode: KvMode = "cold"
    slots: tuple[int, ...] = ()
    guided: bool = False
    live: bool = False
    oracle: Oracle | None = None
    speed: float = 0.0
    record: Mapping[str, Any] | None = None
    server_log: Path | None = None
    n_ctx_slot: int | None = None


@dataclass(frozen=True)
class TrialResult:
    """What a trial showed.

    Attributes:
        outcome: How it ended.
        problems: What went wrong before the expectations could be looked at; each names the scenario's line.
        failures: Expectations that do not hold.
        requests: Chat requests that OpenCode sent.
        duration_s: Wall time.
        artefacts: Folder with everything that was recorded.
        source: Who answered: `turns`, `guided`, `cassette`, `server` or `none`.
        place: The scenario's place, for messages.
        path: The scenario file.
        diagnosis: Why it did not pass, most likely; None where it did.
    """

    outcome: Outcome
    problems: tuple[Problem, ...]
    failures: tuple[CheckFailure, ...]
    requests: int
    duration_s: float
    artefacts: Path
    source: str
    place: str
    path: Path
    diagnosis: Diagnosis | None = None

    @property
    def outcome_policy(self) -> Policy:
        """What follows from the outcome."""
        return POLICIES[self.outcome]

    @property
    def messages(self) -> tuple[str, ...]:
        """All problems and failures, each with the scenario's file and line."""
        lines = [f"{self.place}: {problem.message}" for problem in self.problems]
        lines += [f"{self.path}:{failure.line}: {failure.key}: {failure.message}" for failure in self.failures]
        # What OpenCode, tools and files hold is data: nothing of it may act on the terminal.
        return tuple(visible(line, keep="\n\t") for line in lines)

    def explain(self) -> str:
        """The messages as text, and where the records are."""
        causes = [] if self.diagnosis is None else [visible(line) for line in self.diagnosis.lines()]
        return "\n".join([*self.messages, *causes, visible(f"recorded in {self.artefacts}")])


def asks_server(spec: TrialSpec) -> bool:
    """Whether the trial's answers come from the server."""
    return _source(spec).asks_server


def _source(spec: TrialSpec) -> AnswerSource:
    return choose_source(
        spec.scenario,
        has_server=spec.upstream is not None,
        has_cassette=spec.scenario.cassette.exists(),
        oracle=spec.oracle,
        guided=spec.guided,
        live=spec.live or spec.record is not None,
    )


def run_trial(spec: TrialSpec) -> TrialResult:
    """Run one scenario once.

    Raises:
        HarnessError: The trial's folders cannot be made or written, OpenCode cannot be started, or a cassette cannot
            be read or written.
    """
    try:
        return _run_trial(spec)
    except OSError as error:
        message = f"cannot keep the records of {spec.scenario.path} in {spec.root}: {error.strerror or error}"
        raise WorkspaceError(message, hint="free some space there, or name another run folder") from error


def _run_trial(spec: TrialSpec) -> TrialResult:
    started = time.monotonic()
    layout = create_layout(spec.root)
    source = _source(spec)
    reason = source.reason or _unmet(spec, layout, source)
    if reason:
        return _skipped(layout, spec.scenario, source, reason)
    project = _lay_out(layout, spec)
    before = snapshot_files(layout.workspace)
    log = OpenCodeLog(layout.opencode_log)
    recorder = Recorder(layout.root) if spec.record is not None else None
    log_path = spec.server_log if source.asks_server else None
    mark = log_mark(log_path)
    with _proxy(spec, layout, source, recorder) as proxy:
        terminal_started_s = proxy.now_s
        try:
            run = _drive(spec, layout, project, proxy, log, has_last_answer=source.kind != "server")
            is_waiting_for_model = proxy.open_requests > 0
        finally:
            _keep_opencode_log(layout)
            # OpenCode unpacks its native libraries here at every start and leaves them.
            shutil.rmtree(layout.tmp, ignore_errors=True)
        # OpenCode tries again, so the same fault may have been met several times.
        problems = list(dict.fromkeys(Problem(fault.kind, fault.message) for fault in proxy.faults))
        problems = problems or _problems(spec, run, proxy, source, is_waiting_for_model=is_waiting_for_model)
    log.refresh()
    evidence = _evidence(spec, layout, before, run, log, proxy)
    if spec.upstream is not None and source.asks_server:
        evidence = dataclasses.replace(evidence, slot_tokens=slot_tokens(Client(spec.upstream, spec.api_key)))
    write_evidence(layout.artefacts / "evidence.json", evidence)
    failures = () if problems else evaluate(spec.scenario.expectations, evidence)
    outcome = outcome_of(problems, failures, proxy.exchanges)
    duration_s = time.monotonic() - started
    result = TrialResult(
        outcome,
        tuple(problems),
        failures,
        len(proxy.exchanges),
        duration_s,
        layout.artefacts,
        source.kind,
        spec.scenario.place,
        spec.scenario.path,
        None
        if outcome is Outcome.PASS
        else diagnose(
            Facts(
                outcome,
                proxy.exchanges,
                lines_since(log_path, mark, spec.slots),
                run.open_dialog,
                spec.limits.context_tokens,
                spec.n_ctx_slot if source.asks_server else None,
                vram_of(log_path),
                terminal_started_s,
            )
        ),
    )
    _write_result(layout, spec, run, result, proxy, evidence.slot_tokens, terminal_started_s)
    if recorder is not None and outcome is Outcome.PASS:
        secrets = [spec.api_key] if spec.api_key else []
        recorder.save(spec.scenario.cassette, spec.scenario.name, spec.record or {}, secrets=secrets)
    return result


def _unmet(spec: TrialSpec, layout: TrialLayout, source: AnswerSource) -> str:
    """Why the scenario's requirements are not met; empty when they are."""
    needed = spec.scenario.requires
    missing = [command for command in needed.commands if shutil.which(command, path=search_path(spec.opencode)) is None]
    if missing:
        return f"it requires {missing[0]}, which is not on PATH"
    context = spec.limits.context_tokens
    if needed.context_tokens is not None and source.asks_server and context < needed.context_tokens:
        return f"it requires a slot of {needed.context_tokens} tokens; the server's holds {context}"
    if needed.opencode:
        return _unmet_version(needed.opencode, opencode_version(spec.opencode, opencode_environment(layout)))
    return ""


def _unmet_version(wanted: str, found: str | None) -> str:
    try:
        if found is not None and SpecifierSet(wanted).contains(Version(found), prereleases=True):
            return ""
    except InvalidVersion:
        pass
    return f"it requires OpenCode {wanted}; this one is {found or 'of no known version'}"


def _skipped(layout: TrialLayout, scenario: Scenario, source: AnswerSource, reason: str) -> TrialResult:
    problem = Problem("skip", reason)
    place, path = scenario.place, scenario.path
    result = TrialResult(Outcome.SKIP, (problem,), (), 0, 0.0, layout.artefacts, source.kind, place, path)
    _write_json(layout.artefacts / "result.json", _document(scenario, result))
    return result


def _lay_out(layout: TrialLayout, spec: TrialSpec) -> Path:
    scenario = spec.scenario
    project = layout.workspace / scenario.project_dir
    project.mkdir(parents=True, exist_ok=True)
    lay_files(project, scenario.files)
    lay_files(layout.outside, scenario.outside_files)
    if scenario.git:
        commit_all(project, opencode_environment(layout))
    return project


def _proxy(spec: TrialSpec, layout: TrialLayout, source: AnswerSource, recorder: Recorder | None) -> Proxy:
    tape = Tape(spec.scenario.cassette, layout.root, speed=spec.speed) if source.kind == "cassette" else None
    return Proxy(
        # A trial that needs no server gets no address of one: nothing can leak to it.
        upstream=spec.upstream if source.asks_server else None,
        turns=substitute(source.turns, _places(spec.scenario, layout)),
        guided=source.kind == "guided",
        tape=tape,
        recorder=recorder,
        faults=spec.scenario.faults,
        limits=spec.scenario.limits,
        slots=spec.slots,
        journal=layout.artefacts / "requests.jsonl",
        upstream_api_key=spec.api_key if source.asks_server else None,
    )


def _problems(
    spec: TrialSpec, run: TuiRun, proxy: Proxy, source: AnswerSource, *, is_waiting_for_model: bool
) -> list[Problem]:
    """What went otherwise than it should: in the terminal, at the server, or before the turns were over."""
    rejects = spec.scenario.permission_answer == "reject"
    problem = terminal_problem(run, rejects=rejects, is_waiting_for_model=is_waiting_for_model)
    problem = problem or contamination(proxy.exchanges, spec.kv_mode)
    if problem is not None:
        return [problem]
    if proxy.turns_left and run.outcome == "done" and spec.oracle is None:
        if source.kind == "cassette":
            message = f"{proxy.turns_left} of the recorded answers were never asked for"
            return [Problem("stale-cassette", message)]
        return [Problem("turns-unused", f"{proxy.turns_left} of the scenario's turns were never asked for")]
    return []


def _places(scenario: Scenario, layout: TrialLayout) -> dict[str, str]:
    return {"workspace": str(layout.workspace / scenario.project_dir), "outside": str(layout.outside)}


def _drive(
    spec: TrialSpec, layout: TrialLayout, project: Path, proxy: Proxy, log: OpenCodeLog, *, has_last_answer: bool
) -> TuiRun:
    scenario = spec.scenario
    limits = spec.limits
    if scenario.max_output_tokens is not None:
        limits = dataclasses.replace(limits, output_tokens=scenario.max_output_tokens)
    config = opencode_config(proxy.base_url, limits, scenario.permission)
    layout.config_file.write_text(json.dumps(config, indent=2), encoding="utf-8")
    stall_s = scenario.timeouts_s.get("stall", _STALL_S)

    def turn_ended(turns: int) -> bool:
        log.refresh()
        proxy.enforce_limits(stall_s)
        return bool(proxy.faults) or (log.turns_ended >= turns and proxy.open_requests == 0)

    def heard_of(permissions: int) -> bool:
        log.refresh()
        return len(log.asked) >= permissions

    def all_said() -> bool:
        return has_last_answer and proxy.turns_left == 0 and proxy.open_requests == 0

    def shown(prompt: str) -> str:
        for name, place in _places(scenario, layout).items():
            prompt = prompt.replace("{" + name + "}", place)
        return prompt.rstrip("\n")

    command = [str(spec.opencode)]
    starts = [Start(command, [shown(prompt) for prompt in (scenario.prompt, *scenario.then)])]
    if scenario.resume:
        starts.append(Start([*command, "--continue"], [shown(prompt) for prompt in scenario.resume], resumes=True))
    timeouts = {f"{name}_s": value for name, value in scenario.timeouts_s.items() if name not in _OWN_TIMEOUTS}
    return run_opencode_tui(
        starts,
        env={**opencode_environment(layout, path=search_path(spec.opencode)), "PWD": str(project)},
        cwd=project,
        turn_ended=turn_ended,
        artefacts=layout.artefacts,
        timeouts=Timeouts(**timeouts),
        answer=scenario.permission_answer,
        heard_of=heard_of,
        all_said=all_said,
    )


def _keep_opencode_log(layout: TrialLayout) -> None:
    if layout.opencode_log.is_file():
        shutil.copyfile(layout.opencode_log, layout.artefacts / "opencode.log")


def _evidence(
    spec: TrialSpec,
    layout: TrialLayout,
    before: Mapping[str, FileState],
    run: TuiRun,
    log: OpenCodeLog,
    proxy: Proxy,
) -> Evidence:
    exchanges = proxy.exchanges
    return Evidence(
        stdout=run.stdout_text,
        stderr=run.stderr_text,
        screen=run.screen_text,
        project_dir=spec.scenario.project_dir,
        before=before,
        after=snapshot_files(layout.workspace),
        paths_after=paths_below(layout.workspace),
        asked=tuple(log.asked),
        tools=tuple(ToolOutcome(result.name, result.text) for result in proxy.tool_results()),
        answers=tuple(answer_figures(exchange) for exchange in exchanges),
        calls=called_tools(exchanges),
        scrollback=run.scrollback,
        exit_status=run.exit_status,
        turn_s=run.timings.turn_s,
        places=_places(spec.scenario, layout),
    )


def _document(scenario: Scenario, result: TrialResult) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "scenario": str(scenario.path),
        "outcome": result.outcome.value,
        "source": result.source,
        "problems": [dataclasses.asdict(problem) for problem in result.problems],
        "failures": [dataclasses.asdict(failure) for failure in result.failures],
        "messages": list(result.messages),
        "diagnosis": None if result.diagnosis is None else dataclasses.asdict(result.diagnosis),
        "duration_s": round(result.duration_s, 3),
    }


def _write_result(
    layout: TrialLayout,
    spec: TrialSpec,
    run: TuiRun,
    result: TrialResult,
    proxy: Proxy,
    tokens_by_slot: Mapping[int, int] | None,
    terminal_started_s: float,
) -> None:
    document = {
        **_document(spec.scenario, result),
        "kv_mode": spec.kv_mode,
        # Requests are told on the proxy's clock; the recording begins here on it.
        "clock": {"terminal_started_s": round(terminal_started_s, 3)},
        "terminal": {
            "outcome": run.outcome,
            "exit_status": run.exit_status,
            "message": run.message,
            "timings": dataclasses.asdict(run.timings),
            "dialogs": [dataclasses.asdict(dialog) for dialog in run.dialogs],
        },
        "requests": request_figures(proxy.exchanges),
        "lanes": lane_totals(proxy.exchanges),
        "slot_tokens": tokens_by_slot,
    }
    _write_json(layout.artefacts / "result.json", document)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(document, indent=2))
