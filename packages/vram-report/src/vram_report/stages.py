"""How far a start has come, while its log is being written.

The rule: whoever starts a server or waits for one asks here, and what a line means stays a row of `grammar`: `STAGES`
says which facts begin a stage, the rows of kind `ready` and `fail_port` what readiness and a taken port look like,
`ERROR_SIGNS` what an error line looks like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vram_report.grammar import ERROR_SIGNS
from vram_report.records import iter_records, unwrapped
from vram_report.runs import RunFacts, RunSplitter

__all__ = ["error_line", "is_port_taken", "run_stage", "start_stage"]

_ERROR_LINE = re.compile("|".join(ERROR_SIGNS), re.IGNORECASE)


def start_stage(lines: Iterable[str]) -> str:
    r"""What the latest server start in a log is doing, by its lines so far.

    Args:
        lines: The log's lines, with or without their line ends. When lines carry "\n", a last line without it counts
            as cut.

    Returns:
        `starting` before any other stage is known, `fitting` during the trial loads of the automatic fit, `loading`
        the model or what goes with it, `making the context`, `warming up`, `ready`, `failed` (a retry may still
        begin another stage), or `ended` by itself or a signal. Builds print some stages only at verbosity 4.
    """
    splitter, latest = RunSplitter(), None
    for record in iter_records(lines):
        latest = splitter.take(record)
    return run_stage(latest)


def run_stage(run: RunFacts | None) -> str:
    """The stage of a run whose records have been taken so far; see `start_stage`."""
    if run is None:
        return "starting"
    if run.failure is not None and not run.in_fit:
        return "failed"
    if run.exit_line is not None:
        return "ended"
    if run.ready_line is not None:
        return "ready"
    return "fitting" if run.in_fit else run.stage


def is_port_taken(lines: Iterable[str]) -> bool:
    """Whether a server says that it cannot listen on its port because another program does.

    Args:
        lines: The log's lines, with or without their line ends.
    """
    return any(record.kind == "fail_port" for record in iter_records(lines))


def error_line(lines: Iterable[str]) -> str | None:
    """The last line that looks like an error, for a failure that `parse` does not know; None when no line does.

    A line with a level is one when its level is; the line that merely says that the server exits is none.

    Args:
        lines: The log's lines, with or without their line ends.

    Returns:
        The line without colours and without prefixes of containers, journals and routers. It is text from a log: see
        `visible` before showing it.
    """
    found = None
    for line in lines:
        _, text = unwrapped(line)
        if _ERROR_LINE.search(text):
            found = text.strip()
    return found
