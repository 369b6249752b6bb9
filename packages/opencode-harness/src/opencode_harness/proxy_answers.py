"""How the proxy answers a chat request: with events of its own, or with those of the server, whole or in part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opencode_harness.evidence import Source
from opencode_harness.proxy_faults import ProxyFault
from opencode_harness.turns import Turn, completion, sse_events

__all__ = ["OwnAnswer", "PassedOn", "error_event", "first_events", "http_error", "turn_answer"]

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    503: "unavailable_error",
}


@dataclass(frozen=True)
class OwnAnswer:
    """An answer that the proxy gives itself.

    Attributes:
        source: Where it comes from.
        status: HTTP status.
        content_type: Of the body.
        pieces: The body, in the pieces in which it is sent.
        fault: What goes wrong on purpose, or None.
    """

    source: Source
    status: int
    content_type: str
    pieces: Iterable[bytes]
    fault: ProxyFault | None = None


@dataclass(frozen=True)
class PassedOn:
    """A request that the server answers.

    Attributes:
        body: What is sent to it.
        transform: What the answer's bytes become, piece by piece; None to pass them on as they are.
        fault: What goes wrong on purpose, or None.
        source: Where the answer comes from.
    """

    body: bytes
    transform: Callable[[bytes], bytes] | None = None
    fault: ProxyFault | None = None
    source: Source = "server"


def turn_answer(
    turn: Turn, request: Mapping[str, Any], number: int, created: int, fault: ProxyFault | None = None
) -> OwnAnswer:
    """A turn as the answer to a request, streamed if the request asks for it.

    Args:
        turn: What the model says.
        request: The chat request.
        number: The exchange's number, which makes ids unique.
        created: Unix time in seconds.
        fault: What goes wrong on purpose.
    """
    model, completion_id = str(request.get("model", "")), f"chatcmpl-harness-{number}"
    if request.get("stream"):
        events = sse_events(turn, model=model, created=created, completion_id=completion_id)
        return OwnAnswer("scripted", 200, "text/event-stream", events, fault)
    whole = completion(turn, model=model, created=created, completion_id=completion_id)
    return OwnAnswer("scripted", 200, "application/json", [json.dumps(whole).encode("ascii")], fault)


def http_error(fault: ProxyFault) -> OwnAnswer:
    """An HTTP error on purpose, in llama-server's form (tools/server, build 11549)."""
    error = {"code": fault.status, "message": fault.message, "type": _ERROR_TYPES.get(fault.status, "server_error")}
    body = json.dumps({"error": error}).encode("ascii")
    return OwnAnswer("scripted", fault.status, "application/json; charset=utf-8", [body])


def first_events(pieces: Iterable[bytes], count: int) -> Iterator[bytes]:
    """The first `count` server-sent events of a stream, however it is split."""
    left, pending = count, b""
    for piece in pieces if left else ():
        *events, pending = (pending + piece).split(b"\n\n")
        for event in events[:left]:
            yield event + b"\n\n"
        left -= min(left, len(events))
        if not left:
            return
    if pending:
        yield pending


def error_event(message: str) -> bytes:
    """An error in mid-stream, as llama-server sends it (tools/server, build 11549)."""
    error = {"code": 500, "message": message, "type": "server_error"}
    return b"data: " + json.dumps({"error": error}).encode("ascii") + b"\n\n"
