"""`llama-launch slots`: the slots of a running server."""

from __future__ import annotations

import argparse
import json

from llama_launch.client import Client
from llama_launch.errors import ProfileError
from llama_launch.running_server import add_server_arguments, chosen_client
from llama_launch.tables import boxed

__all__ = ["add"]

_EXAMPLES = """\
examples:
  llama-launch slots --url http://127.0.0.1:8080
  llama-launch slots --format json
  llama-launch slots erase 0            empty the KV cache of slot 0
  llama-launch slots erase all
  llama-launch slots save 0 chat.bin    below the server's --slot-save-path
  llama-launch slots restore 0 chat.bin

Exit status 1: tokens were left in a slot that was erased, because a request filled it again meanwhile.
Erasing, saving and restoring need a server that was started with --slot-save-path.
The API key, where the server asks for one, comes from --api-key-file or $LLAMA_API_KEY.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's arguments."""
    command = commands.add_parser(
        "slots",
        help="show, erase, save and restore the slots of a running server",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("action", nargs="?", choices=tuple(_ACTIONS), default="show", help="%(default)s by default")
    command.add_argument("slot", nargs="?", default="all", metavar="ID", help="a slot's id, or `all`")
    command.add_argument("file", nargs="?", metavar="FILE", help="name of the file to save to or restore from")
    add_server_arguments(command)
    command.add_argument("--format", choices=("table", "json"), default="table")
    command.set_defaults(command=_slots)


def _slots(options: argparse.Namespace) -> int:
    header, rows = _ACTIONS[options.action](chosen_client(options), options)
    if options.format == "json":
        print(json.dumps([dict(zip(header, row, strict=True)) for row in rows], indent=2))
    else:
        print(boxed(header, rows))
    return 1 if options.action == "erase" and any(row[-1] for row in rows) else 0


_Rows = tuple[list[str], list[list[object]]]


def _show(client: Client, options: argparse.Namespace) -> _Rows:
    rows: list[list[object]] = [
        [slot.id, slot.n_ctx, slot.n_prompt_tokens, slot.is_processing] for slot in client.slots()
    ]
    return ["slot", "n_ctx", "cached_tokens", "is_processing"], rows


def _erase(client: Client, options: argparse.Namespace) -> _Rows:
    """What was erased, and what the server says is left: its own word that the slot is cold."""
    erased = [client.erase(id_slot) for id_slot in _chosen(client, options.slot)]
    left = {slot.id: slot.n_prompt_tokens for slot in client.slots()}
    rows: list[list[object]] = [[slot.id_slot, slot.n_erased, left.get(slot.id_slot)] for slot in erased]
    return ["slot", "erased_tokens", "cached_tokens"], rows


def _save(client: Client, options: argparse.Namespace) -> _Rows:
    saved = client.save(_one(client, options), options.file)
    return ["slot", "file", "saved_tokens", "bytes"], [[saved.id_slot, saved.filename, saved.n_tokens, saved.n_bytes]]


def _restore(client: Client, options: argparse.Namespace) -> _Rows:
    read = client.restore(_one(client, options), options.file)
    return ["slot", "file", "restored_tokens", "bytes"], [[read.id_slot, read.filename, read.n_tokens, read.n_bytes]]


_ACTIONS = {"show": _show, "erase": _erase, "save": _save, "restore": _restore}


def _one(client: Client, options: argparse.Namespace) -> int:
    if options.slot == "all" or not options.file:
        raise ProfileError(
            f"slots {options.action} needs a slot and a file", hint=f"llama-launch slots {options.action} 0 chat.bin"
        )
    return _chosen(client, options.slot)[0]


def _chosen(client: Client, slot: str) -> list[int]:
    ids = [found.id for found in client.slots()]
    if slot == "all":
        return ids
    if slot not in map(str, ids):
        raise ProfileError(f"no slot {slot!r}", hint=f"slots: {', '.join(map(str, ids))}, or all")
    return [int(slot)]
