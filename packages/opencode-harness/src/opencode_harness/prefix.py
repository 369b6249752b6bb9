"""What changed between consecutive requests of a conversation, and whose doing a lost cache is.

A conversation grows at its end: each request repeats the messages before. Where one that was sent already is sent
otherwise, the agent changed its own text, and no server can reuse what follows. Where messages were only added and
the server computes them again all the same, the server lost its cache (opencode#23595).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from opencode_harness.journal import Exchange

__all__ = ["PrefixChange", "prefix_changes"]

# A server takes whole batches from its cache and computes at least one token, so a few are never missed.
_TOLERATED_TOKENS = 64


@dataclass(frozen=True)
class PrefixChange:
    """What a request has in common with the one before in its conversation.

    Attributes:
        lane: The conversation.
        request: The request's number.
        kept_messages: How many messages of the one before it repeats as they were.
        changed_message: Index of the first message that was sent already and now differs, or None.
        difference_at: Index of the first character of that message, as JSON, that differs; None likewise.
        lost_tokens: Prompt tokens that the server held and computed again, or None when it does not tell.
        cause: `agent` (it changed its own text), `server` (it lost its cache), or None when the prefix was reused.
    """

    lane: str
    request: int
    kept_messages: int
    changed_message: int | None
    difference_at: int | None
    lost_tokens: int | None
    cause: Literal["agent", "server"] | None


def prefix_changes(exchanges: Sequence[Exchange]) -> Iterator[PrefixChange]:
    """One entry for each request that follows another one in its conversation."""
    lanes = dict.fromkeys(exchange.lane for exchange in exchanges if exchange.lane not in ("title", "other"))
    for lane in lanes:
        for before, after in pairwise(exchange for exchange in exchanges if exchange.lane == lane):
            yield _change(before, after)


def _change(before: Exchange, after: Exchange) -> PrefixChange:
    old, new = _parts(before.request), _parts(after.request)
    kept = next((index for index, (then, now) in enumerate(zip(old, new, strict=False)) if then != now), None)
    shared = min(len(old), len(new)) if kept is None else kept
    changed = shared if shared < len(old) else None
    lost = _lost_tokens(before, after)
    cause: Literal["agent", "server"] | None = None
    if changed is not None:
        cause = "agent"
    elif lost is not None and lost > _TOLERATED_TOKENS:
        cause = "server"
    place = None if changed is None or changed >= len(new) else _first_difference(old[changed], new[changed])
    # The tools come first in what a model reads, so they are counted as the message before all others.
    return PrefixChange(
        after.lane, after.number, max(0, shared - 1), None if changed is None else changed - 1, place, lost, cause
    )


def _parts(request: Mapping[str, Any]) -> list[str]:
    messages = request.get("messages")
    parts = [request.get("tools"), *(messages if isinstance(messages, list) else [])]
    return [json.dumps(part, sort_keys=True) for part in parts]


def _first_difference(old: str, new: str) -> int:
    return next((index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _lost_tokens(before: Exchange, after: Exchange) -> int | None:
    held, reused = _prompt_tokens(before.timings), (after.timings or {}).get("cache_n")
    if held is None or not isinstance(reused, int) or after.source == "scripted":
        return None
    return max(0, held - reused)


def _prompt_tokens(timings: Mapping[str, Any] | None) -> int | None:
    counts = [(timings or {}).get(name) for name in ("cache_n", "prompt_n")]
    return sum(count for count in counts if isinstance(count, int)) if all(isinstance(c, int) for c in counts) else None
