"""`opencode-harness run` with a stand-in for OpenCode: what is selected, repeated, tried again, told and written."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from opencode_harness.cli import main

FAKE = Path(__file__).with_name("fake_opencode.py")
FRUIT = 'prompt: Which fruit?\nturns: [{text: "It is kiwi."}]\nscreen_contains: kiwi\n'
WRITES = """\
prompt: Write kiwi.
solution:
  - tool_calls: [{name: write, arguments: {filePath: "{workspace}/fruit.txt", content: kiwi}}]
  - text: Written.
expected_files: {fruit.txt: kiwi}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "scenarios").mkdir(parents=True)
    opencode = folder / "opencode"
    opencode.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    opencode.chmod(0o755)
    monkeypatch.chdir(folder)
    return folder


def write(project: Path, name: str, text: str) -> None:
    (project / "scenarios" / f"{name}.yaml").write_text(text)


def run(project: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and run.json."""
    run_dir = project / "run"
    opencode = str(project / "opencode")
    status = main(["run", "scenarios", "--opencode", opencode, "--run-dir", str(run_dir), *arguments])
    document: dict[str, Any] = json.loads((run_dir / "run.json").read_text())
    return status, document


def test_a_run_without_server_tells_each_trial_and_where_its_records_are(project: Path) -> None:
    write(project, "fruit", FRUIT)
    write(project, "live", "prompt: Hello?\nscreen_contains: hello\n")
    status, document = run(project, "--no-server")
    assert status == 0
    assert document["outcomes"] == {"pass": 1, "skip": 1}
    assert (document["schema_version"], document["opencode"], document["kv_mode"]) == (1, "1.18.33", "cold")
    passed, skipped = document["trials"]
    assert (passed["scenario"], passed["source"], passed["requests"]) == ("scenarios/fruit.yaml", "turns", 2)
    assert (project / "run" / passed["artefacts"] / "screen.cast").is_file()
    assert "it needs a server or a cassette" in skipped["messages"][0]
    cases = ElementTree.parse(project / "run" / "junit.xml").findall(".//testcase")
    assert [case.get("name") for case in cases] == ["fruit", "live"]


def test_repetitions_have_folders_of_their_own_and_a_rate_with_its_interval(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "fruit", FRUIT)
    status, document = run(project, "--no-server", "--repeat", "2")
    assert status == 0
    assert [trial["repeat"] for trial in document["trials"]] == [1, 2]
    assert len({trial["artefacts"] for trial in document["trials"]}) == 2
    (rate,) = document["scenarios"]
    # Wilson 1927 for 2 of 2: low = 1 / (1 + 1.96² / 2).
    assert (rate["n"], rate["passes"], rate["high"], rate["pass_k"]) == (2, 2, 1.0, [1.0, 1.0])
    assert rate["low"] == pytest.approx(0.342, abs=0.001)
    out = capsys.readouterr().out
    assert "fruit: 2 of 2 passed (95 % interval 34% to 100%; pass^2 1.00)" in out


@pytest.mark.parametrize(("arguments", "outcome", "status"), [(["--oracle"], "pass", 0), (["--nop"], "fail", 0)])
def test_a_solution_passes_and_doing_nothing_fails(
    project: Path, arguments: list[str], outcome: str, status: int
) -> None:
    write(project, "writes", WRITES)
    assert run(project, "--no-server", *arguments)[1]["outcomes"] == {outcome: 1}


def test_what_passes_though_nothing_is_done_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "vacuous", "prompt: Hi\nturns: [{text: x}]\nscreen_not_contains: plum\n")
    assert run(project, "--no-server", "--nop")[0] == 1
    assert "scenarios/vacuous.yaml: passes though nothing was done" in capsys.readouterr().out


@pytest.mark.filterwarnings("default:KV cache not flushed")
def test_what_the_environment_broke_is_tried_again_once_and_both_attempts_are_kept(project: Path) -> None:
    write(project, "live", "prompt: Hello?\nscreen_contains: hello\n")
    status, document = run(project, "--server", "http://127.0.0.1:9")
    assert status == 3
    first, second = document["trials"]
    assert (first["outcome"], first["attempt"], first["is_last"]) == ("infra", 1, False)
    assert (second["outcome"], second["attempt"], second["is_last"]) == ("infra", 2, True)
    for trial in (first, second):
        assert (project / "run" / trial["artefacts"] / "requests.jsonl").is_file()
    assert document["scenarios"][0]["n"] == 0


def test_workers_run_all_scenarios_each_in_folders_of_its_own(project: Path) -> None:
    for name in ("one", "two", "three"):
        write(project, name, FRUIT)
    status, document = run(project, "--no-server", "--jobs", "2")
    assert status == 0
    assert sorted(trial["name"] for trial in document["trials"]) == ["one", "three", "two"]
    assert len({trial["artefacts"] for trial in document["trials"]}) == 3


@pytest.mark.parametrize(
    ("arguments", "names"),
    [(["--tag", "a"], ["one"]), (["--skip-tag", "a"], ["two"]), (["--tag", "a", "--tag", "b"], ["one", "two"])],
)
def test_tags_select_scenarios(project: Path, arguments: list[str], names: list[str]) -> None:
    write(project, "one", FRUIT + "tags: [a]\n")
    write(project, "two", FRUIT + "tags: [b]\n")
    assert [trial["name"] for trial in run(project, "--no-server", *arguments)[1]["trials"]] == names


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tag", "no-such"], "no scenario carries these tags"),
        (["--no-server", "--", "-k", "no-such"], "no scenario was selected"),
        (["--no-server", "--server", "http://127.0.0.1:9"], "exclude each other"),
    ],
)
def test_a_selection_that_leaves_nothing_is_told(
    project: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "fruit", FRUIT)
    assert main(["run", "scenarios", "--opencode", str(project / "opencode"), *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_profile_that_keeps_prompts_in_host_ram_is_refused_in_a_cold_run(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "live", "prompt: Hello?\nscreen_contains: hello\n")
    (project / "warm.toml").write_text('extends = "smollm2-135m"\ncache_ram_mib = 512\n')
    assert run(project, "--profile", "./warm.toml")[0] == 2
    told = capsys.readouterr().err
    assert "cache_ram_mib is 512" in told
    assert "--cache-ram 0" in told
