"""`llama-launch status|logs|stop|restart|report`: runs that were started before."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import vram_report

from llama_launch.detached import start_detached
from llama_launch.errors import LlamaLaunchError, RunError, ServerUnreachable
from llama_launch.running_server import run_client
from llama_launch.serve_cli import print_started, say
from llama_launch.serving import ServeRequest
from llama_launch.state import RunRecord, chosen_run, end_watcher, find_runs
from llama_launch.tables import boxed

__all__ = ["add", "status_table"]

_EXAMPLES = {
    "status": "  llama-launch status\n  llama-launch status --all --format json      ended runs too",
    "logs": "  llama-launch logs -f\n  llama-launch logs gpt-oss-20b -n 100",
    "stop": "  llama-launch stop\n  llama-launch stop gpt-oss-20b\n  llama-launch stop --all",
    "restart": "  llama-launch restart --keep-slots      conversations need not be read again",
    "report": "  llama-launch report\n  llama-launch report gpt-oss-20b --format json",
}
_POLL_S = 0.2


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands' arguments."""
    status = _command(commands, "status", "what runs, where, and how it is", named=False)
    status.add_argument("--all", action="store_true", help="ended runs too")
    status.add_argument("--format", choices=("table", "json"), default="table")
    status.set_defaults(command=_status)
    logs = _command(commands, "logs", "the log of a run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    logs.add_argument("-n", "--lines", type=int, metavar="N", help="the last N lines alone")
    logs.set_defaults(command=_logs)
    stop = _command(commands, "stop", "end a run and its server")
    stop.add_argument("--all", action="store_true", help="end every run")
    stop.set_defaults(command=_stop)
    restart = _command(commands, "restart", "end a detached run, and start it as it was")
    restart.add_argument("--keep-slots", action="store_true", help="save what the slots hold, and bring it back")
    restart.set_defaults(command=_restart)
    report = _command(commands, "report", "explain the VRAM of a run, by its log")
    report.add_argument("--format", choices=("table", "json"), default="table")
    report.set_defaults(command=_report)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, *, named: bool = True
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=f"examples:\n{_EXAMPLES[name]}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if named:
        command.add_argument("name", nargs="?", help="the run; the only one that is alive, else the last, by default")
    return command


def _status(options: argparse.Namespace) -> int:
    records = [record for record in find_runs() if options.all or record.is_alive or record.state != "stopped"]
    if options.format == "json":
        documents = [{**dataclasses.asdict(record), **_condition(record)} for record in records]
        print(json.dumps({"schema_version": 1, "runs": documents}, indent=2))
    elif records:
        print(status_table(records))
    else:
        print("no server runs that llama-launch started; `llama-launch serve --detach` starts one")
    return 0


def status_table(records: Sequence[RunRecord]) -> str:
    """What runs where, and how it is now."""
    return boxed(_COLUMNS, [_row(record, _condition(record)) for record in records], max_width=50)


_COLUMNS = ("run", "state", "address", "slots busy", "context", "since", "pid", "model", "GPUs", "message")


def _row(record: RunRecord, how: dict[str, Any]) -> list[object]:
    busy = None if how["n_busy"] is None else f"{how['n_busy']} of {how['n_slots']}"
    context = record.profile.get("n_slots", 0) * record.profile.get("n_ctx_slot", 0)
    model = Path(record.model_path or str(record.profile.get("model", ""))).name
    message = record.message or None
    return [
        record.name,
        how["condition"],
        record.url or None,
        busy,
        context,
        record.started_at,
        record.pid,
        model,
        str(record.profile.get("gpus") or "all"),
        message,
    ]


def _condition(record: RunRecord) -> dict[str, Any]:
    """How a run is now: what its record says, and for a living one what its server answers."""
    nothing: dict[str, Any] = {"n_busy": None, "n_slots": None}
    if not record.is_alive:
        ended = record.state in ("failed", "stopped")
        return {"condition": record.state if ended else "dead", **nothing}
    if record.state != "ready":
        return {"condition": record.state, **nothing}
    client = run_client(record, timeout_s=2.0)
    try:
        if not client.is_healthy():
            return {"condition": "loading", **nothing}
        if client.props().is_sleeping:
            return {"condition": "asleep", **nothing}
        slots = client.slots()
    except ServerUnreachable:
        return {"condition": "does not answer", **nothing}
    except LlamaLaunchError:
        return {"condition": "ready", **nothing}
    return {"condition": "ready", "n_busy": sum(slot.is_processing for slot in slots), "n_slots": len(slots)}


def _logs(options: argparse.Namespace) -> int:
    record = chosen_run(options.name)
    path = Path(record.log_path)
    try:
        skipped = _bytes_before(path, options.lines) if options.lines is not None else 0
        for line in _lines(record, path, skipped, follow=options.follow):
            say(vram_report.visible(line.decode("utf-8", "replace").rstrip("\r\n"), keep="\t"))
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise RunError(f"{path}: {error.strerror}", hint=f"the log of {record.name} is gone") from error
    return 0


def _bytes_before(path: Path, n_lines: int) -> int:
    """Where the last `n_lines` lines begin."""
    ends = []
    position = 0
    with path.open("rb") as log:
        for line in log:
            ends.append(position)
            position += len(line)
            del ends[: max(0, len(ends) - max(n_lines, 0))]
    return ends[0] if ends else position


def _lines(record: RunRecord, path: Path, start: int, *, follow: bool) -> Iterator[bytes]:
    """Lines from a byte on; with `follow` until the run has ended, through every piece of a rotated log."""
    while True:
        with path.open("rb") as log:
            log.seek(start)
            inode = os.fstat(log.fileno()).st_ino
            while True:
                is_over = not follow or not _is_alive(record)
                yield from log
                if is_over:
                    return
                if _inode(path) not in (inode, None):
                    yield from log  # what came between the last read and the rotation
                    break
                time.sleep(_POLL_S)
        start = _after_startup(path)


def _is_alive(record: RunRecord) -> bool:
    return any(found.name == record.name and found.is_alive for found in find_runs())


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _after_startup(path: Path) -> int:
    """Where what is new begins in a piece that starts with a copy of the start-up part."""
    position = 0
    with path.open("rb") as log:
        for line in log:
            position += len(line)
            if line.startswith(b"# earlier lines of this run are in "):
                return position
    return 0


def _stop(options: argparse.Namespace) -> int:
    if options.all:
        records = [record for record in find_runs() if record.is_alive]
    else:
        records = [chosen_run(options.name, living=True)]
    for record in records:
        end_watcher(record)
        say(f"{record.name} is stopped")
    if not records:
        say("nothing runs")
    return 0


def _restart(options: argparse.Namespace) -> int:
    record = chosen_run(options.name)
    if not record.is_detached:
        raise RunError(f"{record.name} runs in a terminal", hint="end it there with Ctrl-C, and start it again")
    saved = _save_slots(record) if options.keep_slots and record.is_alive else []
    if record.is_alive:
        end_watcher(record)
    os.chdir(record.folder)  # relative paths of the profile start there
    values = {"profile": record.profile, "name": record.name, "last_port": _port_of(record.url)}
    request = ServeRequest.from_document({**record.options, **values})
    started = start_detached(request, say)
    client = run_client(started)
    for id_slot, filename in saved:
        say(f"slot {id_slot}: {client.restore(id_slot, filename).n_tokens} tokens are back")
    print_started(started)
    return 0


def _port_of(url: str) -> int:
    port = url.rpartition(":")[2]
    return int(port) if port.isdigit() else 0


def _save_slots(record: RunRecord) -> list[tuple[int, str]]:
    """Save every slot that holds something."""
    client = run_client(record, timeout_s=60.0)
    saved = []
    for slot in client.slots():
        filename = f"restart-{slot.id}.bin"
        if slot.n_prompt_tokens and client.save(slot.id, filename).n_tokens:
            saved.append((slot.id, filename))
    return saved


def _report(options: argparse.Namespace) -> int:
    record = chosen_run(options.name)
    try:
        report = vram_report.read_log(Path(record.log_path))
    except vram_report.VRAMReportError as error:
        raise RunError(str(error), hint=f"the log of {record.name} says too little, or is gone") from error
    if options.format == "json":
        print(json.dumps({**vram_report.report_document(report), "server_version": record.version or None}, indent=2))
    else:
        say(f"{record.name}: server {record.version or 'of unknown version'}, log {record.log_path}")
        print(vram_report.render_tables(report))
    return 0
