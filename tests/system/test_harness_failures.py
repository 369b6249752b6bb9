"""Scenarios that must fail do fail, with the real OpenCode, and say at which line of the scenario."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from system.processes import HarnessRun

pytestmark = pytest.mark.system

CLOSED_PORT = "http://127.0.0.1:9"
READS_AND_WRITES = """\
prompt: Write out.txt.
files: {notes.txt: "kiwi"}
turns:
  - tool_calls: [{name: write, arguments: {filePath: "{workspace}/out.txt", content: "plum"}}]
  - text: "Written."
"""
SCENARIOS = {
    "wrong_file_content": READS_AND_WRITES + 'expected_files:\n  out.txt: "pear"\n',
    "missing_text": READS_AND_WRITES + "screen_contains:\n  - Written.\n  - apricot\n",
    "changed_file": READS_AND_WRITES + "files_unchanged: true\n",
    "endpoint_down": "description: nobody answers\nprompt: Hello?\nscreen_contains: hello\n",
}
# The line that the message must name, and what it must say.
EXPECTED = {
    "wrong_file_content": (7, r"expected_files: out\.txt differs[\s\S]*-pear\s*\n\+plum"),
    "missing_text": (8, r"screen_contains: 'apricot' not found in the screen"),
    "changed_file": (6, r"files_unchanged: out\.txt appeared"),
    "endpoint_down": (2, r".*127\.0\.0\.1:9"),
}


def test_each_kind_of_failure_names_the_scenarios_line(
    tmp_path: Path, start_harness: Callable[..., HarnessRun]
) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for name, text in SCENARIOS.items():
        (folder / f"{name}.yaml").write_text(text)
    run = start_harness(folder, "--server", CLOSED_PORT)
    assert run.process.wait(timeout=300) == 1
    for name, (line, message) in EXPECTED.items():
        assert re.search(rf"broken/{name}\.yaml:{line}: {message}", run.output), f"{name}\n{run.output}"
    assert "4 failed" in run.output
    assert "INFRA" in run.output
    assert "Traceback" not in run.output
    assert run.left_over() == []
    for name in SCENARIOS:
        artefacts = run.run_dir / "trials" / f"{name}0" / "artefacts"
        assert (artefacts / "result.json").is_file()
        assert "Ask anything" in (artefacts / "screen-ready.txt").read_text()
