"""The command: arguments in, tables or documents out, and the exit status.

The rule: this module alone prints and decides the exit status: 0 printed, 1 the answer is no (a key that was asked
for is not in the file, a fault, a difference, a model that does not fit), 2 usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

# Modules that only some commands need are imported where they are used: the command should start quickly.
from gguf_info.document import flat_fields, summary_document, tensor_rows
from gguf_info.errors import GGUFError
from gguf_info.model import Summary, read_summary
from gguf_info.reader import Array
from gguf_info.render import (
    SECTIONS,
    Table,
    csv_text,
    draw,
    heading,
    metadata_table,
    render_csv,
    section_tables,
    tensor_table,
    visible,
)

if TYPE_CHECKING:
    from gguf_info.fitting import SweepRow
    from gguf_info.memory import Estimate, Settings
    from gguf_info.request import ChatRequest

__all__ = ["main"]

_TEMPLATE_TIMEOUT_S = 10.0
_TEMPLATE_BYTES = 1 << 30

EXAMPLES = """\
examples:
  gguf-info model.gguf                       tables of everything
  gguf-info model.gguf --section tensors     one of them
  gguf-info model.gguf --tensors 'blk\\.0\\.'  the tensor table of the first block
  gguf-info model.gguf --key llama.context_length
  gguf-info model.gguf --format json | jq .attention
  gguf-info https://host/model.gguf          of a file on a web server, by its header alone

commands, each with its own --help (a file of such a name is ./verify):
  gguf-info verify FILE    check the file
  gguf-info diff A B       what differs between two models
  gguf-info estimate FILE  the memory that a start of llama-server will take
  gguf-info template FILE  what the chat template does with a request
"""

VERIFY_EXAMPLES = """\
examples:
  gguf-info verify model-00001-of-00003.gguf
  gguf-info verify model.gguf --sha256 --format json
"""

DIFF_EXAMPLES = """\
examples:
  gguf-info diff model-Q4_K_M.gguf model-Q8_0.gguf
  gguf-info diff old.gguf new.gguf --format json | jq .chat_template
"""

TEMPLATE_EXAMPLES = """\
examples:
  gguf-info template model.gguf                                  which kinds of requests the template takes
  gguf-info template model.gguf --messages request.json          does it take this one, and how many tokens is it
  gguf-info template model.gguf --messages request.json --prompt > prompt.txt
"""

ESTIMATE_EXAMPLES = """\
examples:
  gguf-info estimate model.gguf --ctx-size 32768 --parallel 4 --kv-unified --memory CUDA0=24000
  gguf-info estimate model.gguf --n-cpu-moe 12 --cache-type-k q8_0 --cache-type-v q8_0 --memory CUDA0=12000
  gguf-info estimate model.gguf --largest ctx-size --parallel 2 --memory CUDA0=24000
  gguf-info estimate model.gguf --sweep 8192,32768 --sweep-types f16,q8_0 --format csv
  gguf-info estimate model.gguf --sweep --memory CUDA0=24000 --plot sweep.svg
  gguf-info estimate model.gguf --model-draft draft.gguf --mmproj mmproj.gguf --memory CUDA0=24000
  gguf-info estimate model.gguf --spec-type draft-mtp --memory CUDA0=24000
  gguf-info estimate a.gguf b.gguf c.gguf --ctx-size 16384 --memory CUDA0=24000   which fit together
  gguf-info estimate model.gguf --format json | jq .kv_cache
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments without the program's name; the process's own by default.

    Returns:
        The exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except SystemExit as stop:  # argparse ends --help, --version and usage errors this way
        return stop.code if isinstance(stop.code, int) else 2
    except BrokenPipeError:
        # Python would complain again when it flushes stdout at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except GGUFError as error:
        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        print(f"error: {visible(str(error))}", file=sys.stderr)
        if error.hint:
            print(f"hint: {visible(error.hint)}", file=sys.stderr)
        return 2


def _run(arguments: list[str]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # text from a file may not fit the output's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    command = COMMANDS.get(arguments[0]) if arguments else None
    status = command(arguments[1:]) if command else _show(arguments)
    sys.stdout.flush()
    return status


def _show_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gguf-info",
        description="What is in a GGUF model file. A folder, or any part of a split model, stands for the model.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="a .gguf file, its URL, or a folder with one model")
    _add_output(parser, ("table", "json", "markdown", "csv"))
    parser.add_argument(
        "--section", action="append", choices=SECTIONS, help="show only this section; may be given several times"
    )
    parser.add_argument(
        "--full", action="store_true", help="show every metadata key; with --format json arrays in full"
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--tensors", nargs="?", const="", metavar="REGEX", help="show the tensor table, or the tensors that match"
    )
    one.add_argument("--key", help="print one metadata value, an array one item a line")
    one.add_argument("--chat-template", action="store_true", help="print the chat template")
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    return parser


class _Version(argparse.Action):
    """Looks the version up only when asked: importing importlib.metadata costs more than reading a header."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"gguf-info {version('gguf-info')}")
        parser.exit()


def _add_output(parser: argparse.ArgumentParser, formats: tuple[str, ...]) -> None:
    parser.add_argument("--format", choices=formats, default="table", help="how to print (default: table)")
    parser.add_argument("--debug", action="store_true", help="show the trace of an error")


def _show(arguments: list[str]) -> int:
    parser = _show_parser()
    options = parser.parse_args(arguments)
    pattern = _pattern(parser, options.tensors)
    summary = read_summary(options.file)
    if options.key is not None:
        return _print_key(summary, options.key, options.format)
    if options.chat_template:
        return _print_key(summary, "tokenizer.chat_template", options.format)
    if pattern is not None:
        return _print_tensors(summary, pattern, options.format)
    _print_summary(summary, options)
    return 0


def _pattern(parser: argparse.ArgumentParser, text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        parser.error(f"--tensors: {text!r} is no regular expression: {error}")


def _print_summary(summary: Summary, options: argparse.Namespace) -> None:
    if options.format == "json":
        document = summary_document(summary, full=options.full)
        _print_json({name: document[name] for name in options.section} if options.section else document)
        return
    if options.format == "csv":
        sys.stdout.write(render_csv(summary, options.section))
        return
    tables = section_tables(summary, options.section)
    if options.full:
        tables.append(metadata_table(summary.metadata))
    _print_tables(tables, options.format, head=heading(summary))


def _print_tensors(summary: Summary, pattern: re.Pattern[str], output: str) -> int:
    tensors = tuple(tensor for tensor in summary.all_tensors() if pattern.search(tensor.name))
    rows = tensor_rows(summary, tensors)
    if output == "json":
        _print_json({"schema_version": 1, "tensors": list(rows)})
    elif output == "csv":
        cells = [[_csv_cell(value) for value in row.values()] for row in rows]
        sys.stdout.write(csv_text(("name", "shape", "type", "parameters", "bytes", "offset"), cells))
    else:
        _print_tables([tensor_table(tensors)], output)
    return 0


def _csv_cell(value: object) -> object:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return visible(value) if isinstance(value, str) else value


def _print_key(summary: Summary, key: str, output: str) -> int:
    if key not in summary.metadata:
        print(f"error: {visible(summary.file.path)}: no metadata key {visible(key)!r}", file=sys.stderr)
        print("hint: --full lists the keys", file=sys.stderr)
        return 1
    value = summary.metadata[key]
    if output == "json":
        _print_json(summary_document(summary, full=True)["metadata"][key])
    elif isinstance(value, Array):
        for item in summary.headers[0].read_array(key):
            print(_shown(_plain(item)))
    else:
        print(_shown(_plain(value)))
    return 0


def _shown(text: str) -> str:
    """Text exactly as it is for a file or a program; on a terminal its control characters are made visible."""
    if not sys.stdout.isatty():
        return text
    return "\n".join(visible(line.replace("\t", "    ")) for line in text.split("\n"))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _print_tables(tables: Sequence[Table], output: str, head: str = "") -> None:
    text = draw(tables, head=head, ascii_only=not _can_print_boxes(), markdown=output == "markdown")
    sys.stdout.write(text)


def _can_print_boxes() -> bool:
    try:
        "┌─│×–…".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=not _can_print_boxes()))


def _verify(arguments: list[str]) -> int:
    from gguf_info.faults import tensor_digests, verify, verify_document
    from gguf_info.render import verify_tables

    parser = _command_parser(
        "verify", "Check a model's files: offsets, overlaps, sizes, names, parts.", VERIFY_EXAMPLES
    )
    parser.add_argument(
        "file", metavar="FILE", help="a .gguf file, any part of a split model, or a folder with one model"
    )
    parser.add_argument("--sha256", action="store_true", help="also print the SHA-256 of each tensor's data")
    options = parser.parse_args(arguments)
    try:
        summary = read_summary(options.file)
    except GGUFError as error:
        return _refuse(error, options.format)
    faults = verify(summary)
    is_whole = not any(fault.code == "data-short" for fault in faults)
    digests = dict(tensor_digests(summary)) if options.sha256 and is_whole else None
    document = verify_document(summary, faults, digests)
    if options.format == "json":
        _print_json(document)
    else:
        verdict = "no fault found" if document["ok"] else "faults found"
        _print_tables(verify_tables(faults, digests), options.format, head=f"{visible(summary.file.path)}: {verdict}")
    return 0 if document["ok"] else 1


def _refuse(error: GGUFError, output: str) -> int:
    """A header that breaks the format is what `verify` was asked about; a file that is no GGUF file is bad input."""
    from gguf_info.faults import header_fault
    from gguf_info.render import verify_tables

    fault = header_fault(error)
    if fault is None:
        raise error
    if output == "json":
        document = {"schema_version": 1, "path": error.path, "ok": False, "faults": [asdict(fault)], "sha256": None}
        _print_json(document)
    else:
        _print_tables(verify_tables([fault], None), output, head=f"{visible(error.path)}: faults found")
    return 1


def _diff(arguments: list[str]) -> int:
    from gguf_info.diff import diff_document, diff_models
    from gguf_info.render import diff_tables

    parser = _command_parser("diff", "What differs between two models; status 1 if anything does.", DIFF_EXAMPLES)
    parser.add_argument("before", metavar="A")
    parser.add_argument("after", metavar="B")
    options = parser.parse_args(arguments)
    before, after = read_summary(options.before), read_summary(options.after)
    difference = diff_models(before, after)
    if options.format == "json":
        _print_json(diff_document(before, after, difference))
    else:
        verdict = "no difference" if difference.is_empty else "different"
        head = f"{visible(before.file.path)} and {visible(after.file.path)}: {verdict}"
        _print_tables(diff_tables(difference), options.format, head=head)
        if difference.chat_template:
            print("\nChat template\n" + "\n".join(visible(line) for line in difference.chat_template))
    return 0 if difference.is_empty else 1


def _estimate(arguments: list[str]) -> int:
    import shlex

    from gguf_info.estimate_flags import add_estimate_flags, companion_inputs, predictor, settings_from
    from gguf_info.estimate_views import estimate_document, largest_document
    from gguf_info.fitting import find_largest, sweep

    formats = ("table", "json", "markdown", "csv")
    parser = _command_parser("estimate", "What a start of llama-server will take.", ESTIMATE_EXAMPLES, formats)
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a .gguf file, its URL, any part of a split model, or a folder with one model; "
        "several: which can be in memory together",
    )
    parser.add_argument("-m", "--model", dest="models", action="append", metavar="FILE", help="the same, by a flag")
    add_estimate_flags(parser)
    options = parser.parse_args(arguments)
    options.files += options.models or []
    if not options.files:
        parser.error("which model? Give its file")
    try:
        settings = settings_from(options)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    _require_plottable(parser, options)
    if len(options.files) > 1:
        if options.largest or options.sweep is not None:
            parser.error("--largest and --sweep take one model")
        if options.model_draft is not None or options.mmproj is not None or options.spec_type:
            parser.error("--model-draft, --mmproj and --spec-type take one model")
        return _residency(options, settings)
    (options.file,) = options.files
    summary, further = read_summary(options.file), companion_inputs(options)
    predict = predictor(summary, options)
    if options.sweep is not None:
        _print_sweep(list(sweep(summary, settings, options.sweep, options.sweep_types, predict)), settings, options)
        return 0
    if options.largest:
        answer = find_largest(summary, settings, options.largest, predict)
        flags = "nothing fits" if answer.value is None else f"largest: {shlex.join(answer.flags)}"
        _print_estimate(largest_document(answer, further), answer.prediction, flags, options)
        return 1 if answer.value is None else 0
    prediction = predict(settings)
    verdict = {True: "fits", False: "does not fit", None: "give --memory NAME=MiB to see whether it fits"}
    _print_estimate(estimate_document(prediction, further), prediction, verdict[prediction.fits], options)
    return 1 if prediction.fits is False else 0


def _require_plottable(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.plot is None:
        return
    from gguf_info.plot import PLOT_SUFFIXES

    if options.sweep is None:
        parser.error("--plot draws a --sweep")
    if Path(options.plot).suffix.lower() not in PLOT_SUFFIXES:
        parser.error(f"--plot: {options.plot!r} does not end with {' or '.join(PLOT_SUFFIXES)}")


def _residency(options: argparse.Namespace, settings: Settings) -> int:
    """Which of several models fit together; status 1 when not all do."""
    from gguf_info.estimate_flags import predictor
    from gguf_info.estimate_views import residency_tables
    from gguf_info.residency import residency_document, resident_sets

    predictions = [predictor(summary, options)(settings) for summary in map(read_summary, options.files)]
    sets = resident_sets(options.files, predictions)
    if options.format == "json":
        _print_json(residency_document(options.files, predictions, sets))
    elif options.format == "csv":
        document = residency_document(options.files, predictions, sets)
        cells = [(name, "" if value is None else visible(str(value))) for name, value in flat_fields(document)]
        sys.stdout.write(csv_text(("field", "value"), cells))
    else:
        all_fit = bool(sets) and len(sets[0]) == len(options.files)
        head = "all fit together" if all_fit else "not all fit together"
        _print_tables(residency_tables(options.files, predictions, sets), options.format, head=head)
    return 0 if sets and len(sets[0]) == len(options.files) else 1


def _print_estimate(document: dict[str, Any], prediction: Estimate, verdict: str, options: argparse.Namespace) -> None:
    from gguf_info.estimate_views import estimate_tables

    if options.format == "json":
        _print_json(document)
    elif options.format == "csv":
        cells = [(name, "" if value is None else visible(str(value))) for name, value in flat_fields(document)]
        sys.stdout.write(csv_text(("field", "value"), cells))
    else:
        _print_tables(estimate_tables(prediction), options.format, head=f"{visible(options.file)}: {verdict}")


def _print_sweep(rows: Sequence[SweepRow], settings: Settings, options: argparse.Namespace) -> None:
    from gguf_info.estimate_views import sweep_table

    if options.plot is not None:
        from gguf_info.plot import write_plot

        free = list(settings.memory_mib.values())
        free_bytes = int(sum(mib or 0 for mib in free) * 2**20) if free and None not in free else None
        write_plot(rows, options.plot, visible(options.file), free_bytes)
    if options.format == "json":
        _print_json({"schema_version": 1, "rows": [asdict(row) for row in rows]})
    elif options.format == "csv":
        columns = list(asdict(rows[0]))
        cells = [["" if value is None else value for value in asdict(row).values()] for row in rows]
        sys.stdout.write(csv_text(columns, cells))
    else:
        _print_tables([sweep_table(rows)], options.format, head=visible(options.file))


def _command_parser(
    name: str, description: str, examples: str, formats: tuple[str, ...] = ("table", "json", "markdown")
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"gguf-info {name}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_output(parser, formats)
    return parser


def _template(arguments: list[str]) -> int:
    from gguf_info.bounded import OutOfTime, bounded
    from gguf_info.render import template_tables
    from gguf_info.request import template_answer, template_document

    parser = _command_parser(
        "template", "What the model's chat template does with a request, offline.", TEMPLATE_EXAMPLES
    )
    parser.add_argument("file", metavar="FILE", help="a .gguf file, its URL, or a folder with one model")
    parser.add_argument(
        "--messages", metavar="REQUEST.json", help="an OpenAI chat request, or its list of messages; - for stdin"
    )
    parser.add_argument("--prompt", action="store_true", help="print the rendered prompt and nothing else")
    options = parser.parse_args(arguments)
    if options.prompt and options.messages is None:
        parser.error("--prompt needs --messages")
    summary = read_summary(options.file)
    request = None if options.messages is None else _read_request(options.messages)
    try:
        with bounded(_TEMPLATE_TIMEOUT_S, _TEMPLATE_BYTES):
            answer = template_answer(summary, request)
    except OutOfTime as error:
        found = f"one that still ran after {_TEMPLATE_TIMEOUT_S:g} s"
        raise GGUFError(summary.file.path, None, expected="a template that ends", found=found) from error
    if options.prompt:
        if answer.rendering is not None and answer.rendering.prompt is not None:
            sys.stdout.write(_shown(answer.rendering.prompt))
        else:
            print(f"error: {visible(answer.refusal)}", file=sys.stderr)
    elif options.format == "json":
        _print_json(template_document(summary, answer))
    else:
        _print_tables(template_tables(answer), options.format, head=f"{visible(summary.file.path)}: {answer.verdict}")
    return 1 if answer.refusal else 0


def _read_request(path: str) -> ChatRequest:
    from gguf_info.request import parse_request

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = (getattr(error, "strerror", None) or str(error)).lower()
        raise GGUFError(path, None, expected="a chat request", found=found, hint="check --messages") from error
    return parse_request(text, path)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "verify": _verify,
    "diff": _diff,
    "estimate": _estimate,
    "template": _template,
}
"""Subcommands by name; anything else is the file to show."""
