"""The command: parses arguments, prints, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

from vram_report import visible

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
# In the order of --help.
_HOMES = {
    "serve_cli": ("serve",),
    "runs_cli": ("status", "logs", "stop", "restart", "report"),
    "fleet_cli": ("up", "down"),
    "slots_cli": ("slots",),
    "client_cli": ("client-config", "probe"),
    "profile_cli": ("profile",),
    "model_cli": ("model",),
}
"""The module of each command. One alone is loaded when its command is named: a server is to start quickly."""
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
            parser = _parser(ours)
            options, unknown = parser.parse_known_args(ours)
            if unknown:
                parser.error(f"unrecognized arguments: {' '.join(unknown)}{_hint_on_flags(options)}")
            options.extra_flags = extra_flags
            is_debugging = options.debug
            if extra_flags and options.command_name != "serve":
                parser.error("flags after -- are for `serve` alone")
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


def _hint_on_flags(options: argparse.Namespace) -> str:
    if options.command_name != "serve":
        return ""
    return (
        "\nhint: flags of llama-server go behind --, as in `llama-launch serve -- --no-warmup`; "
        "what a profile sets is set by --set, as in --set n_slots=2 (`llama-launch profile show`)"
    )


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


class _Version(argparse.Action):
    """Looks the version up only when asked: importing importlib.metadata takes a while."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"llama-launch {version('llama-launch')}")
        parser.exit()


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser of the one command that the words name; of all of them, for --help, where they name none."""
    parser = argparse.ArgumentParser(
        prog="llama-launch",
        description="Start llama-server from a reviewed profile, wait until it is ready, stop it cleanly.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="show program's version number and exit")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", dest="command_name", required=True, metavar="COMMAND")
    named = next((word for word in words if not word.startswith("-")), "")
    homes = [home for home, names in _HOMES.items() if named in names] or _HOMES
    for home in homes:
        import_module(f"llama_launch.{home}").add(commands)
    return parser
