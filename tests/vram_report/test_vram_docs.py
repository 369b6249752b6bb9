"""The package's documents say what the program does."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest
import vram_report
from vram_report.cli import main
from vram_report.findings import CODES

ROOT = Path(__file__).parents[2]
README = ROOT / "packages" / "vram-report" / "README.md"
EXCERPT = re.compile(r"```console\n\$ (vram-report [^\n]+)\n(.*?)```", re.DOTALL)


def test_readme_excerpt_is_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    excerpts = EXCERPT.findall(README.read_text(encoding="utf-8"))
    assert excerpts
    for command, printed in excerpts:
        assert main(shlex.split(command)[1:]) == 0
        assert capsys.readouterr().out == printed


def test_every_finding_code_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^## ([a-z0-9-]+)$", text, re.MULTILINE)) == sorted(CODES)


def test_every_public_name_is_there_and_no_module_hides_one() -> None:
    for name in vram_report.__all__:
        assert not inspect.ismodule(getattr(vram_report, name)), name
    assert set(vram_report.__all__) <= set(dir(vram_report))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = vram_report.no_such_name
