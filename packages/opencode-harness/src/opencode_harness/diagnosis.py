"""Why a trial most likely did not pass: one request, what the server wrote of it, and the likeliest cause.

Everything here looks at what was recorded. Causes are a table of small detectors, the most certain first; what none of
them recognizes has no cause, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opencode_harness.journal import Exchange
from opencode_harness.outcomes import Outcome
from opencode_harness.prefix import prefix_changes
from opencode_harness.server_log import LogLine, task_of
from opencode_harness.verdict import CALL_MARKUP_RE, PARSER_ERROR_RE

__all__ = ["Diagnosis", "Facts", "diagnose"]

_MOST_LINES = 12
# As llama-server says them (tools/server and src/llama-*.cpp, build 11549, and its predecessors).
_OVERFLOW_RE = re.compile(r"(?i)exceed_context_size|exceeds the available context|context shift|truncated = 1")
_NO_ROOM_RE = re.compile(r"(?i)failed to find free space in the KV cache|failed to find (?:a )?memory slot")
_OUT_OF_MEMORY_RE = re.compile(r"(?i)out of memory|ErrorOutOfDeviceMemory|failed to allocate .*buffer")
_TEMPLATE_RE = re.compile(r"(?i)jinja|chat template|template .*(?:error|exception)|exception in template")
_REPROCESSED_RE = re.compile(r"(?i)forcing full prompt re-processing")


@dataclass(frozen=True)
class Facts:
    """What a diagnosis is made of.

    Attributes:
        outcome: How the trial ended.
        exchanges: Its chat requests.
        lines: What the server wrote meanwhile.
        open_dialog: The dialog that nobody answered, or an empty string.
        context_tokens: What OpenCode was told of the model's context.
        n_ctx_slot: What a slot really holds, or None.
        vram_mib: What the server holds, by device.
        terminal_started_s: When the recording began, on the proxy's clock.
    """

    outcome: Outcome
    exchanges: Sequence[Exchange]
    lines: Sequence[LogLine] = ()
    open_dialog: str = ""
    context_tokens: int | None = None
    n_ctx_slot: int | None = None
    vram_mib: Mapping[str, float] | None = None
    terminal_started_s: float = 0.0


@dataclass(frozen=True)
class Diagnosis:
    """What most likely went wrong, and where to look.

    Attributes:
        cause: The likeliest cause's name; None when nothing is recognized.
        summary: It as a sentence.
        request: Number of the chat request, or None where there was none.
        lane: Its conversation.
        turn: Which request of that conversation it is, from 1.
        slot: The server's slot that computed it, or None.
        task: The server's task, or None.
        log_lines: The server's lines about it, as `number: text`.
        vram_mib: What the server holds, by device.
        cast_s: Where in the recording it began, or None.
    """

    cause: str | None
    summary: str
    request: int | None
    lane: str | None
    turn: int | None
    slot: int | None
    task: int | None
    log_lines: tuple[str, ...]
    vram_mib: Mapping[str, float]
    cast_s: float | None

    def lines(self) -> list[str]:
        """The diagnosis for a person."""
        told = [f"likeliest cause: {self.summary}"]
        if self.request is not None:
            where = f"turn {self.turn} of the {self.lane} conversation, request {self.request}"
            where += "" if self.slot is None else f", slot {self.slot}, task {self.task}"
            told.append(where + ("" if self.cast_s is None else f", {self.cast_s:.1f} s into the recording"))
        if self.vram_mib:
            held = ", ".join(f"{name} {mib:.0f} MiB" for name, mib in self.vram_mib.items())
            told.append(f"the server holds: {held}")
        return told + [f"server log, line {line}" for line in self.log_lines]


@dataclass(frozen=True)
class _Found:
    summary: str
    exchange: Exchange | None = None
    lines: tuple[LogLine, ...] = ()


def diagnose(facts: Facts) -> Diagnosis | None:
    """The likeliest cause of what went wrong; None for a trial that passed or was skipped."""
    if facts.outcome in (Outcome.PASS, Outcome.SKIP):
        return None
    for cause, detector in _DETECTORS:
        found = detector(facts)
        if found is not None:
            return _told(cause, found, facts)
    return _told(None, _Found("nothing in the requests or the server's log explains it; see the recording"), facts)


def _told(cause: str | None, found: _Found, facts: Facts) -> Diagnosis:
    asked = [exchange for exchange in facts.exchanges if exchange.lane != "title"]
    exchange = found.exchange or (asked[-1] if asked else None)
    if exchange is None:
        return Diagnosis(
            cause, found.summary, None, None, None, None, None, _shown(found.lines), facts.vram_mib or {}, None
        )
    task = task_of(exchange.timings, facts.lines)
    same_lane = [other.number for other in facts.exchanges if other.lane == exchange.lane]
    return Diagnosis(
        cause,
        found.summary,
        exchange.number,
        exchange.lane,
        same_lane.index(exchange.number) + 1,
        None if task is None else task.slot,
        None if task is None else task.task,
        _shown(found.lines or (() if task is None else task.lines)),
        facts.vram_mib or {},
        round(max(0.0, exchange.started_s - facts.terminal_started_s), 1),
    )


def _shown(lines: Sequence[LogLine]) -> tuple[str, ...]:
    return tuple(f"{line.number}: {line.text.strip()}" for line in lines[-_MOST_LINES:])


def _in_log_or_error(pattern: re.Pattern[str], summary: str) -> Callable[[Facts], _Found | None]:
    def detect(facts: Facts) -> _Found | None:
        lines = tuple(line for line in facts.lines if pattern.search(line.text))
        failed = next((e for e in facts.exchanges if e.error is not None and pattern.search(e.error)), None)
        return _Found(summary, failed, lines) if lines or failed is not None else None

    return detect


def _answer_that(fits: Callable[[Exchange], bool], summary: str) -> Callable[[Facts], _Found | None]:
    def detect(facts: Facts) -> _Found | None:
        found = next((exchange for exchange in facts.exchanges if exchange.lane != "title" and fits(exchange)), None)
        return None if found is None else _Found(summary, found)

    return detect


def _unanswered_dialog(facts: Facts) -> _Found | None:
    if not facts.open_dialog:
        return None
    return _Found(f"a dialog waits for an answer: {facts.open_dialog!r}; grant it in `permission:`, or answer it")


def _context_told_too_large(facts: Facts) -> _Found | None:
    told, real = facts.context_tokens, facts.n_ctx_slot
    if told is None or real is None or told <= real:
        return None
    return _Found(f"OpenCode was told of {told} tokens of context (limit.context), and a slot holds {real}")


def _lost_cache(facts: Facts) -> _Found | None:
    for change in prefix_changes(facts.exchanges):
        if change.cause == "server":
            found = next(e for e in facts.exchanges if e.number == change.request)
            lost = f"the server computed {change.lost_tokens} tokens again that it had held"
            return _Found(f"{lost}: it lost its cache, and the turn took the longer", found)
    return None


_OVERFLOW = "the conversation is longer than the slot's context: give each slot more (n_ctx_slot), or compact earlier"
_DETECTORS: tuple[tuple[str, Callable[[Facts], _Found | None]], ...] = (
    ("dialog-unanswered", _unanswered_dialog),
    (
        "out-of-memory",
        _in_log_or_error(_OUT_OF_MEMORY_RE, "a device ran out of memory: a smaller context, or fewer layers on it"),
    ),
    ("limit-context-above-server", _context_told_too_large),
    ("context-overflow", _in_log_or_error(_OVERFLOW_RE, _OVERFLOW)),
    (
        "kv-cache-full",
        _in_log_or_error(_NO_ROOM_RE, "the KV cache had no room: fewer slots at once, or a larger context"),
    ),
    (
        "parser-error",
        _answer_that(
            lambda exchange: exchange.error is not None and PARSER_ERROR_RE.search(exchange.error) is not None,
            "the server could not parse what the model wrote: another chat template, or a newer build",
        ),
    ),
    ("template-error", _in_log_or_error(_TEMPLATE_RE, "the chat template failed: see the server's lines")),
    (
        "tool-call-as-text",
        _answer_that(
            lambda exchange: not exchange.tool_calls and CALL_MARKUP_RE.search(exchange.text) is not None,
            "a tool call came as text: start the server with --jinja and the model's own template",
        ),
    ),
    (
        "length-stop",
        _answer_that(
            lambda exchange: exchange.finish_reason == "length",
            "an answer was cut at its token limit (finish_reason length): raise max_output_tokens",
        ),
    ),
    (
        "prompt-reprocessing",
        _in_log_or_error(_REPROCESSED_RE, "the server computed whole prompts again (SWA or a hybrid model)"),
    ),
    ("cache-lost", _lost_cache),
    (
        "server-error",
        _answer_that(lambda exchange: exchange.error is not None, "a request failed: see its error in requests.jsonl"),
    ),
)
