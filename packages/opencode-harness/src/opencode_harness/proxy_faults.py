"""Faults on demand: what goes wrong between OpenCode and the model, on purpose and always at the same place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ProxyFault"]


@dataclass(frozen=True)
class ProxyFault:
    """What happens to one main request.

    Attributes:
        at: Which main request, from 1; a request that OpenCode repeats counts again.
        kind: `status` (an HTTP error), `hang-up` (the connection ends without an answer, as when the endpoint is
            down), `cut` (the stream ends in the middle), `stall` (nothing for a while, then the answer), or
            `error-event` (an error object in mid-stream, as llama-server sends when it cannot parse what the model
            wrote).
        status: The HTTP status.
        message: What the error says.
        after_events: How many events of the stream come before.
        for_s: How long nothing comes.
    """

    at: int
    kind: Literal["status", "hang-up", "cut", "stall", "error-event"]
    status: int = 503
    message: str = "fault on demand"
    after_events: int = 0
    for_s: float = 0.0
