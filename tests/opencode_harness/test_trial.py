"""Whole trials against a stand-in for OpenCode (fake_opencode.py): the same code path as with the real one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from opencode_harness import Outcome, TrialResult, TrialSpec, load_scenario, run_trial

FAKE = Path(__file__).with_name("fake_opencode.py")
READ_KIWI = """\
prompt: Which fruit?
files: {notes.txt: "the fruit is kiwi"}
turns:
  - tool_calls: [{name: read, arguments: {filePath: "{workspace}/notes.txt"}}]
  - text: "The file says kiwi."
"""


def fake_opencode(folder: Path, misbehaviour: str = "") -> Path:
    path = folder / "opencode"
    path.write_text(f'#!/bin/sh\nFAKE_OPENCODE={misbehaviour} exec {sys.executable} {FAKE} "$@"\n')
    path.chmod(0o755)
    return path


def trial(folder: Path, text: str, misbehaviour: str = "", upstream: str | None = None) -> tuple[TrialResult, str]:
    path = folder / "example.yaml"
    path.write_text(text)
    scenario = load_scenario(path)
    spec = TrialSpec(scenario, folder / "trial", fake_opencode(folder, misbehaviour), upstream)
    result = run_trial(spec)
    return result, result.explain()


def test_scripted_turns_run_real_tools_and_pass(tmp_path: Path) -> None:
    checks = "tools_called: [read]\ntool_results_contain_re: kiwi\nscreen_contains: The file says kiwi.\n"
    checks += "files_unchanged: true\n"
    result, explanation = trial(tmp_path, READ_KIWI + checks)
    assert result.outcome is Outcome.PASS, explanation
    assert result.requests == 3
    document = json.loads((result.artefacts / "result.json").read_text())
    assert document["outcome"] == "pass"
    assert [request["lane"] for request in document["requests"]] == ["title", "main", "main"]


def test_a_failure_tells_its_likeliest_cause_and_where_to_look(tmp_path: Path) -> None:
    turns = 'prompt: Which fruit?\nturns: [{text: "The fruit is", finish_reason: length}]\nscreen_contains: kiwi\n'
    result, explanation = trial(tmp_path, turns)
    assert result.outcome is Outcome.TRUNCATED
    assert "likeliest cause: an answer was cut at its token limit" in explanation
    assert re.search(r"turn 1 of the main conversation, request 2, \d+\.\d s into the recording", explanation)
    assert json.loads((result.artefacts / "result.json").read_text())["diagnosis"]["cause"] == "length-stop"


def test_what_a_trial_leaves_is_readable(tmp_path: Path) -> None:
    result, _ = trial(tmp_path, READ_KIWI + "stderr_contains_re: fake noise on stderr\n")
    assert result.outcome is Outcome.PASS
    assert "Ask anything" in (result.artefacts / "screen-ready.txt").read_text()
    assert "The file says kiwi." in (result.artefacts / "screen-done.txt").read_text()
    assert "exiting loop" in (result.artefacts / "opencode.log").read_text()
    assert not (result.artefacts.parent / ".tmp").exists()
    for line in (result.artefacts / "requests.jsonl").read_text().splitlines():
        json.loads(line)


def test_every_broken_expectation_is_named_with_its_line(tmp_path: Path) -> None:
    result, explanation = trial(tmp_path, READ_KIWI + "screen_contains: plum\nfiles_unchanged: true\n", "rude")
    assert result.outcome is Outcome.FAIL
    assert f"{tmp_path / 'example.yaml'}:6: screen_contains: 'plum' not found" in explanation
    assert f"{tmp_path / 'example.yaml'}:7: files_unchanged: uninvited.txt appeared" in explanation


def test_an_agent_that_is_never_done_ends_with_the_turns_own_timeout(tmp_path: Path) -> None:
    result, explanation = trial(tmp_path, READ_KIWI + "timeouts: {turn: 2}\nscreen_contains: kiwi\n", "silent")
    # No request is open and no dialog: it waits for nothing at all.
    assert result.outcome is Outcome.AGENT_STUCK
    assert [problem.kind for problem in result.problems] == ["agent-stuck"]
    assert f"{tmp_path / 'example.yaml'}:1: " in explanation
    assert "timeout 'turn' is 2 s" in explanation


def test_the_last_scripted_answer_and_the_screen_end_a_turn_before_the_log_does(tmp_path: Path) -> None:
    result, _ = trial(tmp_path, READ_KIWI + "timeouts: {turn: 30}\nscreen_contains: The file says kiwi.\n", "unlogged")
    assert result.outcome is Outcome.PASS
    assert result.duration_s < 30


def test_turns_that_were_never_asked_for_fail_the_trial(tmp_path: Path) -> None:
    text = "prompt: Hi\nturns:\n  - text: one\n  - text: two\nscreen_contains: one\n"
    result, explanation = trial(tmp_path, text)
    assert result.outcome is Outcome.FAIL
    assert "1 of the scenario's turns were never asked for" in explanation


def test_an_agent_that_wants_more_turns_than_there_are_fails_the_trial(tmp_path: Path) -> None:
    text = (
        'prompt: Hi\nturns:\n  - tool_calls: [{name: read, arguments: {filePath: "/dev/null"}}]\nscreen_contains: x\n'
    )
    result, explanation = trial(tmp_path, text)
    assert result.outcome is Outcome.FAIL
    assert [problem.kind for problem in result.problems] == ["turns-exhausted"]
    assert f"{tmp_path / 'example.yaml'}:1: " in explanation


def test_a_server_that_is_down_is_the_environments_fault(tmp_path: Path) -> None:
    result, explanation = trial(tmp_path, "prompt: Hi\nscreen_contains: x\n", upstream="http://127.0.0.1:9")
    assert result.outcome is Outcome.INFRA
    assert f"{tmp_path / 'example.yaml'}:1: " in explanation
    assert "127.0.0.1:9" in explanation


def test_an_opencode_that_dies_at_once_is_the_environments_fault(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(READ_KIWI + "screen_contains: x\n")
    scenario = load_scenario(path)
    broken = tmp_path / "opencode"
    broken.write_text("#!/bin/sh\necho 'cannot start' >&2\nexit 9\n")
    broken.chmod(0o755)
    result = run_trial(TrialSpec(scenario, tmp_path / "trial", broken, None))
    assert result.outcome is Outcome.INFRA
    assert [problem.kind for problem in result.problems] == ["exited"]
    assert "with status 9" in result.explain()
    assert "cannot start" in (result.artefacts / "stderr.txt").read_text()


@pytest.mark.parametrize("key", ["workspace", "outside"])
def test_placeholders_in_the_prompt_are_the_trials_own_folders(tmp_path: Path, key: str) -> None:
    text = f"prompt: 'look at {{{key}}}/x'\nturns: [{{text: fine}}]\nscreen_contains: fine\n"
    result, explanation = trial(tmp_path, text)
    assert result.outcome is Outcome.PASS, explanation
    requests = (result.artefacts / "requests.jsonl").read_text()
    assert f"look at {tmp_path / 'trial' / key}/x" in requests


@pytest.mark.parametrize("largest_file_bytes", [300, 1500])
def test_a_disk_that_fills_up_is_told_without_a_traceback_and_leaves_nothing_running(
    tmp_path: Path, largest_file_bytes: int
) -> None:
    (tmp_path / "example.yaml").write_text(READ_KIWI + "screen_contains: kiwi\n")
    # Files above this size cannot be written: the limit stands in for a full disk.
    command = "import resource, sys; from opencode_harness.cli import main; "
    command += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file_bytes},) * 2); sys.exit(main())"
    arguments = ["example.yaml", "--server", "http://127.0.0.1:9", "--opencode", str(fake_opencode(tmp_path))]
    done = subprocess.run(
        [sys.executable, "-c", command, "run", *arguments, "--run-dir", tmp_path / "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 3
    assert re.search(r"cannot keep the records of example\.yaml.*\n.*free some space", output)
    assert "Traceback" not in output
    assert not [process for process in psutil.process_iter() if str(tmp_path) in " ".join(words(process))]


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_what_tools_and_files_hold_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    checks = 'expected_files: {"notes.txt": "\\e]0;owned\\a"}\ntool_results_contain_re: "\\e\\\\[31mplum"\n'
    _, explanation = trial(tmp_path, READ_KIWI.replace("kiwi", "\\e[2Jkiwi") + checks)
    assert "kiwi" in explanation
    assert not [char for char in explanation if not char.isprintable() and char not in "\n\t"]
