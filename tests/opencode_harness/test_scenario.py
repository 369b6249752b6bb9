from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from opencode_harness.errors import ScenarioError
from opencode_harness.scenario import load_scenario, scenario_paths, scenario_schema

ROOT = Path(__file__).parents[2]


def write(folder: Path, text: str) -> Path:
    path = folder / "example.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_scenario_is_valid_and_described(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.description


def test_expectations_keep_their_order_and_lines(tmp_path: Path) -> None:
    scenario = load_scenario(
        write(
            tmp_path,
            "prompt: hi\n"
            "stdout_contains:\n"
            "  - one\n"
            "  - two\n"
            "files_unchanged: true\n"
            "expected_files:\n"
            '  a.txt: "text"\n'
            "  b.txt: {absent: true}\n"
            "permissions_asked: []\n",
        )
    )
    found = [(item.key, item.value, item.line) for item in scenario.expectations]
    assert found == [
        ("stdout_contains", "one", 3),
        ("stdout_contains", "two", 4),
        ("files_unchanged", True, 5),
        ("expected_files", ("a.txt", "text"), 7),
        ("expected_files", ("b.txt", {"absent": True}), 8),
        ("permissions_asked", [], 9),
    ]


def test_the_keys_of_the_first_harness_take_one_text_or_several(tmp_path: Path) -> None:
    scenario = load_scenario(
        write(
            tmp_path,
            "prompt: hi\nstdout_contains: a\nstdout_not_contains: [b]\nstdout_contains_re: c\n"
            "stdout_not_contains_re: [d, e]\nstderr_contains_re: f\nstderr_not_contains_re: g\n"
            "files_unchanged: false\n",
        )
    )
    assert [item.value for item in scenario.expectations] == ["a", "b", "c", "d", "e", "f", "g"]


# What is wrong, where it must be said to be (line:column), what must be said, and the remedy.
FAULTS = [
    ("prompt: hi\nstdout_contain: x\n", "2:1", "unknown key 'stdout_contain'", "did you mean 'stdout_contains'?"),
    ("stdout_contains: x\n", "1:1", "'prompt' is missing", ""),
    ("prompt: hi\n", "1:1", "checks nothing", "add at least one of"),
    ("prompt: hi\nstdout_contains_re: '('\n", "2:1", "not a regular expression", ""),
    ("prompt: hi\nstdout_contains_re:\n  - fine\n  - '['\n", "4:5", "not a regular expression", ""),
    ("prompt: hi\nprompt: ho\nstdout_contains: x\n", "2:1", "given twice", ""),
    ("prompt: 7\nstdout_contains: x\n", "1:1", "7 is not of type 'string'", ""),
    ("prompt: hi\nstdout_contains: [x\n", "3:1", "not valid YAML", ""),
    ("prompt: &a hi\nstdout_contains: *a\n", "1:9", "aliases are not supported", ""),
    ("prompt: !!python/object:os.system x\n", "1:9", "unsupported value", "quote"),
    ("prompt: hi\nfiles: {../x: y}\nstdout_contains: x\n", "2:9", "not a path inside", ""),
    ("prompt: hi\nfiles:\n  /etc/x: y\nstdout_contains: x\n", "3:3", "not a path inside", ""),
    ("prompt: hi\nfiles: {a: x, a/b/c: y}\nstdout_contains: x\n", "2:15", "'a' is a file", ""),
    ("prompt: hi\noutside_files:\n  ./a/b: x\n  a: y\nstdout_contains: x\n", "3:3", "'a' is a file", ""),
    ("prompt: hi\nproject_dir: a/../../b\nstdout_contains: x\n", "2:1", "project_dir", ""),
    ("prompt: hi\nturns: []\nstdout_contains: x\n", "2:1", "turns", ""),
    ("prompt: hi\nturns:\n  - txt: x\nstdout_contains: x\n", "3:5", "unknown key 'txt'", "did you mean 'text'?"),
    (
        "prompt: hi\nturns:\n  - text: a\n  - finish_reason: stop\nstdout_contains: x\n",
        "4:5",
        "needs text, reasoning or",
        "",
    ),
    ("prompt: hi\npermission: {read: maybe}\nstdout_contains: x\n", "2:14", "permission.read", ""),
    ("prompt: hi\npermission_answer: never\nstdout_contains: x\n", "2:1", "permission_answer", ""),
    ("prompt: hi\ntimeouts: {turn: 0}\nstdout_contains: x\n", "2:12", "timeouts.turn", ""),
    ("prompt: hi\nexpected_files: {a: {absent: false}}\n", "2:22", "expected_files.a", ""),
    ("prompt: 2024-01-01\nstdout_contains: x\n", "1:9", "unsupported value", "quote"),
    ("prompt: !!int abc\nstdout_contains: x\n", "1:9", "this is no int", "quote"),
    ("prompt: !!bool maybe\nstdout_contains: x\n", "1:9", "this is no bool", "quote"),
    (f"prompt: hi\ntimeouts: {{turn: {'9' * 5000}}}\nstdout_contains: x\n", "2:18", "this is no int", "quote"),
    (f"prompt: hi\ntimeouts: {{turn: 0x{'f' * 5000}}}\nstdout_contains: x\n", "2:18", "too large", ""),
    ("prompt: hi\ntimeouts: {turn: .nan}\nstdout_contains: x\n", "2:18", "too large", ""),
    ('prompt: "\\ud800"\nstdout_contains: x\n', "1:9", "half a surrogate pair", "one character"),
    ("- prompt\n", "1:1", "not of type 'object'", ""),
    ("", "1:1", "the file is empty", "prompt"),
]


@pytest.mark.parametrize(("text", "place", "message", "hint"), FAULTS)
def test_a_fault_is_told_with_its_place_and_remedy(
    tmp_path: Path, text: str, place: str, message: str, hint: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert f"{path}:{place}" in str(caught.value)
    assert message in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize("raw", [b"\xff\xfeprompt", b"prompt: \x00", b"prompt: " + b"[" * 3000])
def test_bytes_that_are_no_yaml_are_an_error_and_no_traceback(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_bytes(raw)
    with pytest.raises(ScenarioError, match="hostile"):
        load_scenario(path)


def test_a_pipe_is_an_error_and_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    with pytest.raises(ScenarioError, match="not a regular file"):
        load_scenario(path)


def test_a_folder_stands_for_every_scenario_below_it(tmp_path: Path) -> None:
    for name in ("b/two.yaml", "a/one.yml", "a/not.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("prompt: x")
    assert scenario_paths([tmp_path]) == [tmp_path / "a/one.yml", tmp_path / "b/two.yaml"]
    assert scenario_paths([tmp_path / "a/one.yml", tmp_path / "a"]) == [tmp_path / "a/one.yml"]


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_root_without_scenarios_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScenarioError, match=name):
        scenario_paths([tmp_path / name])


SET_UP = {"description", "tags", "prompt", "project_dir", "files", "outside_files", "permission", "permission_answer"}
SET_UP |= {
    "turns",
    "max_output_tokens",
    "timeouts",
    "then",
    "resume",
    "git",
    "requires",
    "guided",
    "solution",
    "faults",
}
SET_UP |= {"limits"}
VALUES: dict[str, object] = {
    "files_unchanged": True,
    "expected_files": {"a.txt": "text"},
    "permissions_asked": [],
    "tools_called": [],
    "cold_start": True,
    "exit_code": 0,
    "bounds": {"requests": 3},
    "tool_calls_made": {"name": "read"},
    "tool_calls_not_made": {"name": "read"},
}


@pytest.mark.parametrize("key", sorted(set(scenario_schema()["properties"]) - SET_UP))
def test_every_key_that_sets_nothing_up_is_checked(tmp_path: Path, key: str) -> None:
    document = {"prompt": "hi", key: VALUES.get(key, "text")}
    scenario = load_scenario(write(tmp_path, json.dumps(document)))
    assert [item.key for item in scenario.expectations] == [key]
