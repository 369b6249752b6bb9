"""The command: arguments in, tables or JSON out, and the exit status.

The rule: this module alone prints and decides the exit status: 0 a report was printed, 1 `--fail-on` found what it
was asked to look for, 2 usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from vram_report.capacity import DEFAULT_MARGIN_MIB
from vram_report.document import LogReport, Run
from vram_report.errors import VRAMReportError
from vram_report.findings import CODES
from vram_report.formats import render_csv, render_html, render_markdown
from vram_report.reader import read_log, read_stream
from vram_report.render import SECTIONS, Page, draw_tables, report_page, select_run, visible
from vram_report.report import report_document

__all__ = ["main"]

EXAMPLES = """examples:
  vram-report server.log                          what the VRAM went to and what still fits
  vram-report --section capacity server.log       one section of it
  vram-report --format json server.log            every number, for scripts
  vram-report --format html server.log > a.html   one page with a bar for each device
  journalctl -u llama | vram-report -             from a pipe
  vram-report --fail-on out-of-memory server.log  exit status 1 if the start ran out of memory
"""
FORMATS = ("table", "json", "markdown", "html", "csv")
SEVERITIES = ("error", "warning", "info")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (default: the process's arguments) and return its exit status."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    try:
        status = _run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader of the pipe has gone: leave nothing for the interpreter to flush into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except VRAMReportError as error:
        if options.debug:
            import traceback

            traceback.print_exc()
        print(f"error: {visible(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"hint: {visible(error.hint)}", file=sys.stderr)
        return 2


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
    parser.add_argument(
        "--fail-on",
        action="append",
        metavar="CODE",
        choices=(*SEVERITIES, *CODES),
        help="exit with 1 when the shown run has this finding or severity (error, warning, info); may repeat",
    )
    parser.add_argument(
        "--margin-mib",
        type=_margin,
        default=DEFAULT_MARGIN_MIB,
        metavar="MIB",
        help="MiB to keep free on each device (default: 1024)",
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    return parser


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
    reports = [_read(path, options.margin_mib) for path in options.logs]
    shown = [select_run(report, options.run)[1] for report in reports]
    if options.format == "json":
        documents = [report_document(report) for report in reports]
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
    else:
        pages = [
            report_page(report, sections=options.section, run=options.run, device=options.device) for report in reports
        ]
        print(_drawn(pages, options.format), end="")
    return int(any(_fails(run, options.fail_on or ()) for run in shown))


def _read(path: str, margin_mib: float) -> LogReport:
    if path == "-":
        return read_stream(sys.stdin.buffer, "-", margin_mib=margin_mib)
    return read_log(path, margin_mib=margin_mib)


def _drawn(pages: list[Page], form: str) -> str:
    if form == "markdown":
        return render_markdown(pages)
    if form == "html":
        return render_html(pages)
    if form == "csv":
        return render_csv(pages)
    return "\n".join(draw_tables(page.head, page.tables, ascii_only=not _can_show_boxes()) for page in pages)


def _can_show_boxes() -> bool:
    try:
        "│┼─–·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _fails(run: Run, wanted: Sequence[str]) -> bool:
    return any(finding.code in wanted or finding.severity in wanted for finding in run.findings)
