"""The command: formats, selections, inputs and exit statuses."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from vram_report.cli import main

FOLDER = Path(__file__).parents[2] / "fixtures" / "logs"
UNIFIED = str(FOLDER / "xllamacpp-2026.10.11549.p4_unified_q8kv.log")
TWO_STARTS = str(FOLDER / "cuda-4xA6000-qwen35moe-2starts.log")
OOM = str(FOLDER / "rocm-apertus70b-oom.log")
RPC = str(FOLDER / "llama-server-b10068.rpc2_ts31_lv4.log")
QUIET = str(FOLDER / "llama-server-b10068.default_verbosity.log")


def test_table_shows_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([UNIFIED]) == 0
    out = capsys.readouterr().out
    titles = ("Model and server", "Architecture", "VRAM breakdown", "Context and slots", "Capacity", "Findings")
    assert [title for title in titles if title not in out] == []
    assert "unified: one pool for all slots" in out
    assert "scheduling budget" in out
    assert "nearly free" in out


def test_section_option_prints_only_that_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--section", "capacity", UNIFIED]) == 0
    out = capsys.readouterr().out
    assert "Capacity" in out
    assert "Architecture" not in out


def test_margin_changes_headroom_by_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    headroom = []
    for margin in ("0", "100"):
        assert main(["--format", "json", "--margin-mib", margin, UNIFIED]) == 0
        headroom.append(json.loads(capsys.readouterr().out)["runs"][0]["capacity"]["headroom_mib"])
    assert headroom[0] - headroom[1] == pytest.approx(100)


@pytest.mark.parametrize("margin", ["-1", "nan", "many"])
def test_impossible_margin_is_a_usage_error(margin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--margin-mib", margin, UNIFIED]) == 2
    assert "--margin-mib" in capsys.readouterr().err


def test_several_logs_give_a_json_array_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--format", "json", UNIFIED, TWO_STARTS]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert [len(document["runs"]) for document in documents] == [1, 2]
    assert documents[0]["source"]["path"] == UNIFIED


@pytest.mark.parametrize(("run", "text"), [("1", "run 1 of 2, lines 1 to"), ("-1", "run 2 of 2"), ("2", "run 2 of 2")])
def test_run_option_selects_the_start(run: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run", run, TWO_STARTS]) == 0
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("run", ["0", "3", "-3"])
def test_run_that_is_not_there_is_refused_with_the_choices(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run", run, TWO_STARTS]) == 2
    assert "hint: Available: 1, 2." in capsys.readouterr().err


def test_device_option_shows_only_that_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "RPC1", "--section", "vram", RPC]) == 0
    out = capsys.readouterr().out
    assert "RPC1" in out
    assert "RPC0" not in out


def test_unknown_device_is_refused_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "CUDA7", RPC]) == 2
    assert "hint: Available: RPC0, RPC1, CPU." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("log", "wanted", "status"),
    [(OOM, "out-of-memory", 1), (OOM, "error", 1), (QUIET, "error", 0), (QUIET, "warning", 1), (OOM, None, 0)],
)
def test_fail_on_decides_the_exit_status(log: str, wanted: str | None, status: int) -> None:
    assert main(["--fail-on", wanted, log] if wanted else [log]) == status


def test_partial_log_names_the_flag_to_add(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--section", "findings", QUIET]) == 0
    assert "-lv 4" in capsys.readouterr().out


def test_gzip_utf16_and_stdin_read_like_the_plain_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = Path(UNIFIED).read_bytes()
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "b.log").write_bytes(raw.decode().replace("\n", "\r\n").encode("utf-16"))
    (tmp_path / "c.log").write_bytes(raw.decode().encode("utf-16-le"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert main(["--format", "json", UNIFIED, *map(str, sorted(tmp_path.iterdir())), "-"]) == 0
    runs = [document["runs"] for document in json.loads(capsys.readouterr().out)]
    assert len(runs) == 5
    assert all(other == runs[0] for other in runs)


def test_input_without_a_server_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("shopping: milk\n")
    assert main([str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "notes.txt: no llama-server start in 1 lines" in captured.err
    assert "hint: Record one with: llama-server -lv 4" in captured.err


def test_missing_file_is_refused_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/nonexistent/server.log"]) == 2
    err = capsys.readouterr().err
    assert "No such file" in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "/nonexistent/server.log"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_damaged_gzip_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.log.gz"
    path.write_bytes(gzip.compress(Path(UNIFIED).read_bytes())[:400])
    assert main([str(path)]) == 2
    assert "cannot read the log" in capsys.readouterr().err


def test_control_characters_of_a_log_are_made_visible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.log"
    path.write_text("print_info: general.name     = evil \x1b]0;title\x07 \u202e name\nmain: model loaded\n")
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert "\\x1b]0;title\\x07" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_module_runs_and_prints_ascii_when_the_terminal_cannot_show_boxes() -> None:
    command = [sys.executable, "-m", "vram_report", UNIFIED]
    done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": "ascii"}, check=True)
    assert done.stdout.isascii()
    assert b"+---" in done.stdout


def test_closed_pipe_ends_quietly() -> None:
    command = f'"{sys.executable}" -m vram_report "{UNIFIED}" | head -1'
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vram-report {version('vram-report')}\n"


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "examples:" in capsys.readouterr().out


def test_every_process_lists_the_devices_in_the_same_order() -> None:
    """Strings hash differently in each process."""
    log = str(FOLDER / "rpc-2workers-llama70b-b6209.log")
    orders = set()
    for seed in range(1, 7):
        command = [sys.executable, "-m", "vram_report", "--format", "json", log]
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        printed = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
        orders.add(tuple(device["name"] for device in json.loads(printed)["runs"][-1]["devices"]))
    assert len(orders) == 1
