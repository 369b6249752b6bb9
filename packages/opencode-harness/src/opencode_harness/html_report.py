"""One self-contained HTML page of a run: trials, messages, and each recording beside its turns and server events.

The page loads nothing and may load nothing (its own policy says so); scripts and styles are allowed by their hashes.
What trials hold is embedded as data, in which no `<` is left, and is shown as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from opencode_harness.diagnosis import Diagnosis
from opencode_harness.errors import HarnessError
from opencode_harness.recording_player import Recording, read_recording
from opencode_harness.run_document import TrialRecord, summary_lines
from opencode_harness.screen import TerminalScreen

__all__ = ["render_html"]

# Screens closer together than this are one: nobody sees more, and the page stays small.
_FRAME_S = 0.1


def render_html(trials: Sequence[TrialRecord], about: Mapping[str, Any], run_dir: Path) -> str:
    """The page.

    Args:
        trials: All attempts.
        about: What is told of the run itself.
        run_dir: The run's folder, where the recordings are.
    """
    told = [f"started {about.get('started')}", f"OpenCode {about.get('opencode') or 'of no known version'}"]
    told += [f"{about.get('duration_s')} s", f"KV cache {about.get('kv_mode')}"]
    run = {
        "about": ", ".join(told),
        "summary": list(summary_lines(trials)),
        "trials": [_trial(trial, run_dir) for trial in trials],
    }
    # Inside a script element only a `<` could end it.
    data = json.dumps(run, ensure_ascii=True).replace("<", "\\u003c")
    style, script = _resource("report.css"), _resource("report.js")
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>opencode-harness: a run</title>
<style>{style}</style>
</head>
<body>
<h1>A run of opencode-harness</h1>
<p id="about"></p>
<ul id="summary"></ul>
<table>
<thead><tr>
<th>Outcome</th><th>Scenario</th><th>Profile</th><th>Answered by</th><th>Time</th><th>Requests</th>
</tr></thead>
<tbody id="trials"></tbody>
</table>
<section id="trial"></section>
<script type="application/json" id="run">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def _resource(name: str) -> str:
    return resources.files("opencode_harness").joinpath("page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _trial(trial: TrialRecord, run_dir: Path) -> dict[str, Any]:
    recording = _recording(trial, run_dir)
    diagnosis = trial.result.get("diagnosis")
    return {
        "name": trial.name,
        "scenario": trial.scenario,
        "profile": trial.profile,
        "repeat": trial.repeat,
        "attempt": trial.attempt,
        "outcome": trial.outcome.value,
        "source": trial.result.get("source"),
        "duration_s": trial.result.get("duration_s"),
        "requests": len(trial.result.get("requests") or []),
        "messages": list(trial.messages),
        "diagnosis": None if diagnosis is None else Diagnosis(**diagnosis).lines(),
        "frames": [] if recording is None else list(_frames(recording)),
        "events": _events(trial.result, recording),
    }


def _recording(trial: TrialRecord, run_dir: Path) -> Recording | None:
    if trial.artefacts is None:
        return None
    try:
        return read_recording(run_dir / trial.artefacts / "screen.cast")
    except HarnessError:
        return None


def _frames(recording: Recording) -> Iterator[dict[str, Any]]:
    """The screens, each as the rows that differ from the one before."""
    screen = TerminalScreen(recording.columns, recording.rows)
    shown: tuple[str, ...] = ()
    outputs = [event for event in recording.events if event.kind == "o"]
    for index, event in enumerate(outputs):
        screen.feed(event.text.encode("utf-8", "surrogatepass"))
        is_last = index == len(outputs) - 1
        if not is_last and outputs[index + 1].at_s - event.at_s < _FRAME_S:
            continue
        rows = screen.rows()
        changed = [[row, text] for row, text in enumerate(rows) if row >= len(shown) or shown[row] != text]
        if changed:
            yield {"at_s": round(event.at_s, 2), "rows": changed}
        shown = rows


def _events(result: Mapping[str, Any], recording: Recording | None) -> list[dict[str, Any]]:
    """The recording's markers and the requests, on the recording's clock."""
    events = [{"at_s": marker.at_s, "text": marker.text} for marker in recording.markers] if recording else []
    zero_s = (result.get("clock") or {}).get("terminal_started_s", 0.0)
    for request in result.get("requests") or []:
        timings = request.get("timings") or {}
        name = f"request {request['number']} {request['lane']} ({request['source']})"
        events.append({"at_s": max(0.0, request["started_s"] - zero_s), "text": f"{name} begins"})
        if request.get("ended_s") is not None:
            figures = [f"{timings[key]} {key}" for key in ("cache_n", "prompt_n", "predicted_n") if key in timings]
            ending = request.get("error") or request.get("finish_reason") or "ends"
            text = ", ".join([f"{name}: {ending}", *figures])
            events.append({"at_s": max(0.0, request["ended_s"] - zero_s), "text": text})
    return sorted(events, key=lambda event: float(event["at_s"]))
