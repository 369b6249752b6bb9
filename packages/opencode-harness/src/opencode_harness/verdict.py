"""What a trial amounts to: its problems, its failures, and the one outcome that follows from them.

Everything here looks at what was recorded; nothing reads a file or waits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from opencode_harness.checks import CheckFailure
from opencode_harness.journal import Exchange
from opencode_harness.outcomes import OUTCOME_OF_PROBLEM, Outcome
from opencode_harness.tui import TuiRun

__all__ = ["CALL_MARKUP_RE", "PARSER_ERROR_RE", "KvMode", "Problem", "contamination", "outcome_of", "terminal_problem"]

KvMode = Literal["cold", "warm", "shared"]

# How models write tool calls (llama.cpp, common/chat.cpp, build 11549): text that holds one was not parsed.
CALL_MARKUP_RE = re.compile(r"<tool_call>|<\|tool_call|<function=|\[TOOL_CALLS\]|<\|channel\|>|<｜tool▁call")
PARSER_ERROR_RE = re.compile(r"(?i)failed to parse|parse error|does not match the expected .*(?:grammar|format)")


@dataclass(frozen=True)
class Problem:
    """What kept a trial from being carried through: a kind, and a message for a person."""

    kind: str
    message: str


def terminal_problem(run: TuiRun, *, rejects: bool, is_waiting_for_model: bool) -> Problem | None:
    """What went wrong in the terminal, if anything did.

    Args:
        run: What the terminal showed.
        rejects: Whether the scenario rejects permissions, so that a turn which a rejection ended is as it should be.
        is_waiting_for_model: Whether a chat request was open when the wait ended.
    """
    if run.outcome == "done" or (run.outcome == "rejected" and rejects):
        return None
    # Nobody answers a dialog, and nobody is asked: the agent waits for ever, however long the limit.
    if run.outcome == "turn-timeout" and (run.open_dialog or not is_waiting_for_model):
        return Problem("agent-stuck", run.message)
    return Problem(run.outcome, run.message)


def contamination(exchanges: Sequence[Exchange], kv_mode: KvMode) -> Problem | None:
    """Whether the server's own timings fail to prove that the first main prompt was computed cold.

    Only `cold` claims so, and only of answers that a server gave.
    """
    served = [exchange for exchange in exchanges if exchange.lane == "main" and exchange.source == "server"]
    if kv_mode != "cold" or not served or served[0].error is not None:
        return None
    timings = served[0].timings or {}
    cache_n = timings.get("cache_n")
    if cache_n == 0:
        return None
    if cache_n is None:
        message = "the server's answer carries no timings, so nothing proves that the KV cache was empty"
        return Problem("contaminated", f"{message}; use llama-server, or --kv-mode shared")
    return Problem(
        "contaminated",
        f"the first main request reused {cache_n} cached tokens and computed {timings.get('prompt_n')}; start the "
        "server with --cache-ram 0 and a --slot-save-path, so that erased slots stay empty",
    )


def outcome_of(problems: Sequence[Problem], failures: Sequence[CheckFailure], exchanges: Sequence[Exchange]) -> Outcome:
    """The outcome of a trial.

    The first problem decides. Without one, failed expectations are FAIL, unless the record shows that it was not the
    model's doing: the server did not parse what it wrote (SERVER_PARSER), or an answer was cut short (TRUNCATED).
    """
    if problems:
        return OUTCOME_OF_PROBLEM.get(problems[0].kind, Outcome.INFRA)
    if not failures:
        return Outcome.PASS
    answered = [exchange for exchange in exchanges if exchange.lane != "title"]
    if any(_was_misparsed(exchange) for exchange in answered):
        return Outcome.SERVER_PARSER
    if any(exchange.finish_reason == "length" for exchange in answered):
        return Outcome.TRUNCATED
    return Outcome.FAIL


def _was_misparsed(exchange: Exchange) -> bool:
    if exchange.error is not None and PARSER_ERROR_RE.search(exchange.error):
        return True
    return not exchange.tool_calls and CALL_MARKUP_RE.search(exchange.text) is not None
