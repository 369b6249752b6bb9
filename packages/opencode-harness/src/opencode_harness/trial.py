"""One trial: a scenario, run once with the real OpenCode in folders of its own.

`TrialSpec` in, `TrialResult` out, free of pytest. Whatever happens, the trial's folder holds what there is to see:
the recording, the screens, stdout, stderr, the proxy's journal, OpenCode's log and result.json.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_launch import Client
from vram_report import visible

from opencode_harness.checks import CheckFailure, Evidence, ServedAnswer, ToolOutcome, evaluate
from opencode_harness.errors import WorkspaceError
from opencode_harness.isolation import ModelLimits, opencode_config, opencode_environment
from opencode_harness.opencode import search_path
from opencode_harness.opencode_log import OpenCodeLog
from opencode_harness.proxy import Exchange, Proxy
from opencode_harness.scenario import Scenario
from opencode_harness.slots import slot_tokens
from opencode_harness.tui import Timeouts, TuiRun, run_opencode_tui
from opencode_harness.turns import Turn, substitute
from opencode_harness.workspace import TrialLayout, create_layout, lay_files, paths_below, snapshot_text_files

__all__ = ["Outcome", "Problem", "TrialResult", "TrialSpec", "run_trial"]

DEFAULT_LIMITS = ModelLimits(context_tokens=32_768, output_tokens=2_048)


class Outcome(enum.Enum):
    """How a trial ended."""

    PASS = "pass"
    FAIL = "fail"
    INFRA = "infra"


# What a trial that could not be carried through counts as; whatever is not named here is the environment's fault.
_OUTCOME_OF_PROBLEM: Mapping[str, Outcome] = {
    "turn-timeout": Outcome.FAIL,
    "rejected": Outcome.FAIL,
    "turns-exhausted": Outcome.FAIL,
    "turns-unused": Outcome.FAIL,
}


@dataclass(frozen=True)
class Problem:
    """What kept a trial from being carried through: a kind, and a message for a person."""

    kind: str
    message: str


@dataclass(frozen=True)
class TrialSpec:
    """What a trial needs.

    Attributes:
        scenario: What to run.
        root: The trial's own folder, new or empty.
        opencode: The executable.
        upstream: The server's address without `/v1`; None where every turn is scripted and no server is there.
        limits: What OpenCode is told about the model.
        api_key: What the server asks for; OpenCode never sees it, and it is never recorded.
    """

    scenario: Scenario
    root: Path
    opencode: Path
    upstream: str | None
    limits: ModelLimits = DEFAULT_LIMITS
    api_key: str | None = dataclasses.field(default=None, repr=False)


@dataclass(frozen=True)
class TrialResult:
    """What a trial showed.

    Attributes:
        outcome: PASS, FAIL (an expectation does not hold) or INFRA (it could not be tried properly).
        problems: What went wrong before the expectations could be looked at; each names the scenario's line.
        failures: Expectations that do not hold.
        requests: Chat requests that OpenCode sent.
        duration_s: Wall time.
        artefacts: Folder with everything that was recorded.
    """

    outcome: Outcome
    problems: tuple[Problem, ...]
    failures: tuple[CheckFailure, ...]
    requests: int
    duration_s: float
    artefacts: Path

    def explain(self, scenario: Scenario) -> str:
        """All problems and failures as text, each with the scenario's file and line."""
        lines = [f"{scenario.place}: {problem.message}" for problem in self.problems]
        lines += [f"{scenario.path}:{failure.line}: {failure.key}: {failure.message}" for failure in self.failures]
        # What OpenCode, tools and files hold is data: nothing of it may act on the terminal.
        return visible("\n".join([*lines, f"recorded in {self.artefacts}"]), keep="\n\t")


def run_trial(spec: TrialSpec) -> TrialResult:
    """Run one scenario once.

    Raises:
        HarnessError: The trial's folders cannot be made or written, or OpenCode cannot be started.
    """
    try:
        return _run_trial(spec)
    except OSError as error:
        message = f"cannot keep the records of {spec.scenario.path} in {spec.root}: {error.strerror or error}"
        raise WorkspaceError(message, hint="free some space there, or name another run folder") from error


def _run_trial(spec: TrialSpec) -> TrialResult:
    started = time.monotonic()
    layout = create_layout(spec.root)
    project = _lay_out(layout, spec.scenario)
    before = snapshot_text_files(layout.workspace)
    log = OpenCodeLog(layout.opencode_log)
    turns = _turns(spec.scenario, layout)
    upstream = spec.upstream if turns is None else None
    journal = layout.artefacts / "requests.jsonl"
    with Proxy(upstream=upstream, turns=turns or (), journal=journal, upstream_api_key=spec.api_key) as proxy:
        try:
            run = _drive(spec, layout, project, proxy, log)
        finally:
            _keep_opencode_log(layout)
            # OpenCode unpacks its native libraries here at every start and leaves them.
            shutil.rmtree(layout.tmp, ignore_errors=True)
        # OpenCode tries again, so the same fault may have been met several times.
        faults = dict.fromkeys(Problem(fault.kind, fault.message) for fault in proxy.faults)
        problems = list(faults) or _problems(spec, run, proxy)
        exchanges = proxy.exchanges
        tools = tuple(ToolOutcome(result.name, result.text) for result in proxy.tool_results())
    log.refresh()
    evidence = _evidence(spec.scenario, layout, before, run, log, exchanges, tools)
    if upstream is not None:
        evidence = dataclasses.replace(evidence, slot_tokens=slot_tokens(Client(upstream, spec.api_key)))
    result = _judge(spec.scenario, problems, evidence, layout)
    result = dataclasses.replace(result, requests=len(exchanges), duration_s=time.monotonic() - started)
    _write_result(layout, spec.scenario, run, result, exchanges, evidence.slot_tokens)
    return result


def _lay_out(layout: TrialLayout, scenario: Scenario) -> Path:
    project = layout.workspace / scenario.project_dir
    project.mkdir(parents=True, exist_ok=True)
    lay_files(project, scenario.files)
    lay_files(layout.outside, scenario.outside_files)
    return project


def _turns(scenario: Scenario, layout: TrialLayout) -> tuple[Turn, ...] | None:
    if scenario.turns is None:
        return None
    return tuple(substitute(scenario.turns, _places(scenario, layout)))


def _problems(spec: TrialSpec, run: TuiRun, proxy: Proxy) -> list[Problem]:
    """What went otherwise than it should: in the terminal, or before the scenario's turns were over."""
    wanted = {"done", "rejected"} if spec.scenario.permission_answer == "reject" else {"done"}
    if run.outcome not in wanted:
        return [Problem(run.outcome, run.message)]
    if proxy.turns_left and run.outcome == "done":
        return [Problem("turns-unused", f"{proxy.turns_left} of the scenario's turns were never asked for")]
    return []


def _places(scenario: Scenario, layout: TrialLayout) -> dict[str, str]:
    return {"workspace": str(layout.workspace / scenario.project_dir), "outside": str(layout.outside)}


def _drive(spec: TrialSpec, layout: TrialLayout, project: Path, proxy: Proxy, log: OpenCodeLog) -> TuiRun:
    scenario = spec.scenario
    limits = spec.limits
    if scenario.max_output_tokens is not None:
        limits = dataclasses.replace(limits, output_tokens=scenario.max_output_tokens)
    config = opencode_config(proxy.base_url, limits, scenario.permission)
    layout.config_file.write_text(json.dumps(config, indent=2), encoding="utf-8")

    def turn_ended() -> bool:
        log.refresh()
        return bool(proxy.faults) or (log.turns_ended > 0 and proxy.open_requests == 0)

    prompt = scenario.prompt
    for name, place in _places(scenario, layout).items():
        prompt = prompt.replace("{" + name + "}", place)
    return run_opencode_tui(
        [str(spec.opencode)],
        env={**opencode_environment(layout, path=search_path(spec.opencode)), "PWD": str(project)},
        cwd=project,
        prompt=prompt.rstrip("\n"),
        turn_ended=turn_ended,
        artefacts=layout.artefacts,
        timeouts=Timeouts(**{f"{name}_s": value for name, value in scenario.timeouts_s.items()}),
        answer=scenario.permission_answer,
    )


def _keep_opencode_log(layout: TrialLayout) -> None:
    if layout.opencode_log.is_file():
        shutil.copyfile(layout.opencode_log, layout.artefacts / "opencode.log")


def _evidence(
    scenario: Scenario,
    layout: TrialLayout,
    before: Mapping[str, str],
    run: TuiRun,
    log: OpenCodeLog,
    exchanges: tuple[Exchange, ...],
    tools: tuple[ToolOutcome, ...],
) -> Evidence:
    served = (exchange for exchange in exchanges if exchange.lane == "main" and not exchange.scripted)
    return Evidence(
        stdout=run.stdout_text,
        stderr=run.stderr_text,
        screen=run.screen_text,
        project_dir=scenario.project_dir,
        before=before,
        after=snapshot_text_files(layout.workspace),
        paths_after=paths_below(layout.workspace),
        asked=tuple(log.asked),
        tools=tools,
        served=tuple(_served(exchange.timings) for exchange in served),
    )


def _served(timings: Mapping[str, Any] | None) -> ServedAnswer:
    timings = timings or {}
    return ServedAnswer(cache_n=timings.get("cache_n"), prompt_n=timings.get("prompt_n"))


def _judge(
    scenario: Scenario,
    problems: list[Problem],
    evidence: Evidence,
    layout: TrialLayout,
) -> TrialResult:
    failures = () if problems else evaluate(scenario.expectations, evidence)
    outcome = Outcome.FAIL if failures else Outcome.PASS
    if problems:
        outcome = _OUTCOME_OF_PROBLEM.get(problems[0].kind, Outcome.INFRA)
    return TrialResult(outcome, tuple(problems), failures, 0, 0.0, layout.artefacts)


def _write_result(
    layout: TrialLayout,
    scenario: Scenario,
    run: TuiRun,
    result: TrialResult,
    exchanges: tuple[Exchange, ...],
    tokens_by_slot: Mapping[int, int] | None,
) -> None:
    document = {
        "schema_version": 1,
        "scenario": str(scenario.path),
        "outcome": result.outcome.value,
        "problems": [dataclasses.asdict(problem) for problem in result.problems],
        "failures": [dataclasses.asdict(failure) for failure in result.failures],
        "duration_s": round(result.duration_s, 3),
        "terminal": {
            "outcome": run.outcome,
            "exit_status": run.exit_status,
            "message": run.message,
            "timings": dataclasses.asdict(run.timings),
            "dialogs": [dataclasses.asdict(dialog) for dialog in run.dialogs],
        },
        "requests": [
            {
                "lane": exchange.lane,
                "status": exchange.status,
                "scripted": exchange.scripted,
                "finish_reason": exchange.finish_reason,
                "timings": exchange.timings,
            }
            for exchange in exchanges
        ],
        "slot_tokens": tokens_by_slot,
    }
    path = layout.artefacts / "result.json"
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False), encoding="utf-8")
