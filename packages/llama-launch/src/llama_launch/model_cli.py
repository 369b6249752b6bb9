"""`llama-launch model`: the default model's file."""

from __future__ import annotations

import argparse
import sys

from llama_launch.default_model import fetch_default_model

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's arguments."""
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
    print(fetch_default_model(lambda line: print(line, file=sys.stderr, flush=True)))
    return 0
