"""A sweep as a picture."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_info.cli import main

Phantom = Callable[[str], Path]


def sweep(model: Path, plot: Path) -> int:
    flags = ["--sweep", "4096,8192,16384", "--memory", "CUDA0=24000", "--plot", str(plot)]
    return main(["estimate", str(model), *flags])


def test_a_sweep_is_drawn_with_a_line_for_each_cache_type(phantom: Phantom, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first, again, png = tmp_path / "a.svg", tmp_path / "b.svg", tmp_path / "c.png"
    for picture in (first, again, png):
        assert sweep(phantom("openelm-1b"), picture) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    text = first.read_text(encoding="utf-8")
    for said in ("f16", "q8_0", "q4_0", "free", "context, tokens", "used on devices, GiB"):
        assert f"<!-- {said} -->" in text
    assert first.read_bytes() == again.read_bytes()


def test_a_plot_that_cannot_be_written_is_told(
    phantom: Phantom, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert sweep(phantom("openelm-1b"), tmp_path / "nowhere" / "a.svg") == 2
    assert "a.svg: expected a file to write the plot to, found no such file" in capsys.readouterr().err


def test_a_missing_library_is_told_with_its_remedy(
    phantom: Phantom, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert sweep(phantom("openelm-1b"), tmp_path / "a.svg") == 2
    assert "pip install 'gguf-info[plot]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
