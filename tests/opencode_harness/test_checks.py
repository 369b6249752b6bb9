from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest
from opencode_harness.checks import assert_matches_all, assert_not_matches_any, evaluate
from opencode_harness.errors import HarnessError
from opencode_harness.evidence import AnswerFigures, CalledTool, Evidence, ToolOutcome, read_evidence, write_evidence
from opencode_harness.opencode_log import PermissionAsked
from opencode_harness.scenario import Expectation
from opencode_harness.workspace import FileState


def text_file(text: str, **properties: Any) -> FileState:
    return FileState("text", text, hashlib.sha256(text.encode()).hexdigest(), **properties)


PICTURE = FileState("binary", None, hashlib.sha256(b"\x89PNG").hexdigest())
FILES = {
    "notes.txt": text_file("kiwi\n"),
    "README.md": text_file("hello\n"),
    "picture.png": PICTURE,
    "run.sh": text_file("#!/bin/sh\n", executable=True),
    "latest": FileState("link", target="notes.txt"),
    "data.json": text_file('{"fruit": {"name": "kiwi", "count": 3}}'),
}

EVIDENCE = Evidence(
    stdout="→ Read notes.txt\nThe fruit is kiwi.",
    stderr="warning: nothing serious",
    screen="The fruit is kiwi. ▣ Build · model · 5.5s",
    project_dir="",
    before={**FILES, "data.json": text_file('{"fruit": {}}')},
    after=FILES,
    paths_after={*FILES, "folder"},
    asked=(),
    tools=(ToolOutcome("read", "1: kiwi"),),
    answers=(
        AnswerFigures("title", "scripted"),
        AnswerFigures("main", "server", 0, 2206, 2206, 20, "tool_calls"),
        AnswerFigures("main", "server", 2205, 45, 2250, 12, "stop"),
    ),
    calls=(
        CalledTool("main", "read", {"filePath": "/w/notes.txt", "limit": 20}),
        CalledTool("sub:1", "grep", {"pattern": "kiwi"}),
        CalledTool("main", "edit", None),
    ),
    scrollback="Building · esc interrupt\nThe fruit is kiwi.",
    exit_status=0,
    turn_s=4.25,
    places={"workspace": "/w"},
)

# Key, a value that holds for EVIDENCE, one that does not, and what the message must say then.
CASES = [
    ("stdout_contains", "kiwi", "plum", "'plum' not found in stdout"),
    ("stdout_not_contains", "plum", "kiwi", "stdout holds 'kiwi'"),
    ("stdout_contains_re", r"fruit\s+is", r"pl[u]m", "/pl[u]m/ not found in stdout"),
    ("stdout_not_contains_re", r"pl[u]m", r"ki.i", "stdout holds 'kiwi', which /ki.i/ forbids"),
    ("stderr_contains_re", "(?i)WARNING", "fatal", "/fatal/ not found in stderr"),
    ("stderr_not_contains_re", "fatal", "warning", "stderr holds 'warning'"),
    ("screen_contains", "kiwi", "plum", "'plum' not found in the screen"),
    ("screen_not_contains", "plum", "kiwi", "the screen holds 'kiwi'"),
    ("screen_contains_re", r"\d\.\ds", r"\d\d\ds", "not found in the screen"),
    ("screen_not_contains_re", "plum", r"\d\.\ds", "the screen holds '5.5s'"),
    ("permissions_asked", [], ["bash"], "permissions asked: expected ['bash'], found none"),
    ("tools_called", ["read"], ["read", "read"], "tools called: expected ['read', 'read'], found ['read']"),
    ("tool_results_contain_re", "kiwi", "plum", "/plum/ not found in the tool results"),
    ("files_unchanged", "notes.txt", "absent.txt", "was not among the files at the start"),
    ("expected_files", ("notes.txt", "kiwi\n"), ("notes.txt", "plum\n"), "-plum\n+kiwi"),
    ("expected_files", ("notes.txt", {"matches": "k.wi"}), ("notes.txt", {"matches": ["k", "p"]}), "/p/ not found"),
    ("expected_files", ("plum.txt", {"absent": True}), ("notes.txt", {"absent": True}), "notes.txt exists"),
    ("expected_files", ("plum.txt", {"absent": True}), ("picture.png", {"absent": True}), "picture.png exists"),
    ("expected_files", ("notes.txt", "kiwi\n"), ("folder", "kiwi\n"), "folder is a folder"),
    ("expected_files", ("notes.txt", {"unchanged": True}), ("data.json", {"unchanged": True}), "data.json changed"),
    (
        "expected_files",
        ("data.json", {"json": {"$.fruit.count": 3, "$.fruit": {"name": "kiwi", "count": 3}}}),
        ("data.json", {"json": {"$.fruit.count": 4}}),
        "$.fruit.count should be 4, found [3]",
    ),
    (
        "expected_files",
        ("data.json", {"diff": '-{"fruit": {}}\n+{"fruit": {"name": "kiwi", "count": 3}}'}),
        ("data.json", {"diff": '-{"fruit": {}}'}),
        "changed otherwise than the diff says",
    ),
    ("expected_files", ("picture.png", {"base64": "iVBORw=="}), ("picture.png", {"base64": "AAAA"}), "other bytes"),
    ("expected_files", ("run.sh", {"executable": True}), ("notes.txt", {"executable": True}), "is not executable"),
    ("expected_files", ("latest", {"link": "notes.txt"}), ("latest", {"link": "plum"}), "is a link to notes.txt"),
    ("scrollback_contains", "Building", "plum", "'plum' not found in what was on the screen"),
    ("scrollback_not_contains", "plum", "Building", "what was on the screen holds 'Building'"),
    ("scrollback_contains_re", "esc .*t", "plum", "not found in what was on the screen"),
    ("scrollback_not_contains_re", "plum", "esc", "holds 'esc'"),
    ("exit_code", 0, 130, "expected 130, found 0"),
    ("bounds", ("requests", 2), ("requests", 1), "requests: 2, more than 1"),
    ("bounds", ("prompt_tokens", 2250), ("prompt_tokens", 2249), "prompt_tokens: 2250, more than 2249"),
    ("bounds", ("completion_tokens", 32), ("completion_tokens", 31), "completion_tokens: 32, more than 31"),
    ("bounds", ("turn_s", 5), ("turn_s", 4), "turn_s: 4.25, more than 4"),
    ("bounds", ("cache_hit_min", 0.98), ("cache_hit_min", 0.99), "0.98 of the prompt tokens were reused"),
    ("tool_calls_made", {"name": "read"}, {"name": "grep"}, "no such call: grep"),
    ("tool_calls_made", {"name": "grep", "lane": "any"}, {"name": "bash", "lane": "any"}, "sub:1: grep"),
    (
        "tool_calls_made",
        {"name": "read", "arguments": {"filePath": "{workspace}/notes.txt", "limit": {"matches": "^2"}}},
        {"name": "read", "arguments": {"filePath": "{workspace}/plum.txt"}},
        'main: read {"filePath": "/w/notes.txt"',
    ),
    ("tool_calls_not_made", {"name": "edit", "arguments": {"a": 1}}, {"name": "edit"}, "the main agent called edit"),
    ("expected_files", ("notes.txt", "kiwi\n"), ("picture.png", "kiwi\n"), "picture.png is no text file"),
    ("expected_files", ("notes.txt", "kiwi\n"), ("plum.txt", "plum\n"), "plum.txt does not exist"),
]


@pytest.mark.parametrize(("key", "right", "wrong", "message"), CASES)
def test_a_key_holds_or_says_what_was_expected_and_found(key: str, right: Any, wrong: Any, message: str) -> None:
    assert evaluate([Expectation(key, right, 1)], EVIDENCE) == ()
    (failure,) = evaluate([Expectation(key, wrong, 17)], EVIDENCE)
    assert (failure.key, failure.line) == (key, 17)
    assert message in failure.message


def test_unchanged_files_name_each_difference() -> None:
    before = {"notes.txt": text_file("kiwi\n"), "README.md": text_file("hello\n")}
    after = {"notes.txt": text_file("plum\n"), "new.txt": text_file("x")}
    evidence = dataclasses.replace(EVIDENCE, before=before, after=after)
    (failure,) = evaluate([Expectation("files_unchanged", True, 3)], evidence)
    assert "notes.txt changed" in failure.message
    assert "-kiwi\n+plum" in failure.message
    assert "new.txt appeared" in failure.message
    assert "README.md vanished" in failure.message
    unchanged = dataclasses.replace(EVIDENCE, before=FILES)
    assert evaluate([Expectation("files_unchanged", True, 3)], unchanged) == ()


def test_project_files_are_looked_up_below_the_project_folder() -> None:
    files = {"deep/project/notes.txt": text_file("kiwi\n")}
    evidence = dataclasses.replace(EVIDENCE, project_dir="deep/project", before=files, after=files)
    wanted = [Expectation("expected_files", ("notes.txt", "kiwi\n"), 1), Expectation("files_unchanged", "notes.txt", 2)]
    assert evaluate(wanted, evidence) == ()


def test_a_missing_last_newline_is_shown() -> None:
    (failure,) = evaluate([Expectation("expected_files", ("notes.txt", "kiwi"), 1)], EVIDENCE)
    assert "expected 'kiwi'" in failure.message
    assert r"found 'kiwi\n'" in failure.message


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ((), "no main request was answered"),
        ((AnswerFigures(source="scripted", cache_n=0, prompt_n=9),), "no main request was answered"),
        ((AnswerFigures(),), "no timings"),
        ((AnswerFigures(cache_n=2205, prompt_n=1),), "reused 2205 cached tokens and computed 1"),
        ((AnswerFigures(cache_n=0, prompt_n=0),), "computed no prompt token"),
    ],
)
def test_a_cold_start_needs_proof(answers: tuple[AnswerFigures, ...], message: str) -> None:
    evidence = dataclasses.replace(EVIDENCE, answers=answers)
    (failure,) = evaluate([Expectation("cold_start", True, 1)], evidence)
    assert message in failure.message
    assert evaluate([Expectation("cold_start", True, 1)], EVIDENCE) == ()


def test_a_cold_start_must_show_in_the_slots_where_the_server_tells_of_them() -> None:
    expectation = Expectation("cold_start", True, 1)
    held = dataclasses.replace(EVIDENCE, slot_tokens={0: 0, 3: 2243})
    assert evaluate([expectation], held) == ()
    (failure,) = evaluate([expectation], dataclasses.replace(EVIDENCE, slot_tokens={0: 0, 3: 12}))
    assert "no slot holds the 2206 tokens" in failure.message


def test_permissions_are_compared_in_order() -> None:
    asked = (PermissionAsked("external_directory", "[]"), PermissionAsked("bash", "[]"))
    evidence = dataclasses.replace(EVIDENCE, asked=asked)
    assert evaluate([Expectation("permissions_asked", ["external_directory", "bash"], 1)], evidence) == ()
    assert evaluate([Expectation("permissions_asked", ["bash", "external_directory"], 1)], evidence)


def test_all_failures_are_reported_in_file_order() -> None:
    wanted = [Expectation("stdout_contains", "plum", 4), Expectation("screen_contains", "pear", 9)]
    assert [failure.line for failure in evaluate(wanted, EVIDENCE)] == [4, 9]


def test_a_forbidden_pattern_is_found_across_lines() -> None:
    assert_not_matches_any("a\nb", ["a b"])
    with pytest.raises(AssertionError, match="forbids"):
        assert_not_matches_any("a\nb", ["c", r"a\sb"])


def test_every_pattern_must_be_found() -> None:
    assert_matches_all("one two", ["one", "two"])
    with pytest.raises(AssertionError, match="/three/ not found in answer"):
        assert_matches_all("one two", ["one", "three"], what="answer")


def test_evidence_that_was_written_is_read_again_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    evidence = dataclasses.replace(
        EVIDENCE,
        slot_tokens={0: 12},
        asked=(PermissionAsked("bash", "[]"),),
        stdout="half a pair \ud800, \x1b[31m",
        paths_after=sorted(EVIDENCE.paths_after),
    )
    write_evidence(path, evidence)
    assert read_evidence(path) == evidence


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": 99}', "[" * 100_000])
def test_what_is_no_evidence_is_told_with_its_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(text)
    with pytest.raises(HarnessError, match=r"evidence\.json: not the evidence of a trial"):
        read_evidence(path)
