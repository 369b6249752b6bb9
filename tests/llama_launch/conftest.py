"""Fixtures: a fake llama-server on PATH, an empty configuration, a file that begins like a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import llama_launch
import pytest

FAKE = Path(__file__).with_name("fake_llama_server.py")


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No profile of the machine's user, and no server of theirs."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "LLAMA_SERVER", "LLAMA_API_KEY", "LLAMA_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(home)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF" + bytes(28))
    return path


@pytest.fixture
def fake_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a llama-server on PATH that behaves as it is told; returns a file that it may use as a note."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    marker = tmp_path / "marker"
    monkeypatch.setenv("FAKE_LLAMA_MARKER", str(marker))

    def behave(how: str) -> Path:
        monkeypatch.setenv("FAKE_LLAMA", how)
        return marker

    return behave


@pytest.fixture
def profile(model: Path) -> llama_launch.Profile:
    return llama_launch.load_profile("smollm2-135m", {"model": str(model)})
