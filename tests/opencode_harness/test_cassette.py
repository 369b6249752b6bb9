"""What a server answered is recorded once and replayed without it; what no longer fits explains itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from opencode_harness import Outcome, TrialResult, TrialSpec, load_scenario, run_trial
from opencode_harness.cassette import CassetteError, CassetteMismatch, Recorder, Tape
from opencode_harness.proxy import Proxy
from opencode_harness.turns import ToolCall, Turn

FAKE = Path(__file__).with_name("fake_opencode.py")
SCENARIO = """\
prompt: Which fruit?
files: {notes.txt: "the fruit is kiwi"}
tools_called: [read]
screen_contains: It is kiwi.
"""


def fake_opencode(folder: Path) -> Path:
    path = folder / "opencode"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    path.chmod(0o755)
    return path


def trial(folder: Path, name: str, upstream: str | None = None, *, record: bool = False) -> TrialResult:
    spec = TrialSpec(
        load_scenario(folder / "fruit.yaml"),
        folder / name,
        fake_opencode(folder),
        upstream,
        kv_mode="shared",
        record={"opencode": "1.18.33"} if record else None,
    )
    return run_trial(spec)


def record(folder: Path, scenario: str = SCENARIO, api_text: str = "It is kiwi.") -> Path:
    """A trial against a server that calls a tool and answers, recorded."""
    (folder / "fruit.yaml").write_text(scenario)
    notes = str(folder / "recorded" / "workspace" / "notes.txt")
    turns = [Turn((ToolCall("read", {"filePath": notes}),), finish_reason="tool_calls"), Turn(text=api_text)]
    with Proxy(upstream=None, turns=turns) as server:
        result = trial(folder, "recorded", server.base_url, record=True)
    assert (result.outcome, result.source) == (Outcome.PASS, "server"), result.problems
    return folder / "fruit.cassette.jsonl"


def test_what_was_recorded_is_replayed_in_another_folder_without_a_server(tmp_path: Path) -> None:
    cassette = record(tmp_path)
    # The model's path leads into the folder of the recording, the tool must read the one of the replay.
    assert str(tmp_path) not in cassette.read_text()
    result = trial(tmp_path, "replayed")
    assert (result.outcome, result.source) == (Outcome.PASS, "cassette"), result.problems
    header, *lines = map(json.loads, cassette.read_text().splitlines())
    assert header["provenance"] == {"opencode": "1.18.33"}
    assert [line["lane"] for line in lines if "lane" in line] == ["main", "main"]


@pytest.mark.parametrize(
    ("old", "new", "outcome", "difference"),
    [
        ("the fruit is kiwi", "the fruit is plum", Outcome.TOOL_DIVERGED, "-the fruit is kiwi\n+the fruit is plum"),
        ("Which fruit?", "Which vegetable?", Outcome.STALE_CASSETTE, "Which vegetable?"),
    ],
)
def test_a_request_that_differs_says_how(tmp_path: Path, old: str, new: str, outcome: Outcome, difference: str) -> None:
    record(tmp_path)
    (tmp_path / "fruit.yaml").write_text(SCENARIO.replace(old, new))
    result = trial(tmp_path, "replayed")
    assert result.outcome is outcome
    assert difference in result.problems[0].message
    assert str(tmp_path / "fruit.cassette.jsonl") in result.problems[0].message


def test_a_cassette_is_never_overwritten(tmp_path: Path) -> None:
    cassette = record(tmp_path)
    before = cassette.read_bytes()
    with Proxy(upstream=None, turns=[Turn(text="It is kiwi.")]) as server:
        (tmp_path / "fruit.yaml").write_text(SCENARIO.replace("tools_called: [read]\n", ""))
        with pytest.raises(CassetteError, match="is there already") as caught:
            trial(tmp_path, "again", server.base_url, record=True)
    assert "delete it" in caught.value.hint
    assert cassette.read_bytes() == before


def test_a_secret_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(CassetteError, match="a GitHub token"):
        record(tmp_path, SCENARIO.replace("It is kiwi.", "It is"), "It is ghp_" + "a1" * 18)
    assert not list(tmp_path.glob("*cassette*"))
    assert not list(tmp_path.glob(".*cassette*"))


def test_without_a_server_and_a_cassette_a_trial_is_skipped_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "fruit.yaml").write_text(SCENARIO)
    result = trial(tmp_path, "trial")
    assert result.outcome is Outcome.SKIP
    assert "--server URL" in result.problems[0].message


def lines_of(cassette: Path) -> list[str]:
    return cassette.read_text().splitlines()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: [],
        lambda lines: lines[1:],
        lambda lines: [*lines, "{"],
        lambda lines: [*lines, "[" * 100_000],
        lambda lines: [line for line in lines if '"frame": "' not in line or '"lane"' in line],
        lambda lines: [line.replace('"kept": 0', '"kept": 7') for line in lines],
        lambda lines: [line.replace('"status": 200', '"status": 7') for line in lines],
        lambda lines: [*lines, "null"],
        lambda lines: ["\x00\ufffd", *lines],
    ],
)
def test_a_cassette_that_was_spoilt_is_told_with_its_place(
    tmp_path: Path, spoil: Callable[[list[str]], list[str]]
) -> None:
    cassette = record(tmp_path)
    cassette.write_text("\n".join(spoil(lines_of(cassette))))
    with pytest.raises(CassetteError, match=r"fruit\.cassette\.jsonl") as caught:
        Tape(cassette, tmp_path / "other")
    assert "delete it" in caught.value.hint


@pytest.mark.parametrize("cut_at", range(1, 12))
def test_a_path_is_put_right_wherever_its_stream_was_split(tmp_path: Path, cut_at: int) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    recorder = Recorder(old)
    request = {"messages": [{"role": "user", "content": "where?"}]}
    text = f"in {old}/a"
    take = recorder.begin("main", 1, request, 0.0)
    take.head(200, "text/event-stream")
    for piece in (text[:cut_at], text[cut_at:-2], text[-2:]):
        event = {"choices": [{"index": 0, "delta": {"content": piece}}]}
        take.feed(b"data: " + json.dumps(event).encode() + b"\n\n", 0.5)
    take.done()
    recorder.save(tmp_path / "x.cassette.jsonl", "x", {})
    tape = Tape(tmp_path / "x.cassette.jsonl", new)
    stream = b"".join(tape.pieces(tape.next_for("main", request))).decode()
    said = "".join(json.loads(line[6:])["choices"][0]["delta"]["content"] for line in stream.split("\n\n") if line)
    assert said == f"in {new}/a"
    with pytest.raises(CassetteMismatch, match="asks for more than the 1 recorded"):
        tape.next_for("main", request)
