"""The page of a run: complete, closed to the outside, and never moved by what trials hold."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from opencode_harness.html_report import render_html
from opencode_harness.outcomes import Outcome
from opencode_harness.run_document import TrialRecord

HOSTILE = "</script><script>alert(1)</script><!-- <b>bold</b> \u2028 ]]>"
REQUEST = {"number": 2, "lane": "main", "source": "server", "started_s": 3.5, "ended_s": 4.0, "finish_reason": "stop"}
DIAGNOSIS = {
    "cause": "out-of-memory",
    "summary": HOSTILE,
    "request": 2,
    "turn": 1,
    "lane": "main",
    "task": 6,
    "slot": 2,
    "vram_mib": {"CUDA0": 22937.4},
    "log_lines": ["7: E out of memory"],
    "cast_s": 23.4,
}


class Page(HTMLParser):
    """The page's elements, scripts and data, as a browser splits them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.is_inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.is_inside = True

    def handle_endtag(self, tag: str) -> None:
        self.is_inside = False

    def handle_data(self, data: str) -> None:
        if self.is_inside:
            tag, attributes = self.tags[-1]
            self.texts.setdefault(attributes.get("id") or tag, []).append(data)


def page(folder: Path, cast: str | None = None, **parts: Any) -> tuple[Page, dict[str, Any]]:
    artefacts = folder / "trials" / "fruit0" / "artefacts"
    artefacts.mkdir(parents=True)
    if cast is not None:
        (artefacts / "screen.cast").write_text(cast)
    result = {"source": "server", "duration_s": 8.25, "requests": [REQUEST], "clock": {"terminal_started_s": 0.5}}
    trial = TrialRecord(
        scenario="scenarios/fruit.yaml",
        name=parts.get("name", "fruit"),
        profile=None,
        repeat=1,
        attempt=1,
        is_last=True,
        outcome=Outcome.FAIL,
        messages=(HOSTILE,),
        artefacts=artefacts.relative_to(folder),
        result={**result, **parts.get("result", {})},
    )
    about = {"started": "2026-12-07T10:00:00+00:00", "opencode": "1.18.33", "duration_s": 9.0, "kv_mode": "cold"}
    read = Page(render_html([trial], about, folder))
    document: dict[str, Any] = json.loads("".join(read.texts["run"]))
    return read, document


def test_what_trials_hold_is_data_and_adds_no_element(tmp_path: Path) -> None:
    plain, _ = page(tmp_path / "a")
    hostile, document = page(tmp_path / "b", name=HOSTILE, result={"diagnosis": DIAGNOSIS})
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert [tag for tag, _ in plain.tags].count("script") == 2
    (trial,) = document["trials"]
    assert (trial["name"], trial["messages"]) == (HOSTILE, [HOSTILE])
    assert trial["diagnosis"][0] == f"likeliest cause: {HOSTILE}"
    assert "turn 1 of the main conversation, request 2, slot 2, task 6, 23.4 s into the recording" in trial["diagnosis"]
    assert "server log, line 7: E out of memory" in trial["diagnosis"]


def test_the_page_may_load_nothing_and_its_own_parts_are_allowed_by_their_hashes(tmp_path: Path) -> None:
    read, _ = page(tmp_path)
    (policy,) = [attributes["content"] for tag, attributes in read.tags if tag == "meta" and "http-equiv" in attributes]
    assert policy is not None
    assert "default-src 'none'" in policy
    for name in ("script", "style"):
        digest = hashlib.sha256("".join(read.texts[name]).encode()).digest()
        assert f"{name}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    for _, attributes in read.tags:
        assert not {"src", "href", "onclick", "style"} & set(attributes)
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", "".join(read.texts["script"]))


def test_frames_are_the_screens_that_a_person_saw_as_changed_rows(tmp_path: Path) -> None:
    events = [
        [0.0, "o", "\x1b[2J\x1b[Hone\r\ntwo"],
        [1.0, "o", "\x1b[2;1Hsi"],
        [1.05, "o", "x"],
        [2.0, "m", "done"],
    ]
    cast = "\n".join(json.dumps(line) for line in [{"version": 2, "width": 10, "height": 2}, *events])
    _, document = page(tmp_path, cast + "\n")
    (trial,) = document["trials"]
    assert trial["frames"] == [
        {"at_s": 0.0, "rows": [[0, "one"], [1, "two"]]},
        {"at_s": 1.05, "rows": [[1, "six"]]},
    ]
    assert [(event["at_s"], event["text"]) for event in trial["events"]] == [
        (2.0, "done"),
        (3.0, "request 2 main (server) begins"),
        (3.5, "request 2 main (server): stop"),
    ]


@pytest.mark.parametrize("cast", [None, "", "nonsense", '{"version": 2}'])
def test_a_trial_without_a_recording_is_shown_without_one(tmp_path: Path, cast: str | None) -> None:
    _, document = page(tmp_path, cast)
    assert document["trials"][0]["frames"] == []
