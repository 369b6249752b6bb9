"""Other tools that read GGUF say the same: the gguf package's reader, and its command gguf-dump."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from pathlib import Path

import gguf
import phantoms
import pytest
from gguf_info import read_header, read_summary, summary_document, tensor_bytes
from gguf_info.cli import main

LINE = re.compile(r"^ *\d+: +(\d+) \| +(\d+), +(\d+), +(\d+), +(\d+) \| (\w+) +\| (.+)$", re.MULTILINE)


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A phantom with a vocabulary of 300 tokens: the gguf package's reader takes seconds for a true one."""
    add = phantoms.add_vocabulary
    monkeypatch.setattr(phantoms, "add_vocabulary", lambda writer, size, pre: add(writer, 300, pre))
    path = tmp_path / "model.gguf"
    phantoms.write_phantom(str(request.param), path)
    return path


@pytest.mark.parametrize("model", phantoms.PHANTOMS, indirect=True)
def test_every_field_and_tensor_is_that_of_the_gguf_packages_reader(model: Path) -> None:
    header, other = read_header(model), gguf.GGUFReader(model)
    theirs = {key: field.contents() for key, field in other.fields.items() if not key.startswith("GGUF.")}
    assert summary_document(read_summary(model), full=True)["metadata"] == theirs
    ours = [
        (t.name, t.shape, t.type_number, header.data_offset + t.offset, t.parameters, tensor_bytes(t))
        for t in header.tensors
    ]
    assert ours == [
        (
            t.name,
            tuple(map(int, t.shape)),
            int(t.tensor_type),
            int(t.data_offset),
            int(t.n_elements),
            int(t.n_bytes),
        )
        for t in other.tensors
    ]


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma-3-270m", "qwen3.5-0.8b-mtp"], indirect=True)
def test_the_tensor_table_is_that_of_gguf_dump(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "from gguf.scripts.gguf_dump import main; main()", str(model)]
    dumped = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    theirs = [
        (name, kind, int(parameters), tuple(int(size) for size in sizes))
        for parameters, *sizes, kind, name in LINE.findall(dumped)
    ]
    assert main([str(model), "--tensors", "--format", "csv"]) == 0
    ours = []
    for row in csv.DictReader(io.StringIO(capsys.readouterr().out)):
        shape = [int(size) for size in row["shape"].split("x")]
        ours.append((row["name"], row["type"], int(row["parameters"]), (*shape, *[1] * (4 - len(shape)))))
    assert ours == theirs
    assert len(ours) > 200
