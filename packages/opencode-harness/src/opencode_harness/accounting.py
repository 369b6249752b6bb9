"""A trial's figures: what each request cost, and the result document."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from opencode_harness.evidence import AnswerFigures, CalledTool
from opencode_harness.journal import Exchange
from opencode_harness.prefix import prefix_changes
from opencode_harness.turns import ReceivedToolCall

__all__ = ["answer_figures", "called_tools", "lane_totals", "request_figures"]

_TIMING_KEYS = ("cache_n", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms")


def answer_figures(exchange: Exchange) -> AnswerFigures:
    """The figures that expectations are checked against."""
    timings, usage = exchange.timings or {}, exchange.usage or {}
    return AnswerFigures(
        lane=exchange.lane,
        source=exchange.source,
        cache_n=_count(timings.get("cache_n")),
        prompt_n=_count(timings.get("prompt_n")),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        finish_reason=exchange.finish_reason,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def called_tools(exchanges: Sequence[Exchange]) -> tuple[CalledTool, ...]:
    """Every tool call that a model made, in order."""
    return tuple(_called(exchange.lane, call) for exchange in exchanges for call in exchange.tool_calls)


def _called(lane: str, call: ReceivedToolCall) -> CalledTool:
    return CalledTool(lane, call.name, call.arguments)


def request_figures(exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
    """One object for each chat request: who answered, when, with how many tokens, and what it shares with the last."""
    changes = {change.request: change for change in prefix_changes(exchanges)}
    return [
        {
            "number": exchange.number,
            "lane": exchange.lane,
            "agent_path": list(exchange.agent_path),
            "source": exchange.source,
            "status": exchange.status,
            "started_s": _rounded(exchange.started_s),
            "first_byte_s": _rounded(exchange.first_byte_s),
            "ended_s": _rounded(exchange.ended_s),
            "finish_reason": exchange.finish_reason,
            "error": exchange.error,
            "usage": exchange.usage,
            "timings": exchange.timings,
            "prefix": dataclasses.asdict(changes[exchange.number]) if exchange.number in changes else None,
        }
        for exchange in exchanges
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def lane_totals(exchanges: Sequence[Exchange]) -> dict[str, dict[str, float]]:
    """By lane: requests, and the sums of the server's timings where it told any (tokens and milliseconds)."""
    totals: dict[str, dict[str, float]] = {}
    for exchange in exchanges:
        lane = totals.setdefault(exchange.lane, {"requests": 0})
        lane["requests"] += 1
        for key, value in _told(exchange.timings).items():
            lane[key] = round(lane.get(key, 0) + value, 3)
    return totals


def _told(timings: Mapping[str, Any] | None) -> dict[str, float]:
    found = {key: (timings or {}).get(key) for key in _TIMING_KEYS}
    return {key: value for key, value in found.items() if isinstance(value, (int, float))}
