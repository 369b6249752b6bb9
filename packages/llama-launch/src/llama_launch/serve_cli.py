"""`llama-launch serve`: a server in the foreground, which never outlives the command."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from llama_launch.errors import ProfileError, ServerStartError
from llama_launch.preflight import footguns, private_folder
from llama_launch.profile import DEFAULT_PROFILE, LoadedProfile, Profile, read_profile
from llama_launch.server import planned_argv, start_server

__all__ = ["add", "loaded_profile", "serve"]

_EXAMPLES = """\
examples:
  llama-launch serve                                   the small default model, on any machine
  llama-launch serve gpt-oss-20b --set model=~/models/gpt-oss-20b-mxfp4.gguf --port 8080
  llama-launch serve gpt-oss-20b --set n_slots=2 --set n_ctx_slot=65536 --dry-run
  llama-launch serve ./fast.toml -- --no-warmup        flags after -- go to the server as they are
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's arguments."""
    command = commands.add_parser(
        "serve",
        usage="llama-launch serve [PROFILE] [--set KEY=VALUE] [--port N] [--backend KIND] [--run-dir DIR] "
        "[--dry-run] [-- FLAGS]",
        help="run a server in the foreground",
        description="Run a server in the foreground until Ctrl-C. It never outlives this command.",
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
    run_dir = options.run_dir or _new_run_dir(profile)
    with start_server(profile, run_dir=run_dir, backend=options.backend, progress=_say) as server:
        _say(f"{server.url}  {profile.n_slots} slots, {_context(profile)}")
        _say(f"log {server.log_path}; Ctrl-C stops the server")
        status = server.wait()
    raise ServerStartError(
        f"the server ended by itself with status {status}", log_path=server.log_path, hint=f"read {server.log_path}"
    )


def _new_run_dir(profile: Profile) -> Path:
    """A folder of this run alone, below the root that only its owner can look into."""
    root = private_folder(Path(profile.root).expanduser())
    return root / f"{profile.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _context(profile: Profile) -> str:
    kind = "in one pool" if profile.kv_unified else "divided"
    return f"{profile.n_slots} x {profile.n_ctx_slot} = {profile.n_ctx} tokens of context {kind}"


def _say(text: str) -> None:
    print(text, flush=True)
