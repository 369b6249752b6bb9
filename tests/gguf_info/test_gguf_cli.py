"""The command `gguf-info FILE`."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from gguf_info.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_tables_by_default(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, tiny_model)
    assert status == 0
    titles = [line for line in out.splitlines() if (line and line[0].isalpha()) or line.startswith("R")]
    assert titles == ["General", "Architecture", "Attention", "RoPE", "Tokenizer", "Tensors by type"]


def test_json_and_one_section(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, tiny_model, "--format", "json")
    assert json.loads(out)["schema_version"] == 1
    _, out, _ = run(capsys, tiny_model, "--format", "json", "--section", "rope")
    assert json.loads(out)["rope"]["freq_base"] == 10_000.0


def test_markdown_draws_markdown_tables(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, tiny_model, "--format", "markdown", "--section", "architecture")
    assert "## Architecture\n\n| field | value |\n| --- | --- |\n| context length | 4,096 |" in out


def test_csv_has_one_line_a_field(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, tiny_model, "--format", "csv")
    rows = {(row["section"], row["field"]): row["value"] for row in csv.DictReader(io.StringIO(out))}
    assert rows["architecture", "context_length"] == "4096"
    assert rows["tensors", "by_type.F16.parameters"] == "4096"
    assert rows["attention", "sliding_window"] == ""


def test_tensors_with_a_filter(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, tiny_model, "--tensors", r"blk\.", "--format", "json")
    (row,) = json.loads(out)["tensors"]
    expected = {"name": "blk.0.attn_q.weight", "shape": [64, 64], "type": "F16", "parameters": 4096, "bytes": 8192}
    assert expected.items() <= row.items()
    _, out, _ = run(capsys, tiny_model, "--tensors")
    assert "64 × 64" in out
    _, out, _ = run(capsys, tiny_model, "--tensors", "norm", "--format", "csv")
    assert out.splitlines()[1].startswith("output_norm.weight,64,F32,64,256,")


def test_bad_filter_is_a_usage_error(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, tiny_model, "--tensors", "(")
    assert status == 2
    assert "no regular expression" in err


def test_full_lists_every_key(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, tiny_model, "--full")
    assert "│ llama.attention.head_count_kv " in out
    _, out, _ = run(capsys, tiny_model, "--full", "--format", "json")
    assert json.loads(out)["metadata"]["tokenizer.ggml.tokens"][:2] == ["<s>", "</s>"]


@pytest.mark.parametrize(
    ("key", "printed"),
    [
        ("llama.context_length", "4096\n"),
        ("llama.attention.layer_norm_rms_epsilon", "1e-05\n"),
        ("tokenizer.ggml.tokens", "<s>\n</s>\na\nb\nc\n\x1b[31m\n"),
    ],
)
def test_key_prints_the_bare_value(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], key: str, printed: str
) -> None:
    assert run(capsys, tiny_model, "--key", key) == (0, printed, "")


def test_missing_key_is_status_1(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, tiny_model, "--key", "llama.nothing")
    assert (status, out) == (1, "")
    assert "no metadata key 'llama.nothing'" in err


def test_chat_template_is_exact_in_a_pipe_and_harmless_on_a_terminal(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{% for m in messages %}\n{{ m.content }}\x1b[0m{% endfor %}"
    assert run(capsys, tiny_model, "--chat-template")[1] == template + "\n"
    assert json.loads(run(capsys, tiny_model, "--chat-template", "--format", "json")[1]) == template
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(capsys, tiny_model, "--chat-template")[1] == template.replace("\x1b", "\\x1b") + "\n"


def test_bad_file_is_status_2_with_place_and_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"PK\x03\x04" * 10)
    status, out, err = run(capsys, path)
    assert (status, out) == (2, "")
    assert f"error: {path}, byte 0: expected 'GGUF'" in err
    assert "hint: " in err
    assert "Traceback" not in err
    _, _, err = run(capsys, path, "--debug")
    assert "Traceback" in err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[:2] == (0, f"gguf-info {version('gguf-info')}\n")
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert "examples:" in out


def test_no_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys)[0] == 2


def test_closed_pipe_and_narrow_encoding(tiny_model: Path) -> None:
    """`| head` ends quietly, and an ASCII terminal gets ASCII tables."""
    command = [sys.executable, "-m", "gguf_info", str(tiny_model), "--tensors"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
    done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": "ascii"}, check=True)
    assert b"+--" in done.stdout
