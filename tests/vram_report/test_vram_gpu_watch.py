"""GPU memory while a server works, against a driver that answers what a test says."""

from __future__ import annotations

import json
import sys
import threading
import types
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vram_report.cli import main
from vram_report.gpu_watch import GPUReading, GPUWatch

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
CUDA = LOGS / "cuda-1660ti-qwen3-ngl0-b5285.log"
MIB = 2**20


class Card:
    """One GPU whose used memory the test sets."""

    def __init__(self, used_mib: float) -> None:
        self.used_mib = used_mib

    def read(self) -> Sequence[GPUReading]:
        return [GPUReading("Test GPU", 24_564.0, self.used_mib)]


@given(
    st.floats(0, 1e5),
    st.lists(st.integers(0, 10_000), min_size=2, max_size=30, unique=True).map(sorted),
    st.floats(-5, 5),
)
def test_drift_is_the_slope_of_memory_that_grows_evenly(base_mib: float, counts: list[int], per_request: float) -> None:
    card, seen = Card(base_mib), [counts[0]]
    watch = GPUWatch(card, lambda: seen[0])
    for count in counts:
        seen[0] = count
        card.used_mib = base_mib + per_request * count
        watch.take()
    (figures,) = watch.figures([])
    assert figures.drift_mib_per_100_requests == pytest.approx(100 * per_request, abs=0.02)
    assert figures.peak_mib == pytest.approx(max(base_mib + per_request * count for count in counts))
    assert figures.drift_mib == pytest.approx(per_request * (counts[-1] - counts[0]), abs=0.01)


def test_what_is_taken_is_counted_from_before_the_start_to_readiness() -> None:
    requests: list[int | None] = [None]
    card = Card(800.0)
    watch = GPUWatch(card, lambda: requests[0])
    watch.take()
    card.used_mib = 15_000.0  # a load needs more for a moment
    watch.take()
    card.used_mib, requests[0] = 13_800.0, 0
    watch.take()
    (figures,) = watch.figures([])
    assert (figures.used_before_mib, figures.taken_mib, figures.peak_mib) == (800.0, 13_000.0, 15_000.0)
    assert figures.drift_mib == 0
    assert figures.drift_mib_per_100_requests is None


def test_a_watch_reads_on_by_itself_until_it_is_left() -> None:
    readings, enough = 0, threading.Event()

    class Counting(Card):
        def read(self) -> Sequence[GPUReading]:
            nonlocal readings
            readings += 1
            if readings == 5:
                enough.set()
            return super().read()

    with GPUWatch(Counting(1.0), lambda: None, interval_s=0.001) as watch:
        assert enough.wait(10)
    after = readings
    assert watch.figures([])[0].readings == after


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A stand-in for NVIDIA's library with one GPU, 6 GiB, of which 900 MiB are used."""
    module = types.ModuleType("pynvml")
    module.NVMLError = type("NVMLError", (Exception,), {})  # type: ignore[attr-defined]
    module.nvmlInit = lambda: None  # type: ignore[attr-defined]
    module.nvmlDeviceGetCount = lambda: 1  # type: ignore[attr-defined]
    module.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    module.nvmlDeviceGetName = lambda handle: b"Test \x1b[31mGPU"  # type: ignore[attr-defined]
    memory = types.SimpleNamespace(total=6144 * MIB, used=900 * MIB)
    module.nvmlDeviceGetMemoryInfo = lambda handle: memory  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_the_command_shows_the_driver_beside_the_log(
    driver: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["follow", "--watch-gpu", "--timeout", "0", "--section", "server", str(CUDA)]) == 0
    output = capsys.readouterr().out
    assert output.index("Model and server") < output.index("GPU memory by the driver")
    assert "Test \\x1b[31mGPU" in output
    assert "6,144.00" in output
    assert "900.00" in output


def test_the_json_document_keeps_to_its_schema(driver: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["follow", "--watch-gpu", "--timeout", "0", "--format", "json", str(CUDA)]) == 0
    output = capsys.readouterr().out
    _, end = json.JSONDecoder().raw_decode(output)
    document = json.loads(output[end:])
    schema = json.loads((files("vram_report") / "schemas" / "gpu_watch.schema.json").read_text("utf-8"))
    jsonschema.validate(document, schema)
    (gpu,) = document["gpus"]
    assert (gpu["used_before_mib"], gpu["drift_mib"], gpu["predicted_mib"]) == (900.0, 0.0, 606.03)


def test_a_machine_without_the_library_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert main(["follow", "--watch-gpu", str(CUDA)]) == 3
    assert "pip install 'vram-report[gpu]'" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["no driver", "no gpu"])
def test_a_machine_without_a_gpu_is_an_error_with_status_3(
    driver: types.ModuleType, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    def fail() -> None:
        raise driver.NVMLError("Driver Not Loaded")

    if fault == "no driver":
        driver.nvmlInit = fail  # type: ignore[attr-defined]
    else:
        driver.nvmlDeviceGetCount = lambda: 0  # type: ignore[attr-defined]
    assert main(["follow", "--watch-gpu", str(CUDA)]) == 3
    error = capsys.readouterr().err
    assert "Driver Not Loaded" in error or "lists no GPU" in error
    assert "nvidia-smi" in error
