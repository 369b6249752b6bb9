"""The JSON documents keep to the schemas that the wheel ships."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from vram_report.cli import main

jsonschema = pytest.importorskip("jsonschema")

FOLDER = Path(__file__).parents[2] / "fixtures" / "logs"
LOGS = sorted(FOLDER.glob("*.log"))


def validator(name: str) -> Any:
    schema = json.loads((files("vram_report") / "schemas" / f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_every_fixture_document_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    check = validator("report")
    assert main(["--format", "json", *map(str, LOGS)]) == 0
    documents = json.loads(capsys.readouterr().out)
    check.validate(documents)
    for document in documents:
        check.validate(document)


def test_a_document_with_another_key_or_without_one_is_not_valid(capsys: pytest.CaptureFixture[str]) -> None:
    check = validator("report")
    assert main(["--format", "json", str(LOGS[0])]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not check.is_valid({**document, "extra": 1})
    del document["runs"][0]["capacity"]["binding"]
    assert not check.is_valid(document)


def test_a_comparison_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("p1", "p1_ctx_over_train", "p4_divided")
    logs = [str(FOLDER / f"xllamacpp-2026.10.11549.{name}.log") for name in names]
    assert main(["compare", "--format", "json", *logs]) == 0
    validator("comparison").validate(json.loads(capsys.readouterr().out))
