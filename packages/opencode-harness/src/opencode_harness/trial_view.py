"""A trial for a person: its outcome, its requests with their figures, the recording's moments, and the last screen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vram_report import visible

from opencode_harness.diagnosis import Diagnosis
from opencode_harness.errors import HarnessError
from opencode_harness.recording_player import read_recording

__all__ = ["trial_lines"]


def trial_lines(artefacts: Path) -> Iterator[str]:
    """The lines to show; control characters in what was recorded are made visible.

    Args:
        artefacts: The trial's artefacts folder.

    Raises:
        HarnessError: The records cannot be read.
    """
    path = artefacts / "result.json"
    try:
        result = json.loads(path.read_text(encoding="ascii"))
        lines = [*_head(result), *_requests(result.get("requests") or [])]
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}", hint="name the folder of a run or of a trial") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HarnessError(f"{path}: not the result of a trial: {error}", hint="run the scenario again") from error
    yield from (visible(line) for line in lines)
    cast = artefacts / "screen.cast"
    if cast.is_file():
        for marker in read_recording(cast).markers:
            yield visible(f"  {marker.at_s:7.1f} s  {marker.text}")
        yield f"  recording: opencode-harness play {artefacts}"
    # OpenCode clears the screen when it leaves, so the last one of all shows nothing of the turn.
    screen = artefacts / "screen-done.txt"
    if screen.is_file():
        yield "screen at the end of the turn:"
        for row in screen.read_text(encoding="utf-8", errors="replace").rstrip().splitlines():
            yield visible(f"  {row}".rstrip())


def _head(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"{result['scenario']}: {result['outcome'].upper()} ({result['source']}, {result['duration_s']:.1f} s)"
    for message in result["messages"]:
        yield from (f"  {line}" for line in message.splitlines())
    if result.get("diagnosis") is not None:
        yield from (f"  {line}" for line in Diagnosis(**result["diagnosis"]).lines())


def _requests(requests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for request in requests:
        timings, usage = request.get("timings") or {}, request.get("usage") or {}
        figures = [
            f"{request['started_s']:.1f} s",
            _counted("cached", timings.get("cache_n")),
            _counted("computed", timings.get("prompt_n", usage.get("prompt_tokens"))),
            _counted("generated", timings.get("predicted_n", usage.get("completion_tokens"))),
            str(request.get("finish_reason") or request.get("error") or "no answer"),
            _prefix(request.get("prefix")),
        ]
        told = ", ".join(figure for figure in figures if figure)
        yield f"  request {request['number']} {request['lane']} ({request['source']}): {told}"


def _counted(what: str, count: object) -> str:
    return f"{count} {what}" if isinstance(count, int) else ""


def _prefix(prefix: Mapping[str, Any] | None) -> str:
    cause = (prefix or {}).get("cause")
    if cause == "agent":
        return f"the agent changed message {(prefix or {})['changed_message']} that it had sent already"
    return f"the server lost {(prefix or {})['lost_tokens']} cached tokens" if cause == "server" else ""
