"""Guided turns: the real server is made to say a scripted turn, so that slots, cache and timings are real.

The server gets the conversation with a grammar that allows one text only: the turn's own, or the arguments of its
tool calls. What it streams is turned back into text and tool calls on the way to OpenCode. llama-server refuses a
grammar beside tools (build 11549), so the tools are left out of what is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from opencode_harness.errors import HarnessError
from opencode_harness.turns import Turn

__all__ = ["GuidedStream", "guided_body", "literal_grammar"]

_SEPARATOR = "\n"
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def literal_grammar(text: str) -> str:
    """A GBNF grammar (llama.cpp, grammars/README.md) of one text.

    Raises:
        HarnessError: The text is empty: a grammar cannot make a model say nothing.
    """
    if not text:
        raise HarnessError("a guided turn needs a text or a tool call", hint="write its text, or leave out `guided`")
    return 'root ::= "' + "".join(_escaped(character) for character in text) + '"\n'


def _escaped(character: str) -> str:
    code = ord(character)
    return _ESCAPES.get(character) or (character if 0x20 <= code != 0x7F else f"\\x{code:02X}")


def _literal(turn: Turn) -> str:
    return _SEPARATOR.join([*([turn.text] if turn.text else []), *(call.wire_arguments for call in turn.tool_calls)])


def guided_body(request: Mapping[str, Any], turn: Turn) -> bytes:
    """The request to send so that the server says the turn."""
    body = {key: value for key, value in request.items() if key not in {"tools", "tool_choice"}}
    return json.dumps({**body, "grammar": literal_grammar(_literal(turn))}).encode("ascii")


class GuidedStream:
    """Turns the server's stream into the turn's text and tool calls, wherever its bytes are split.

    Args:
        turn: What the server says.
        number: The exchange's number, which makes the calls' ids unique.
    """

    def __init__(self, turn: Turn, number: int) -> None:
        self._turn = turn
        self._ids = [f"call_guided_{number}_{index}" for index in range(len(turn.tool_calls))]
        self._pending = b""
        # Which part of the literal is being said: -1 is the text, then the calls in order.
        self._part = -1 if turn.text else 0
        self._text_separators = (turn.text or "").count(_SEPARATOR)
        self._begun: set[int] = set()

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on after these have come."""
        *events, self._pending = (self._pending + data).split(b"\n\n")
        return b"".join(part for event in events for part in self._rewritten(event))

    def _rewritten(self, event: bytes) -> list[bytes]:
        if not event.startswith(b"data: {"):
            return [event + b"\n\n"]
        try:
            payload = json.loads(event[6:])
            choices = payload.get("choices") or [{}]
        except (ValueError, RecursionError):
            return [event + b"\n\n"]
        choice = choices[0]
        content = (choice.get("delta") or {}).get("content")
        if choice.get("finish_reason") == "stop" and self._turn.tool_calls:
            choice["finish_reason"] = "tool_calls"
        if not isinstance(content, str) or not content or not self._turn.tool_calls:
            return [_event(payload)]
        return [_event({**payload, "choices": [{**choice, "delta": delta}]}) for delta in self._deltas(content)]

    def _deltas(self, content: str) -> list[dict[str, Any]]:
        first, *others = content.split(_SEPARATOR)
        deltas = self._delta(first)
        for piece in others:
            if self._part < 0 and self._text_separators:
                self._text_separators -= 1
                deltas += self._delta(_SEPARATOR + piece)
            else:
                self._part += 1
                deltas += self._delta(piece)
        return deltas

    def _delta(self, piece: str) -> list[dict[str, Any]]:
        if self._part < 0:
            return [{"content": piece}] if piece else []
        index = min(self._part, len(self._ids) - 1)
        deltas: list[dict[str, Any]] = []
        if index not in self._begun:
            self._begun.add(index)
            function = {"name": self._turn.tool_calls[index].name, "arguments": ""}
            deltas.append(
                {"tool_calls": [{"index": index, "id": self._ids[index], "type": "function", "function": function}]}
            )
        if piece:
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        return deltas


def _event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode("ascii") + b"\n\n"
