"""A log beside its model's file: logs that a real server printed when it loaded the phantoms that are written here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from phantoms import write_phantom
from vram_report.cli import main

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
MODELS = {
    "deepseek-v2-lite",
    "gemma-3-270m",
    "gemma-3n-e2b",
    "gemma-4-e2b",
    "gpt-oss-20b",
    "granite-4-h-tiny",
    "openelm-1b",
    "qwen3-8b",
}
RECORDED = sorted(path for path in LOGS.glob("xllamacpp-2026.10.11549.*.log") if path.name.split(".")[3] in MODELS)
# The file's block_count is 25 layers, of which the last only predicts further tokens: these logs say n_layer = 24.
MTP = sorted(LOGS.glob("xllamacpp-2026.10.11549.qwen3.5-0.8b-mtp.*.log"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in sorted({"qwen3.5-0.8b-mtp", *(path.name.split(".")[3] for path in RECORDED)}):
        write_phantom(name, folder / f"{name}.gguf")
    return folder


def report(capsys: pytest.CaptureFixture[str], log: Path, model: Path, *flags: str) -> dict[str, Any]:
    assert main(["--format", "json", "--model", str(model), *flags, str(log)]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return dict(run)


@pytest.mark.parametrize("log", RECORDED, ids=lambda path: path.stem.split("11549.")[1])
def test_a_model_file_predicts_what_its_server_printed(
    capsys: pytest.CaptureFixture[str], models: Path, log: Path
) -> None:
    run = report(capsys, log, models / f"{log.name.split('.')[3]}.gguf")
    quantities = [item["quantity"] for item in run["predictions"]]
    assert quantities[:2] == ["weights", "kv"]
    assert quantities[-1] == "compute"
    assert [item for item in run["predictions"] if not item["agrees"]] == []
    assert "prediction-differs" not in {finding["code"] for finding in run["findings"]}


@pytest.mark.parametrize("log", MTP, ids=lambda path: path.stem.split("mtp.")[1])
def test_layers_that_predict_further_tokens_make_no_other_model(
    capsys: pytest.CaptureFixture[str], models: Path, log: Path
) -> None:
    run = report(capsys, log, models / "qwen3.5-0.8b-mtp.gguf")
    assert run["model"]["n_layer"] == 24
    assert [item for item in run["predictions"] if not item["agrees"]] == []
    assert not {"other-model", "prediction-differs"} & {finding["code"] for finding in run["findings"]}


@pytest.mark.parametrize(("build", "n_layer"), [("9522", 25), ("9523", 24), ("b11549", 24)])
def test_a_log_without_its_layers_gets_them_as_its_build_counts_them(
    capsys: pytest.CaptureFixture[str], models: Path, tmp_path: Path, build: str, n_layer: int
) -> None:
    quiet = tmp_path / "quiet.log"
    kept = [line for line in MTP[0].read_text().splitlines(keepends=True) if "n_layer" not in line]
    quiet.write_text("".join(line for line in kept if "block_count" not in line and "layers" not in line))
    assert report(capsys, quiet, models / "qwen3.5-0.8b-mtp.gguf", "--build", build)["model"]["n_layer"] == n_layer


def test_a_log_before_9523_counts_all_layers(capsys: pytest.CaptureFixture[str], models: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.log"
    old.write_text(MTP[0].read_text().replace("n_layer               = 24", "n_layer               = 25"))
    run = report(capsys, old, models / "qwen3.5-0.8b-mtp.gguf")
    assert "other-model" not in {finding["code"] for finding in run["findings"]}


def test_a_build_that_the_log_does_not_say_is_assumed_and_said(
    capsys: pytest.CaptureFixture[str], models: Path
) -> None:
    log, model = LOGS / "xllamacpp-2026.10.11549.openelm-1b.p1.log", models / "openelm-1b.gguf"
    (finding,) = [item for item in report(capsys, log, model)["findings"] if item["code"] == "assumed-build"]
    assert "build 11549" in finding["message"]
    given = report(capsys, log, model, "--build", "11549")
    assert "assumed-build" not in {item["code"] for item in given["findings"]}
    assert given["build"]["number"] is None


def test_a_given_build_sets_the_rules_unless_the_log_says_its_own(
    capsys: pytest.CaptureFixture[str], models: Path, tmp_path: Path
) -> None:
    log, model = LOGS / "xllamacpp-2026.10.11549.gpt-oss-20b.p4_divided_f16.log", models / "gpt-oss-20b.gguf"
    # Before b5429 a window made no smaller cache: every layer held every cell.
    assert "prediction-differs" in {item["code"] for item in report(capsys, log, model, "--build", "5000")["findings"]}
    named = tmp_path / "named.log"
    named.write_text(log.read_text().replace("build_info: b0-unknown", "build_info: b11549-0123abc"))
    run = report(capsys, named, model, "--build", "5000")
    assert run["build"]["number"] == 11549
    assert not {"assumed-build", "prediction-differs"} & {item["code"] for item in run["findings"]}


@pytest.mark.parametrize("flags", [["--build", "11549"], ["--build", "0", "--model", "m.gguf"], ["--build", "new"]])
def test_a_build_that_means_nothing_is_refused(capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    assert main([*flags, str(MTP[0])]) == 2
    assert "--build" in capsys.readouterr().err


def test_what_the_log_lacks_comes_from_the_file(
    capsys: pytest.CaptureFixture[str], models: Path, tmp_path: Path
) -> None:
    whole = (LOGS / "xllamacpp-2026.10.11549.gpt-oss-20b.p4_divided_f16.log").read_text()
    quiet = tmp_path / "quiet.log"
    quiet.write_text("".join(line for line in whole.splitlines(keepends=True) if "print_info" not in line))
    model = report(capsys, quiet, models / "gpt-oss-20b.gguf")["model"]
    assert (model["n_layer"], model["n_embd"], model["n_head"], model["n_head_kv"]) == (24, 2880, 64, 8)
    assert (model["n_expert"], model["n_expert_used"], model["expert_used_percent"]) == (32, 4, 12.5)
    assert (model["n_swa"], model["rope_scaling"], model["rope_scaling_factor"]) == (128, "yarn", 32.0)


def test_a_size_that_the_file_does_not_explain_is_a_finding(
    capsys: pytest.CaptureFixture[str], models: Path, tmp_path: Path
) -> None:
    log = (LOGS / "xllamacpp-2026.10.11549.qwen3-8b.p2_unified_q8.log").read_text()
    other = tmp_path / "other.log"
    other.write_text(
        log.replace("CPU_Mapped model buffer size =  8300.36 MiB", "CPU_Mapped model buffer size =  4800.10 MiB")
    )
    (finding,) = [
        item
        for item in report(capsys, other, models / "qwen3-8b.gguf")["findings"]
        if item["code"] == "prediction-differs"
    ]
    assert "weights: the server took 4,800.10 MiB, the model's file predicts 8,300.36 MiB" in finding["message"]


def test_a_file_of_another_model_adds_nothing_and_is_a_finding(
    capsys: pytest.CaptureFixture[str], models: Path
) -> None:
    log = LOGS / "xllamacpp-2026.10.11549.qwen3-8b.p2_unified_q8.log"
    run = report(capsys, log, models / "gpt-oss-20b.gguf")
    assert run["predictions"] is None
    assert run["model"]["n_expert"] == 0
    (finding,) = [item for item in run["findings"] if item["code"] == "other-model"]
    assert "n_layer: 36 in the log, 24 in the file" in finding["message"]


def test_a_log_without_its_context_is_not_predicted(
    capsys: pytest.CaptureFixture[str], models: Path, tmp_path: Path
) -> None:
    log = tmp_path / "short.log"
    log.write_text(
        "srv    load_model: loading model 'models/gpt-oss-20b.gguf'\nmain: server is listening on http://127.0.0.1:8080\n"
    )
    run = report(capsys, log, models / "gpt-oss-20b.gguf")
    assert run["predictions"] == []
    assert run["model"]["architecture"] == "gpt-oss"


def test_the_table_shows_prediction_and_observation(capsys: pytest.CaptureFixture[str], models: Path) -> None:
    log = LOGS / "xllamacpp-2026.10.11549.openelm-1b.p1.log"
    assert main(["--section", "vram", "--model", str(models / "openelm-1b.gguf"), str(log)]) == 0
    output = capsys.readouterr().out
    assert "Predicted from the model file" in output
    assert "│ kv      │     72.00 │" in output


@pytest.mark.parametrize(("name", "content"), [("missing.gguf", None), ("text.gguf", b"no model at all, but text")])
def test_a_model_that_cannot_be_read_is_an_error_with_status_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    log = LOGS / "xllamacpp-2026.10.11549.openelm-1b.p1.log"
    assert main(["--model", str(tmp_path / name), str(log)]) == 2
    error = capsys.readouterr().err
    assert name in error
    assert "hint: " in error


def test_without_gguf_info_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf_info", None)
    log = LOGS / "xllamacpp-2026.10.11549.openelm-1b.p1.log"
    assert main(["--model", "any.gguf", str(log)]) == 2
    assert "pip install 'vram-report[model]'" in capsys.readouterr().err
