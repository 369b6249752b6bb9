"""What a model says in one turn, and how it looks on the wire in both directions.

A `Turn` is written by a scenario and goes out as an OpenAI chat completion (`sse_events`, `completion`). An
`AnswerReader` takes the same format apart again, whoever produced it. Nothing here touches a socket or a clock.

The wire format is that of llama.cpp's `llama-server` (tools/server, build 11549): `chat.completion.chunk` events with
`choices[0].delta`, then an event with `finish_reason`, then `usage` (asked for with `stream_options.include_usage`)
and llama.cpp's own `timings` in the last event, then `data: [DONE]`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opencode_harness.errors import HarnessError

__all__ = [
    "Answer",
    "AnswerReader",
    "ReceivedToolCall",
    "ToolCall",
    "Turn",
    "TurnError",
    "completion",
    "read_completion",
    "sse_events",
    "substitute",
]

# A scripted turn was computed by nobody, so its usage is a constant: small, which never triggers OpenCode's
# compaction, and the same in every run, which keeps screens comparable.
_SCRIPTED_USAGE: Mapping[str, int] = {"prompt_tokens": 100, "completion_tokens": 10}
_PIECE_CHARS = 4
_MAX_PIECES = 32
_TURN_KEYS = frozenset({"text", "reasoning", "tool_calls", "finish_reason", "lane", "usage"})
_CALL_KEYS = frozenset({"name", "arguments", "arguments_text"})
_LANE = re.compile(r"main|other|sub:[1-9]\d*")
# An event without a blank line at its end is dropped beyond this size: it is not an event stream.
_MAX_EVENT_BYTES = 16 * 1024 * 1024


class TurnError(HarnessError):
    """A turn that cannot be served.

    Attributes:
        key: The key at fault, such as `tool_calls[0].name`, or an empty string for the turn as a whole.
    """

    exit_code = 2

    def __init__(self, key: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"{key}: {message}" if key else message, hint=hint)
        self.key = key


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model calls.

    Attributes:
        name: The tool.
        arguments: By name.
        arguments_text: What is sent in their place, for a model that does not keep to JSON.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    arguments_text: str | None = None

    @property
    def wire_arguments(self) -> str:
        """The arguments as they are sent."""
        return json.dumps(self.arguments) if self.arguments_text is None else self.arguments_text


@dataclass(frozen=True)
class Turn:
    """One answer of the model.

    Attributes:
        tool_calls: Tools it calls, in order; OpenCode runs them together.
        text: What it says, or None where it only calls tools.
        finish_reason: Why it ended: `stop`, `tool_calls` or `length`.
        reasoning: What it thinks before, or None.
        lane: The conversation that it belongs to: `main`, `sub:N`, or `other` (a compaction).
        usage: Token counts that differ from the usual ones: `prompt_tokens`, `completion_tokens`.
    """

    tool_calls: tuple[ToolCall, ...] = ()
    text: str | None = None
    finish_reason: str = "stop"
    reasoning: str | None = None
    lane: str = "main"
    usage: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> Turn:
        """Build a turn from a scenario's `turns` entry.

        Without `finish_reason` it is `tool_calls` where the turn calls tools, and `stop` otherwise.

        Raises:
            TurnError: Unknown keys, wrong types, or a turn that neither speaks nor calls.
        """
        _known_keys("", raw, _TURN_KEYS)
        text, reasoning = _text_or_none(raw, "text"), _text_or_none(raw, "reasoning")
        calls = raw.get("tool_calls") or []
        if not isinstance(calls, list):
            raise TurnError("tool_calls", f"must be a list, found {calls!r}")
        tool_calls = tuple(_tool_call(f"tool_calls[{index}]", call) for index, call in enumerate(calls))
        if text is None and reasoning is None and not tool_calls:
            raise TurnError("", "a turn needs text, reasoning or tool_calls", hint="write for example {text: Done.}")
        finish_reason = raw.get("finish_reason") or ("tool_calls" if tool_calls else "stop")
        if not isinstance(finish_reason, str):
            raise TurnError("finish_reason", f"must be text, found {finish_reason!r}")
        lane = raw.get("lane", "main")
        if not isinstance(lane, str) or not _LANE.fullmatch(lane):
            raise TurnError("lane", f"must be main, sub:1, sub:2 … or other, found {lane!r}")
        return cls(tool_calls, text, finish_reason, reasoning, lane, _usage(raw.get("usage", {})))

    def usage_counts(self) -> dict[str, int]:
        """The token counts that the answer carries."""
        counts = {**_SCRIPTED_USAGE, **self.usage}
        return {**counts, "total_tokens": counts["prompt_tokens"] + counts["completion_tokens"]}


def _text_or_none(raw: Mapping[str, Any], key: str) -> str | None:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise TurnError(key, f"must be text, found {value!r}")
    return value


def _usage(raw: object) -> dict[str, int]:
    if not isinstance(raw, Mapping):
        raise TurnError("usage", f"must hold prompt_tokens or completion_tokens, found {raw!r}")
    _known_keys("usage", raw, frozenset(_SCRIPTED_USAGE))
    for name, count in raw.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise TurnError(f"usage.{name}", f"must be a number of tokens, found {count!r}")
    return dict(raw)


def _tool_call(key: str, raw: object) -> ToolCall:
    if not isinstance(raw, Mapping):
        raise TurnError(key, f"must have name and arguments, found {raw!r}")
    _known_keys(key, raw, _CALL_KEYS)
    name, arguments = raw.get("name"), raw.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise TurnError(f"{key}.name", f"must name a tool, found {name!r}")
    if not isinstance(arguments, Mapping):
        raise TurnError(f"{key}.arguments", f"must map names to values, found {arguments!r}")
    arguments_text = _text_or_none(raw, "arguments_text")
    if arguments_text is not None and "arguments" in raw:
        raise TurnError(key, "has both arguments and arguments_text", hint="keep one of them")
    return ToolCall(name, arguments, arguments_text)


def _known_keys(key: str, raw: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in raw:
        if name not in known:
            raise TurnError(key, f"unknown key {name!r}", hint="known keys: " + ", ".join(sorted(known)))


def substitute(turns: Iterable[Turn], places: Mapping[str, str]) -> tuple[Turn, ...]:
    """Put real paths in place of `{name}` in every text and argument, for the names of `places` only.

    Other braces stay as they are, so that JSON and code can be written plainly. A replacement is not looked at again.
    """
    if not places:
        return tuple(turns)
    pattern = re.compile(r"\{(" + "|".join(map(re.escape, places)) + r")\}")

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: places[match[1]], value)
        if isinstance(value, Mapping):
            return {fill(key): fill(item) for key, item in value.items()}
        return [fill(item) for item in value] if isinstance(value, list) else value

    return tuple(
        replace(
            turn,
            text=fill(turn.text),
            reasoning=fill(turn.reasoning),
            tool_calls=tuple(
                replace(call, arguments=fill(call.arguments), arguments_text=fill(call.arguments_text))
                for call in turn.tool_calls
            ),
        )
        for turn in turns
    )


def sse_events(turn: Turn, *, model: str, created: int, completion_id: str) -> Iterator[bytes]:
    """A turn as a streamed chat completion, one complete server-sent event (with its blank line) at a time.

    Args:
        turn: What the model says.
        model: Name of the model, as the request asked for it.
        created: Unix time in seconds.
        completion_id: Unique for each answer; ids of tool calls are made from it.
    """
    frame = {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": model}
    for delta in _deltas(turn, completion_id):
        yield _event({**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    last = {"index": 0, "delta": {}, "finish_reason": turn.finish_reason}
    yield _event({**frame, "choices": [last], "usage": turn.usage_counts()})
    yield b"data: [DONE]\n\n"


def _deltas(turn: Turn, completion_id: str) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if turn.text is None else ""}
    for piece in _pieces(turn.reasoning or ""):
        yield {"reasoning_content": piece}
    for piece in _pieces(turn.text or ""):
        yield {"content": piece}
    for index, call in enumerate(_wire_calls(turn, completion_id)):
        head = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        yield {"tool_calls": [head]}
        for piece in _pieces(call["function"]["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _wire_calls(turn: Turn, completion_id: str) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{completion_id}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.wire_arguments},
        }
        for index, call in enumerate(turn.tool_calls)
    ]


def _pieces(text: str) -> Iterator[str]:
    size = max(_PIECE_CHARS, math.ceil(len(text) / _MAX_PIECES))
    return (text[start : start + size] for start in range(0, len(text), size))


def _event(payload: Mapping[str, Any]) -> bytes:
    # Escaped to ASCII: a scenario may hold half a surrogate pair, which UTF-8 cannot carry and JSON can.
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode("ascii") + b"\n\n"


def completion(turn: Turn, *, model: str, created: int, completion_id: str) -> dict[str, Any]:
    """A turn as a chat completion in one piece, for a request with `stream: false`."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if turn.tool_calls:
        message["tool_calls"] = _wire_calls(turn, completion_id)
    return {
        "id": completion_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": turn.finish_reason}],
        "usage": turn.usage_counts(),
    }


@dataclass(frozen=True)
class ReceivedToolCall:
    """A tool call as a model sent it.

    Attributes:
        call_id: The id that the tool's result will carry.
        name: Name of the tool.
        arguments_text: The arguments as sent: JSON, if the model kept to the format.
    """

    call_id: str
    name: str
    arguments_text: str

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments by name, or None where their text is not a JSON object."""
        try:
            value = json.loads(self.arguments_text)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Answer:
    """What an answer held, as far as it came.

    Attributes:
        text: The visible text.
        reasoning: Text of the `reasoning_content` channel.
        tool_calls: Tool calls in the order of their index.
        finish_reason: As sent, or None when the answer was cut before.
        usage: Token counts as sent, or None.
        timings: llama.cpp's timings (`prompt_n`, `cache_n`, `predicted_n`, ...), or None.
        error: Message of an error object inside the answer, or None.
        ended: Whether `data: [DONE]` (streamed), or a whole JSON object (not streamed), was seen.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ReceivedToolCall, ...] = ()
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    error: str | None = None
    ended: bool = False


@dataclass
class _CallParts:
    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class AnswerReader:
    """Takes a streamed completion apart while its bytes arrive; where they are split makes no difference.

    Bytes that are not part of the format are skipped: the reader watches a stream that belongs to others, and must
    never be the reason that it breaks.

    Attributes:
        deltas: How many pieces of text, reasoning or calls have come; llama-server sends one for each token.
    """

    def __init__(self) -> None:
        self.deltas = 0
        self._pending = bytearray()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _CallParts] = {}
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._timings: dict[str, Any] | None = None
        self._error: str | None = None
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        # Only the new bytes can hold a line's end: a long event that comes in many reads is not searched again.
        if b"\n" not in data:
            self._pending += data
            if len(self._pending) > _MAX_EVENT_BYTES:
                self._pending.clear()
            return
        *lines, rest = (bytes(self._pending) + data).split(b"\n")
        self._pending = bytearray(rest)
        for line in lines:
            self._take_line(line.rstrip(b"\r"))

    def _take_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name not in {b"data", b"error"}:
            return
        if value.strip() == b"[DONE]":
            self._ended = True
            return
        try:
            payload = json.loads(value)
        except (ValueError, RecursionError):
            return
        if isinstance(payload, dict):
            # llama-server reports a fault in mid-stream as an `error:` line or as a data object with that key.
            self._take_payload({"error": payload} if name == b"error" and "error" not in payload else payload)

    def _take_payload(self, payload: dict[str, Any]) -> None:
        self._usage = _mapping(payload.get("usage")) or self._usage
        self._timings = _mapping(payload.get("timings")) or self._timings
        if "error" in payload:
            self._error = _error_message(payload["error"])
        for choice in _mappings(payload.get("choices")):
            self._take_delta(_mapping(choice.get("delta")) or _mapping(choice.get("message")) or {})
            reason = choice.get("finish_reason")
            self._finish_reason = reason if isinstance(reason, str) else self._finish_reason

    def _take_delta(self, delta: dict[str, Any]) -> None:
        self.deltas += any(delta.get(key) for key in ("content", "reasoning_content", "tool_calls"))
        for key, parts in (("content", self._text), ("reasoning_content", self._reasoning)):
            value = delta.get(key)
            if isinstance(value, str):
                parts.append(value)
        for position, call in enumerate(_mappings(delta.get("tool_calls"))):
            self._take_call(position, call)

    def _take_call(self, position: int, call: dict[str, Any]) -> None:
        index = call.get("index", position)
        parts = self._calls.setdefault(index if isinstance(index, int) else position, _CallParts())
        function = _mapping(call.get("function")) or {}
        parts.call_id = _text(call.get("id")) or parts.call_id
        parts.name += _text(function.get("name"))
        parts.arguments.append(_text(function.get("arguments")))

    @property
    def answer(self) -> Answer:
        """What has been read so far."""
        calls = (self._calls[index] for index in sorted(self._calls))
        return Answer(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(ReceivedToolCall(call.call_id, call.name, "".join(call.arguments)) for call in calls),
            finish_reason=self._finish_reason,
            usage=self._usage,
            timings=self._timings,
            error=self._error,
            ended=self._ended,
        )


def read_completion(body: bytes) -> Answer:
    """What an answer in one piece held: a chat completion, or an error object; other bytes give an empty answer."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        return Answer()
    if not isinstance(payload, dict):
        return Answer()
    reader = AnswerReader()
    reader._take_payload(payload)
    return replace(reader.answer, ended=True)


def _mapping(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _mappings(value: object) -> Sequence[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _error_message(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else json.dumps(error)
