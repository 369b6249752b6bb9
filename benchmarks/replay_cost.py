"""What replaying a scenario costs beside OpenCode itself: `python benchmarks/replay_cost.py [ROUNDS] [SCENARIO...]`.

One: a scenario is run by the harness and, in turn, by the least that can run it: a terminal that answers OpenCode's
queries, the same prompt, and a model server (a process of its own) that gives the same answers at once. Both are
timed from OpenCode's start to its end, with the processor time of OpenCode and of what drives it. Exit status 1 when
the harness takes more than 10 % longer (median of the rounds' ratios).

Two, with `--suite [JOBS]`: all scenarios that need no server are run at once, and the cores' time is compared with
the processor time that OpenCode itself took. Exit status 1 when it is more than 15 % above.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pexpect
from opencode_harness import TrialSpec, run_trial
from opencode_harness.isolation import DEFAULT_LIMITS, opencode_config, opencode_environment
from opencode_harness.opencode import search_path
from opencode_harness.scenario import Scenario, load_scenario
from opencode_harness.workspace import create_layout, lay_files

ROOT = Path(__file__).parents[1]
OPENCODE = ROOT / "node_modules" / ".bin" / "opencode"
SCENARIO = ROOT / "scenarios" / "read" / "read_file.yaml"
ROUNDS = 5
LONGEST_RATIO = 1.10
LARGEST_IDLE_SHARE = 1.15
TIMEOUT_S = 120.0

# What a terminal answers, as the harness's does: cursor position, device attributes.
QUERIES = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?62;22c", b"\x1b[0c": b"\x1b[?62;22c"}
QUERY_RE = re.compile(rb"\x1b\[(?:6n|0?c)")
ESCAPE_RE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
DONE_RE = re.compile("▣ .* · [0-9.]+m?s".encode())
CTRL_C, ENTER = b"\x03", b"\r"


@dataclass(frozen=True)
class Cost:
    """Seconds of one run: by the clock, of OpenCode's processor time, and of what drives it."""

    wall_s: float
    opencode_cpu_s: float
    driver_cpu_s: float


def cpu_s(who: int) -> float:
    """Processor time of this process, or of its children that were waited for."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


class Clock:
    """Measures from its making to `cost`."""

    def __init__(self) -> None:
        self._wall_s = time.perf_counter()
        self._cpu_s = cpu_s(resource.RUSAGE_CHILDREN), cpu_s(resource.RUSAGE_SELF)

    def cost(self) -> Cost:
        """What was spent since."""
        wall_s = time.perf_counter() - self._wall_s
        children_s, self_s = cpu_s(resource.RUSAGE_CHILDREN), cpu_s(resource.RUSAGE_SELF)
        return Cost(wall_s, children_s - self._cpu_s[0], self_s - self._cpu_s[1])


class AtOnce(BaseHTTPRequestHandler):
    """Answers a title request with a title, and others with the turns, one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    turns: list[list[dict[str, Any]]]

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer a chat request."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        deltas = self.turns.pop(0) if request.get("tools") else [{"content": "A title"}]
        ending = "tool_calls" if any("tool_calls" in delta for delta in deltas) else "stop"
        choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": ending})
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        events = [b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n" for choice in choices]
        body = b"".join([*events, b"data: [DONE]\n\n"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(turns: list[list[dict[str, Any]]], ready: Connection) -> None:
    """Run the server until the process is ended."""
    AtOnce.turns = turns
    server = ThreadingHTTPServer(("127.0.0.1", 0), AtOnce)
    ready.send(server.server_address[1])
    server.serve_forever()


def deltas_of(scenario: Scenario, workspace: Path) -> list[list[dict[str, Any]]]:
    """What the model says in each turn, as a server streams it."""
    turns: list[list[dict[str, Any]]] = []
    for number, turn in enumerate(scenario.turns or ()):
        calls: list[dict[str, Any]] = [
            {
                "index": index,
                "id": f"call-{number}-{index}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.wire_arguments.replace("{workspace}", str(workspace)),
                },
            }
            for index, call in enumerate(turn.tool_calls)
        ]
        turns.append([{"tool_calls": calls}] if calls else [{"content": turn.text}])
    return turns


class Bare:
    """OpenCode in a terminal of which only the bytes are looked at."""

    def __init__(self, env: dict[str, str], cwd: Path) -> None:
        self.seen = b""
        self.child: pexpect.spawn[bytes] = pexpect.spawn(
            str(OPENCODE), [], env={**env, "PWD": str(cwd)}, cwd=str(cwd), dimensions=(36, 120), timeout=None
        )

    def wait_for(self, pattern: re.Pattern[bytes]) -> None:
        """Until what was written since the last wait holds the pattern."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not pattern.search(ESCAPE_RE.sub(b"", self.seen)):
            data = self.child.read_nonblocking(65_536, timeout=deadline_s - time.monotonic())
            for query in QUERY_RE.findall(data):
                self.child.send(QUERIES[query])
            self.seen += data
        self.seen = b""

    def leave(self) -> None:
        """Ctrl-C, and wait for the end."""
        self.child.send(CTRL_C)
        self.child.expect(pexpect.EOF, timeout=TIMEOUT_S)
        self.child.close()


def bare(scenario: Scenario, root: Path) -> Cost:
    """The scenario without the harness."""
    layout = create_layout(root)
    lay_files(layout.workspace, scenario.files)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    server = context.Process(target=serve, args=(deltas_of(scenario, layout.workspace), sender), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{receiver.recv()}/v1"
        layout.config_file.write_text(json.dumps(opencode_config(url, DEFAULT_LIMITS, {})), encoding="utf-8")
        clock = Clock()
        terminal = Bare(opencode_environment(layout), layout.workspace)
        terminal.wait_for(re.compile(rb"Ask anything"))
        terminal.child.send(scenario.prompt.encode())
        terminal.wait_for(re.compile(re.escape(scenario.prompt[-8:].encode())))
        terminal.child.send(ENTER)
        terminal.wait_for(DONE_RE)
        terminal.leave()
        return clock.cost()
    finally:
        server.terminate()
        server.join()


def harnessed(scenario: Scenario, root: Path) -> Cost:
    """The scenario with the harness, from the trial's folders to its result."""
    clock = Clock()
    result = run_trial(TrialSpec(scenario, root, OPENCODE, upstream=None))
    cost = clock.cost()
    if result.outcome.value != "pass":
        raise SystemExit(result.explain())
    return cost


def one_by_one(rounds: int, path: Path, folder: Path) -> int:
    """Part one, for one scenario."""
    scenario = load_scenario(path)
    ways = {"bare": bare, "harness": harnessed}
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for number in range(rounds):
        # Whoever is first finds a colder machine: take turns.
        for name in sorted(ways, reverse=number % 2 == 1):
            costs[name].append(ways[name](scenario, folder / f"{scenario.name}-{name}-{number}"))
            cost = costs[name][-1]
            print(
                f"{name:8} {cost.wall_s:6.2f} s, OpenCode {cost.opencode_cpu_s:6.2f} CPU-s, driver"
                f" {cost.driver_cpu_s:5.2f} CPU-s",
                flush=True,
            )
    ratios = [own.wall_s / least.wall_s for own, least in zip(costs["harness"], costs["bare"], strict=True)]
    ratio = statistics.median(ratios)
    print(f"{scenario.name}: the harness takes {ratio:.2f} times as long (limit {LONGEST_RATIO:.2f})")
    return 0 if ratio <= LONGEST_RATIO else 1


# The shell's `times` tells what its children took.
SHIM = """\
#!/bin/sh
PATH="{path}"
case "$*" in --version) exec "{opencode}" "$@" ;; esac
"{opencode}" "$@"
status=$?
times > "{folder}/$$"
exit $status
"""
TIMES_RE = re.compile(r"(\d+)m([\d.]+)s")


def all_at_once(jobs: str, folder: Path) -> int:
    """Part two."""
    counted = folder / "counted"
    counted.mkdir()
    shim = folder / "opencode"
    shim.write_text(SHIM.format(opencode=OPENCODE, path=search_path(OPENCODE), folder=counted), encoding="utf-8")
    shim.chmod(0o755)
    words = ["run", "scenarios", "--no-server", "--opencode", str(shim), "--run-dir", str(folder / "run")]
    command = [sys.executable, "-m", "opencode_harness", *words, "--jobs", jobs]
    clock = Clock()
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    cost = clock.cost()
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}the run ended with status {done.returncode}")
    texts = [path.read_text(encoding="ascii").splitlines()[-1] for path in counted.iterdir()]
    opencode_s = sum(60 * int(minutes) + float(rest) for text in texts for minutes, rest in TIMES_RE.findall(text))
    cores = len(os.sched_getaffinity(0))
    share = cost.wall_s * cores / opencode_s
    print(f"{len(texts)} starts of OpenCode, {jobs} jobs, {cores} cores: {cost.wall_s:.0f} s")
    print(f"processor time: OpenCode {opencode_s:.0f} s, everything {cost.opencode_cpu_s:.0f} s")
    print(f"the cores' time is {share:.2f} times OpenCode's own (limit {LARGEST_IDLE_SHARE:.2f})")
    return 0 if share <= LARGEST_IDLE_SHARE else 1


def main(argv: Sequence[str]) -> int:
    """Measure and print; see the module's text."""
    with tempfile.TemporaryDirectory(prefix="replay-cost-") as name:
        folder = Path(name)
        if argv[:1] == ["--suite"]:
            return all_at_once(argv[1] if len(argv) > 1 else "auto", folder)
        rounds = int(argv[0]) if argv else ROUNDS
        return max(one_by_one(rounds, Path(path), folder) for path in argv[1:] or [str(SCENARIO)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
