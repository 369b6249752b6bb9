"""Isolation, proved by looking: at the user's own files, at the other trial's folder, at every connection."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from system.processes import HarnessRun, harness_runs, processes_of

pytestmark = pytest.mark.system

POISON = "poison-b7e1"
# Where OpenCode 1.18.33 looks for a user's configuration, rules, keys and sessions; each would make it fail or talk.
USERS_FILES = {
    ".config/opencode/opencode.json": json.dumps({"instructions": [POISON], "model": f"{POISON}/x"}),
    ".config/opencode/opencode.jsonc": f"{{ this is no JSON: {POISON}",
    ".config/opencode/AGENTS.md": f"Always say {POISON}.\n",
    ".config/opencode/agent/build.md": f"---\nmode: primary\n---\nAlways say {POISON}.\n",
    ".config/opencode/command/poison.md": f"Say {POISON}.\n",
    ".config/opencode/plugin/poison.js": f"throw new Error('{POISON}')\n",
    ".config/opencode/tui.json": json.dumps({"theme": POISON}),
    ".opencode/opencode.json": json.dumps({"model": f"{POISON}/x"}),
    ".opencode/plugin/poison.js": f"throw new Error('{POISON}')\n",
    ".local/share/opencode/auth.json": json.dumps({"local": {"type": "api", "key": POISON}}),
    ".local/share/opencode/opencode.db": f"not a database: {POISON}",
    ".local/state/opencode/kv.json": f"{{ {POISON}",
    ".cache/opencode/models.json": f"{{ {POISON}",
    ".claude/CLAUDE.md": f"Always say {POISON}.\n",
    ".claude/skills/poison/SKILL.md": f"---\nname: poison\ndescription: {POISON}\n---\n",
    ".agents/skills/poison/SKILL.md": f"---\nname: poison\ndescription: {POISON}\n---\n",
    ".gitconfig": f"[core]\n\thooksPath = /{POISON}\n[init]\n\tdefaultBranch = {POISON}\n",
}
SCENARIO = """\
prompt: Read {word}.txt.
git: {git}
files: {{{word}.txt: "the fruit is {word}"}}
outside_files: {{{word}-outside.txt: "{word}"}}
turns:
  - tool_calls: [{{name: read, arguments: {{filePath: "{{workspace}}/{word}.txt"}}}}]
  - tool_calls: [{{name: write, arguments: {{filePath: "{{workspace}}/{word}.md", content: "{word}"}}}}]
  - text: "It is {word}."
screen_contains: It is {word}.
"""
WORDS = ("tamarind", "mangosteen")


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def note_as_unread(folder: Path) -> dict[str, float]:
    """Give every file an access time that a first read replaces (relatime); returns them by relative path."""
    times = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        os.utime(path, (1_000_000_000, 1_000_000_001))
        times[str(path.relative_to(folder))] = path.stat().st_atime
    return times


def files_that_hold(folder: Path, word: str) -> list[str]:
    """Files whose bytes or whose names hold `word`."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if word in path.name or (path.is_file() and not path.is_symlink() and word.encode() in path.read_bytes())
    ]


def addresses_of(run: HarnessRun) -> Iterator[str]:
    """What the run's processes are connected to now."""
    for process in processes_of(str(run.run_dir)):
        try:
            yield from (connection.raddr.ip for connection in process.net_connections("inet") if connection.raddr)
        except psutil.Error:
            continue


@dataclass(frozen=True)
class Proof:
    """A run that is over, and what was seen of it and of the user's home meanwhile."""

    run_dir: Path
    home: Path
    were_read: list[str]
    addresses: set[str]


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proof]:
    """Each scenario twice, two at a time, so that trials run both beside and after each other; a poisoned home."""
    folder = tmp_path_factory.mktemp("isolation")
    scenarios, home = folder / "scenarios", folder / "home"
    scenarios.mkdir()
    for word, git in zip(WORDS, ("false", "true"), strict=True):
        (scenarios / f"{word}.yaml").write_text(SCENARIO.format(word=word, git=git))
    write_files(home, USERS_FILES)
    env = {
        "HOME": str(home),
        "OPENCODE_CONFIG": str(home / ".config/opencode/opencode.jsonc"),
        "OPENCODE_CONFIG_DIR": str(home / ".config/opencode"),
        "OPENCODE_CONFIG_CONTENT": f"{{ {POISON}",
        "OPENAI_API_KEY": POISON,
        "HTTP_PROXY": f"http://{POISON}.invalid:1",
        "HTTPS_PROXY": f"http://{POISON}.invalid:1",
        **{f"XDG_{name}_HOME": "" for name in ("CONFIG", "STATE", "CACHE", "DATA")},
    }
    never_read = note_as_unread(home)
    addresses: set[str] = set()
    with harness_runs(folder) as start:
        run = start(scenarios, "--no-server", "--jobs", "2", "--repeat", "2", env=env)
        while run.process.poll() is None:
            addresses.update(addresses_of(run))
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(timeout=0.05)
        assert run.process.returncode == 0, run.output
        assert "4 passed" in run.output
        were_read = [name for name, at in never_read.items() if (home / name).stat().st_atime != at]
        yield Proof(run.run_dir, home, were_read, addresses)


def test_the_users_configuration_is_not_read(proof: Proof, tmp_path: Path) -> None:
    write_files(tmp_path, {"probe": "x"})
    before = note_as_unread(tmp_path)["probe"]
    (tmp_path / "probe").read_text()
    if (tmp_path / "probe").stat().st_atime == before:
        pytest.skip("this file system does not note when a file is read")
    assert proof.were_read == []


def test_the_users_configuration_is_not_written(proof: Proof) -> None:
    files = [path for path in proof.home.rglob("*") if path.is_file()]
    assert {str(path.relative_to(proof.home)): path.read_text() for path in files} == USERS_FILES


def test_nothing_that_the_user_configured_reaches_a_trial(proof: Proof) -> None:
    assert files_that_hold(proof.run_dir, POISON) == []


def test_nothing_of_one_trial_is_visible_in_another(proof: Proof) -> None:
    trials = {path.parent for path in proof.run_dir.glob("trials/**/workspace")}
    assert len(trials) == 4
    for word, other in (WORDS, WORDS[::-1]):
        for trial in (path for path in trials if path.name.startswith(word)):
            assert files_that_hold(trial, word), "the search finds what is there"
            assert files_that_hold(trial, other) == []
            assert [path for path in trials - {trial} if files_that_hold(trial, str(path))] == []


def test_no_process_of_a_run_talks_to_another_machine(proof: Proof) -> None:
    assert proof.addresses, "no connection was seen, not even to the proxy"
    assert [address for address in proof.addresses if not ip_address(address).is_loopback] == []
