"""The command: parses arguments, prints, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf_info.errors import GGUFError
from gguf_info.reader import ArrayRef
from gguf_info.render import SECTIONS, render_csv, render_markdown, render_tables, visible
from gguf_info.summary import Summary, read_summary, summary_document

__all__ = ["main"]

_EXAMPLES = """\
examples:
  gguf-info model.gguf                              everything, as tables
  gguf-info model.gguf --section attention --section moe
  gguf-info model.gguf --tensors attn_q             tensors whose name holds "attn_q"
  gguf-info model.gguf --key general.license        one value, for scripts
  gguf-info model.gguf --chat-template > template.jinja
  gguf-info model.gguf --format json | jq .attention
"""
_TEMPLATE_KEY = "tokenizer.chat_template"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0 printed, 2 usage or a file that is no GGUF, 130 interrupted."""
    options = _parser().parse_args(argv)
    try:
        _print(options)
        sys.stdout.flush()
    except GGUFError as error:
        if options.debug:
            traceback.print_exception(error)
        print(f"error: {visible(str(error))}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gguf-info",
        description="What is in a GGUF model file, read from its header alone.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("gguf-info")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("file", type=Path, help="a GGUF file, any shard of a split model, or a folder that holds one")
    parser.add_argument("--format", choices=("table", "json", "markdown", "csv"), default="table")
    parser.add_argument("--section", action="append", choices=tuple(SECTIONS), help="only this section; repeatable")
    parser.add_argument("--full", action="store_true", help="every metadata key; in JSON every array item too")
    parser.add_argument("--tensors", nargs="?", const="", metavar="TEXT", help="list tensors whose name holds TEXT")
    parser.add_argument("--key", help="print one metadata value, as text, or as JSON for an array")
    parser.add_argument("--chat-template", action="store_true", help="print the chat template as it stands in the file")
    return parser


def _print(options: argparse.Namespace) -> None:
    summary = read_summary(options.file)
    if options.chat_template:
        sys.stdout.write(str(_value(summary, _TEMPLATE_KEY)))
    elif options.key is not None:
        print(_shown(_value(summary, options.key)))
    elif options.format == "json":
        print(json.dumps(_document(summary, options), indent=2, ensure_ascii=not _prints_unicode()))
    else:
        print(_text(summary, options))


def _text(summary: Summary, options: argparse.Namespace) -> str:
    chosen: dict[str, Any] = {"sections": options.section, "tensors": options.tensors}
    if options.format == "markdown":
        text = render_markdown(summary, **chosen)
    elif options.format == "csv":
        text = render_csv(summary, **chosen)
    else:
        text = render_tables(summary, ascii_only=not _prints_unicode(), **chosen)
    return text + ("\n\n" + _metadata_lines(summary) if options.full else "")


def _document(summary: Summary, options: argparse.Namespace) -> dict[str, Any]:
    document = summary_document(summary, full=options.full)
    if not options.section:
        return document
    return {key: value for key, value in document.items() if key in {"schema_version", *options.section}}


def _metadata_lines(summary: Summary) -> str:
    return "\n".join(f"{visible(key)} = {_brief(value)}" for key, value in summary.header.metadata.items())


def _brief(value: object) -> str:
    if isinstance(value, ArrayRef):
        return f"{value.length} items of {value.item_type}"
    return visible(str(list(value) if isinstance(value, tuple) else value))


def _value(summary: Summary, key: str) -> object:
    metadata = summary.header.metadata
    if key not in metadata:
        hint = "gguf-info FILE --full lists all keys"
        raise GGUFError(summary.header.path, None, expected=f"the metadata key {key!r}", found="no such key", hint=hint)
    value = metadata[key]
    return list(summary.header.read_array(key)) if isinstance(value, ArrayRef | tuple) else value


def _shown(value: object) -> str:
    if isinstance(value, str):
        return visible(value)
    return json.dumps(value, ensure_ascii=True)


def _prints_unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()
