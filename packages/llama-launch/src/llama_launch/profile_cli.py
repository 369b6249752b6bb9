"""`llama-launch profile`: what profiles there are, what they set and why, and how to begin one."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from llama_launch.default_model import fetch_default_model
from llama_launch.errors import ProfileError
from llama_launch.export import ExportedModel, compose_file, preset_file, systemd_unit
from llama_launch.fit import free_gpu_mib, together
from llama_launch.flags import profile_flags
from llama_launch.preflight import footguns, read_model
from llama_launch.profile import (
    DEFAULT_MODEL,
    DEFAULT_PROFILE,
    PROJECT_FOLDER,
    LoadedProfile,
    Profile,
    load_profile,
    profile_files,
    profile_names,
    read_profile,
    user_folder,
)
from llama_launch.serve_cli import add_overrides, loaded_profile
from llama_launch.server import planned_argv
from llama_launch.tables import boxed

__all__ = ["add"]

_EXAMPLES = """\
examples:
  llama-launch profile list
  llama-launch profile show gpt-oss-20b --explain
  llama-launch profile check my.toml            values, and flags against the installed server
  llama-launch profile new gpt-oss-20b          your own values over the shipped ones
  llama-launch profile new fast --extends gpt-oss-20b --project
  llama-launch profile export gpt-oss-20b --to systemd
"""
_EXPORT_EXAMPLES = """\
examples:
  llama-launch profile export gpt-oss-20b small.toml --to preset >models.ini
  llama-server --models-preset models.ini
  llama-launch profile export gpt-oss-20b --to systemd >~/.config/systemd/user/llama.service
  llama-launch profile export gpt-oss-20b --to compose >compose.yaml
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's arguments."""
    command = commands.add_parser(
        "profile",
        help="list, show, check and begin profiles",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="all profiles and where they come from")
    listing.add_argument("--format", choices=("table", "json"), default="table")
    listing.set_defaults(command=_list)
    show = actions.add_parser("show", help="the values of one profile")
    show.add_argument("profile", nargs="?", default=DEFAULT_PROFILE, help="name or TOML file (%(default)s)")
    show.add_argument("--explain", action="store_true", help="say for each flag why it is there")
    show.add_argument("--format", choices=("table", "json"), default="table")
    add_overrides(show)
    show.set_defaults(command=_show)
    check = actions.add_parser("check", help="check a profile, and its flags against the installed server")
    check.add_argument("profile", nargs="?", default=DEFAULT_PROFILE, help="name or TOML file (%(default)s)")
    check.add_argument("--backend", choices=("auto", "embedded", "external"), default="auto")
    add_overrides(check)
    check.set_defaults(command=_check)
    export = actions.add_parser(
        "export",
        help="write profiles for another program: llama.cpp's router, systemd or Docker Compose",
        epilog=_EXPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_argument("profiles", nargs="+", metavar="PROFILE", help="names or TOML files")
    export.add_argument("--to", required=True, choices=("preset", "systemd", "compose"), help="for which program")
    export.add_argument(
        "--memory",
        action="append",
        default=[],
        type=_memory,
        metavar="NAME=MiB",
        help="free memory of a GPU, to say how many models fit together; the driver's figures by default",
    )
    export.set_defaults(command=_export)
    new = actions.add_parser("new", help="begin a profile of your own")
    new.add_argument("name", help="its name; that of a shipped profile lays yours over it")
    new.add_argument("--extends", metavar="PROFILE", help="the profile that it builds on")
    new.add_argument("--project", action="store_true", help=f"in ./{PROJECT_FOLDER} instead of your own folder")
    new.set_defaults(command=_new)


def _list(options: argparse.Namespace) -> int:
    rows = [_listed(name) for name in profile_names()]
    if options.format == "json":
        print(json.dumps([dict(zip(_LIST_COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        print(boxed(_LIST_COLUMNS, rows, max_width=70))
    return 0


_LIST_COLUMNS = ("profile", "from", "description")


def _listed(name: str) -> list[str]:
    """A wrong profile is listed with what is wrong, so that one bad file hides no other."""
    try:
        layers = [file.layer for file in profile_files(name)]
        return [name, " + ".join(layers), load_profile(name).description]
    except ProfileError as error:
        return [name, "", f"error: {error}"]


def _show(options: argparse.Namespace) -> int:
    loaded = loaded_profile(options)
    values = {**dataclasses.asdict(loaded.profile), "n_ctx": loaded.profile.n_ctx}
    if options.format == "json":
        print(json.dumps({"profile": values, "origins": dict(loaded.origins)}, indent=2))
    elif options.explain:
        print(_explained(loaded))
    else:
        rows = [[key, _shown(value), loaded.origins.get(key, "default")] for key, value in values.items()]
        rows = [[key, value, "n_slots x n_ctx_slot" if key == "n_ctx" else origin] for key, value, origin in rows]
        print(boxed(["key", "value", "from"], rows, max_width=70))
    return 0


def _explained(loaded: LoadedProfile) -> str:
    flags = profile_flags(loaded.profile)
    rows = [[" ".join(flag.words), flag.why, loaded.origins.get(flag.key, "default")] for flag in flags]
    return boxed(["flag", "why", "from"], rows, max_width=60)


def _shown(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def _check(options: argparse.Namespace) -> int:
    profile = loaded_profile(options).profile
    planned_argv(profile, options.backend)
    found = footguns(profile)
    for footgun in found:
        print(f"warning: {footgun.message} [{footgun.code}]")
    print(f"{profile.name}: {'usable, with warnings' if found else 'no fault found'}")
    return 0


def _memory(text: str) -> tuple[str, float]:
    name, _, size = text.partition("=")
    if not name or not size.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=MiB, such as CUDA0=23000")
    return name, float(size)


def _export(options: argparse.Namespace) -> int:
    profiles = [load_profile(name) for name in options.profiles]
    if options.to == "systemd":
        if len(profiles) > 1:
            raise ProfileError("a unit runs one profile", hint="export each into a unit of its own")
        command = [sys.executable, "-m", "llama_launch", "serve", options.profiles[0]]
        print(systemd_unit(profiles[0], command, Path.cwd()), end="")
        return 0
    models = [ExportedModel(profile, _model_path(profile)) for profile in profiles]
    if options.to == "compose":
        print(compose_file(models), end="")
    else:
        print(preset_file(models, _residency(models, dict(options.memory))), end="")
    return 0


def _model_path(profile: Profile) -> Path:
    if profile.model == DEFAULT_MODEL:
        return fetch_default_model(lambda line: print(line, file=sys.stderr, flush=True))
    return Path(profile.model).expanduser().absolute()


def _residency(models: Sequence[ExportedModel], memory_mib: Mapping[str, float]) -> list[str]:
    """How many of the models fit together, where that can be said."""
    free_mib = memory_mib or free_gpu_mib()
    if not free_mib:
        return ["how many models fit together is not known: no --memory NAME=MiB, and no NVIDIA driver"]
    starts = [
        (read_model(exported.model, exported.profile.model_source).summary, exported.profile) for exported in models
    ]
    sets = together(starts, free_mib)
    most_of_any = next(
        (
            n
            for n in range(len(models), 0, -1)
            if all(any(set(some) <= set(fits) for fits in sets) for some in combinations(range(len(models)), n))
        ),
        0,
    )
    named = ", ".join("{" + " + ".join(models[index].profile.name for index in fits) + "}" for fits in sets)
    return [f"fit together: {named or 'none'}", f"any {most_of_any} of them fit: --models-max {max(1, most_of_any)}"]


_TEMPLATE = """\
# {headline}
# All keys: llama-launch profile show {name}. Why each flag is there: add --explain.
{extends}description = {description}
model = {model}
n_slots = {n_slots}
# The context is n_slots x n_ctx_slot tokens.
n_ctx_slot = {n_ctx_slot}
"""


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's, but for DEL, which TOML wants escaped, and with text beyond ASCII as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _new(options: argparse.Namespace) -> int:
    if Path(options.name).name != options.name or options.name.startswith("."):
        raise ProfileError(f"{options.name!r} is not a name", hint="give a plain name, such as `fast`")
    path = (Path(PROJECT_FOLDER) if options.project else user_folder()) / f"{options.name}.toml"
    known = options.name in profile_names()
    base = read_profile(options.extends or (options.name if known else DEFAULT_PROFILE)).profile
    extends = options.extends or (None if known else DEFAULT_PROFILE)
    if extends and Path(extends).suffix:
        extends = str(Path(extends).absolute())  # a path in a file starts from that file's folder
    text = _TEMPLATE.format(
        headline=f"Laid over {options.name}, key by key." if known else f"Builds on {extends}.",
        extends=f"extends = {_quoted(extends)}\n" if extends else "",
        name=options.name,
        description=_quoted(base.description),
        model=_quoted(base.model),
        n_slots=base.n_slots,
        n_ctx_slot=base.n_ctx_slot,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise ProfileError(f"{path} is there already", hint="edit it, or remove it first") from error
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    print(path)
    return 0
