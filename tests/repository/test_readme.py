"""What README.md, .ci/run and noxfile.py promise about each other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCENARIO_SCHEMA = ROOT / "packages/opencode-harness/src/opencode_harness/schemas/scenario.schema.json"
PACKAGES = ("gguf-info", "vram-report", "llama-launch", "opencode-harness")


def first_code_block() -> list[str]:
    match = re.search(r"^```\w*\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert match is not None
    return match.group(1).splitlines()


def test_the_first_code_block_is_the_main_job_and_the_tests() -> None:
    main_job, tests = first_code_block()
    assert main_job.endswith("nox -s suite")
    assert tests.endswith("nox")


def test_both_commands_make_their_own_environment() -> None:
    for command in first_code_block():
        assert command.startswith("python3 -m venv .venv && ")


def test_ci_runs_the_second_command_line_as_it_stands() -> None:
    _, tests = first_code_block()
    assert tests in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_main_job_is_one_of_the_default_sessions() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    (default,) = re.findall(r"^nox\.options\.sessions = (\[.*\])$", noxfile, re.MULTILINE)
    assert '"suite"' in default


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_has_a_readme_with_its_install_line(package: str) -> None:
    text = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"pip install '?{package}", text)


def test_the_harness_readme_names_the_libraries_that_drive_the_terminal_and_the_server() -> None:
    text = (ROOT / "packages" / "opencode-harness" / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if "pip install" in line and "requests" in line]
    assert "pexpect" in line


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_carries_the_licence(package: str) -> None:
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert (ROOT / "packages" / package / "LICENSE").read_text(encoding="utf-8") == licence


def relative_links(path: Path) -> list[str]:
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    return [link for link in found if "://" not in link]


DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "packages/*/*.md", "tests/*.md", "fixtures/**/*.md")
    for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    for link in relative_links(path):
        assert (path.parent / link).exists(), f"{path} links to {link}"


def test_every_scenario_key_is_documented() -> None:
    schema = json.loads(SCENARIO_SCHEMA.read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    documented = {name for row in re.findall(r"^\|(.+?)\|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert documented >= set(schema["properties"])
