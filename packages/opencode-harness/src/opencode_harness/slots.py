"""A clean KV cache before a test: erase every slot that the server has, whatever its --parallel is.

Erasing needs the server's --slot-save-path. It empties the slots only: a server that also keeps prompts in host RAM
(--cache-ram, on by default in current builds) can bring them back, so a cold start is proved by an answer's timings,
never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from llama_launch import Client, LlamaLaunchError

__all__ = ["SlotFlush", "flush_slots", "slot_tokens"]


@dataclass(frozen=True)
class SlotFlush:
    """What flushing did.

    Attributes:
        erased_tokens: Tokens erased, by slot id.
        problem: Why it could not be done, or None.
    """

    erased_tokens: dict[int, int]
    problem: str | None = None


def flush_slots(client: Client) -> SlotFlush:
    """Erase all slots. A failure is told in the result, never raised: a test may still be worth running."""
    erased: dict[int, int] = {}
    try:
        for slot in client.slots():
            erased[slot.id] = client.erase(slot.id).n_erased
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
