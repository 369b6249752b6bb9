"""What the documents show is what the command prints, and what they name is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from gguf_info.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "packages/gguf-info/README.md").read_text(encoding="utf-8")
DOCS = (ROOT / "docs/gguf-info.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"```console\n\$ gguf-info (.+)\n((?:.*\n)+?)```")


def test_the_shown_estimate_is_what_the_command_prints(
    phantom: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (shown,) = [(line, printed) for line, printed in SHOWN.findall(README) if "gpt-oss-20b.gguf" in line]
    monkeypatch.chdir(phantom("gpt-oss-20b").parent)
    assert main(shlex.split(shown[0])) == 0
    assert capsys.readouterr().out == shown[1]


def test_every_schema_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    shipped = {path.name for path in (files("gguf_info") / "schemas").iterdir()}
    paragraph = DOCS.split("## JSON Schemas")[1].split("##")[0]
    named = set(re.findall(r"`([a-z]+)`", paragraph))
    assert shipped == {f"{name}.schema.json" for name in named}


@pytest.mark.parametrize("command", ["estimate", "template", "verify", "diff", ""])
def test_every_flag_in_the_documents_is_one_of_the_command(capsys: pytest.CaptureFixture[str], command: str) -> None:
    main([command, "--help"] if command else ["--help"])
    known = set(re.findall(r"--[a-z0-9-]+", capsys.readouterr().out))
    pattern = rf"gguf-info {command} (.+)" if command else r"gguf-info (?!estimate|template|verify|diff)(\S+ .+)"
    for line in re.findall(pattern, README):
        flags = set(re.findall(r"(?<!\S)--[a-z0-9-]+", line.split("|")[0].split("#")[0]))
        assert flags <= known, line
