"""The JSON documents keep to the schemas that the wheel ships, and the schemas to the contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from gguf_info.cli import main

jsonschema = pytest.importorskip("jsonschema")


def validator(name: str) -> Any:
    schema = json.loads((files("gguf_info") / "schemas" / f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


Phantom = Callable[[str], Path]
# A model with windows, a hybrid one with layers that predict further tokens, latent attention, heads by layer.
SHAPES = ("gpt-oss-20b", "qwen3.5-0.8b-mtp", "deepseek-v2-lite", "openelm-1b")


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    main([*map(str, arguments), "--format", "json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", [*SHAPES, "mmproj"])
def test_what_is_in_a_model_is_valid(
    capsys: pytest.CaptureFixture[str], phantom: Phantom, mmproj: Path, name: str
) -> None:
    model = mmproj if name == "mmproj" else phantom(name)
    validator("summary").validate(printed(capsys, model))
    validator("tensors").validate(printed(capsys, model, "--tensors", "blk\\.0"))
    validator("verify").validate(printed(capsys, "verify", model))


@pytest.mark.parametrize("name", SHAPES)
def test_estimates_are_valid(capsys: pytest.CaptureFixture[str], phantom: Phantom, name: str) -> None:
    model = phantom(name)
    validator("estimate").validate(printed(capsys, "estimate", model))
    search = ("--largest", "n-gpu-layers", "-c", 4096, "--memory", "CUDA0=2000")
    validator("largest").validate(printed(capsys, "estimate", model, *search))
    validator("sweep").validate(printed(capsys, "estimate", model, "--sweep", "4096,8192"))


def test_an_estimate_with_all_that_can_be_beside_a_model_is_valid(
    capsys: pytest.CaptureFixture[str], phantom: Phantom, mmproj: Path
) -> None:
    flags = ("-md", phantom("smollm2-135m"), "-mm", mmproj, "--memory", "CUDA0=24000", "-cram", -1)
    document = printed(capsys, "estimate", phantom("qwen3-8b"), *flags)
    validator("estimate").validate(document)
    assert {one["role"] for one in document["extra_models"]} == {"draft", "mmproj"}


def test_several_models_and_differences_are_valid(capsys: pytest.CaptureFixture[str], phantom: Phantom) -> None:
    pair = (phantom("qwen3-8b"), phantom("smollm2-135m"))
    validator("residency").validate(printed(capsys, "estimate", *pair, "--memory", "CUDA0=9000"))
    validator("diff").validate(printed(capsys, "diff", *pair))


def test_faults_and_digests_are_valid(capsys: pytest.CaptureFixture[str], tiny_model: Path) -> None:
    document = printed(capsys, "verify", tiny_model, "--sha256")
    validator("verify").validate(document)
    assert document["sha256"]
    tiny_model.write_bytes(tiny_model.read_bytes()[:-100])
    document = printed(capsys, "verify", tiny_model)
    validator("verify").validate(document)
    assert document["faults"]


def test_what_a_template_does_is_valid(capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text('[{"role": "user", "content": "Hello"}]')
    validator("template").validate(printed(capsys, "template", tiny_model))
    validator("template").validate(printed(capsys, "template", tiny_model, "--messages", request))


CONTRACT = {
    "estimate": "schema_version assumptions weights kv_cache recurrent output compute extra_models devices host slots",
    "summary": "schema_version file general architecture attention moe rope tokenizer tensors metadata",
}


@pytest.mark.parametrize("name", CONTRACT)
def test_a_document_has_the_contract_s_keys_and_no_other(
    capsys: pytest.CaptureFixture[str], phantom: Phantom, name: str
) -> None:
    model = phantom("openelm-1b")
    arguments: tuple[object, ...] = ("estimate", model) if name == "estimate" else (model,)
    document = printed(capsys, *arguments)
    assert list(document) == CONTRACT[name].split()
    check = validator(name)
    assert not check.is_valid({**document, "extra": 1})
    for key in document:
        assert not check.is_valid({other: value for other, value in document.items() if other != key})
