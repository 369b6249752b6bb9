"""What a run amounts to: run.json, rates over repeats, and the lines that a person reads at the end."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llama_launch import wilson_interval

from opencode_harness.outcomes import POLICIES, Outcome
from opencode_harness.whole_file import write_whole

__all__ = ["ScenarioRate", "TrialRecord", "run_document", "scenario_rates", "summary_lines", "write_run_document"]

_VERSION = 1


@dataclass(frozen=True)
class TrialRecord:
    """One attempt at one scenario.

    Attributes:
        scenario: The scenario file, as it was named.
        name: The scenario's name.
        profile: The server's profile, or None where a running server or none was used.
        repeat: Which repetition, from 1.
        attempt: Which attempt, from 1; only what the environment broke is tried again.
        is_last: Whether no attempt followed: the one that stands.
        outcome: How it ended.
        messages: What went wrong, with file and line.
        artefacts: The trial's artefacts, relative to the run's folder; None where there are none.
        result: The trial's result.json.
    """

    scenario: str
    name: str
    profile: str | None
    repeat: int
    attempt: int
    is_last: bool
    outcome: Outcome
    messages: tuple[str, ...]
    artefacts: Path | None
    result: Mapping[str, Any]


@dataclass(frozen=True)
class ScenarioRate:
    """How often a scenario passed.

    Attributes:
        scenario: The scenario file.
        name: Its name.
        profile: The server's profile, or None.
        n: Trials that count.
        passes: Those of them that passed.
        low: Lower end of the 95 % interval of the pass rate (Wilson 1927).
        high: Its upper end.
        pass_k: The chance that k trials, drawn from these, all pass, for k from 1 to n: C(passes, k) / C(n, k).
    """

    scenario: str
    name: str
    profile: str | None
    n: int
    passes: int
    low: float
    high: float
    pass_k: tuple[float, ...]


def scenario_rates(trials: Sequence[TrialRecord]) -> list[ScenarioRate]:
    """Rates by scenario and profile, over the trials that count, in the order of their first trials."""
    groups: defaultdict[tuple[str, str, str | None], list[TrialRecord]] = defaultdict(list)
    for trial in trials:
        if trial.is_last:
            groups[trial.scenario, trial.name, trial.profile].append(trial)
    return [_rate(*key, group) for key, group in groups.items()]


def _rate(scenario: str, name: str, profile: str | None, trials: Sequence[TrialRecord]) -> ScenarioRate:
    counted = [trial for trial in trials if POLICIES[trial.outcome].counts]
    n, passes = len(counted), sum(trial.outcome is Outcome.PASS for trial in counted)
    low, high = wilson_interval(passes, n)
    pass_k = tuple(math.comb(passes, k) / math.comb(n, k) for k in range(1, n + 1))
    return ScenarioRate(scenario, name, profile, n, passes, low, high, pass_k)


def run_document(trials: Sequence[TrialRecord], about: Mapping[str, Any]) -> dict[str, Any]:
    """run.json: what was run, every attempt, and the rates.

    Args:
        trials: All attempts.
        about: What is told of the run itself: when, how long, which OpenCode, which servers.
    """
    return {
        "schema_version": _VERSION,
        **about,
        "outcomes": dict(Counter(trial.outcome.value for trial in trials if trial.is_last)),
        "trials": [_trial(trial) for trial in trials],
        "scenarios": [asdict(rate) for rate in scenario_rates(trials)],
    }


def _trial(trial: TrialRecord) -> dict[str, Any]:
    result = trial.result
    return {
        "scenario": trial.scenario,
        "name": trial.name,
        "profile": trial.profile,
        "repeat": trial.repeat,
        "attempt": trial.attempt,
        "is_last": trial.is_last,
        "outcome": trial.outcome.value,
        "source": result.get("source"),
        "duration_s": result.get("duration_s"),
        "requests": len(result.get("requests") or []),
        "lanes": result.get("lanes") or {},
        "messages": list(trial.messages),
        "diagnosis": result.get("diagnosis"),
        "artefacts": None if trial.artefacts is None else str(trial.artefacts),
    }


def summary_lines(trials: Sequence[TrialRecord]) -> Iterator[str]:
    """For a person: counts of outcomes, and, where something was repeated, rates that say how sure they are."""
    last = [trial for trial in trials if trial.is_last]
    counts = Counter(trial.outcome for trial in last)
    told = ", ".join(f"{counts[outcome]} {outcome.value.upper()}" for outcome in Outcome if counts[outcome])
    noun = "trial" if len(last) == 1 else "trials"
    again = len(trials) - len(last)
    yield f"{len(last)} {noun}: {told or 'nothing was run'}" + (f" ({again} tried again)" if again else "")
    for outcome in Outcome:
        if counts[outcome] and outcome is not Outcome.PASS:
            yield f"  {outcome.value.upper()}: {POLICIES[outcome].meaning}"
    if any(trial.repeat > 1 for trial in last):
        yield from map(_rate_line, scenario_rates(trials))


def _rate_line(rate: ScenarioRate) -> str:
    where = f" [{rate.profile}]" if rate.profile else ""
    if not rate.n:
        return f"  {rate.name}{where}: no trial counts"
    all_k = f"pass^{rate.n} {rate.pass_k[-1]:.2f}"
    interval = f"95 % interval {rate.low:.0%} to {rate.high:.0%}"
    return f"  {rate.name}{where}: {rate.passes} of {rate.n} passed ({interval}; {all_k})"


def write_run_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write run.json.

    Raises:
        OSError: It cannot be written.
    """
    write_whole(path, json.dumps(document, indent=2))
