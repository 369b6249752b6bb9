"""The command: parses arguments, prints, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from prettytable import PrettyTable, TableStyle

from llama_launch.client import Client
from llama_launch.default_model import fetch_default_model
from llama_launch.embedded import embedded_argv
from llama_launch.errors import LlamaLaunchError, ProfileError, ServerStartError
from llama_launch.flags import server_argv
from llama_launch.profile import DEFAULT_PROFILE, Profile, load_profile, profile_names
from llama_launch.server import find_llama_server, start_server

__all__ = ["main"]

_EXAMPLES = """\
examples:
  llama-launch serve                                   the small default model, on any machine
  llama-launch serve gpt-oss-20b --set model=~/models/gpt-oss-20b-mxfp4.gguf
  llama-launch serve gpt-oss-20b --set n_slots=2 --dry-run
  llama-launch slots --url http://127.0.0.1:8080
  llama-launch erase --url http://127.0.0.1:8080 all   empty the KV cache of every slot
  llama-launch profile show gpt-oss-20b
"""
_INTERRUPTED = 130
_URL_HELP = "address of a running server, such as http://127.0.0.1:8080"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status.

    0: all is well. 2: usage, or a wrong profile. 3: no server, no model, or the server failed. 130: Ctrl-C.
    """
    options = _parser().parse_args(argv)
    try:
        with _termination_as_interrupt():
            return int(options.command(options))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return _INTERRUPTED
    except LlamaLaunchError as error:
        if options.debug:
            traceback.print_exception(error)
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Make SIGTERM and a closed terminal unwind like Ctrl-C, so that the server is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llama-launch",
        description="Start llama-server from a reviewed profile, wait until it is ready, stop it cleanly.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("llama-launch")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_slots(commands)
    _add_erase(commands)
    _add_profile(commands)
    fetch = commands.add_parser("fetch", help="fetch the default model, or check the one that is there")
    fetch.set_defaults(command=_fetch)
    return parser


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "serve",
        help="run a server in the foreground",
        description="Run a server in the foreground until Ctrl-C. It never outlives this command.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("profile", nargs="?", default=DEFAULT_PROFILE, help="name or TOML file (%(default)s)")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="replace a value of the profile"
    )
    command.add_argument("--port", type=int, help="port to listen on; a free one by default")
    command.add_argument(
        "--backend", choices=("auto", "embedded", "external"), default="auto", help="which server (%(default)s)"
    )
    command.add_argument("--run-dir", type=Path, help="folder for the log and saved slots; a temporary one by default")
    command.add_argument("--dry-run", action="store_true", help="print the command line and start nothing")
    command.set_defaults(command=_serve)


def _add_slots(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("slots", help="show the slots of a running server")
    command.add_argument("--url", required=True, help=_URL_HELP)
    command.add_argument("--format", choices=("table", "json"), default="table")
    command.set_defaults(command=_slots)


def _add_erase(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("erase", help="empty the KV cache of one slot or all")
    command.add_argument("--url", required=True, help=_URL_HELP)
    command.add_argument("slot", help="a slot's id, or `all`")
    command.set_defaults(command=_erase)


def _add_profile(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("profile", help="list profiles, or show one")
    command.add_argument("action", choices=("list", "show"))
    command.add_argument("profile", nargs="?", default=DEFAULT_PROFILE)
    command.set_defaults(command=_profile)


def _say(text: str) -> None:
    print(text, flush=True)


def _serve(options: argparse.Namespace) -> int:
    profile = load_profile(options.profile, _overrides(options))
    if options.dry_run:
        _say(shlex.join(_dry_argv(profile, options.backend)))
        return 0
    run_dir = options.run_dir or Path(tempfile.mkdtemp(prefix="llama-launch-"))
    with start_server(profile, run_dir=run_dir, backend=options.backend, progress=_say) as server:
        context = f"{profile.n_slots} slots x {profile.n_ctx_slot} tokens = {profile.n_ctx} tokens of context"
        _say(f"{server.url}  {context}; Ctrl-C stops it")
        status = server.wait()
    raise ServerStartError(f"the server ended by itself with status {status}", hint=f"read {server.log_path}")


def _overrides(options: argparse.Namespace) -> dict[str, object]:
    values: dict[str, object] = {}
    for item in options.set:
        key, separator, value = item.partition("=")
        if not separator:
            raise ProfileError(f"--set {item}: expected KEY=VALUE", hint="for instance --set n_slots=2")
        values[key.strip()] = value
    if options.port is not None:
        values["port"] = options.port
    return values


def _dry_argv(profile: Profile, backend: str) -> list[str]:
    """What would be started, with the model and folders as far as they are known without starting."""
    executable = None if backend == "embedded" else find_llama_server()
    model, slots, port = Path(profile.model), Path("slots"), profile.port or 8080
    if executable is None and backend != "external":
        return embedded_argv(profile, model=model, port=port, slot_save_path=slots)
    return server_argv(executable or Path("llama-server"), profile, model=model, port=port, slot_save_path=slots)


def _slots(options: argparse.Namespace) -> int:
    slots = Client(options.url).slots()
    if options.format == "json":
        _say(json.dumps([slot.raw for slot in slots], indent=2))
        return 0
    table = PrettyTable(["slot", "n_ctx", "state"])
    if "utf" in (sys.stdout.encoding or "").lower():
        table.set_style(TableStyle.SINGLE_BORDER)
    for slot in slots:
        table.add_row([slot.id, slot.n_ctx, "busy" if slot.is_processing else "idle"])
    _say(str(table))
    return 0


def _erase(options: argparse.Namespace) -> int:
    client = Client(options.url)
    ids = [slot.id for slot in client.slots()]
    if options.slot != "all":
        if options.slot not in map(str, ids):
            raise ProfileError(f"no slot {options.slot!r}", hint=f"slots: {', '.join(map(str, ids))}, or all")
        ids = [int(options.slot)]
    for id_slot in ids:
        _say(f"slot {id_slot}: {client.erase(id_slot).n_erased} tokens erased")
    return 0


def _profile(options: argparse.Namespace) -> int:
    if options.action == "list":
        for name in profile_names():
            _say(f"{name:16} {load_profile(name).description}")
        return 0
    profile = load_profile(options.profile)
    for key, value in dataclasses.asdict(profile).items():
        _say(f"{key} = {value!r}")
    _say(f"# context: {profile.n_slots} x {profile.n_ctx_slot} = {profile.n_ctx} tokens")
    return 0


def _fetch(options: argparse.Namespace) -> int:
    _say(str(fetch_default_model(_say)))
    return 0
