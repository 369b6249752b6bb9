"""Files that lie: each is refused with path, offset, expected and found, soon and in little memory."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_info import GGUFError, read_header, read_summary

WriteBytes = Callable[..., Path]
HUGE = 2**63


def refusal(path: Path) -> GGUFError:
    with pytest.raises(GGUFError) as caught:
        read_header(path)
    assert caught.value.path == str(path)
    return caught.value


def test_truncated_anywhere_is_refused_and_names_the_end(tiny_model: Path) -> None:
    header_bytes = read_header(tiny_model).data_offset
    content = tiny_model.read_bytes()
    for n_bytes in range(0, header_bytes - 32, 7):
        tiny_model.write_bytes(content[:n_bytes])
        error = refusal(tiny_model)
        assert error.offset is not None
        assert error.offset <= n_bytes


@pytest.mark.parametrize(
    ("content", "offset", "expected", "found"),
    [
        (b"", 0, "4 bytes of the magic", "0 bytes to the end of the file"),
        (b"ggjt" + b"\0" * 60, 0, "'GGUF'", "'ggjt'"),
        (b"GGUF" + struct.pack("<I", 4) + b"\0" * 60, 4, "GGUF version 1, 2 or 3", "4"),
    ],
    ids=["empty", "another format", "version 4"],
)
def test_start_of_no_gguf_file(tmp_path: Path, content: bytes, offset: int, expected: str, found: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    error = refusal(path)
    assert (error.offset, error.expected, error.found) == (offset, expected, found)
    assert error.hint


@pytest.mark.parametrize("field", ["n_tensors", "n_keys"])
def test_count_of_2_to_the_63(write_gguf: WriteBytes, field: str) -> None:
    error = refusal(write_gguf(**{field: HUGE}))
    assert error.found == str(HUGE)
    assert error.offset == {"n_tensors": 8, "n_keys": 16}[field]


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<IQ", 4, HUGE),
        struct.pack("<IQ", 8, HUGE),
        struct.pack("<IQ", 9, HUGE),
        struct.pack("<IQ", 77, 1),
        struct.pack("<IQQ", 8, 1, HUGE),
        struct.pack("<IQ", 9, 1) * 200 + struct.pack("<IQ", 4, 0),
    ],
    ids=["numbers", "strings", "arrays", "unknown item type", "string length", "nested 200 deep"],
)
def test_array_that_lies(write_gguf: WriteBytes, value: bytes) -> None:
    assert refusal(write_gguf(metadata=[(b"lies", 9, value)], data=b"\0" * 100)).offset


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"metadata": [(b"a", 0, b"\1"), (b"a", 0, b"\1")]}, "each metadata key once"),
        ({"metadata": [(b"a", 13, b"\1")]}, "a value type from 0 to 12"),
        ({"metadata": [(b"general.alignment", 4, struct.pack("<I", 0))]}, "general.alignment as a power of two"),
        ({"tensors": [(b"a", (1,), 0, 0), (b"a", (1,), 0, 32)]}, "each tensor name once"),
        ({"tensors": [(b"a", (1,) * 5, 0, 0)]}, "at most 4 dimensions"),
        ({"tensors": [(b"a", (2**40, 2**40), 0, 0)]}, "a tensor below 2^63 values"),
    ],
    ids=["key twice", "value type", "alignment", "tensor twice", "dimensions", "product"],
)
def test_rule_of_the_format_that_is_broken(write_gguf: WriteBytes, arguments: dict[str, object], expected: str) -> None:
    assert refusal(write_gguf(**arguments, data=b"\0" * 200)).expected == expected


def test_folder_fifo_and_missing_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "regular file" in refusal(tmp_path / "pipe.gguf").found
    assert refusal(tmp_path).found == "a folder"
    assert refusal(tmp_path / "none.gguf").found == "no such file or directory"
    (tmp_path / "empty").mkdir()
    with pytest.raises(GGUFError, match=r"found no \.gguf file"):
        read_summary(tmp_path / "empty")


def test_long_array_of_a_file_that_became_shorter(write_gguf: WriteBytes) -> None:
    path = write_gguf(metadata=[(b"long", 9, struct.pack("<IQ5000I", 4, 5000, *range(5000)))])
    header = read_header(path)
    os.truncate(path, 10_000)
    with pytest.raises(GGUFError, match="to the end of the file"):
        list(header.read_array("long"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    "metadata",
    [
        [(b"text%d" % number, 8, b"x" * (8 << 20)) for number in range(4)],
        [(b"nested", 9, struct.pack("<IQ", 9, 1_000_000) + struct.pack("<IQ", 0, 0) * 1_000_000)],
        [(b"strings", 9, struct.pack("<IQ", 8, 5_000_000) + bytes(8) * 5_000_000)],
    ],
    ids=["32 MiB of text", "a million arrays", "five million strings"],
)
def test_bulk_is_refused_within_a_second_and_100_mb(
    write_gguf: WriteBytes, metadata: list[tuple[bytes, int, bytes]]
) -> None:
    path = write_gguf(metadata=metadata)
    code = (
        "import sys, gguf_info\n"
        "try: gguf_info.read_header(sys.argv[1])\n"
        "except gguf_info.GGUFError: print(open('/proc/self/status').read())\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 1.0
    peak = next(line for line in done.stdout.splitlines() if line.startswith("VmHWM:"))
    assert int(peak.split()[1]) < 100_000
