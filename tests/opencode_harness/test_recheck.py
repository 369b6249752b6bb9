"""Edited expectations are checked against a run that is over."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from opencode_harness import TrialSpec, load_scenario, run_trial
from opencode_harness.cli import main

FAKE = Path(__file__).with_name("fake_opencode.py")
SCENARIO = 'prompt: Which fruit?\nturns: [{text: "It is kiwi."}]\nscreen_contains: kiwi\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    opencode = tmp_path / "opencode"
    opencode.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    opencode.chmod(0o755)
    (tmp_path / "fruit.yaml").write_text(SCENARIO)
    run_trial(TrialSpec(load_scenario(Path("fruit.yaml")), tmp_path / "run" / "trials" / "fruit0", opencode, None))
    opencode.unlink()  # from here on nothing can be run
    return tmp_path / "run"


def test_an_edited_expectation_is_checked_without_running_anything(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recheck", str(run)]) == 0
    assert capsys.readouterr().out == "fruit.yaml: PASS\n"
    (tmp_path / "fruit.yaml").write_text(SCENARIO + "scrollback_contains: plum\nbounds: {requests: 1}\n")
    assert main(["recheck", str(run)]) == 1
    out = capsys.readouterr().out
    assert "fruit.yaml: FAIL\n  fruit.yaml:4: scrollback_contains: 'plum' not found" in out


def test_a_trial_that_was_not_carried_through_keeps_its_outcome(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(run.rglob("result.json"))
    document = json.loads(path.read_text())
    problem = {"kind": "exited", "message": "OpenCode ended by itself"}
    path.write_text(json.dumps({**document, "outcome": "infra", "problems": [problem]}))
    assert main(["recheck", str(run)]) == 3
    assert "fruit.yaml: INFRA\n  fruit.yaml: OpenCode ended by itself" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"outcome": "odd", "scenario": "x", "problems": []}', "[" * 90_000])
def test_a_result_that_is_none_is_told_with_its_place(run: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    next(run.rglob("result.json")).write_text(text)
    assert main(["recheck", str(run)]) == 3
    assert "result.json: not the result of a trial" in capsys.readouterr().err


def test_a_folder_without_trials_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recheck", str(tmp_path / "nowhere")]) == 3
    assert "no trial below it" in capsys.readouterr().err


def test_validate_tells_every_fault_of_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("promt: x\nscreen_contain: y\n")
    (tmp_path / "b.yaml").write_text(SCENARIO)
    assert main(["validate", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "a.yaml:1:1: unknown key 'promt'" in told.err or "a.yaml:2:1: unknown key 'screen_contain'" in told.err
    assert "b.yaml: ok, 1 expectation" in told.out


def test_list_says_who_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(SCENARIO + "tags: [fruit]\ndescription: names a fruit\n")
    (tmp_path / "b.yaml").write_text("prompt: x\nscreen_contains: y\n")
    assert main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 'a.yaml'}: turns [fruit] names a fruit\n{tmp_path / 'b.yaml'}: server\n"
    )
