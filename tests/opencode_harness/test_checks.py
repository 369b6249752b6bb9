from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from opencode_harness.checks import (
    Evidence,
    ServedAnswer,
    ToolOutcome,
    assert_matches_all,
    assert_not_matches_any,
    evaluate,
)
from opencode_harness.opencode_log import PermissionAsked
from opencode_harness.scenario import Expectation

EVIDENCE = Evidence(
    stdout="→ Read notes.txt\nThe fruit is kiwi.",
    stderr="warning: nothing serious",
    screen="The fruit is kiwi. ▣ Build · model · 5.5s",
    project_dir="",
    before={"notes.txt": "kiwi\n", "README.md": "hello\n"},
    after={"notes.txt": "kiwi\n", "README.md": "hello\n"},
    paths_after={"notes.txt", "README.md", "picture.png"},
    asked=(),
    tools=(ToolOutcome("read", "1: kiwi"),),
    served=(ServedAnswer(cache_n=0, prompt_n=2206), ServedAnswer(cache_n=2205, prompt_n=1)),
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
    after = {"notes.txt": "plum\n", "new.txt": "x"}
    evidence = dataclasses.replace(EVIDENCE, after=after)
    (failure,) = evaluate([Expectation("files_unchanged", True, 3)], evidence)
    assert "notes.txt changed" in failure.message
    assert "-kiwi\n+plum" in failure.message
    assert "new.txt appeared" in failure.message
    assert "README.md vanished" in failure.message
    assert evaluate([Expectation("files_unchanged", True, 3)], EVIDENCE) == ()


def test_project_files_are_looked_up_below_the_project_folder() -> None:
    files = {"deep/project/notes.txt": "kiwi\n"}
    evidence = dataclasses.replace(EVIDENCE, project_dir="deep/project", before=files, after=files)
    wanted = [Expectation("expected_files", ("notes.txt", "kiwi\n"), 1), Expectation("files_unchanged", "notes.txt", 2)]
    assert evaluate(wanted, evidence) == ()


def test_a_missing_last_newline_is_shown() -> None:
    (failure,) = evaluate([Expectation("expected_files", ("notes.txt", "kiwi"), 1)], EVIDENCE)
    assert "expected 'kiwi'" in failure.message
    assert r"found 'kiwi\n'" in failure.message


@pytest.mark.parametrize(
    ("served", "message"),
    [
        ((), "no main request was answered"),
        ((ServedAnswer(None, None),), "no timings"),
        ((ServedAnswer(2205, 1),), "reused 2205 cached tokens and computed 1"),
        ((ServedAnswer(0, 0),), "computed no prompt token"),
    ],
)
def test_a_cold_start_needs_proof(served: tuple[ServedAnswer, ...], message: str) -> None:
    evidence = dataclasses.replace(EVIDENCE, served=served)
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
