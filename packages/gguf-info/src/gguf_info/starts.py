"""A start of llama-server from its command line, for programs that are about to run it.

The rule: the words are those that llama-server gets. What does not decide memory is passed over; what cannot be read
as llama-server reads it is an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from gguf_info.errors import GGUFError
from gguf_info.estimate_flags import add_estimate_flags, predictor, settings_from
from gguf_info.memory import Estimate
from gguf_info.model import Summary
from gguf_info.settings import Settings

__all__ = ["PlannedStart", "planned_start"]


@dataclass(frozen=True)
class PlannedStart:
    """A start that has not happened.

    Attributes:
        settings: What the flags set.
        predict: Estimates a start with such settings, and with what the flags load beside the model.
    """

    settings: Settings
    predict: Callable[[Settings], Estimate]


def planned_start(
    summary: Summary,
    flags: Sequence[str],
    *,
    memory_mib: Mapping[str, float | None] | None = None,
    build: int | None = None,
) -> PlannedStart:
    """The start that these flags of llama-server stand for.

    Args:
        summary: The model.
        flags: The command line, without the program.
        memory_mib: Free memory of each device by name, None where it is not known; empty for one device of which
            nothing is known.
        build: llama.cpp's build number; the newest that is known here when None.

    Raises:
        GGUFError: A value cannot be read, or a file that the flags name.
    """
    parser = _Parser(allow_abbrev=False, add_help=False)
    add_estimate_flags(parser)
    try:
        options, _ = parser.parse_known_args(list(flags))
        settings = settings_from(options)
    except (argparse.ArgumentError, argparse.ArgumentTypeError, _Unreadable) as error:
        raise GGUFError(
            summary.file.path, None, expected="flags of llama-server", found=str(error), hint="correct the flag"
        ) from error
    settings = replace(settings, memory_mib=dict(memory_mib or {}), build=build or settings.build)
    return PlannedStart(settings, predictor(summary, options))


class _Unreadable(Exception):
    """What the parser says of a value."""


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise _Unreadable(message)
