"""Logs side by side, and lines through logs of one set-up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vram_report import LogReport, Source, compare, parse, read_log
from vram_report.cli import main

FOLDER = Path(__file__).parents[2] / "fixtures" / "logs"
SHORT = FOLDER / "xllamacpp-2026.10.11549.p1.log"
LONG = FOLDER / "xllamacpp-2026.10.11549.p1_ctx_over_train.log"
DIVIDED = FOLDER / "xllamacpp-2026.10.11549.p4_divided.log"


def started(n_ctx: int, kv_mib: float, compute_mib: float) -> LogReport:
    lines = [
        "using device CUDA0 (NVIDIA GeForce RTX 4090) (0000:01:00.0) - 24000 MiB free",
        "load_tensors:        CUDA0 model buffer size = 11000.00 MiB",
        "llama_context: constructing llama_context",
        f"llama_context: n_ctx         = {n_ctx}",
        f"llama_kv_cache:      CUDA0 KV buffer size =  {kv_mib:.2f} MiB",
        f"llama_kv_cache: size = {kv_mib:.2f} MiB ({n_ctx} cells,  12 layers, 16/1 seqs), K (q8_0): 1.00 MiB, V (q8_0):"
        " 1.00 MiB",
        f"sched_reserve:      CUDA0 compute buffer size =   {compute_mib:.2f} MiB",
        "main: server is listening on http://127.0.0.1:8080 - starting the main loop",
    ]
    return LogReport(Source(f"{n_ctx}.log", len(lines), 0), parse(line + "\n" for line in lines))


def test_two_recorded_contexts_give_the_slopes_of_the_model() -> None:
    (fit,) = compare([read_log(SHORT), read_log(LONG)]).fits
    # 3 full-attention layers x (256 + 256) f16 values; an f16 mask of 512 rows
    assert fit.kv.bytes_per_token == pytest.approx(3 * 512 * 2)
    assert fit.compute.bytes_per_token == pytest.approx(512 * 2)
    # the SWA cache of 15.00 MiB does not grow
    assert fit.kv.constant_mib == pytest.approx(15.0, abs=0.001)
    assert (fit.logs, fit.n_ctx) == ([1, 2], [8192, 65536])
    assert max(fit.kv.max_residual_mib, fit.compute.max_residual_mib) < 0.01


def test_prediction_fills_the_device_and_keeps_the_margin() -> None:
    reports = [started(131072, 1632.0, 768.0), started(262144, 3264.0, 1536.0), started(524288, 6528.0, 3072.0)]
    (fit,) = compare(reports).fits
    # 13000 and 11976 MiB at 2400 / 131072 MiB a token: 709,973 and 654,049, in multiples of 256
    assert fit.oom_ctx == 709_888
    assert fit.largest_ctx == 653_824


def test_a_point_off_the_line_shows_as_residual() -> None:
    reports = [started(65536, 100.0, 100.0), started(131072, 200.0, 230.0), started(196608, 300.0, 300.0)]
    (fit,) = compare(reports).fits
    assert fit.kv.max_residual_mib == pytest.approx(0, abs=0.001)
    assert fit.compute.max_residual_mib == pytest.approx(20.0)


def test_logs_of_different_setups_are_not_put_on_one_line() -> None:
    assert compare([read_log(SHORT), read_log(DIVIDED)]).fits == []


def test_differences_are_against_the_first_log() -> None:
    rows = {row.name: row for row in compare([read_log(SHORT), read_log(LONG)]).rows}
    assert rows["context length"].values == [8192, 65536]
    assert rows["context length"].differences == [0, 57344]
    assert rows["KV cache, MiB"].differences == [0, 168]
    assert rows["model"].differences == [None, None]


def test_command_prints_both_and_the_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(SHORT), str(LONG)]) == 0
    out = capsys.readouterr().out
    assert "65,536 (+57,344)" in out
    assert "Slopes and prediction" in out
    assert main(["compare", "--format", "json", str(SHORT), str(LONG)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["fits"][0]["device"] == "CPU"


def test_one_log_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(SHORT)]) == 2
    assert "required" in capsys.readouterr().err
