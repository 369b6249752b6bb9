"""How much later a server is ready when llama-launch starts it: `python benchmarks/launch_overhead.py [ROUNDS]`.

The same command line is started bare and by `llama-launch serve`, in turn, on the same machine; ready is the first
answer of /health for the bare one, and for the other one when the command says so. Two servers are tried: the embedded
one, whose start takes a while, and a stand-in that is ready at once, which shows the overhead by itself. The stand-in
answers --version and --help from a shell script, as quickly as a compiled server does.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAKE = ROOT / "tests" / "llama_launch" / "fake_llama_server.py"
HELP = ROOT / "tests" / "llama_launch" / "data" / "llama-server-b10068.help.txt"
STAND_IN = f"""\
#!/bin/sh
case "$1" in
  --version) echo "version: 10068 (571d0d5)" >&2 ;;
  --help) exec cat "{HELP}" ;;
  *) exec "{sys.executable}" "{FAKE}" "$@" ;;
esac
"""
ROUNDS = 15
TIMEOUT_S = 120.0


def launch(words: list[str], environment: dict[str, str]) -> tuple[subprocess.Popen[str], float]:
    """Start `llama-launch serve`; returns it and the seconds until it says that the server is ready."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "llama_launch", "serve", *words], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready at "):
            return process, time.perf_counter() - started
    raise SystemExit("llama-launch serve did not become ready")


def bare(argv: list[str], environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], float]:
    """Start the server itself; returns it and the seconds until /health answers."""
    url = f"http://127.0.0.1:{_port(argv)}/health"
    started = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    while time.perf_counter() - started < TIMEOUT_S:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return process, time.perf_counter() - started
        except (urllib.error.URLError, OSError):
            time.sleep(0.002)
    raise SystemExit("the bare server did not become ready")


def _port(argv: list[str]) -> str:
    return argv[argv.index("--port") + 1] if "--port" in argv else str(json.loads(argv[-1])["port"])


def measure(name: str, words: list[str], environment: dict[str, str], rounds: int) -> None:
    """Print the medians and the least of both, and their differences: what else a machine does only ever adds."""
    launched, alone = [], []
    argv: list[str] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            process, seconds = launch(["--run-dir", folder, *words], environment)
            # The second line of the log is the command line that was started.
            argv = shlex.split((Path(folder) / "server.log").read_text().splitlines()[1].removeprefix("# "))
            process.terminate()
            process.communicate()
            launched.append(seconds)
            server, seconds = bare(argv, environment)
            server.kill()
            server.wait()
            alone.append(seconds)
    for what, figure in (("median", statistics.median), ("least", min)):
        with_launch, without = figure(launched), figure(alone)
        difference = with_launch - without
        print(f"{name}, {what}: {with_launch:.2f} s by llama-launch, {without:.2f} s bare, {difference:+.2f} s")


def main() -> None:
    """Measure both servers."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    measure("embedded server", ["--backend", "embedded", "--", "--no-warmup"], dict(os.environ), rounds)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "llama-server"
        program.write_text(STAND_IN)
        program.chmod(0o755)
        environment = {**os.environ, "LLAMA_SERVER": str(program), "FAKE_LLAMA": "well"}
        measure("stand-in", ["--backend", "external"], environment, rounds)


if __name__ == "__main__":
    main()
