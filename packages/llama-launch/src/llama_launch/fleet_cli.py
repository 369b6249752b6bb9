"""`llama-launch up` and `down`: several servers from one file."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path

from llama_launch.detached import start_detached
from llama_launch.fleet import FleetServer, read_fleet
from llama_launch.runs_cli import status_table
from llama_launch.serve_cli import say
from llama_launch.server import planned_argv
from llama_launch.serving import ServeRequest, new_run_dir
from llama_launch.state import RunRecord, end_watcher, find_runs

__all__ = ["add"]

_EXAMPLES = """\
examples:
  llama-launch up fleet.toml --dry-run      the command line of each
  llama-launch up fleet.toml                start what does not run yet, all or nothing
  llama-launch down fleet.toml

a file:
  [servers.big]
  profile = "gpt-oss-20b"
  port = 8080
  gpus = "0"

  [servers.small]
  profile = "smollm2-135m"
  port = 8081
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands' arguments."""
    for name, text, command in (("up", "start several servers from one file", _up), ("down", "end them", _down)):
        parser = commands.add_parser(
            name, help=text, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("fleet", type=Path, metavar="FLEET.toml", help="file with a [servers.NAME] table for each")
        if name == "up":
            parser.add_argument("--force", action="store_true", help="start them although the GPUs lack the memory")
            parser.add_argument("--dry-run", action="store_true", help="print the command lines and start nothing")
        parser.set_defaults(command=command)


def _up(options: argparse.Namespace) -> int:
    servers = read_fleet(options.fleet)
    if options.dry_run:
        for server in servers:
            print(f"# {server.name}\n{shlex.join(planned_argv(server.profile, server.backend))}")
        return 0
    running = _living()
    started: list[RunRecord] = []
    try:
        for server in servers:
            if server.name in running:
                say(f"{server.name}: runs already")
            else:
                started.append(start_detached(_request(server, force=options.force), _labelled(server.name)))
    except BaseException:
        for record in reversed(started):
            end_watcher(record)
            say(f"{record.name} is stopped again")
        raise
    living = _living()
    print(status_table([living[server.name] for server in servers if server.name in living]))
    return 0


def _down(options: argparse.Namespace) -> int:
    running = _living()
    for server in reversed(read_fleet(options.fleet)):
        if server.name in running:
            end_watcher(running[server.name])
            say(f"{server.name} is stopped")
        else:
            say(f"{server.name} does not run")
    return 0


def _living() -> dict[str, RunRecord]:
    return {record.name: record for record in find_runs() if record.is_alive}


def _request(server: FleetServer, *, force: bool) -> ServeRequest:
    return ServeRequest(
        server.profile,
        new_run_dir(server.profile),
        backend=server.backend,
        name=server.name,
        force=force,
        restarts=True,
        on_oom=server.on_oom,
    )


def _labelled(name: str) -> Callable[[str], None]:
    return lambda text: say(f"{name}: {text}")
