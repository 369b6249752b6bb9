"""Ctrl-C ends every command with 130, whatever Python was doing at that moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "gguf_info": ["estimate", "model.gguf"],
    "vram_report": ["server.log"],
    "llama_launch": ["profile", "list"],
    "opencode_harness": ["validate", "scenarios"],
}
# Python notes an interrupt that reaches the end of executed text, such as dataclasses write, and `python -m` then ends
# by SIGINT even though the interrupt was caught. argparse is where every command passes.
INTERRUPTED_IN_EXECUTED_TEXT = """\
import argparse
argparse.ArgumentParser.parse_known_args = lambda *given: exec("raise KeyboardInterrupt")
"""


@pytest.mark.parametrize("package", COMMANDS)
def test_an_interrupt_in_executed_text_is_exit_status_130(tmp_path: Path, package: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_IN_EXECUTED_TEXT)
    ended = subprocess.run(
        [sys.executable, "-m", package, *COMMANDS[package]],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 130, ended
    assert "Traceback" not in ended.stderr
