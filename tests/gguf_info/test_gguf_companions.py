"""Draft models, projectors, and several models at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_info.cli import main

MIB = 2**20


class Models:
    """Phantoms and a projector by file name: `models / "qwen3-8b.gguf"`."""

    def __init__(self, phantom: Callable[[str], Path], mmproj: Path) -> None:
        self._phantom, self._mmproj = phantom, mmproj

    def __truediv__(self, name: str) -> Path:
        if name == "mmproj.gguf":
            return self._mmproj
        return Path("none.gguf") if name == "none.gguf" else self._phantom(name.removesuffix(".gguf"))


@pytest.fixture
def models(phantom: Callable[[str], Path], mmproj: Path) -> Models:
    return Models(phantom, mmproj)


def estimate(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    status = main(["estimate", "--format", "json", *map(str, arguments)])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, document


def used(document: dict[str, Any]) -> int:
    (device,) = document["devices"]
    return int(device["used_bytes"])


def test_draft_and_projector_count_on_their_device(capsys: pytest.CaptureFixture[str], models: Models) -> None:
    flags = (models / "qwen3-8b.gguf", "-c", 8192, "-np", 1, "--memory", "CUDA0=24000")
    _, alone = estimate(capsys, *flags)
    _, both = estimate(capsys, *flags, "-md", models / "smollm2-135m.gguf", "-mm", models / "mmproj.gguf")
    extra = both["extra_models"]
    assert isinstance(extra, list)
    assert [(one["role"], one["device"]) for one in extra] == [
        ("draft", "CUDA0"),
        ("draft", "CPU"),
        ("mmproj", "CUDA0"),
    ]
    projector = extra[2]
    assert (projector["weights_bytes"], projector["kv_bytes"], projector["compute_bytes"]) == (2 * MIB, 0, None)
    on_device = sum(
        one["weights_bytes"] + one["kv_bytes"] + (one["compute_bytes"] or 0)
        for one in extra
        if one["device"] == "CUDA0"
    )
    assert used(both) == used(alone) + on_device


def test_a_projector_without_offload_lies_on_the_host(capsys: pytest.CaptureFixture[str], models: Models) -> None:
    flags = (models / "qwen3-8b.gguf", "-c", 8192, "-mm", models / "mmproj.gguf", "--no-mmproj-offload")
    _, document = estimate(capsys, *flags)
    (projector,) = document["extra_models"]
    assert projector["device"] == "CPU"


def test_a_draft_can_be_what_no_longer_fits(capsys: pytest.CaptureFixture[str], models: Models) -> None:
    flags = (models / "qwen3-8b.gguf", "-c", 8192, "-np", 1, "--memory", "CUDA0=10000")
    assert estimate(capsys, *flags)[0] == 0
    assert estimate(capsys, *flags, "-md", models / "granite-4-h-tiny.gguf")[0] == 1


def test_the_largest_context_leaves_room_for_the_draft(capsys: pytest.CaptureFixture[str], models: Models) -> None:
    flags = (models / "qwen3-8b.gguf", "--largest", "ctx-size", "-np", 1, "--memory", "CUDA0=12000")
    _, alone = estimate(capsys, *flags)
    _, beside = estimate(capsys, *flags, "-md", models / "smollm2-135m.gguf")
    assert beside["largest"]["value"] < alone["largest"]["value"]


@pytest.mark.parametrize(("flag", "file"), [("-mm", "smollm2-135m.gguf"), ("-md", "mmproj.gguf"), ("-md", "none.gguf")])
def test_a_companion_of_the_wrong_kind_is_an_error_that_names_it(
    capsys: pytest.CaptureFixture[str], models: Models, flag: str, file: str
) -> None:
    assert main(["estimate", str(models / "qwen3-8b.gguf"), flag, str(models / file)]) == 2
    assert file in capsys.readouterr().err


def roles(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["role"], one["device"]) for one in document["extra_models"]]


TWO = ("-c", 8192, "-np", 1, "--memory", "CUDA0=24000", "--memory", "CUDA1=16000")


def test_draft_and_projector_lie_on_the_devices_that_their_flags_name(
    capsys: pytest.CaptureFixture[str], models: Models
) -> None:
    beside = ("-md", models / "smollm2-135m.gguf", "-mm", models / "mmproj.gguf")
    _, document = estimate(
        capsys, models / "qwen3-8b.gguf", *TWO, *beside, "-devd", "CUDA1", "--mmproj-device", "CUDA1"
    )
    assert roles(document) == [("draft", "CUDA1"), ("draft", "CPU"), ("mmproj", "CUDA1")]
    assumed = document["assumptions"]
    assert (assumed["device_draft"], assumed["mmproj_device"]) == (["CUDA1"], "CUDA1")
    assert assumed["model_draft"].endswith("smollm2-135m.gguf")
    _, document = estimate(capsys, models / "qwen3-8b.gguf", *TWO, *beside, "-devd", "none")
    assert roles(document) == [("draft", "CPU"), ("mmproj", "CUDA0")]


@pytest.mark.parametrize(("flag", "said"), [("-devd", "--device-draft out of"), ("--mmproj-device", "--mmproj-device")])
def test_a_device_that_is_none_of_the_models_is_refused(
    capsys: pytest.CaptureFixture[str], models: Models, flag: str, said: str
) -> None:
    files = ["-md", str(models / "smollm2-135m.gguf"), "-mm", str(models / "mmproj.gguf")]
    status = main(["estimate", str(models / "qwen3-8b.gguf"), *map(str, TWO), *files, flag, "CUDA9"])
    captured = capsys.readouterr()
    assert (status, said in captured.err, "CUDA9" in captured.err) == (2, True, True)


def test_the_drafts_experts_stay_on_the_host_by_its_own_flags(
    capsys: pytest.CaptureFixture[str], models: Models
) -> None:
    flags = (models / "qwen3-8b.gguf", *TWO, "-md", models / "granite-4-h-tiny.gguf", "-devd", "CUDA1")
    on_host = {}
    for name, more in {"none": (), "some": ("-ncmoed", 20), "all": ("-cmoed",), "one": ("-otd", "blk.7.=CPU")}.items():
        _, document = estimate(capsys, *flags, *more)
        on_host[name] = next(one["weights_bytes"] for one in document["extra_models"] if one["device"] == "CPU")
    assert on_host["none"] < on_host["one"] < on_host["some"] < on_host["all"]


def test_predicting_layers_lie_with_the_last_layers(capsys: pytest.CaptureFixture[str], models: Models) -> None:
    model = models / "qwen3.5-0.8b-mtp.gguf"
    status, document = estimate(capsys, model, *TWO, "--spec-type", "draft-mtp", "-ctkd", "q8_0", "-ctvd", "q8_0")
    assert status == 0
    assert roles(document) == [("mtp", "CUDA1"), ("mtp", "CPU")]
    assert document["extra_models"][0]["kv_bytes"] == 8.5 * MIB
    assert document["assumptions"]["cache_type_k_draft"] == "q8_0"
    _, without = estimate(capsys, model, *TWO)
    assert without["weights"] == document["weights"]
    assert document["recurrent"]["total_bytes"] == 4 * without["recurrent"]["total_bytes"]


def test_predicting_layers_of_another_file_are_loaded_whole(capsys: pytest.CaptureFixture[str], models: Models) -> None:
    flags = (models / "qwen3-8b.gguf", *TWO, "--spec-type", "draft-mtp", "-md", models / "qwen3.5-0.8b-mtp.gguf")
    _, document = estimate(capsys, *flags, "-devd", "CUDA1")
    first = document["extra_models"][0]
    assert (first["role"], first["device"], first["kv_bytes"]) == ("mtp", "CUDA1", 16 * MIB)
    loaded = sum(one["weights_bytes"] for one in document["extra_models"])
    # 784.52 MiB with the embedding, which is tied: its copy on the device is 257.66 MiB more.
    assert round(loaded / MIB, 2) == round(784.52 + 257.66, 2)


def test_a_model_without_predicting_layers_says_so(capsys: pytest.CaptureFixture[str], models: Models) -> None:
    assert main(["estimate", str(models / "qwen3-8b.gguf"), "--spec-type", "draft-mtp"]) == 2
    assert "layers that predict further tokens" in capsys.readouterr().err


def test_what_is_beside_a_model_counts_for_one_model_only(capsys: pytest.CaptureFixture[str], models: Models) -> None:
    files = [str(models / f"{name}.gguf") for name in ("qwen3-8b", "granite-4-h-tiny")]
    assert main(["estimate", *files, "-md", str(models / "smollm2-135m.gguf"), "--memory", "CUDA0=24000"]) == 2
    assert "take one model" in capsys.readouterr().err


def together(capsys: pytest.CaptureFixture[str], models: Models, memory_mib: int) -> tuple[int, list[list[str]]]:
    files = [models / f"{name}.gguf" for name in ("gpt-oss-20b", "qwen3-8b", "granite-4-h-tiny")]
    status, document = estimate(capsys, *files, "-c", 16384, "-np", 1, "--memory", f"CUDA0={memory_mib}")
    sets = document["together"]
    assert isinstance(sets, list)
    return status, [[Path(path).stem for path in paths] for paths in sets]


def test_models_that_fit_together_are_told_as_the_largest_sets(
    capsys: pytest.CaptureFixture[str], models: Models
) -> None:
    # Their weights alone are 10.9, 7.8 and 6.8 GiB.
    assert together(capsys, models, 40_000) == (0, [["gpt-oss-20b", "qwen3-8b", "granite-4-h-tiny"]])
    assert together(capsys, models, 18_500) == (1, [["qwen3-8b", "granite-4-h-tiny"], ["gpt-oss-20b"]])
    assert together(capsys, models, 8_000) == (1, [["granite-4-h-tiny"]])
    assert together(capsys, models, 1_000) == (1, [])


def test_several_models_need_the_memory(capsys: pytest.CaptureFixture[str], models: Models) -> None:
    files = [str(models / f"{name}.gguf") for name in ("qwen3-8b", "smollm2-135m")]
    assert main(["estimate", *files]) == 2
    assert "give --memory NAME=MiB" in capsys.readouterr().err
