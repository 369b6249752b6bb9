"""`estimate --largest` and `--sweep`."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_info import GGUFError, Settings, estimate, find_largest, read_summary, sweep
from gguf_info.cli import main

MIB = 2**20


@pytest.mark.parametrize(("free_mib", "goal"), [(13000, "ctx-size"), (12500, "ctx-size"), (6000, "n-gpu-layers")])
def test_largest_fits_and_the_next_does_not(gpt_oss: Path, free_mib: int, goal: str) -> None:
    summary = read_summary(gpt_oss)
    settings = Settings(parallel=1, memory_mib={"CUDA0": float(free_mib)})
    answer = find_largest(summary, settings, goal)  # type: ignore[arg-type]
    assert answer.value is not None
    assert answer.flags == (f"--{goal}", str(answer.value), "--parallel", "1")
    assert answer.prediction.fits
    larger = {
        "ctx-size": replace(settings, ctx_size=answer.value + 256),
        "n-gpu-layers": replace(settings, n_gpu_layers=answer.value + 1),
    }
    assert not estimate(summary, larger[goal]).fits


def test_largest_context_stops_at_the_training_context(gpt_oss: Path) -> None:
    settings = Settings(memory_mib={"CUDA0": 80000.0})
    assert find_largest(read_summary(gpt_oss), replace(settings, parallel=1), "ctx-size").value == 131072
    divided = replace(settings, parallel=4, kv_unified=False)
    assert find_largest(read_summary(gpt_oss), divided, "ctx-size").value == 4 * 131072


def test_largest_number_of_slots(gpt_oss: Path) -> None:
    """Slots of a unified cache cost a window each: 1.5 MiB of 128 cells of 12 layers in f16, and its masks."""
    settings = Settings(ctx_size=8192, kv_unified=True, memory_mib={"CUDA0": 11400.0})
    answer = find_largest(read_summary(gpt_oss), settings, "parallel")
    assert answer.value is not None
    assert 1 < answer.value <= 256
    assert answer.prediction.slots.n_slots == answer.value


def test_nothing_fits_is_none_and_status_1(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["estimate", str(gpt_oss), "--largest", "ctx-size", "--memory", "CUDA0=100", "--format", "json"]
    assert main(arguments) == 1
    assert json.loads(capsys.readouterr().out)["largest"]["value"] is None


def test_largest_needs_memory(gpt_oss: Path) -> None:
    with pytest.raises(GGUFError, match="the memory of each device"):
        find_largest(read_summary(gpt_oss), Settings(), "parallel")


def test_largest_command_prints_the_flags_to_type(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(gpt_oss), "-np", "1", "--largest", "ctx-size", "--memory", "CUDA0=80000"]) == 0
    assert "largest: --ctx-size 131072 --parallel 1\n" in capsys.readouterr().out


def test_the_flags_to_type_give_the_same_estimate(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["-np", "2", "-no-kvu", "-ctk", "q8_0", "-ub", "256", "-ot", r"blk\.1\.ffn_.*=CPU", "-ts", "3,1"]
    memory = ["--memory", "CUDA0=9000", "--memory", "CUDA1=6000", "--format", "json"]
    assert main(["estimate", str(gpt_oss), *given, *memory, "--largest", "ctx-size", "--embedding"]) == 0
    document = json.loads(capsys.readouterr().out)
    flags = document["largest"]["flags"]
    assert flags[:2] == ["--ctx-size", str(document["largest"]["value"])]
    assert "--no-kv-unified" in flags
    assert main(["estimate", str(gpt_oss), *flags, *memory]) == 0
    assert json.loads(capsys.readouterr().out) == document["estimate"]


def test_sweep_rows_are_what_the_server_printed(gpt_oss: Path) -> None:
    """KV of one slot at 131072 tokens: 3072.00 MiB in f16 and 1632.00 in q8_0, and the window's 768 cells."""
    rows = list(sweep(read_summary(gpt_oss), Settings(parallel=1), None, ["f16", "q8_0"]))
    assert [row.ctx_size for row in rows] == [4096, 8192, 16384, 32768, 65536, 131072] * 2
    assert rows[5].kv_bytes == (3072 + 18) * MIB
    assert rows[11].kv_bytes == (1632 + 9.5625) * MIB
    assert all(row.fits is None for row in rows)


def test_sweep_command_as_csv_json_and_table(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["estimate", str(gpt_oss), "--sweep", "4096,8192", "--sweep-types", "f16", "--memory", "G=11260"]
    assert main([*arguments, "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(line["ctx_size"], line["cache_type"], line["fits"]) for line in lines] == [
        ("4096", "f16", "True"),
        ("8192", "f16", "False"),
    ]
    assert main([*arguments, "--format", "json"]) == 0
    assert [row["fits"] for row in json.loads(capsys.readouterr().out)["rows"]] == [True, False]
    assert main(arguments) == 0
    assert "Contexts and cache types" in capsys.readouterr().out


def test_estimate_as_csv(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(gpt_oss), "-c", "4096", "-np", "1", "--format", "csv"]) == 0
    fields = {row["field"]: row["value"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert fields["kv_cache.parts.non-swa.bytes"] == str(96 * MIB)
    assert fields["devices.GPU0.fits"] == ""


def test_unknown_sweep_type_is_a_usage_error(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(gpt_oss), "--sweep", "--sweep-types", "q7"]) == 2
    assert "'q7' is not one of" in capsys.readouterr().err
