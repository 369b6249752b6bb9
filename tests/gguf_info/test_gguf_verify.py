"""`verify` and `diff`."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from gguf_info import diff_models, read_summary, tensor_digests, verify
from gguf_info.cli import main

WriteBytes = Callable[..., Path]
ARCHITECTURE = (b"general.architecture", 8, b"llama")
Row = tuple[bytes, tuple[int, ...], int, int]


def codes(path: Path) -> list[tuple[str, str | None]]:
    return [(fault.code, fault.tensor) for fault in verify(read_summary(path))]


def test_file_of_the_writer_has_no_fault(tiny_model: Path, gpt_oss: Path) -> None:
    assert codes(tiny_model) == []
    assert codes(gpt_oss) == []


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([(b"a", (8,), 0, 0), (b"b", (8,), 0, 0)], ("overlap", "b")),
        ([(b"a", (8,), 0, 0), (b"b", (8,), 0, 40)], ("misaligned", "b")),
        ([(b"a", (8,), 0, 0), (b"b", (64,), 0, 32)], ("data-short", "b")),
        ([(b"a", (31,), 8, 0)], ("part-block", "a")),
        ([(b"n" * 64, (8,), 0, 0)], ("long-name", "n" * 64)),
        ([(b"a", (8,), 999, 0)], ("unknown-type", "a")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_fault_is_named(write_gguf: WriteBytes, tensors: list[Row], expected: tuple[str, str]) -> None:
    path = write_gguf(metadata=[ARCHITECTURE], tensors=tensors, data=bytes(96))
    assert codes(path) == [expected]


def test_file_without_architecture_is_a_fault(write_gguf: WriteBytes) -> None:
    assert codes(write_gguf()) == [("no-architecture", None)]


def test_unknown_type_alone_is_a_note_and_status_0(write_gguf: WriteBytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(metadata=[ARCHITECTURE], tensors=[(b"a", (8,), 999, 0)])
    assert main(["verify", str(path)]) == 0
    assert "size unknown: type 999" in capsys.readouterr().out


def test_fault_is_status_1(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(tiny_model, tiny_model.stat().st_size - 300)
    assert main(["verify", str(tiny_model), "--format", "json", "--sha256"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["sha256"] is None
    assert {fault["code"] for fault in document["faults"]} == {"data-short"}


def test_header_that_breaks_the_format_is_a_fault(write_gguf: WriteBytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(metadata=[ARCHITECTURE], tensors=[(b"a", (8,), 0, 0), (b"a", (8,), 0, 32)])
    assert main(["verify", str(path)]) == 1
    assert "'a' again" in capsys.readouterr().out
    assert main(["verify", str(path), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"][0]["code"] == "header"


def test_no_gguf_file_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(b"nothing like it")
    assert main(["verify", str(tmp_path / "x")]) == 2
    assert "expected 'GGUF'" in capsys.readouterr().err


def test_digest_is_that_of_the_data_as_the_gguf_package_reads_it(tiny_model: Path) -> None:
    theirs = {t.name: hashlib.sha256(t.data.tobytes()).hexdigest() for t in gguf.GGUFReader(tiny_model).tensors}
    assert dict(tensor_digests(read_summary(tiny_model))) == theirs


def test_model_does_not_differ_from_itself(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff_models(read_summary(tiny_model), read_summary(tiny_model)).is_empty
    assert main(["diff", str(tiny_model), str(tiny_model)]) == 0
    assert "no difference" in capsys.readouterr().out


@pytest.fixture
def two_models(write_gguf: WriteBytes) -> list[str]:
    def model(name: str, template: bytes, third: int, kind: int, extra: bytes) -> Path:
        tokens = struct.pack("<IQ100I", 4, 100, *[0, 1, third, *range(3, 100)])
        metadata = [
            ARCHITECTURE,
            (b"tokenizer.ggml.token_type", 9, tokens),
            (b"tokenizer.chat_template", 8, template),
            (extra, 0, b"\1"),
        ]
        return write_gguf(name=name, metadata=metadata, tensors=[(b"t", (32,), kind, 0)], data=bytes(128))

    return [str(model("a", b"one\ntwo", 2, 0, b"only.a")), str(model("b", b"one\n2", 9, 8, b"only.b"))]


def test_diff_names_keys_tensors_types_and_template_lines(
    two_models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *two_models, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["same"] is False
    assert [(c["name"], c["kind"]) for c in document["metadata"]] == [
        ("tokenizer.ggml.token_type", "changed"),
        ("only.a", "removed"),
        ("only.b", "added"),
    ]
    assert document["metadata"][0]["before"]["first_difference"] == 2
    assert document["tensors"] == [
        {
            "name": "t",
            "kind": "changed",
            "before": {"shape": [32], "type": "F32"},
            "after": {"shape": [32], "type": "Q8_0"},
        }
    ]
    assert [(c["name"], c["kind"]) for c in document["types"]] == [("F32", "removed"), ("Q8_0", "added")]
    assert document["chat_template"][-2:] == ["-two", "+2"]


def test_diff_tables(two_models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *two_models]) == 1
    out = capsys.readouterr().out
    assert "100 × u32, differs from item 2 on" in out
    assert "Q8_0 32" in out
    assert out.endswith("-two\n+2\n")
