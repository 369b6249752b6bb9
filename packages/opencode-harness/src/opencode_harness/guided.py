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


def _parts(turn: Turn) -> list[str]:
    """What the server is made to say: the text, if any, then each call's arguments."""
    return [*([turn.text] if turn.text else []), *(call.wire_arguments for call in turn.tool_calls)]


def guided_body(request: Mapping[str, Any], turn: Turn) -> bytes:
    """The request to send so that the server says the turn."""
    body = {key: value for key, value in request.items() if key not in {"tools", "tool_choice"}}
    return json.dumps({**body, "grammar": literal_grammar(_SEPARATOR.join(_parts(turn)))}).encode("ascii")


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
        # Which part is being said, and how many characters of it are still to come. Parts are told apart by their
        # lengths: each may hold separators of its own.
        self._part = 0
        self._lengths = [len(part) for part in _parts(turn)] or [0]
        self._left = self._lengths[0]
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
        deltas: list[dict[str, Any]] = []
        while content:
            is_last = self._part == len(self._lengths) - 1
            piece, content = (content, "") if is_last else (content[: self._left], content[self._left :])
            self._left -= len(piece)
            if piece:
                deltas += self._delta(piece)
            if content:
                content = content.removeprefix(_SEPARATOR)
                self._part += 1
                self._left = self._lengths[self._part]
        return deltas

    def _delta(self, piece: str) -> list[dict[str, Any]]:
        index = self._part - (1 if self._turn.text else 0)
        if index < 0:
            return [{"content": piece}]
        deltas: list[dict[str, Any]] = []
        if index not in self._begun:
            self._begun.add(index)
            function = {"name": self._turn.tool_calls[index].name, "arguments": ""}
            deltas.append(
                {"tool_calls": [{"index": index, "id": self._ids[index], "type": "function", "function": function}]}
            )
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        return deltas


def _event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode("ascii") + b"\n\n"
