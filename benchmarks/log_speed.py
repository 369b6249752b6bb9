"""How long vram-report takes to read a long log, against grep over the same file, and to start.

The log: the recorded logs of fixtures/logs one after the other, each followed by request lines as a serving server
prints them, up to MEGABYTES. The peer is `LC_ALL=C grep -cE 'n_ctx|buffer size|KV|slots'`. The best of three runs
counts. Run: python benchmarks/log_speed.py [MEGABYTES]

Exit status 1 when reading takes more than 10 times as long as grep, or printing a usual log's report takes 0.15 s more
than starting Python.
"""

from __future__ import annotations

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
REQUEST_BYTES_A_START = 1_500_000
RATIO_LIMIT = 10.0
START_LIMIT_S = 0.15
RUNS = 3
# One request as build b10068 logs it at -lv 4.
REQUEST = """\
{at} I srv  server_strea: conv_id= (empty=1)
{at} I slot get_availabl: id  {slot} | task -1 | selected slot by LCP similarity, sim_best = 0.912 (> 0.100 thold), \
f_keep = 0.941
{at} I slot launch_slot_: id  {slot} | task -1 | sampler chain: logits -> ?penalties -> ?dry -> ?top-n-sigma -> top-k \
-> ?typical -> top-p -> min-p -> ?xtc -> temp-ext -> dist
{at} I slot launch_slot_: id  {slot} | task -1 | sampler params: \n\
\trepeat_last_n = 64, repeat_penalty = 1.000, frequency_penalty = 0.000, presence_penalty = 0.000
\tdry_multiplier = 0.000, dry_base = 1.750, dry_allowed_length = 2, dry_penalty_last_n = 16384
\ttop_k = 40, top_p = 0.950, min_p = 0.050, xtc_probability = 0.000, xtc_threshold = 0.100, typical_p = 1.000, \
top_n_sigma = -1.000, temp = 0.800
\tmirostat = 0, mirostat_lr = 0.100, mirostat_ent = 5.000, adaptive_target = -1.000, adaptive_decay = 0.900
{at} I slot launch_slot_: id  {slot} | task {task} | processing task, is_child = 0
{at} I slot   operator(): id  {slot} | task {task} | new prompt, n_ctx_slot = 32768, n_keep = 0, task.n_tokens = 2048
{at} I slot   operator(): id  {slot} | task {task} | cached n_tokens = 1900, memory_seq_rm [1900, end)
{at} I slot init_sampler: id  {slot} | task {task} | init sampler, took 0.01 ms, tokens: text = 2048, total = 2048
{at} I slot create_check: id  {slot} | task {task} | created context checkpoint 1 of 32 (pos_min = 0, pos_max = 2047, \
n_tokens = 2048, size = 4.044 MiB)
{at} I slot print_timing: id  {slot} | task {task} | prompt eval time =    1243.38 ms /   148 tokens (    8.40 ms per \
token,   119.03 tokens per second)
{at} I slot print_timing: id  {slot} | task {task} |        eval time =      97.49 ms /     8 tokens (   12.19 ms per \
token,    82.06 tokens per second)
{at} I slot print_timing: id  {slot} | task {task} |       total time =    1340.88 ms /   156 tokens
{at} I slot print_timing: id  {slot} | task {task} |    graphs reused =          7
{at} I slot      release: id  {slot} | task {task} | stop processing: n_tokens = 2056, truncated = 0
{at} I srv  update_slots: all slots are idle
"""


def write_long_log(path: Path, size_bytes: int) -> None:
    """The recorded logs with requests between them, until `size_bytes` are reached."""
    starts = [log.read_bytes() for log in sorted(LOGS.glob("*.log"))]
    written, number = 0, 0
    with path.open("wb") as stream:
        while written < size_bytes:
            written += stream.write(starts[number % len(starts)])
            number += 1
            requests = 0
            while requests < REQUEST_BYTES_A_START:
                task = requests
                at = f"{task // 60_000_000}.{task // 1_000_000:02d}.{task // 1000 % 1000:03d}.{task % 1000:03d}"
                requests += stream.write(REQUEST.format(at=at, slot=task % 4, task=task).encode())
            written += requests


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
