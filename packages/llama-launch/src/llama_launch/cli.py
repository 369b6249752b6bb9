"""The command: parses arguments, prints, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from vram_report import visible

from llama_launch import client_cli, fleet_cli, profile_cli, runs_cli, serve_cli, slots_cli
from llama_launch.default_model import fetch_default_model
from llama_launch.errors import LlamaLaunchError

__all__ = ["main"]

_EXAMPLES = """\
examples:
  llama-launch serve                                   the small default model, on any machine
  llama-launch serve gpt-oss-20b --set model=~/models/gpt-oss-20b-mxfp4.gguf
  llama-launch serve gpt-oss-20b --detach              go on without this terminal
  llama-launch status                                  what runs, where, and how it is
  llama-launch slots --url http://127.0.0.1:8080
  llama-launch slots erase all                         empty the KV cache of every slot
  llama-launch profile show gpt-oss-20b --explain      what is set, by which flag, and why
  llama-launch model fetch

exit status: 0 all is well, 1 the answer is no, 2 wrong usage or a wrong profile,
3 no server, no model, or the server failed, 130 interrupted
"""
_INTERRUPTED = 130
_LINE_END = "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status.

    0: all is well. 1: the answer is no. 2: usage, or a wrong profile. 3: no server, no model, or the server failed.
    130: Ctrl-C, SIGTERM, a closed terminal or a closed pipe.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    ours, extra_flags = _split(words)
    is_debugging = False
    try:
        with _termination_as_interrupt():
            options = _parser().parse_args(ours)
            options.extra_flags = extra_flags
            is_debugging = options.debug
            if extra_flags and options.command is not serve_cli.serve:
                _parser().error("flags after -- are for `serve` alone")
            status = int(options.command(options))
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it exits; there is nobody left to read it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _INTERRUPTED
    except LlamaLaunchError as error:
        if is_debugging:
            traceback.print_exception(error)
        print(f"error: {visible(str(error), keep=_LINE_END)}", file=sys.stderr)
        if error.hint:
            print(f"hint: {visible(error.hint, keep=_LINE_END)}", file=sys.stderr)
        return error.exit_code


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The command's own words, and the server's flags after `--`."""
    if "--" not in words:
        return words, []
    position = words.index("--")
    return words[:position], words[position + 1 :]


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
    serve_cli.add(commands)
    runs_cli.add(commands)
    fleet_cli.add(commands)
    slots_cli.add(commands)
    client_cli.add(commands)
    profile_cli.add(commands)
    _add_model(commands)
    return parser


def _add_model(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    model = commands.add_parser(
        "model",
        help="fetch the default model",
        epilog="example:\n  llama-launch model fetch        print the path; fetches what is missing or damaged",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = model.add_subparsers(title="actions", required=True, metavar="ACTION")
    fetch = actions.add_parser("fetch", help="print the file's path, fetched first when it is missing or damaged")
    fetch.set_defaults(command=_fetch)


def _fetch(options: argparse.Namespace) -> int:
    path: Path = fetch_default_model(lambda line: print(line, file=sys.stderr, flush=True))
    print(path)
    return 0
