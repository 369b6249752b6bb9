"""How long vram-report takes to read a long log, against grep over the same file, and to start.

The log: the recorded logs of fixtures/logs one after the other, each followed by request lines as a serving server
prints them, up to MEGABYTES. The peer is `LC_ALL=C grep -cE 'n_ctx|buffer size|KV|slots'`. The best of three runs
counts. Run: python benchmarks/log_speed.py [MEGABYTES]

Exit status 1 when reading takes more than 10 times as long as grep, or printing a usual log's report takes 0.15 s more
than starting Python.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
USUAL_LOG = LOGS / "llama-server-b10068.p16_unified_q8kv_lv4.log"
MEGABYTES = 100
REQUESTS_A_START = 500
# Its last server answers one request: what is printed from its being idle until its clean-up.
SERVING_LOG = LOGS / "llama-server-b10068.slotsave_metrics_lv4.log"
IDLE, CLEANUP = b"all slots are idle\n", b"cleaning up before exit"
RATIO_LIMIT = 10.0
START_LIMIT_S = 0.15
RUNS = 3


def request_lines() -> bytes:
    """The lines that a recorded server printed for one request."""
    lines = SERVING_LOG.read_bytes().splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if line.endswith(IDLE)) + 1
    last = next(index for index, line in enumerate(lines) if CLEANUP in line)
    return b"".join(lines[first:last])


def write_long_log(path: Path, size_bytes: int) -> None:
    """The recorded logs with requests between them, until `size_bytes` are reached."""
    requests = request_lines() * REQUESTS_A_START
    starts = itertools.cycle(log.read_bytes() for log in sorted(LOGS.glob("*.log")))
    with path.open("wb") as stream:
        while stream.tell() < size_bytes:
            stream.write(next(starts) + requests)


def best_s(action: Callable[[], object]) -> float:
    """The shortest of a few runs."""
    times = []
    for _ in range(RUNS):
        started_s = time.perf_counter()
        action()
        times.append(time.perf_counter() - started_s)
    return min(times)


def run(*command: str | Path) -> Callable[[], object]:
    """An action that runs a command in the C locale. Its output is read: grep stops early when nobody will."""
    environment = {**os.environ, "LC_ALL": "C"}
    return lambda: subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)


def main() -> int:
    """Print both figures; returns 1 when one is over its limit."""
    size_bytes = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else MEGABYTES * 1_000_000
    report = (sys.executable, "-m", "vram_report", "--format", "json")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "long.log")
        write_long_log(log, size_bytes)
        grep_s = best_s(run("grep", "-cE", "n_ctx|buffer size|KV|slots", log))
        read_s = best_s(run(*report, log))
    ratio = read_s / grep_s
    print(f"{size_bytes / 1e6:.0f} MB: grep {grep_s:.2f} s, vram-report {read_s:.2f} s, {ratio:.1f} times as long")
    python_s = best_s(run(sys.executable, "-c", ""))
    start_s = best_s(run(*report, USUAL_LOG)) - python_s
    print(f"a usual log: {start_s:.3f} s more than starting Python ({python_s:.3f} s)")
    return int(ratio > RATIO_LIMIT or start_s > START_LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
