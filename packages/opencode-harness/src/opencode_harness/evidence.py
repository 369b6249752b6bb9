"""What a trial showed: all that expectations are checked against, and its form in evidence.json.

Evidence is complete: `recheck` evaluates edited expectations on it without running anything.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from opencode_harness.errors import HarnessError
from opencode_harness.opencode_log import PermissionAsked
from opencode_harness.whole_file import write_whole
from opencode_harness.workspace import FileState

__all__ = ["AnswerFigures", "CalledTool", "Evidence", "ToolOutcome", "read_evidence", "write_evidence"]

Source = Literal["server", "cassette", "scripted"]
_VERSION = 1


@dataclass(frozen=True)
class ToolOutcome:
    """A tool's result as OpenCode reported it to the model."""

    name: str
    text: str


@dataclass(frozen=True)
class CalledTool:
    """A tool call of a model, as it passed the proxy.

    Attributes:
        lane: The conversation, such as `main` or `sub:1`.
        name: The tool.
        arguments: By name; None where they were no JSON object.
    """

    lane: str
    name: str
    arguments: Mapping[str, Any] | None


@dataclass(frozen=True)
class AnswerFigures:
    """The figures of one chat request; None for what was not told.

    Attributes:
        lane: The conversation.
        source: Who answered: the server, a cassette, or the scenario's turns.
        cache_n: Prompt tokens that the server took from its cache.
        prompt_n: Prompt tokens that it computed.
        prompt_tokens: Prompt tokens altogether.
        completion_tokens: Tokens generated.
        finish_reason: Why the answer ended.
    """

    lane: str = "main"
    source: Source = "server"
    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What a trial showed.

    Attributes:
        stdout: The terminal's bytes without escapes.
        stderr: What OpenCode wrote to stderr.
        screen: The screen at the end of the last turn, rows joined whatever their wrapping.
        project_dir: The project's folder, relative to the workspace ("" = the same).
        before: Files of the workspace before OpenCode started.
        after: The same, afterwards.
        paths_after: Every path of the workspace afterwards, whatever it holds.
        asked: Permissions asked for.
        tools: Tool results of the main conversation, in the order in which they were reported.
        answers: Every chat request's figures, in order.
        calls: Every tool call that a model made, in order.
        scrollback: All paragraphs that were ever on the screen, each once.
        exit_status: OpenCode's exit status; None when unknown.
        turn_s: From the first prompt having been taken to the end of the last turn; None when that was not reached.
        slot_tokens: Prompt tokens that each slot holds after the turn; None when the server does not tell.
        places: What {workspace} and {outside} stand for.
    """

    stdout: str
    stderr: str
    screen: str
    project_dir: str
    before: Mapping[str, FileState]
    after: Mapping[str, FileState]
    paths_after: Collection[str]
    asked: tuple[PermissionAsked, ...]
    tools: tuple[ToolOutcome, ...]
    answers: tuple[AnswerFigures, ...]
    calls: tuple[CalledTool, ...] = ()
    scrollback: str = ""
    exit_status: int | None = None
    turn_s: float | None = None
    slot_tokens: Mapping[int, int] | None = None
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def served(self) -> tuple[AnswerFigures, ...]:
        """Main requests that a server answered, now or when the cassette was recorded."""
        return tuple(answer for answer in self.answers if answer.lane == "main" and answer.source != "scripted")


def write_evidence(path: Path, evidence: Evidence) -> None:
    """Write evidence as JSON.

    Raises:
        OSError: The file cannot be written.
    """
    document = {"schema_version": _VERSION, **dataclasses.asdict(evidence)}
    document["paths_after"] = sorted(evidence.paths_after)
    write_whole(path, json.dumps(document, ensure_ascii=True))


def read_evidence(path: Path) -> Evidence:
    """Read evidence again.

    Raises:
        HarnessError: The file is missing, cut, or no evidence.
    """
    try:
        raw = json.loads(path.read_text(encoding="ascii"))
        return _evidence(raw)
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}", hint="name the folder of a run that reached its end") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HarnessError(f"{path}: not the evidence of a trial: {error}", hint="run the scenario again") from error


def _evidence(raw: dict[str, Any]) -> Evidence:
    if raw.pop("schema_version") != _VERSION:
        raise ValueError("written by another version")
    parts: dict[str, Any] = {
        **raw,
        "before": {path: FileState(**state) for path, state in raw["before"].items()},
        "after": {path: FileState(**state) for path, state in raw["after"].items()},
        "asked": tuple(PermissionAsked(**item) for item in raw["asked"]),
        "tools": tuple(ToolOutcome(**item) for item in raw["tools"]),
        "answers": tuple(AnswerFigures(**item) for item in raw["answers"]),
        "calls": tuple(CalledTool(**item) for item in raw["calls"]),
    }
    if parts["slot_tokens"] is not None:
        parts["slot_tokens"] = {int(slot): tokens for slot, tokens in parts["slot_tokens"].items()}
    return Evidence(**parts)
