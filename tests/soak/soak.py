"""The long proof, resumable: replays of the whole suite without a flake, and kills at random moments.

    python tests/soak/soak.py [--replays N] [--kills N] [--minutes M] [--folder DIR]

Each replay runs every scenario that needs no server; every outcome that was not PASS is told. Each kill starts a run,
sends SIGKILL to one of OpenCode, the process that holds the proxy, the server or the harness at a random moment, and
then looks for what must not be there: processes, listening ports, artefacts that are not whole, a traceback.

What was done is kept in DIR/soak.jsonl, one line a round; a further call goes on until there are as many as asked
for, or the minutes are over. Exit status 1 when any round, of this call or an earlier one, was not as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
OPENCODE = ROOT / "node_modules" / ".bin" / "opencode"
SCRIPTED = """\
prompt: Read notes.txt.
files: {notes.txt: kiwi}
turns:
  - tool_calls: [{name: read, arguments: {filePath: "{workspace}/notes.txt"}}]
  - text: It is kiwi.
screen_contains: It is kiwi.
"""
ASKS_SERVER = """\
prompt: Say hello.
max_output_tokens: 8
timeouts: {turn: 60}
tools_called: []
"""
# Outside of the repository, where no trial may lie.
FOLDER = Path(tempfile.gettempdir()) / f"opencode-harness-soak-{os.getuid()}"
# A run takes about so long on two cores; later kills meet one that is over, and count for nothing.
LATEST_KILL_S = 14.0
RUN_LIMIT_S = 300.0
GONE_WITHIN_S = 5.0
WHOLE_JSON = ("*.json",)
WHOLE_LINES = ("*.jsonl", "screen.cast")


@dataclass(frozen=True)
class Victim:
    """Who is killed: how it is known among the run's processes, and the run that has it."""

    is_it: Callable[[psutil.Process, int], bool]
    scenarios: dict[str, str]
    arguments: tuple[str, ...]


def _named(word: str) -> Callable[[psutil.Process, int], bool]:
    return lambda process, harness: process.pid != harness and word in " ".join(process.cmdline())


def _is_harness(process: psutil.Process, harness: int) -> bool:
    return process.pid == harness


VICTIMS = {
    "opencode": Victim(_named("node_modules/"), {"read": SCRIPTED}, ("--no-server",)),
    # With several jobs each proxy lives in the worker that runs the trial.
    "proxy": Victim(_named("sys.stdin.readline"), {"one": SCRIPTED, "two": SCRIPTED}, ("--no-server", "--jobs", "2")),
    "server": Victim(_named("embedded"), {"hello": ASKS_SERVER}, ("--backend", "embedded")),
    "harness": Victim(
        lambda process, harness: process.pid == harness, {"hello": ASKS_SERVER}, ("--backend", "embedded")
    ),
}


def processes_of(marker: str) -> Iterator[psutil.Process]:
    """Living processes whose command line or environment holds `marker`."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if marker in " ".join(process.cmdline()) or marker in " ".join(process.environ().values()):
                yield process


def start(folder: Path, scenarios: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a run in `folder`, as a shell would."""
    command = [sys.executable, "-m", "opencode_harness", "run", str(scenarios), *arguments]
    command += ["--run-dir", str(folder / "run"), "--opencode", str(OPENCODE)]
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            # Inherited by all but OpenCode, whose own folders lie below this one.
            env={**os.environ, "SOAK_FOLDER": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def replay(folder: Path) -> dict[str, Any]:
    """Run the suite once without a server."""
    began = time.monotonic()
    process = start(folder, ROOT / "scenarios", "--no-server", "--jobs", "auto")
    status = process.wait()
    document = folder / "run" / "run.json"
    trials = json.loads(document.read_text(encoding="utf-8"))["trials"] if document.exists() else []
    outcomes = Counter(trial["outcome"] for trial in trials)
    others = [
        {key: trial[key] for key in ("name", "outcome", "messages")}
        for trial in trials
        if trial["outcome"] not in ("pass", "skip")
    ]
    is_right = status == 0 and bool(outcomes["pass"]) and not others
    return {
        "kind": "replay",
        "is_right": is_right,
        "seconds": round(time.monotonic() - began, 1),
        "outcomes": dict(outcomes),
        "others": others,
        "left": [] if trials else ["the run wrote no run.json"],
    }


def kill(folder: Path, victim_name: str, at_s: float) -> dict[str, Any]:
    """Run, kill the victim once it is there and `at_s` seconds are over, and look for what is left."""
    victim = VICTIMS[victim_name]
    scenarios = folder / "scenarios"
    scenarios.mkdir()
    for name, text in victim.scenarios.items():
        (scenarios / f"{name}.yaml").write_text(text, encoding="utf-8")
    process = start(folder, scenarios, *victim.arguments)
    killed_s = _kill_one(process, victim, str(folder), at_s)
    limit_s = GONE_WITHIN_S if victim_name == "harness" and killed_s is not None else RUN_LIMIT_S
    left = []
    try:
        process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        left.append(f"the harness runs on after {limit_s:.0f} s")
        process.kill()
        process.wait()
    left += [*_left_running(str(folder)), *_not_whole(folder / "run")]
    if "Traceback (most recent call last)" in (folder / "output.txt").read_text(encoding="utf-8", errors="replace"):
        left.append("a traceback was shown")
    return {
        "kind": "kill" if killed_s is not None else "too-late",
        "victim": victim_name,
        "at_s": killed_s,
        "status": process.returncode,
        "is_right": not left,
        "left": left,
    }


def _kill_one(process: subprocess.Popen[bytes], victim: Victim, marker: str, at_s: float) -> float | None:
    """When the victim was killed, in seconds from the start of the run; None when the run was over before."""
    began = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=at_s)
    while process.poll() is None:
        for found in processes_of(marker):
            with contextlib.suppress(psutil.Error):
                if victim.is_it(found, process.pid):
                    found.send_signal(signal.SIGKILL)
                    return round(time.monotonic() - began, 3)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
    return None


def _left_running(marker: str) -> list[str]:
    """What still runs when it should be gone; whatever it listens on is told, too, and it is killed."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := list(processes_of(marker))) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.1)
    told = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            ports = [str(found.laddr.port) for found in process.net_connections() if found.status == "LISTEN"]
            told.append(f"still running, ports {ports}: {' '.join(process.cmdline())[:200]}")
            process.kill()
    return told


def _not_whole(run: Path) -> list[str]:
    """Artefacts that are neither whole nor absent. What the agent or OpenCode wrote is theirs, and not looked at."""
    paths = [path for pattern in WHOLE_JSON for path in _own(run, pattern)]
    told = [f"not whole: {path.relative_to(run)}" for path in paths if not _parses(path.read_bytes())]
    for path in (path for pattern in WHOLE_LINES for path in _own(run, pattern)):
        *lines, rest = path.read_bytes().split(b"\n")
        if rest or not all(map(_parses, lines)):
            told.append(f"not whole: {path.relative_to(run)}")
    return told


def _own(run: Path, pattern: str) -> Iterator[Path]:
    for folder in (run, *run.glob("trials/**/artefacts")):
        yield from folder.glob(pattern)


def _parses(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def rounds_of(record: Path) -> list[dict[str, Any]]:
    """What earlier calls did; a line that a kill of this program cut is left out."""
    lines = record.read_bytes().split(b"\n")[:-1] if record.exists() else []
    return [json.loads(line) for line in lines]


def report(rounds: Sequence[dict[str, Any]], replays: int, kills: int) -> list[str]:
    """What was reached, and everything that was not as it should be."""
    done = [found for found in rounds if found["kind"] == "replay"]
    outcomes = sum((Counter(found["outcomes"]) for found in done), Counter[str]())
    told = [f"replays of the whole suite: {len(done)} of {replays}"]
    told += [f"  {count} trials: {outcome.upper()}" for outcome, count in outcomes.most_common()]
    for found in done:
        told += [f"  {other['outcome'].upper()} {other['name']}: {other['messages']}" for other in found["others"]]
    struck = [found for found in rounds if found["kind"] == "kill"]
    victims = Counter(found["victim"] for found in struck)
    told.append(f"kills: {len(struck)} of {kills} ({', '.join(f'{count} {name}' for name, count in victims.items())})")
    for found in struck:
        told += [f"  {found['victim']} at {found['at_s']} s: {what}" for what in found["left"]]
    return told


def main(argv: Sequence[str]) -> int:
    """Go on with the rounds; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=100, help="replays of the whole suite (default 100)")
    parser.add_argument("--kills", type=int, default=200, help="kills (default 200)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round after so many minutes")
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help=f"what was done, and the runs that were not right (default {FOLDER})",
    )
    options = parser.parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    record = options.folder / "soak.jsonl"
    rounds = rounds_of(record)
    ends_s = time.monotonic() + 60 * options.minutes
    with record.open("ab") as log:
        for number, todo in enumerate(_todo(rounds, options.replays, options.kills), start=len(rounds)):
            if time.monotonic() > ends_s:
                break
            folder = options.folder / f"round-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            found = todo(folder)
            log.write(json.dumps(found).encode("ascii") + b"\n")
            log.flush()
            rounds.append(found)
            print({key: value for key, value in found.items() if value not in ([], None)}, flush=True)
            if found["is_right"]:
                shutil.rmtree(folder)
    for line in report(rounds, options.replays, options.kills):
        print(line)
    return 0 if all(found["is_right"] for found in rounds) else 1


def _todo(rounds: list[dict[str, Any]], replays: int, kills: int) -> Iterator[Callable[[Path], dict[str, Any]]]:
    """The rounds that are left: kills, each victim in turn, then replays. `rounds` grows meanwhile."""
    chance = random.Random()
    while (done := sum(found["kind"] == "kill" for found in rounds)) < kills:
        victim, at_s = list(VICTIMS)[done % len(VICTIMS)], chance.uniform(0, LATEST_KILL_S)
        yield lambda folder, victim=victim, at_s=at_s: kill(folder, victim, at_s)  # type: ignore[misc]
    while sum(found["kind"] == "replay" for found in rounds) < replays:
        yield replay


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
