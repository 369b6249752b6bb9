"""A chat completion as data, whether it came whole or in pieces (llama.cpp's tools/server, OpenAI's wire format)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ChatAnswer", "StreamedAnswer", "ToolCall", "whole_answer"]


@dataclass(frozen=True)
class ToolCall:
    """One call that the model asks for; `arguments` is the text as it came, which should be JSON."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ChatAnswer:
    """What the model answered.

    Attributes:
        content: Its text.
        reasoning: What it thought before, where the server tells that apart.
        tool_calls: The calls that it asks for.
        finish_reason: Why it ended: `stop`, `length`, `tool_calls`; None where the server does not say.
        timings: The server's own: `cache_n` and `prompt_n` are tokens reused and computed.
    """

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    timings: Mapping[str, Any]


def whole_answer(document: Any) -> ChatAnswer:
    """The answer in a document that came at once; what is missing in it is empty."""
    pieces = StreamedAnswer()
    pieces.take_document(document, "message")
    return pieces.answer()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


@dataclass
class StreamedAnswer:
    """Puts the pieces of a stream together.

    Attributes:
        error: What the server said went wrong in the middle, or an empty string.
    """

    error: str = ""
    _content: str = ""
    _reasoning: str = ""
    _calls: dict[int, list[str]] = field(default_factory=dict)
    _finish_reason: str | None = None
    _timings: Mapping[str, Any] = field(default_factory=dict)

    def take(self, line: bytes) -> None:
        """Take a line of the stream (server-sent events).

        Raises:
            ValueError: It is no JSON.
        """
        label, _, data = line.partition(b":")
        if label == b"error":
            self.error = data.decode("utf-8", "replace").strip()
        elif label == b"data" and data.strip() != b"[DONE]":
            self.take_document(json.loads(data), "delta")

    def take_document(self, document: object, key: str) -> None:
        """Take a piece, or the whole answer: `key` is where its message lies, `delta` or `message`."""
        whole = _mapping(document)
        if "error" in whole:
            self.error = _text(_mapping(whole["error"]).get("message")) or json.dumps(whole["error"])
        self._timings = _mapping(whole.get("timings")) or self._timings
        choices = whole.get("choices")
        choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
        self._finish_reason = _text(choice.get("finish_reason")) or self._finish_reason
        message = _mapping(choice.get(key))
        self._content += _text(message.get("content"))
        self._reasoning += _text(message.get("reasoning_content"))
        calls = message.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else []):
            function = _mapping(_mapping(call).get("function"))
            number = _mapping(call).get("index", place)
            name, arguments = self._calls.setdefault(number if isinstance(number, int) else place, ["", ""])
            self._calls[number] = [name + _text(function.get("name")), arguments + _text(function.get("arguments"))]

    def answer(self) -> ChatAnswer:
        """All of it so far."""
        calls = tuple(ToolCall(*self._calls[number]) for number in sorted(self._calls))
        return ChatAnswer(self._content, self._reasoning, calls, self._finish_reason, self._timings)
