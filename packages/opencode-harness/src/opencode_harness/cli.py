"""The command: parses arguments, prints, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import signal
import sys
import threading
import traceback
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeAlias

from llama_launch import LlamaLaunchError, read_api_keys
from vram_report import visible

from opencode_harness.answer_source import choose_source
from opencode_harness.errors import HarnessError
from opencode_harness.opencode import find_opencode, install_opencode
from opencode_harness.outcomes import exit_code
from opencode_harness.recheck import recheck, trial_folders
from opencode_harness.record import RecordingSpec, check_recordable, record_scenarios
from opencode_harness.recording_player import play, read_recording
from opencode_harness.scenario import find_faults, load_scenario, scenario_paths
from opencode_harness.scenario_template import write_new_scenario
from opencode_harness.session import SessionSpec
from opencode_harness.suite import ServerChoice, SuiteSpec, key_file_of, new_run_folder, run_suite, select, the_server
from opencode_harness.trial_view import trial_lines
from opencode_harness.workspace import check_place

__all__ = ["main"]

_EXAMPLES = """\
examples:
  opencode-harness install                      install the OpenCode that ./package.json pins
  opencode-harness validate scenarios           check scenario files without running anything
  opencode-harness run scenarios                start a server, run every scenario, report
  opencode-harness run scenarios/read/read_file.yaml --server http://127.0.0.1:8080
  opencode-harness run scenarios --jobs auto --repeat 5
  opencode-harness run scenarios --no-server --tag smoke
  opencode-harness run scenarios -- -k edit     what follows -- goes to pytest
  opencode-harness new scenarios/mine.yaml      a scenario to start from
  opencode-harness record scenarios/mine.yaml   what the server says, kept to be replayed without it
  opencode-harness show RUN                     requests, tokens and last screen of each trial
  opencode-harness play RUN/trials/read_file0   the recording, in this terminal
  opencode-harness recheck RUN                  edited expectations, checked against a run that is over
"""
_INTERRUPTED = 130
_PROFILE = "smollm2-135m"
_LINE_END = "\n"
_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class UsageError(HarnessError):
    """Options that do not go together, or leave nothing to do."""

    exit_code = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status.

    0: all is well. 1: a scenario failed. 2: usage, or a faulty scenario file. 3: the environment is at fault (no
    OpenCode, no server, a trial that could not be carried out). 4: a cassette no longer fits. 130: Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    arguments, pytest_arguments = _split(arguments)
    is_debugging = False
    try:
        with _termination_as_interrupt():
            options = _parser().parse_args(arguments)
            options.pytest_arguments = pytest_arguments
            is_debugging = options.debug
            return int(options.command(options))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        return _INTERRUPTED
    except (HarnessError, LlamaLaunchError) as error:
        return _told(error, debug=is_debugging)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        hint = "check the free space and the permissions of the run folder; --run-dir names another one"
        return _told(HarnessError(f"{place}{error.strerror or error}", hint=hint), debug=is_debugging)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    index = arguments.index("--")
    return arguments[:index], arguments[index + 1 :]


def _told(error: HarnessError | LlamaLaunchError, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    print(f"error: {visible(str(error), keep=_LINE_END)}", file=sys.stderr)
    if getattr(error, "hint", ""):
        print(f"hint: {visible(error.hint, keep=_LINE_END)}", file=sys.stderr)
    return int(getattr(error, "exit_code", 3))


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Make SIGTERM and a closed terminal unwind like Ctrl-C, so that everything started is ended."""

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
        prog="opencode-harness",
        description="Test the real OpenCode terminal, black-box, against a local llama.cpp server.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("opencode-harness")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_install(commands)
    _add_validate(commands)
    _add_list(commands)
    _add_run(commands)
    _add_recheck(commands)
    _add_new(commands)
    _add_record(commands)
    _add_show(commands)
    _add_play(commands)
    return parser


def _command(commands: _Commands, name: str, *, help: str, description: str, epilog: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_install(commands: _Commands) -> None:
    command = _command(
        commands,
        "install",
        help="install the OpenCode version that package.json pins",
        description="Install the OpenCode version that DIR/package.json pins, with npm, unless it is there already.",
        epilog="example:\n  opencode-harness install .",
    )
    command.add_argument("dir", nargs="?", type=Path, default=Path(), metavar="DIR", help="default: here")
    command.set_defaults(command=_install)


def _add_validate(commands: _Commands) -> None:
    command = _command(
        commands,
        "validate",
        help="check scenario files",
        description="Check scenario files against the schema; says file, line and column of what is wrong.",
        epilog="example:\n  opencode-harness validate scenarios",
    )
    _add_scenarios(command)
    command.set_defaults(command=_validate)


def _add_list(commands: _Commands) -> None:
    command = _command(
        commands,
        "list",
        help="list scenarios",
        description="List scenarios: who answers (turns, guided, cassette or server), tags, description.",
        epilog="example:\n  opencode-harness list scenarios",
    )
    _add_scenarios(command)
    command.set_defaults(command=_list)


def _add_recheck(commands: _Commands) -> None:
    command = _command(
        commands,
        "recheck",
        help="check edited expectations against a run that is over",
        description="Check the expectations, as they stand in the scenario files now, against what a run recorded. "
        "Nothing is run, and no server is needed.",
        epilog="example:\n  opencode-harness recheck /tmp/opencode-harness-1000/20261201-130158-kw3pvdom",
    )
    command.add_argument("run", type=Path, metavar="RUN", help="folder of a run, or of one trial")
    command.set_defaults(command=_recheck)


def _add_run(commands: _Commands) -> None:
    command = _command(
        commands,
        "run",
        help="run scenarios with the real OpenCode",
        description="Run scenarios with the real OpenCode. Starts a server unless --server names one that runs.",
        epilog=_EXAMPLES,
    )
    _add_scenarios(command)
    _add_server(command)
    which = command.add_argument_group("which scenarios")
    which.add_argument("--tag", action="append", default=[], metavar="TAG", help="only those with this tag; may repeat")
    which.add_argument("--skip-tag", action="append", default=[], metavar="TAG", help="none with this tag; may repeat")
    how = command.add_argument_group("how they are run")
    how.add_argument(
        "--jobs", type=_jobs, default=1, metavar="N", help="how many at once; auto: as many as there are cores (1)"
    )
    how.add_argument("--repeat", type=_count, default=1, metavar="N", help="run each N times and report rates (1)")
    how.add_argument(
        "--kv-mode",
        choices=("cold", "warm", "shared"),
        default="cold",
        help="cold: slots are erased, and a first prompt that was not computed whole is CONTAMINATED (the default); "
        "warm: what slots hold is kept; shared: nothing is erased or claimed",
    )
    who = how.add_mutually_exclusive_group()
    who.add_argument("--guided", action="store_true", help="make the server say the turns of all that can be guided")
    who.add_argument("--live", action="store_true", help="let the server answer where there is a cassette, too")
    who.add_argument("--oracle", action="store_true", help="answer with the scenarios' solutions: all must pass")
    who.add_argument("--nop", action="store_true", help="an agent that does nothing: all must fail")
    command.add_argument("--opencode", metavar="PATH", help="OpenCode executable (node_modules, then PATH)")
    command.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="folder for run.json, logs and screens; must be new or empty"
    )
    command.set_defaults(command=_run)


def _add_new(commands: _Commands) -> None:
    command = _command(
        commands,
        "new",
        help="write a scenario to start from",
        description="Write a scenario that passes as it is, to be edited; a file that is there is never replaced.",
        epilog="example:\n  opencode-harness new scenarios/read/my_file.yaml",
    )
    command.add_argument("path", type=Path, metavar="FILE", help="the file to write")
    command.set_defaults(command=_new)


def _add_record(commands: _Commands) -> None:
    command = _command(
        commands,
        "record",
        help="record what a server says, to be replayed without one",
        description="Run scenarios without turns once and keep what the server said as a cassette beside each file. "
        "A trial that does not pass leaves none; a cassette that is there is never replaced: delete it first.",
        epilog="example:\n  opencode-harness record scenarios/live/hello.yaml --server http://127.0.0.1:8080",
    )
    _add_scenarios(command)
    _add_server(command)
    command.add_argument("--opencode", metavar="PATH", help="OpenCode executable (node_modules, then PATH)")
    command.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="folder for logs and screens; must be new or empty"
    )
    command.set_defaults(command=_record)


def _add_show(commands: _Commands) -> None:
    command = _command(
        commands,
        "show",
        help="show what trials did",
        description="Show each trial of a run: outcome, requests with their tokens, moments of the recording, last "
        "screen.",
        epilog="example:\n  opencode-harness show /tmp/opencode-harness-1000/20261201-130158-kw3pvdom",
    )
    command.add_argument("run", type=Path, metavar="RUN", help="folder of a run, or of one trial")
    command.set_defaults(command=_show)


def _add_play(commands: _Commands) -> None:
    command = _command(
        commands,
        "play",
        help="play a trial's recording in this terminal",
        description="Play a trial's recording (asciicast v2) in this terminal, which should be as large as the "
        "recorded one. Ctrl-C ends it.",
        epilog="example:\n  opencode-harness play RUN/trials/read_file0 --speed 4 --longest-pause 1",
    )
    command.add_argument("recording", type=Path, metavar="PATH", help="a screen.cast, or the folder of one trial")
    command.add_argument("--speed", type=_positive, default=1.0, metavar="X", help="times as fast (1)")
    command.add_argument("--longest-pause", type=_positive, metavar="S", help="cut longer pauses to S seconds")
    command.set_defaults(command=_play)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def _add_scenarios(command: argparse.ArgumentParser) -> None:
    command.add_argument("scenarios", nargs="+", type=Path, metavar="PATH", help="scenario files or folders")


def _add_server(command: argparse.ArgumentParser) -> None:
    server = command.add_argument_group("which server")
    server.add_argument(
        "--server", type=_server_url, metavar="URL", help="address of a running llama-server; none: start one"
    )
    server.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="file whose first line is the key that --server asks for"
    )
    server.add_argument("--server-log", type=Path, metavar="FILE", help="log of --server, which diagnoses quote")
    server.add_argument("--no-server", action="store_true", help="start none: scenarios that need a server are skipped")
    server.add_argument(
        "--backend",
        choices=("auto", "embedded", "external"),
        default="auto",
        help="what to start: llama-server from PATH (external), the one in a Python wheel (embedded), or the first "
        "of these that is there (auto, the default)",
    )
    server.add_argument(
        "--profile",
        action="append",
        metavar="NAME",
        help=f"llama-launch profile to start ({_PROFILE}); may repeat: what a server answers is run with each",
    )


def _server_choice(options: argparse.Namespace) -> ServerChoice:
    if options.no_server and options.server:
        raise UsageError("--no-server and --server exclude each other", hint="leave one of them out")
    return ServerChoice(
        options.server,
        options.backend,
        options.profile or [_PROFILE],
        options.api_key_file,
        options.server_log,
        is_wanted=not options.no_server,
    )


def _jobs(text: str) -> int | str:
    return "auto" if text == "auto" else _count(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _say(text: str) -> None:
    print(text, flush=True)


def _install(options: argparse.Namespace) -> int:
    _say(str(install_opencode(options.dir, _say)))
    return 0


def _validate(options: argparse.Namespace) -> int:
    status = 0
    for path in scenario_paths(options.scenarios):
        faults = find_faults(path)
        for fault in faults:
            status = _told(fault, debug=options.debug)
        if faults:
            continue
        scenario = load_scenario(path)
        noun = "expectation" if len(scenario.expectations) == 1 else "expectations"
        _say(f"{path}: ok, {len(scenario.expectations)} {noun}")
    return status


def _list(options: argparse.Namespace) -> int:
    for path in scenario_paths(options.scenarios):
        scenario = load_scenario(path)
        source = choose_source(scenario, has_server=True, has_cassette=scenario.cassette.exists())
        tags = f" [{', '.join(scenario.tags)}]" if scenario.tags else ""
        _say(visible(f"{path}: {source.kind}{tags} {' '.join(scenario.description.split())}".rstrip()))
    return 0


def _recheck(options: argparse.Namespace) -> int:
    rechecked = [recheck(folder) for folder in trial_folders(options.run)]
    for item in rechecked:
        _say(f"{item.scenario_path}: {item.outcome.value.upper()}")
        for line in item.messages:
            _say(visible(f"  {line}", keep=_LINE_END))
    return exit_code(item.outcome for item in rechecked)


def _run(options: argparse.Namespace) -> int:
    scenarios = select(scenario_paths(options.scenarios), options.tag, options.skip_tag)
    if not scenarios:
        raise UsageError("no scenario carries these tags", hint="opencode-harness list PATH shows all tags")
    server = _server_choice(options)
    opencode = find_opencode(options.opencode)
    session = SessionSpec(
        scenarios,
        _run_folder(options.run_dir),
        opencode,
        jobs=options.jobs,
        repeat=options.repeat,
        kv_mode=options.kv_mode,
        oracle="solution" if options.oracle else "nothing" if options.nop else None,
        guided=options.guided,
        live=options.live,
        more=options.pytest_arguments,
    )
    return run_suite(SuiteSpec(server, session), _say)


def _new(options: argparse.Namespace) -> int:
    write_new_scenario(options.path)
    _say(f"wrote {options.path}; run it: opencode-harness run {options.path} --no-server")
    return 0


def _record(options: argparse.Namespace) -> int:
    scenarios = [load_scenario(path) for path in scenario_paths(options.scenarios)]
    choice = _server_choice(options)
    if not choice.is_wanted:
        raise UsageError("recording needs a server", hint="leave out --no-server")
    opencode, run_dir = find_opencode(options.opencode), _run_folder(options.run_dir)
    check_recordable(scenarios)
    with contextlib.ExitStack() as stack:
        argv: tuple[str, ...] = ()
        url, key_file = choice.url, choice.api_key_file
        if url is None:
            server = stack.enter_context(the_server(choice, choice.profiles[0], run_dir, _say, kv_mode="shared"))
            url, argv, key_file = server.url, server.argv, key_file_of(server)
        key = read_api_keys(key_file)[0] if key_file else None
        outcomes = record_scenarios(RecordingSpec(scenarios, url, key, opencode, argv, run_dir), _say)
    _say(f"logs and screens: {run_dir}")
    return exit_code(outcomes)


def _show(options: argparse.Namespace) -> int:
    for folder in trial_folders(options.run):
        for line in trial_lines(folder):
            _say(line)
    return 0


def _play(options: argparse.Namespace) -> int:
    path = options.recording
    if path.is_dir():
        found = sorted(path.rglob("screen.cast"))
        if len(found) != 1:
            hint = "name one of them" if found else "name a trial's folder"
            raise UsageError("\n".join([f"{path}: {len(found)} recordings below it", *map(str, found)]), hint=hint)
        path = found[0]
    recording = read_recording(path)
    if not sys.stdout.isatty():
        raise UsageError("a recording is played to a terminal", hint="opencode-harness show prints a trial as text")

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    ended = threading.Event()
    play(recording, write, ended.wait, speed=options.speed, longest_pause_s=options.longest_pause)
    return 0


def _run_folder(chosen: Path | None) -> Path:
    if chosen is None:
        return new_run_folder()
    folder = chosen.absolute()
    check_place(folder)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise HarnessError(f"{folder} is not empty", hint="name a new folder: every run keeps its own logs")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarnessError(f"cannot make {folder}: {error.strerror}", hint="check --run-dir") from error
    return folder


def _server_url(text: str) -> str:
    try:
        parts = urllib.parse.urlsplit(text)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        is_address = False
    if not is_address:
        raise argparse.ArgumentTypeError(f"{text!r} is no address such as http://127.0.0.1:8080")
    return text
