"""How fast gguf-info reads headers and starts, against the readers that others use, in the same run.

Models: the phantom of gpt-oss-20b, written here, and every file that is named. Peers: `GGUFReader` of the gguf package,
in this process; `@huggingface/gguf` on Node, whole commands against whole commands, where Node and the package are
there (npm install @huggingface/gguf in the folder that --node names). The best of three runs counts, but for
GGUFReader, which takes long enough to run once.

    python benchmarks/gguf_speed.py [MODEL.gguf ...] [--node FOLDER]

Exit status 1 when a header takes more than a hundredth of GGUFReader's time, the command is slower than Node's, needs
more than 40 MB, or starts more than 0.15 s after Python.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

RATIO_LIMIT = 0.01
MEMORY_LIMIT_MB = 40.0
START_LIMIT_S = 0.15
RUNS = 3
NODE_SCRIPT = """
import { gguf } from "@huggingface/gguf";
const { metadata, tensorInfos } = await gguf(process.argv[2], { allowLocalFile: true });
console.log(Object.keys(metadata).length, tensorInfos.length);
"""
PEAK_SCRIPT = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def best_s(action: Callable[[], object], runs: int = RUNS) -> float:
    """The shortest of a few runs."""
    times = []
    for _ in range(runs):
        started_s = time.perf_counter()
        action()
        times.append(time.perf_counter() - started_s)
    return min(times)


def quietly(*command: str, cwd: Path | None = None) -> Callable[[], object]:
    """Runs a command and throws its output away."""
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=cwd)


def peak_mb(*command: str) -> float:
    """The most memory that a command held, in MB (getrusage(2): kilobytes on Linux, bytes on macOS).

    A small process asks: one that was started from a large one is said to have held as much as that one.
    """
    done = subprocess.run([sys.executable, "-c", PEAK_SCRIPT, *command], check=True, capture_output=True, text=True)
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024) / 1e6


def against_ggufreader(model: Path) -> bool:
    """A header in this process, against the gguf package's reader."""
    import gguf
    from gguf_info import read_summary, summary_document

    own_s = best_s(lambda: read_summary(model))
    read: list[gguf.GGUFReader] = []
    peer_s = best_s(lambda: read.append(gguf.GGUFReader(model)), runs=1)
    ratio = own_s / peer_s
    print(f"{model.name}: header {own_s:.3f} s, GGUFReader {peer_s:.2f} s, 1/{1 / ratio:.0f}", flush=True)
    fields = {key: field.contents() for key, field in read[0].fields.items() if not key.startswith("GGUF.")}
    is_equal = fields == summary_document(read_summary(model), full=True)["metadata"]
    print(f"{model.name}: {len(fields)} fields, {'all equal' if is_equal else 'NOT EQUAL'}", flush=True)
    return ratio <= RATIO_LIMIT and is_equal


def against_node(model: Path, folder: Path) -> bool:
    """The whole command, against a Node script that reads the same with @huggingface/gguf."""
    script = folder / "gguf-speed.mjs"
    script.write_text(NODE_SCRIPT, encoding="utf-8")
    try:
        own_s = best_s(quietly(sys.executable, "-m", "gguf_info", str(model)))
        peer_s = best_s(quietly("node", script.name, str(model), cwd=folder))
    finally:
        script.unlink()
    print(f"{model.name}: command {own_s:.3f} s, @huggingface/gguf {peer_s:.3f} s, {peer_s / own_s:.1f} times as long")
    return own_s < peer_s


def command_memory(model: Path) -> bool:
    """What the whole command holds at most."""
    megabytes = peak_mb(sys.executable, "-m", "gguf_info", str(model))
    print(f"{model.name}: command {megabytes:.1f} MB")
    return megabytes <= MEMORY_LIMIT_MB


def start() -> bool:
    """The command's start, over that of Python."""
    python_s = best_s(quietly(sys.executable, "-c", "pass"), runs=5)
    own_s = best_s(quietly(sys.executable, "-m", "gguf_info", "--help"), runs=5)
    print(f"start: {own_s - python_s:.3f} s over Python's {python_s:.3f} s")
    return own_s - python_s <= START_LIMIT_S


def checks(models: Sequence[Path], node: Path | None) -> Iterator[bool]:
    """All comparisons, one after the other."""
    yield start()
    for model in models:
        yield command_memory(model)
        if node is not None:
            yield against_node(model, node)
        yield against_ggufreader(model)


def main(arguments: Sequence[str]) -> int:
    """Compare, and print a line for each comparison."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))
    from phantoms import write_phantom

    parser = argparse.ArgumentParser(description="Time gguf-info against other readers.")
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--node", type=Path, metavar="FOLDER", help="where @huggingface/gguf is installed")
    options = parser.parse_args(arguments)
    if options.node is None or shutil.which("node") is None:
        print("not compared with @huggingface/gguf: give --node FOLDER", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        phantom = Path(scratch) / "gpt-oss-20b.gguf"
        write_phantom("gpt-oss-20b", phantom)
        kept = list(checks([phantom, *options.models], options.node))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
