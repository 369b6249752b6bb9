"""`llama-launch serve`: a server in the foreground, or one that goes on under a supervisor."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from llama_launch.detached import start_detached
from llama_launch.errors import ProfileError
from llama_launch.preflight import footguns
from llama_launch.profile import DEFAULT_PROFILE, LoadedProfile, read_profile
from llama_launch.server import planned_argv
from llama_launch.serving import ServeRequest, new_run_dir, serve_run
from llama_launch.state import RunRecord

__all__ = ["add", "add_overrides", "loaded_profile", "print_started", "say", "serve"]

_EXAMPLES = """\
examples:
  llama-launch serve                                   the small default model, on any machine
  llama-launch serve gpt-oss-20b --set model=~/models/gpt-oss-20b-mxfp4.gguf --port 8080
  llama-launch serve gpt-oss-20b --set n_slots=2 --set n_ctx_slot=65536 --dry-run
  llama-launch serve gpt-oss-20b --detach --on-oom shrink
  llama-launch serve ./fast.toml -- --no-warmup        flags after -- go to the server as they are
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's arguments."""
    command = commands.add_parser(
        "serve",
        usage="llama-launch serve [PROFILE] [--set KEY=VALUE] [--port N] [--backend KIND] [--run-dir DIR] "
        "[--detach] [--name NAME] [--restart WHEN] [--on-oom WHAT] [--client-config PATH] [--force] "
        "[--dry-run] [-- FLAGS]",
        help="run a server, in the foreground or detached",
        description="Run a server in the foreground until Ctrl-C; it never outlives this command. With --detach it "
        "goes on under a supervisor, and never outlives that.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("profile", nargs="?", default=DEFAULT_PROFILE, help="name or TOML file (%(default)s)")
    add_overrides(command)
    command.add_argument("--port", type=int, help="port to listen on, 0 for a free one; the profile's by default")
    command.add_argument(
        "--backend",
        choices=("auto", "embedded", "external"),
        default="auto",
        help="external: llama-server on PATH or $LLAMA_SERVER; embedded: the one inside the xllamacpp package; "
        "auto: the first of them that is installed",
    )
    command.add_argument(
        "--run-dir", type=Path, help="folder for the log and saved slots; one below the root if not given"
    )
    command.add_argument(
        "--name", default="", help="what `status`, `logs` and `stop` call it; the profile's by default"
    )
    command.add_argument("--detach", action="store_true", help="return when it is ready, and let it go on")
    command.add_argument(
        "--restart",
        choices=("on-failure", "never"),
        help="start it again after a crash, later each time, up to five times in a row; on-failure with --detach",
    )
    command.add_argument(
        "--on-oom",
        choices=("stop", "shrink"),
        default="stop",
        help="when memory runs out, say which context would fit (stop), or start with that one (shrink)",
    )
    command.add_argument(
        "--client-config",
        type=Path,
        metavar="PATH",
        help="OpenCode's opencode.json, whose limits follow each start (see client-config)",
    )
    command.add_argument("--force", action="store_true", help="start it although the GPUs lack the memory")
    command.add_argument("--dry-run", action="store_true", help="print the command line and start nothing")
    command.set_defaults(command=serve)


def add_overrides(command: argparse.ArgumentParser) -> None:
    """Add `--set`, which replaces values of the profile."""
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="replace a value of the profile"
    )


def loaded_profile(options: argparse.Namespace) -> LoadedProfile:
    """The profile that the arguments name, with their replacements.

    Raises:
        ProfileError: It does not exist, or a value is wrong.
    """
    values: dict[str, object] = {}
    for item in options.set:
        key, separator, value = item.partition("=")
        if not separator:
            raise ProfileError(f"--set {item}: expected KEY=VALUE", hint="for instance --set n_slots=2")
        values[key.strip()] = value
    if getattr(options, "port", None) is not None:
        values["port"] = options.port
    loaded = read_profile(options.profile, values)
    extra = getattr(options, "extra_flags", [])
    if extra:
        values["extra_flags"] = [*loaded.profile.extra_flags, *extra]
        loaded = read_profile(options.profile, values)
    return loaded


def serve(options: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        LlamaLaunchError: The server could not be started, or ended by itself.
    """
    profile = loaded_profile(options).profile
    if options.dry_run:
        for footgun in footguns(profile):
            print(f"warning: {footgun.message} [{footgun.code}]", file=sys.stderr, flush=True)
        print(shlex.join(planned_argv(profile, options.backend)))
        return 0
    request = ServeRequest(
        profile,
        options.run_dir or new_run_dir(profile),
        backend=options.backend,
        name=options.name,
        force=options.force,
        restarts=options.restart == "on-failure" or (options.restart is None and options.detach),
        on_oom=options.on_oom,
        client_config=str(options.client_config.absolute()) if options.client_config else "",
    )
    if options.detach:
        print_started(start_detached(request, say))
        return 0
    serve_run(
        request,
        say,
        is_detached=False,
        on_ready=lambda record: say(f"log {record.log_path}; Ctrl-C stops the server"),
    )
    return 0


def print_started(record: RunRecord) -> None:
    """Say how a run that goes on by itself is looked at and ended."""
    say(f"log {record.log_path}")
    say(f"it goes on as {record.name!r}: llama-launch status, logs -f {record.name}, stop {record.name}")


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)
