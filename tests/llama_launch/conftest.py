"""Fixtures: a fake llama-server on PATH, an empty configuration, a file that begins like a model."""

from __future__ import annotations

import os
import struct
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
    for name in (
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "XDG_STATE_HOME",
        "CUDA_VISIBLE_DEVICES",
        "LLAMA_SERVER",
        "LLAMA_API_KEY",
        "LLAMA_SERVER_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(home)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tiny_model(n_ctx_train: int) -> bytes:
    """A GGUF file by its specification: version 3, two keys, and one tensor of 32 zeros (F32 is type 0)."""
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    keys = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    keys += text("llama.context_length") + struct.pack("<II", 4, n_ctx_train)
    tensor = text("token_embd.weight") + struct.pack("<IQIQ", 1, 32, 0, 0)
    table = header + keys + tensor
    return table + bytes(-len(table) % 32) + bytes(4 * 32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model(n_ctx_train=8192))
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
