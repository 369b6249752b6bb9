"""The worked figures of docs/llama-server-slots.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from gguf_info.cli import main
from phantoms import write_phantom

BRIEF = Path(__file__).parents[2] / "docs" / "llama-server-slots.md"
MIB = 1 << 20


def test_the_worked_figures_are_those_that_estimate_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "gpt-oss-20b.gguf"
    write_phantom("gpt-oss-20b", model)
    rows = re.findall(r"^\| `(-c .*)` \| ([\d.]+) MiB \| ([\d.]+) MiB \| ([\d.]+) MiB \|$", BRIEF.read_text(), re.M)
    assert len(rows) == 3
    for flags, whole, window, share in rows:
        assert main(["estimate", str(model), "-np", "4", "-kvu", "-fa", "on", *flags.split(), "--format", "json"]) == 0
        parts = {part["kind"]: part for part in json.loads(capsys.readouterr().out)["kv_cache"]["parts"]}
        assert parts["non-swa"]["bytes"] / MIB == float(whole)
        assert parts["swa"]["bytes"] / MIB == float(window)
        assert parts["non-swa"]["bytes"] / MIB * 32768 / int(flags.split()[1]) == float(share)
