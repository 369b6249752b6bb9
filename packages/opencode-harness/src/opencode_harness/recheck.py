"""Expectations checked again on what a trial recorded: nothing is run, and no server is needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opencode_harness.checks import evaluate
from opencode_harness.errors import HarnessError
from opencode_harness.evidence import read_evidence
from opencode_harness.outcomes import Outcome
from opencode_harness.scenario import load_scenario

__all__ = ["Rechecked", "recheck", "trial_folders"]


@dataclass(frozen=True)
class Rechecked:
    """What a trial amounts to with the expectations of now.

    Attributes:
        scenario_path: The scenario file.
        outcome: PASS or FAIL; a trial that was not carried through keeps its outcome.
        messages: What does not hold, or what kept the trial from being carried through, with file and line.
    """

    scenario_path: Path
    outcome: Outcome
    messages: tuple[str, ...]


def trial_folders(run: Path) -> list[Path]:
    """The artefacts folders of a run, in the order of their names.

    Args:
        run: A run's folder, a trial's folder, or a trial's artefacts folder.

    Raises:
        HarnessError: There is none.
    """
    found = sorted(path.parent for path in run.rglob("result.json")) if run.is_dir() else []
    if not found:
        raise HarnessError(f"{run}: no trial below it", hint="name the folder that `run` printed at its end")
    return found


def recheck(artefacts: Path) -> Rechecked:
    """Check a trial's scenario, as its file stands now, against what the trial recorded.

    Raises:
        HarnessError: The records cannot be read, or the scenario file is gone or faulty.
    """
    result = _read_result(artefacts / "result.json")
    path = Path(result["scenario"])
    if result["problems"]:
        messages = tuple(f"{path}: {problem['message']}" for problem in result["problems"])
        return Rechecked(path, Outcome(result["outcome"]), messages)
    failures = evaluate(load_scenario(path).expectations, read_evidence(artefacts / "evidence.json"))
    messages = tuple(f"{path}:{failure.line}: {failure.key}: {failure.message}" for failure in failures)
    return Rechecked(path, Outcome.FAIL if failures else Outcome.PASS, messages)


def _read_result(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        Outcome(result["outcome"])
        known = {"scenario": str(result["scenario"]), "outcome": result["outcome"]}
        return {**known, "problems": [{"message": str(problem["message"])} for problem in result["problems"]]}
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise HarnessError(f"{path}: not the result of a trial: {error}", hint="run the scenario again") from error
