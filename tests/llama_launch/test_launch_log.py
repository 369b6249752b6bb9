"""The log on disk: rotated by size, each piece with its start-up part, and never a reason for the server to stop."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import llama_launch
import pytest
import vram_report
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_launch.rotating_log import CONTINUED, RotatingLog, piece, shift_pieces

RECORDED = Path(__file__).parents[2] / "fixtures" / "logs"
READY = re.compile(rb"listening on http")
STARTUP = b"# header\nmodel buffer size = 100 MiB\nlistening on http\n"


def rotating(path: Path, *, max_bytes: int = 200, keep: int = 2, said: list[str] | None = None) -> RotatingLog:
    path.write_bytes(b"# header\n")
    return RotatingLog(path, max_bytes=max_bytes, keep=keep, ready=READY, tell=([] if said is None else said).append)


def pieces(path: Path) -> list[bytes]:
    """Contents, oldest first."""
    numbers = range(100, -1, -1)
    return [piece(path, number).read_bytes() for number in numbers if piece(path, number).exists()]


def test_every_piece_begins_with_the_start_up_part(tmp_path: Path) -> None:
    log = rotating(tmp_path / "server.log")
    log.write(STARTUP.removeprefix(b"# header\n"))
    for number in range(40):
        log.write(b"request %d\n" % number)
    found = pieces(tmp_path / "server.log")
    assert len(found) == 3
    assert all(text.startswith(STARTUP) for text in found)
    assert all(len(text) <= 200 + 40 for text in found)
    assert found[-1].endswith(b"request 39\n")
    assert CONTINUED + b"server.log.1\n" in found[-1]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"")), max_size=40),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=20),
)
def test_no_line_is_lost_or_cut_however_the_output_arrives(tmp_path: Path, lines: list[bytes], cuts: list[int]) -> None:
    path = tmp_path / "server.log"
    for old in tmp_path.glob("server.log*"):
        old.unlink()
    said: list[str] = []
    log = rotating(path, keep=99, said=said)
    text = STARTUP.removeprefix(b"# header\n") + b"".join(line + b"\n" for line in lines)
    position = 0
    while position < len(text):
        step = cuts[position % len(cuts)]
        log.write(text[position : position + step])
        position += step
    own: list[bytes] = []
    for content in pieces(path):
        assert content.startswith(STARTUP)
        body = content[len(STARTUP) :]
        own += (body.partition(b"\n")[2] if body.startswith(CONTINUED) else body).split(b"\n")[:-1]
    assert own == lines
    assert said == ["ready"]


def test_a_start_that_never_ends_is_cut_and_readiness_is_still_seen(tmp_path: Path) -> None:
    said: list[str] = []
    log = rotating(tmp_path / "server.log", said=said)
    for number in range(100):
        log.write(b"loading %d\n" % number)
    assert said == []
    log.write(b"listening ")
    log.write(b"on http\n")
    assert said == ["ready"]
    assert all(len(text) < 300 for text in pieces(tmp_path / "server.log"))


def test_a_new_start_keeps_the_log_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    for number in range(4):
        shift_pieces(path, 2)
        path.write_bytes(b"start %d\n" % number)
    assert pieces(path) == [b"start 1\n", b"start 2\n", b"start 3\n"]


@pytest.mark.parametrize("name", ["xllamacpp-2026.10.11549.smollm2-135m.np4_unified"])
def test_a_rotated_log_reports_the_same_memory_as_the_whole_one(tmp_path: Path, name: str) -> None:
    whole = RECORDED / f"{name}.log"
    if not whole.exists():
        (whole, *_) = sorted(RECORDED.glob("xllamacpp-*smollm2*.log"))
    recorded = whole.read_bytes()
    path = tmp_path / "server.log"
    log = rotating(path, max_bytes=2 * len(recorded), keep=2)
    log.write(recorded)
    for number in range(20_000):
        log.write(b"0.09.000.000 I srv  log_server_r: done request: GET /health 127.0.0.1 %d\n" % number)
    assert piece(path, 1).exists()
    (expected,) = vram_report.read_log(whole).runs
    (run,) = vram_report.read_log(path).runs
    assert (run.buffers, run.context, run.outcome) == (
        [replaced(buffer, 1) for buffer in expected.buffers],
        expected.context,
        "ready",
    )


def replaced(buffer: vram_report.Buffer, lines: int) -> vram_report.Buffer:
    import dataclasses

    return dataclasses.replace(buffer, line=buffer.line + lines)


def test_a_full_disk_loses_lines_and_never_the_server(
    fake_server: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    fake_server("chatty")
    words = ["serve", "--set", f"model={model}", "--run-dir", str(tmp_path / "run"), "--backend", "external"]
    limit = 4096  # a file may be no longer: what a full disk is for whoever writes

    process = subprocess.Popen(
        [sys.executable, "-m", "llama_launch", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # half a file of it would break later imports
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while "Ctrl-C stops the server" not in "".join(lines[-1:]):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        assert any("could not be written in full" in line for line in lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    finally:
        process.kill()
        process.communicate()


def test_what_was_lost_is_counted_once_there_is_room(tmp_path: Path) -> None:
    """The limit on the size of a file is lifted while the log is open, as room appears on a disk."""
    script = """
import re, resource, sys
from pathlib import Path
from llama_launch.rotating_log import RotatingLog
path = Path(sys.argv[1])
path.write_bytes(b"# header\\n")
said = []
log = RotatingLog(path, max_bytes=10**6, keep=2, ready=re.compile(b"listening"), tell=said.append)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
log.write(b"0123456789\\n" * 3)
log.write(b"gone\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
log.write(b"back\\n")
print(said)
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "['lost']\n"
    assert (tmp_path / "log").read_bytes() == (
        b"# header\n0123456789\n# 27 bytes of this log were lost: they could not be written\nback\n"
    )


def test_a_log_that_cannot_be_begun_is_told_before_anything_starts(
    fake_server: Callable[[str], Path], profile: llama_launch.Profile, tmp_path: Path
) -> None:
    fake_server("well")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "server.log").write_text("an older start")
    (tmp_path / "run" / "server.log.3" / "x").mkdir(parents=True)
    with pytest.raises(llama_launch.ServerStartError, match=r"server\.log"):
        llama_launch.start_server(profile, run_dir=tmp_path / "run")
