"""A clean KV cache before a test, slots of a test's own, and whether erasing them is enough.

Erasing needs the server's --slot-save-path. It empties the slots only: a server that also keeps prompts in host RAM
(--cache-ram, on by default in current builds) can bring them back, so a cold start is proved by an answer's timings,
never assumed.
"""

from __future__ import annotations

import contextlib
import fcntl
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_launch import Client, LlamaLaunchError

from opencode_harness.errors import HarnessError

__all__ = ["SlotFlush", "WarmCache", "check_cold", "flush_slots", "leased_slots", "slot_tokens"]

# A main agent and its sub-agents take turns: one slot for each of the two.
_SLOTS_A_TRIAL = 2
# Enough for a prompt that a server bothers to keep.
_PROBE_WORDS = 24


class WarmCache(HarnessError):
    """The server keeps prompts that were erased from its slots, so no trial can be cold."""

    exit_code = 2


@dataclass(frozen=True)
class SlotFlush:
    """What flushing did.

    Attributes:
        erased_tokens: Tokens erased, by slot id.
        problem: Why it could not be done, or None.
    """

    erased_tokens: dict[int, int]
    problem: str | None = None


def flush_slots(client: Client, only: Sequence[int] = ()) -> SlotFlush:
    """Erase slots. A failure is told in the result, never raised: a test may still be worth running.

    Args:
        client: Calls to the server.
        only: The slots; all of them by default.
    """
    erased: dict[int, int] = {}
    try:
        for slot in only or [slot.id for slot in client.slots()]:
            erased[slot] = client.erase(slot).n_erased
    except LlamaLaunchError as error:
        return SlotFlush(erased, f"KV cache not flushed: {error}")
    return SlotFlush(erased, None if erased else "KV cache not flushed: the server reports no slots")


def slot_tokens(client: Client) -> dict[int, int] | None:
    """Prompt tokens that each slot holds, by slot id, as /slots reports them; None when the server does not tell.

    A slot that has not worked since the start reports nothing, which is no token.
    """
    try:
        return {slot.id: int(slot.raw.get("n_prompt_tokens") or 0) for slot in client.slots()}
    except LlamaLaunchError:
        return None


@contextlib.contextmanager
def leased_slots(folder: Path, worker: int, n_slots: int) -> Iterator[tuple[int, ...]]:
    """Slots that nobody else of this run uses inside the block; waits until they are free.

    The kernel gives a lease back when its holder dies, however it dies.

    Args:
        folder: Where all workers of the run keep their leases.
        worker: The worker's number, from 0.
        n_slots: How many slots the server has.
    """
    n_leases = max(1, n_slots // _SLOTS_A_TRIAL)
    lease = worker % n_leases
    first = lease * _SLOTS_A_TRIAL
    with (folder / f"slots-{lease}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield tuple(range(first, min(first + _SLOTS_A_TRIAL, n_slots)))


def check_cold(client: Client) -> None:
    """Make sure that erased slots are really cold: ask, fill all slots otherwise, erase them, and ask the first again.

    A server with a prompt cache in host RAM keeps the first prompt there when another one takes its slot; it looks
    there only for requests that name no slot (tools/server, build 11549), so none is named. Costs two prompts more
    than the server has slots, each of about two hundred tokens.

    Raises:
        WarmCache: The server reused what had been erased.
        LlamaLaunchError: The server cannot be asked, or cannot erase.
    """
    slots = [slot.id for slot in client.slots()]
    first = _probe()
    for prompt in (first, *(_probe() for _ in slots)):
        client.chat(prompt)
    for slot in slots:
        client.erase(slot)
    reused = client.chat(first).timings.get("cache_n")
    if isinstance(reused, int) and reused > 0:
        raise WarmCache(
            f"{client.base_url}: the server reused {reused} tokens that had been erased from its slots: it keeps "
            "prompts in host RAM",
            hint="start it with --cache-ram 0, or run with --kv-mode shared, which claims no cold start",
        )


def _probe() -> dict[str, object]:
    words = " ".join(uuid.uuid4().hex[:8] for _ in range(_PROBE_WORDS))
    return {"messages": [{"role": "user", "content": words}], "max_tokens": 1, "temperature": 0}
