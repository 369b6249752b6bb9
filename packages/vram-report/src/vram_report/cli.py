"""The command: arguments in, tables or JSON out, and the exit status.

The rule: this module alone prints and decides the exit status: 0 a report was printed, 1 `--fail-on` found what it
was asked to look for, 2 usage or bad input, 130 interrupted. What is said while waiting goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

# Modules that only some commands need are imported where they are used: a report should start quickly.
from vram_report.capacity import DEFAULT_MARGIN_MIB
from vram_report.control_characters import visible
from vram_report.document import LogReport, Run
from vram_report.errors import (
    BuildWithoutModel,
    CommandNotStarted,
    GPUNotWatched,
    LogNotRecognized,
    NothingToFollow,
    VRAMReportError,
)
from vram_report.findings import CODES
from vram_report.reader import read_log, read_stream
from vram_report.render import SECTIONS, Page, draw_tables, report_page, select_run
from vram_report.report import report_document

if TYPE_CHECKING:
    from vram_report.follow import Follower
    from vram_report.gpu_watch import GPUWatch

__all__ = ["main"]

EXAMPLES = """examples:
  vram-report server.log                          what the VRAM went to and what still fits
  vram-report --section capacity server.log       one section of it
  vram-report --format json server.log            every number, for scripts
  vram-report --format html server.log > a.html   one page with a bar for each device
  journalctl -u llama | vram-report -             from a pipe
  vram-report --fail-on out-of-memory server.log  exit status 1 if the start ran out of memory
  vram-report --model m.gguf server.log           with what the model's file says and predicts

other commands:
  vram-report compare A.log B.log                 side by side; slopes and the largest context
  vram-report follow server.log                   wait until the server is ready or has failed
"""
COMPARE_EXAMPLES = """examples:
  vram-report compare before.log after.log            what changed
  vram-report compare c32k.log c64k.log c128k.log     slopes by context, largest --ctx-size, out-of-memory boundary
  vram-report compare --format json a.log b.log       the same for scripts

The last server start of each log is compared.
"""
FOLLOW_EXAMPLES = """examples:
  vram-report follow server.log                              report when the server is ready or has failed
  vram-report follow --timeout 120 server.log                wait two minutes at most
  vram-report follow -- llama-server -lv 4 -m model.gguf     start the server, pass its output to stderr
  vram-report follow --watch-gpu server.log                  and the GPUs' memory: peak, drift by request

Exit status: 0 the server came up, 1 it failed or the time is up, 2 no server in the log, 3 the command cannot start,
or the GPUs cannot be watched, 130 Ctrl-C came first. What is waited for and each stage go to stderr.
"""
FORMATS = ("table", "json", "markdown", "html", "csv")
SEVERITIES = ("error", "warning", "info")
INTERRUPTED = 130
"""The exit status at Ctrl-C: 128 and the number of SIGINT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (default: the process's arguments) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    named = arguments[:1] and arguments[0] in COMMANDS
    parser, run = COMMANDS[arguments.pop(0)] if named else (_parser, _run)
    arguments, command = _split_command(arguments)
    try:
        options = parser().parse_args(arguments, argparse.Namespace(command=command))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader of the pipe has gone: leave nothing for the interpreter to flush into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except VRAMReportError as error:
        return _refuse(error, options.debug)


def _split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Arguments before and after the first `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end + 1 :]


def _refuse(error: VRAMReportError, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    print(f"error: {visible(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {visible(error.hint)}", file=sys.stderr)
    return 3 if isinstance(error, (CommandNotStarted, GPUNotWatched)) else 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vram-report",
        description="Reads llama-server logs and explains what the VRAM went to and what still fits.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("logs", nargs="+", metavar="LOG", help="a log file, plain or gzip; - for stdin")
    parser.add_argument("--format", choices=FORMATS, default="table", help="how to print (default: table)")
    parser.add_argument("--section", action="append", choices=SECTIONS, help="print only this section; may repeat")
    parser.add_argument("--run", type=int, metavar="N", help="show run N of the log, -1 for the last (default)")
    parser.add_argument("--device", metavar="NAME", help="show only this device")
    parser.add_argument("--model", metavar="GGUF", help="the model's file: adds what the log lacks, and predictions")
    parser.add_argument(
        "--build", type=_build, metavar="N", help="llama.cpp's build for --model, where the log does not say it"
    )
    parser.add_argument(
        "--fail-on",
        action="append",
        metavar="CODE",
        choices=(*SEVERITIES, *CODES),
        help="exit with 1 when the shown run has this finding or severity (error, warning, info); may repeat",
    )
    _add_common(parser)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--margin-mib",
        type=_margin,
        default=DEFAULT_MARGIN_MIB,
        metavar="MIB",
        help="MiB to keep free on each device (default: 1024)",
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    parser.add_argument("--version", action=_Version, help="show the version and exit")


def _compare_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vram-report compare",
        description="Shows logs side by side, and predicts other context sizes from logs of one set-up.",
        epilog=COMPARE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", metavar="LOG", help="a log file; - for stdin")
    parser.add_argument("others", nargs="+", metavar="LOG", help="one or more logs to compare with the first")
    parser.add_argument("--format", choices=FORMATS, default="table", help="how to print (default: table)")
    _add_common(parser)
    return parser


def _follow_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vram-report follow",
        usage="vram-report follow [options] LOG | vram-report follow [options] -- COMMAND ...",
        description="Reads a log as it grows and shows the report when the server is ready or has failed.",
        epilog=FOLLOW_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("log", nargs="?", metavar="LOG", help="a log file; none when a command follows --")
    parser.add_argument("--format", choices=FORMATS, default="table", help="how to print (default: table)")
    parser.add_argument("--section", action="append", choices=SECTIONS, help="print only this section; may repeat")
    parser.add_argument(
        "--watch-gpu", action="store_true", help="watch the GPUs' memory (NVML) until the server ends, or Ctrl-C"
    )
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="seconds to wait for readiness at most")
    _add_common(parser)
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text}: a time is 0 seconds or more")
    return value


def _build(text: str) -> int:
    value = int(text.removeprefix("b"))
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: a build is a number from 1, such as 11549")
    return value


class _Version(argparse.Action):
    """Looks the version up only when asked: importing importlib.metadata costs more than reading a log."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"vram-report {version('vram-report')}")
        parser.exit()


def _margin(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: a margin is 0 MiB or more")
    return value


def _run(options: argparse.Namespace) -> int:
    if options.build is not None and options.model is None:
        raise BuildWithoutModel
    options.logs += options.command
    reports = [_read(path, options.margin_mib) for path in options.logs]
    if options.model is not None:
        reports = _with_model(reports, options.model, options.build)
    shown = [select_run(report, options.run)[1] for report in reports]
    if options.format == "json":
        documents = [report_document(report) for report in reports]
        print(_json(documents[0] if len(documents) == 1 else documents))
    else:
        pages = [
            report_page(report, sections=options.section, run=options.run, device=options.device) for report in reports
        ]
        print(_drawn(pages, options.format), end="")
    return int(any(_fails(run, options.fail_on or ()) for run in shown))


def _with_model(reports: Sequence[LogReport], model: str, build: int | None) -> list[LogReport]:
    from vram_report.prediction import read_model, with_model

    summary = read_model(model)
    return [replace(report, runs=[with_model(run, summary, build=build) for run in report.runs]) for report in reports]


def _run_compare(options: argparse.Namespace) -> int:
    from vram_report.comparison import compare, comparison_document, comparison_tables

    logs = [options.first, *options.others, *options.command]
    comparison = compare([_read(path, options.margin_mib) for path in logs], margin_mib=options.margin_mib)
    if options.format == "json":
        print(_json(comparison_document(comparison)))
    else:
        tables = comparison_tables(comparison)
        print(_drawn([Page(f"comparison of {len(logs)} logs", None, tables)], options.format), end="")
    return 0


def _run_follow(options: argparse.Namespace) -> int:
    from vram_report.follow import Follower

    if bool(options.log) == bool(options.command):
        raise NothingToFollow
    follower = Follower(options.log or options.command[0], margin_mib=options.margin_mib)
    if options.watch_gpu:
        return _run_watched(follower, options)
    was_interrupted = _follow(follower, options, None)
    return INTERRUPTED if was_interrupted else int(not follower.is_ready)


def _follow(follower: Follower, options: argparse.Namespace, watch: GPUWatch | None) -> bool:
    """Follow the log or the command, and show the report when the server is ready or has failed, or at Ctrl-C.

    Returns whether it was Ctrl-C.
    """
    from vram_report.follow import follow_command, follow_file

    shown = was_interrupted = False
    teller = _StageTeller(follower, options.log)

    def show() -> None:
        nonlocal shown
        shown = True
        if watch is not None:
            watch.take()
        _show(follower, options)

    try:
        if options.command:
            follow_command(
                follower,
                options.command,
                on_ready=show,
                echo=lambda raw: print(raw.decode("utf-8", "replace"), end="", file=sys.stderr, flush=True),
                timeout_s=options.timeout,
            )
        else:
            on_ready = show if watch else None
            follow_file(follower, options.log, timeout_s=options.timeout, on_ready=on_ready, on_wait=teller.wait)
    except KeyboardInterrupt:
        was_interrupted = True
    teller.finish()
    if was_interrupted and follower.report() is None:
        print(f"{visible(follower.name)}: no llama-server start in {follower.lines} lines", file=sys.stderr)
    elif not shown:
        show()
    return was_interrupted


class _StageTeller:
    """Says on stderr what a log is waited for and how far its server has come; nothing where there is no waiting."""

    def __init__(self, follower: Follower, log: str) -> None:
        self._follower = follower
        self._log = visible(log or "")
        self._told: str | None = None

    def wait(self) -> None:
        """All is read, and more is awaited."""
        if self._told is None:
            print(
                f"{self._log}: waiting until its server is ready or has failed; Ctrl-C shows the report so far",
                file=sys.stderr,
            )
        self._tell()

    def finish(self) -> None:
        """There will be no more waiting."""
        if self._told is not None:
            self._tell()

    def _tell(self) -> None:
        stage = self._follower.stage
        if stage != self._told:
            self._told = stage
            print(f"{self._log}: {stage}", file=sys.stderr, flush=True)


def _run_watched(follower: Follower, options: argparse.Namespace) -> int:
    """Follow with the GPUs' memory watched until the server ends, the time is up, or Ctrl-C."""
    from vram_report.gpu_watch import GPUWatch, open_nvml, watch_document, watch_tables

    with GPUWatch(open_nvml(), lambda: follower.requests) as watch:
        was_interrupted = _follow(follower, options, watch)
        figures = watch.figures(follower.devices)
    if options.format == "json":
        print(_json(watch_document(figures)))
    else:
        print(_drawn([Page("GPU memory", None, watch_tables(figures))], options.format), end="")
    # Once the server is ready, Ctrl-C is how a watch ends.
    return INTERRUPTED if was_interrupted and not follower.is_ready else int(not follower.is_ready)


def _show(follower: Follower, options: argparse.Namespace) -> None:
    report = follower.report()
    if report is None:
        raise LogNotRecognized(follower.name, follower.lines)
    if options.format == "json":
        print(_json(report_document(report)), flush=True)
    else:
        print(_drawn([report_page(report, sections=options.section)], options.format), end="", flush=True)


COMMANDS: dict[str, tuple[Callable[[], argparse.ArgumentParser], Callable[[argparse.Namespace], int]]] = {
    "compare": (_compare_parser, _run_compare),
    "follow": (_follow_parser, _run_follow),
}
"""Commands beside the plain report; a log of such a name is read as ./compare."""


def _read(path: str, margin_mib: float) -> LogReport:
    if path == "-":
        return read_stream(sys.stdin.buffer, "-", margin_mib=margin_mib)
    return read_log(path, margin_mib=margin_mib)


def _json(document: object) -> str:
    import json

    return json.dumps(document, indent=1)


def _drawn(pages: list[Page], form: str) -> str:
    if form == "table":
        return "\n".join(draw_tables(page.head, page.tables, ascii_only=not _can_show_boxes()) for page in pages)
    from vram_report.formats import render_csv, render_html, render_markdown

    render = {"markdown": render_markdown, "html": render_html, "csv": render_csv}[form]
    return render(pages)


def _can_show_boxes() -> bool:
    try:
        "│┼─–·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _fails(run: Run, wanted: Sequence[str]) -> bool:
    return any(finding.code in wanted or finding.severity in wanted for finding in run.findings)
