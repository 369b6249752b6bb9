"""GPU memory watched while a server works: what it takes when it is ready, its peak, and its drift by request.

The rule: figures are kept, not samples, so hours of watching need no more memory than seconds. Drift is the slope of
the least-squares line through (requests begun, MiB used), from readiness on: memory that grows long after a clean
start shows there, while a step at the first request does not grow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

from vram_report.control_characters import visible
from vram_report.document import Device
from vram_report.errors import GPUNotWatched
from vram_report.render import DASH, Table

__all__ = ["GPUFigures", "GPUProbe", "GPUReading", "GPUWatch", "open_nvml", "watch_document", "watch_tables"]

MIB = 2**20
_T = TypeVar("_T")
INTERVAL_S = 1.0
"""How often the GPUs are asked; a peak shorter than this may be missed."""


@dataclass(frozen=True)
class GPUReading:
    """What the driver says of one GPU now, all processes together."""

    name: str
    total_mib: float
    used_mib: float


class GPUProbe(Protocol):
    """Asks the driver."""

    def read(self) -> Sequence[GPUReading]:
        """One reading of each GPU, in the driver's order.

        Raises:
            GPUNotWatched: The driver does not answer.
        """


@dataclass(frozen=True)
class GPUFigures:
    """What was seen of one GPU.

    Attributes:
        index: Its number in the driver's order.
        name: What the driver calls it.
        total_mib: Its memory.
        used_before_mib: Used when the watch began, by whatever ran.
        predicted_mib: What the server said that it would take on the device of this number, None when it did not.
        used_at_ready_mib: Used at the first reading after the server was ready; None when it never was.
        taken_mib: Used at that reading, less what was used before.
        peak_mib: The most that was used at any reading.
        last_mib: Used at the last reading.
        drift_mib: Last less at-ready.
        drift_mib_per_100_requests: Slope since readiness; None with fewer than two different numbers of requests.
        requests: Requests begun since readiness.
        readings: How many readings there were.
    """

    index: int
    name: str
    total_mib: float
    used_before_mib: float
    predicted_mib: float | None
    used_at_ready_mib: float | None
    taken_mib: float | None
    peak_mib: float
    last_mib: float
    drift_mib: float | None
    drift_mib_per_100_requests: float | None
    requests: int
    readings: int


class _Gpu:
    """Running figures of one GPU."""

    def __init__(self, first: GPUReading) -> None:
        self.first = self.last = first
        self.peak_mib = first.used_mib
        self.readings = 0
        self.at_ready: GPUReading | None = None
        # Sums of the least-squares line, over readings since readiness.
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, reading: GPUReading, requests: int | None) -> None:
        """Take a reading; `requests` is None before the server is ready."""
        self.last = reading
        self.readings += 1
        self.peak_mib = max(self.peak_mib, reading.used_mib)
        if requests is None:
            return
        if self.at_ready is None:
            self.at_ready = reading
        # Measured from the first, so that the sums stay small enough to be exact.
        x, y = float(requests), reading.used_mib - self.at_ready.used_mib
        self._n += 1
        self._x += x
        self._y += y
        self._xx += x * x
        self._xy += x * y

    def slope(self) -> float | None:
        """MiB a request, or None when the readings all have the same number of requests."""
        spread = self._n * self._xx - self._x * self._x
        return (self._n * self._xy - self._x * self._y) / spread if spread > 0 else None


class GPUWatch:
    """Reads the GPUs every second in a thread of its own, from entering to leaving.

    Args:
        probe: Asks the driver.
        requests: How many requests the server has begun; None as long as it is not ready.
        interval_s: Seconds between readings.
    """

    def __init__(self, probe: GPUProbe, requests: Callable[[], int | None], *, interval_s: float = INTERVAL_S) -> None:
        self._probe = probe
        self._requests = requests
        self._interval_s = interval_s
        self._seen = 0
        self._gpus: list[_Gpu] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)

    def __enter__(self) -> GPUWatch:
        self.take()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> None:
        """Take one reading of each GPU now.

        Raises:
            GPUNotWatched: The driver does not answer.
        """
        with self._lock:
            readings = self._probe.read()
            requests = self._requests()
            self._seen = requests or 0
            self._gpus = self._gpus or [_Gpu(reading) for reading in readings]
            for gpu, reading in zip(self._gpus, readings, strict=False):
                gpu.add(reading, requests)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.take()
            except GPUNotWatched:
                return  # the driver went away while the server ran: what was seen stays

    def figures(self, devices: Sequence[Device]) -> list[GPUFigures]:
        """The figures so far; the log's GPU devices are taken to be in the driver's order."""
        gpus = [device for device in devices if device.kind == "gpu"]
        predicted = [device.used_mib for device in gpus]
        padded = predicted + [None] * (len(self._gpus) - len(predicted))
        return [self._figures(index, gpu, padded[index]) for index, gpu in enumerate(self._gpus)]

    def _figures(self, index: int, gpu: _Gpu, predicted_mib: float | None) -> GPUFigures:
        ready, slope = gpu.at_ready, gpu.slope()
        return GPUFigures(
            index=index,
            name=gpu.first.name,
            total_mib=gpu.first.total_mib,
            used_before_mib=gpu.first.used_mib,
            predicted_mib=predicted_mib,
            used_at_ready_mib=ready.used_mib if ready else None,
            taken_mib=round(ready.used_mib - gpu.first.used_mib, 2) if ready else None,
            peak_mib=gpu.peak_mib,
            last_mib=gpu.last.used_mib,
            drift_mib=round(gpu.last.used_mib - ready.used_mib, 2) if ready else None,
            drift_mib_per_100_requests=round(100 * slope, 2) if slope is not None else None,
            requests=self._seen,
            readings=gpu.readings,
        )


def watch_document(figures: Sequence[GPUFigures]) -> dict[str, object]:
    """The figures as a JSON document."""
    return {"schema_version": 1, "gpus": [asdict(item) for item in figures]}


def watch_tables(figures: Sequence[GPUFigures]) -> list[Table]:
    """The figures as one table, a column a GPU."""

    def mib(value: float | None) -> str:
        return DASH if value is None else f"{value:,.2f}"

    columns = [
        (
            visible(item.name),
            mib(item.total_mib),
            mib(item.used_before_mib),
            mib(item.predicted_mib),
            mib(item.taken_mib),
            mib(item.peak_mib),
            mib(item.last_mib),
            mib(item.drift_mib),
            mib(item.drift_mib_per_100_requests),
            f"{item.requests:,}",
        )
        for item in figures
    ]
    rows = tuple((label, *cells) for label, *cells in zip(ROWS, *columns, strict=True))
    head = ("MiB", *(f"GPU {item.index}" for item in figures))
    return [Table("GPU memory by the driver", head, rows, tuple(range(1, len(head))))]


ROWS = (
    "name",
    "total",
    "used before the start",
    "predicted by the log",
    "taken when ready",
    "peak, all processes",
    "last, all processes",
    "drift since ready",
    "drift per 100 requests",
    "requests",
)


class _Nvml:
    """NVIDIA's management library (package nvidia-ml-py), read only."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise GPUNotWatched("--watch-gpu needs nvidia-ml-py", "pip install 'vram-report[gpu]'") from error
        self._nvml = pynvml
        self._handles = self._asked(self._open)
        if not self._handles:
            raise GPUNotWatched("--watch-gpu: the driver lists no GPU", "Check nvidia-smi.")

    def read(self) -> list[GPUReading]:
        return self._asked(lambda: [self._reading(handle) for handle in self._handles])

    def _open(self) -> list[object]:
        self._nvml.nvmlInit()
        return [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())]

    def _reading(self, handle: object) -> GPUReading:
        name = self._nvml.nvmlDeviceGetName(handle)
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        return GPUReading(text, round(memory.total / MIB, 2), round(memory.used / MIB, 2))

    def _asked(self, ask: Callable[[], list[_T]]) -> list[_T]:
        try:
            return ask()
        except self._nvml.NVMLError as error:
            raise GPUNotWatched(
                f"--watch-gpu: the NVIDIA driver does not answer: {error}", "Check nvidia-smi."
            ) from error


def open_nvml() -> GPUProbe:
    """Open NVIDIA's management library.

    Raises:
        GPUNotWatched: nvidia-ml-py is not installed, or there is no driver or no GPU.
    """
    return _Nvml()
