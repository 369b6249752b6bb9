"""Cassettes: what a server answered, so that the same OpenCode run needs no server.

A cassette is one JSONL file, read and compared line by line (`schemas/cassette.schema.json`): a header with where it
comes from; a `frame` line for each set of system prompt and tools; and a line for each chat request, in its order,
with the messages that it added and the events of the answer with their times. Events with the same time arrived
together. What differs from run to run is written as placeholders.

An answer is given only to the request that it was recorded for. A request that differs says why: a tool that answered
otherwise is one thing (`tool-diverged`), an OpenCode that asks otherwise another (`stale-cassette`).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.resources
import json
import os
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from opencode_harness.errors import HarnessError
from opencode_harness.placeholders import Placeholders
from opencode_harness.secret_scan import find_secret

__all__ = ["CassetteError", "CassetteMismatch", "RecordedAnswer", "Recorder", "Take", "Tape", "read_header"]

_VERSION = 1
_LARGEST_LINE_BYTES = 64 * 1024 * 1024
_DIFF_LINES = 24
_DIFF_COLUMNS = 200


class CassetteError(HarnessError):
    """A cassette that cannot be read or written."""

    exit_code = 2


class CassetteMismatch(HarnessError):
    """A request that the cassette has no answer for.

    Attributes:
        kind: `tool-diverged` or `stale-cassette`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class RecordedAnswer:
    """What was answered.

    Attributes:
        status: HTTP status.
        content_type: Of the body.
        events: Time since the request, in seconds, and the event's payload; a text stands for an event that is no
            JSON object.
        body: The body of an answer that was no event stream, or None.
    """

    status: int
    content_type: str
    events: tuple[tuple[float, Any], ...] = ()
    body: str | None = None


@dataclass(frozen=True)
class _Recorded:
    lane: str
    frame: str
    messages: tuple[dict[str, Any], ...]
    answer: RecordedAnswer


@dataclass(frozen=True)
class _Frame:
    system: list[Any]
    tools: list[Any]

    @property
    def name(self) -> str:
        return _digest([self.system, self.tools])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("ascii")).hexdigest()[:12]


def _asked(request: Mapping[str, Any], places: Placeholders) -> tuple[_Frame, tuple[dict[str, Any], ...]]:
    """A request as a cassette holds it: its frame, and its other messages."""
    raw = request.get("messages")
    messages = [places.hide(message) for message in raw if isinstance(message, dict)] if isinstance(raw, list) else []
    tools = request.get("tools")
    frame = _Frame(
        [message for message in messages if message.get("role") == "system"],
        places.hide(tools) if isinstance(tools, list) else [],
    )
    return frame, tuple(message for message in messages if message.get("role") != "system")


@cache
def _validator(definition: str) -> jsonschema.Draft202012Validator:
    source = importlib.resources.files("opencode_harness").joinpath("schemas/cassette.schema.json")
    schema = json.loads(source.read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{definition}", "$defs": schema["$defs"]})


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    hint = "delete it to record it again"
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_LARGEST_LINE_BYTES):
                number += 1
                yield number, _checked(path, number, line)
    except OSError as error:
        raise CassetteError(f"{path}: {error.strerror}", hint=hint) from error


def _checked(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(line)
        kinds = [name for name in ("cassette", "lane", "frame") if isinstance(raw, dict) and name in raw]
        if not kinds:
            raise ValueError("neither a header, a frame nor an exchange")
        definition = {"cassette": "header", "lane": "exchange", "frame": "frame"}[kinds[0]]
        fault = next(_validator(definition).iter_errors(raw), None)
        if fault is not None:
            raise ValueError(f"{fault.json_path}: {fault.message[:_DIFF_COLUMNS]}")
    except (ValueError, RecursionError) as error:
        message = str(error) or "nested too deeply"
        raise CassetteError(f"{path}:{number}: {message}", hint="delete it to record it again") from error
    checked: dict[str, Any] = raw
    return checked


def read_header(path: Path) -> dict[str, Any]:
    """A cassette's header: `scenario` and `provenance`.

    Raises:
        CassetteError: The file cannot be read, or begins with no header.
    """
    for number, line in _lines(path):
        if "cassette" in line:
            return line
        raise CassetteError(f"{path}:{number}: the first line is no header", hint="delete it to record it again")
    raise CassetteError(f"{path}: the cassette is empty", hint="delete it to record it again")


class Tape:
    """Plays a cassette.

    Args:
        path: The cassette.
        trial: The trial's folder, which stands in place of the recorded one.
        speed: 0 answers at once; 1 keeps the recorded times, 2 plays twice as fast.

    Raises:
        CassetteError: The file cannot be read, or is no cassette.
    """

    def __init__(self, path: Path, trial: Path, *, speed: float = 0.0) -> None:
        self._path = path
        self._places = Placeholders(trial)
        self._speed = speed
        self._stopped = threading.Event()
        self.header = read_header(path)
        self._frames: dict[str, _Frame] = {}
        self._queues: defaultdict[str, deque[_Recorded]] = defaultdict(deque)
        self._lengths: dict[str, int] = {}
        self._load()

    def _load(self) -> None:
        said: dict[str, tuple[dict[str, Any], ...]] = {}
        for number, line in _lines(self._path):
            if "lane" in line:
                recorded = self._exchange(number, line, said.get(line["lane"], ()))
                said[recorded.lane] = recorded.messages
                self._queues[recorded.lane].append(recorded)
            elif "frame" in line:
                self._frames[line["frame"]] = _Frame(line["system"], line["tools"])
        self._lengths = {lane: len(queue) for lane, queue in self._queues.items()}

    def _exchange(self, number: int, line: Mapping[str, Any], before: tuple[dict[str, Any], ...]) -> _Recorded:
        if line["frame"] not in self._frames or line["kept"] > len(before):
            message = f"{self._path}:{number}: it refers to a line that is not there"
            raise CassetteError(message, hint="delete it to record it again")
        events = tuple((float(at_s), payload) for at_s, payload in line.get("events", []))
        answer = RecordedAnswer(line["status"], line["content_type"], events, line.get("body"))
        return _Recorded(line["lane"], line["frame"], (*before[: line["kept"]], *line["messages"]), answer)

    @property
    def left(self) -> int:
        """Recorded answers that were not asked for yet."""
        return sum(len(queue) for queue in self._queues.values())

    def stop(self) -> None:
        """End all answers that keep the recorded times."""
        self._stopped.set()

    def next_for(self, lane: str, request: Mapping[str, Any], *, keep: bool = False) -> RecordedAnswer:
        """The answer to a lane's next request.

        Args:
            lane: The conversation.
            request: The request's body.
            keep: Leave the answer for the next request, too.

        Raises:
            CassetteMismatch: The request is not the one that was recorded.
        """
        queue = self._queues[lane]
        place = f"{self._path}, request {self._lengths.get(lane, 0) - len(queue) + 1} of the {lane} lane"
        if not queue:
            count = self._lengths.get(lane, 0)
            raise CassetteMismatch("stale-cassette", f"{place}: OpenCode asks for more than the {count} recorded")
        recorded = queue[0]
        self._compare(place, recorded, *_asked(request, self._places))
        return queue[0].answer if keep else queue.popleft().answer

    def _compare(self, place: str, recorded: _Recorded, frame: _Frame, messages: Sequence[dict[str, Any]]) -> None:
        for index in range(max(len(recorded.messages), len(messages))):
            then = recorded.messages[index] if index < len(recorded.messages) else None
            now = messages[index] if index < len(messages) else None
            if then != now:
                raise _mismatch(place, index, then, now)
        then_frame = self._frames[recorded.frame]
        for what, old, new in (
            ("system prompt", then_frame.system, frame.system),
            ("tools", then_frame.tools, frame.tools),
        ):
            if old != new:
                version = self.header["provenance"].get("opencode")
                recorded_by = f" (recorded with OpenCode {version})" if isinstance(version, str) else ""
                message = f"{place}: OpenCode changed its {what}{recorded_by}\n{_difference(old, new)}"
                raise CassetteMismatch("stale-cassette", message)

    def pieces(self, answer: RecordedAnswer) -> Iterator[bytes]:
        """The body of an answer in the pieces, and at the times, in which it came."""
        if answer.body is not None:
            yield self._places.show(answer.body).encode("utf-8", "surrogatepass")
            return
        started_s = time.monotonic()
        position = 0
        while position < len(answer.events):
            at_s = answer.events[position][0]
            together = []
            while position < len(answer.events) and answer.events[position][0] == at_s:
                together.append(_wire_event(self._places.show(answer.events[position][1])))
                position += 1
            if self._speed > 0:
                wait_s = at_s / self._speed - (time.monotonic() - started_s)
                if wait_s > 0 and self._stopped.wait(wait_s):
                    return
            yield b"".join(together)


def _mismatch(
    place: str, index: int, then: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> CassetteMismatch:
    role = str((now or then or {}).get("role", ""))
    if then is not None and now is not None and then.get("role") == now.get("role") == "tool":
        message = f"{place}: a tool answered otherwise than when this was recorded (message {index + 1})"
        return CassetteMismatch("tool-diverged", f"{message}\n{_difference(then.get('content'), now.get('content'))}")
    message = f"{place}: OpenCode's {role} message {index + 1} differs from the recorded one"
    return CassetteMismatch("stale-cassette", f"{message}\n{_difference(then, now)}")


def _difference(then: Any, now: Any) -> str:
    """The first lines that differ, as a person reads them."""
    old, new = (_as_lines(value) for value in (then, now))
    lines = list(difflib.unified_diff(old, new, "recorded", "now", lineterm="", n=1))
    shown = [_near_change(line) for line in lines[:_DIFF_LINES]]
    return "\n".join([*shown, f"… {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else shown)


def _near_change(line: str) -> str:
    return line if len(line) <= _DIFF_COLUMNS else line[:_DIFF_COLUMNS] + f"… ({len(line)} characters)"


def _as_lines(value: Any) -> list[str]:
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    # Texts inside JSON keep their own lines: a prompt of ten thousand characters is not one line of a difference.
    return text.replace("\\n", "\n").splitlines()


def _wire_event(payload: Any) -> bytes:
    if isinstance(payload, str):
        return payload.encode("utf-8", "surrogatepass") + b"\n\n"
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode("ascii") + b"\n\n"


@dataclass
class Take:
    """One answer while it is recorded."""

    lane: str
    number: int
    request: Mapping[str, Any]
    started_s: float
    status: int = 0
    content_type: str = ""
    is_whole: bool = False
    _pending: bytes = b""
    _body: bytearray = field(default_factory=bytearray)
    _events: list[tuple[float, bytes]] = field(default_factory=list)

    def head(self, status: int, content_type: str) -> None:
        """Note how the answer begins."""
        self.status, self.content_type = status, content_type

    def feed(self, data: bytes, now_s: float) -> None:
        """Note a piece of the body."""
        if not self.content_type.startswith("text/event-stream"):
            self._body += data
            return
        *events, self._pending = (self._pending + data.replace(b"\r\n", b"\n")).split(b"\n\n")
        at_s = round(now_s - self.started_s, 3)
        # A comment keeps a connection alive; it says nothing.
        self._events += [(at_s, event) for event in events if event.strip() and not event.startswith(b":")]

    def done(self) -> None:
        """The answer is whole."""
        self.is_whole = True

    def said(self) -> Iterator[str]:
        """Each text that was streamed, put together."""
        channels: defaultdict[tuple[Any, ...], list[str]] = defaultdict(list)
        for _, event in self._events:
            for name, holder, key in _texts_of(_payload(event)):
                channels[name].append(holder[key])
        yield from map("".join, channels.values())

    def answer(self, places: Placeholders) -> RecordedAnswer:
        """What was answered, with placeholders."""
        if not self.content_type.startswith("text/event-stream"):
            text = bytes(self._body).decode("utf-8", "replace")
            return RecordedAnswer(self.status, self.content_type, body=places.hide_places(text))
        events = [(at_s, _payload(event)) for at_s, event in self._events]
        whole = _with_whole_places(events, places)
        shown = tuple((at_s, _hidden(payload, places)) for at_s, payload in whole)
        return RecordedAnswer(self.status, self.content_type, shown)


def _payload(event: bytes) -> Any:
    if event.startswith(b"data: {"):
        try:
            return json.loads(event[6:])
        except (ValueError, RecursionError):
            pass
    return event.decode("utf-8", "replace")


def _hidden(value: Any, places: Placeholders) -> Any:
    if isinstance(value, str):
        return places.hide_places(value)
    if isinstance(value, dict):
        return {name: _hidden(item, places) for name, item in value.items()}
    return [_hidden(item, places) for item in value] if isinstance(value, list) else value


def _with_whole_places(events: list[tuple[float, Any]], places: Placeholders) -> list[tuple[float, Any]]:
    """Events in which no place is split over several: a model streams a path in many tokens."""
    channels: defaultdict[tuple[Any, ...], list[tuple[dict[str, Any], str]]] = defaultdict(list)
    for _, payload in events:
        for name, holder, key in _texts_of(payload):
            channels[name].append((holder, key))
    for parts in channels.values():
        _join_places(parts, places)
    return events


def _texts_of(payload: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], str]]:
    """The streamed texts of an event: which channel each belongs to, and where it stands."""
    choices = payload.get("choices") if isinstance(payload, dict) else None
    for choice in choices if isinstance(choices, list) else []:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict):
            continue
        for key in ("content", "reasoning_content"):
            if isinstance(delta.get(key), str):
                yield (choice.get("index"), key), delta, key
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                yield (choice.get("index"), "arguments", call.get("index")), function, "arguments"


def _join_places(parts: list[tuple[dict[str, Any], str]], places: Placeholders) -> None:
    texts = [holder[key] for holder, key in parts]
    whole = "".join(texts)
    for start, end in places.spans(whole):
        position = 0
        owner: int | None = None
        for index, text in enumerate(texts):
            stop = position + len(text)
            if owner is None and start < stop:
                owner = index
            elif owner is not None and position < end:
                # All that belongs to the place goes to the part in which it begins.
                taken = min(end, stop) - position
                texts[owner] += text[:taken]
                texts[index] = text[taken:]
            position = stop
    for (holder, key), text in zip(parts, texts, strict=True):
        holder[key] = text


class Recorder:
    """Records what a server answers in one trial.

    Args:
        trial: The trial's folder, which is written as a placeholder.
    """

    def __init__(self, trial: Path) -> None:
        self._places = Placeholders(trial)
        self._lock = threading.Lock()
        self._takes: list[Take] = []

    def begin(self, lane: str, number: int, request: Mapping[str, Any], started_s: float) -> Take:
        """Begin to record the answer to a request."""
        take = Take(lane, number, request, started_s)
        with self._lock:
            self._takes.append(take)
        return take

    def lines(self, scenario: str, provenance: Mapping[str, Any]) -> list[str]:
        """The cassette's lines: every whole answer, in the order of the requests."""
        with self._lock:
            takes = sorted((take for take in self._takes if take.is_whole), key=lambda take: take.number)
        lines = [json.dumps({"cassette": _VERSION, "scenario": scenario, "provenance": provenance})]
        frames: set[str] = set()
        said: dict[str, tuple[dict[str, Any], ...]] = {}
        for take in takes:
            frame, messages = _asked(take.request, self._places)
            if frame.name not in frames:
                frames.add(frame.name)
                lines.append(_dumped({"frame": frame.name, "system": frame.system, "tools": frame.tools}))
            kept = _shared(said.get(take.lane, ()), messages)
            said[take.lane] = messages
            lines.append(_dumped(_exchange_line(take, frame.name, kept, messages, self._places)))
        return lines

    def save(self, path: Path, scenario: str, provenance: Mapping[str, Any], *, secrets: Sequence[str] = ()) -> None:
        """Write the cassette, whole or not at all; one that is there is never replaced.

        Raises:
            CassetteError: The file is there, nothing was recorded, something looks like a secret, or the disk.
        """
        lines = self.lines(scenario, provenance)
        if len(lines) == 1:
            raise CassetteError("nothing to record: the server answered no request whole")
        # A model streams a secret in many pieces, none of which is one.
        for text in [*lines, *(text for take in self._takes for text in take.said())]:
            found = find_secret(text, secrets)
            if found is not None:
                message = f"{path} is not written: it would hold {found}"
                raise CassetteError(message, hint="take it out of the scenario's files and prompt, and record again")
        _write_new(path, "\n".join(lines) + "\n")


def _write_new(path: Path, text: str) -> None:
    try:
        if path.exists():
            raise CassetteError(f"{path} is there already", hint="delete it to record it again")
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
                file.write(text)
            Path(name).chmod(0o644)
            os.link(name, path)
        finally:
            Path(name).unlink()
    except FileExistsError as error:
        raise CassetteError(f"{path} is there already", hint="delete it to record it again") from error
    except OSError as error:
        raise CassetteError(f"{path} cannot be written: {error.strerror}") from error


def _dumped(line: Mapping[str, Any]) -> str:
    # Read in a difference: other alphabets as they are, but half a surrogate pair and line separators escaped.
    try:
        text = json.dumps(line, ensure_ascii=False)
        text.encode("utf-8")
        return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x7f", "\\u007f")
    except UnicodeEncodeError:
        return json.dumps(line)


def _shared(before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> int:
    count = 0
    while count < min(len(before), len(now)) and before[count] == now[count]:
        count += 1
    return count


def _exchange_line(
    take: Take, frame: str, kept: int, messages: Sequence[dict[str, Any]], places: Placeholders
) -> dict[str, Any]:
    answer = take.answer(places)
    line: dict[str, Any] = {"lane": take.lane, "frame": frame, "kept": kept, "messages": list(messages[kept:])}
    line |= {"status": answer.status, "content_type": answer.content_type}
    return line | ({"events": answer.events} if answer.body is None else {"body": answer.body})
