"""What happened at the proxy: exchanges, faults, tool results, and their journal, one JSON object a line."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any

from opencode_harness.errors import ProxyError
from opencode_harness.evidence import Source
from opencode_harness.lanes import Lane, text_of
from opencode_harness.turns import ReceivedToolCall

__all__ = ["Exchange", "Fault", "Ledger", "ToolResult", "tool_results_of"]

# The journal names what it keeps, so that a new kind of credential header is never kept by oversight.
_JOURNAL_HEADERS = ("user-agent", "content-type", "x-session-id", "x-parent-session-id")


@dataclass(frozen=True)
class Fault:
    """What a trial cannot recover from.

    Attributes:
        kind: `turns-exhausted`, `unscripted-request`, `no-upstream`, `upstream-unreachable`, `upstream-timeout`,
            `journal-unwritable` or `proxy-error`.
        message: For a person.
        at_s: When, in seconds since the proxy's start.
    """

    kind: str
    message: str
    at_s: float


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered, as OpenCode reported it to the model.

    Attributes:
        name: The tool's name, or an empty string where no earlier message names the call.
        call_id: Id of the call.
        text: The result's text.
    """

    name: str
    call_id: str
    text: str


@dataclass(frozen=True)
class Exchange:
    """One chat request and its answer, as far as it has come. Times are seconds since the proxy's start.

    Attributes:
        number: Counts chat requests from 1, by arrival.
        lane: `main`, `title`, `sub:N` or `other`.
        session_id: OpenCode's session, or None.
        agent_path: Agents from the main one down to the one that asked.
        request: The request's body.
        started_s: When the request had arrived.
        first_byte_s: When the answer's first byte of body was there, or None; a server's keep-alive
            comment counts, so this is not the time to the first token.
        ended_s: When the exchange was over, or None while it is open.
        status: HTTP status that was answered, or None before.
        source: Who answered: the server, a cassette, or the proxy with a turn of the scenario or of its own.
        text: Visible text of the answer.
        reasoning: Reasoning text of the answer.
        tool_calls: Tool calls of the answer.
        finish_reason: As sent, or None.
        usage: Token counts as sent, or None.
        timings: llama.cpp's timings (`cache_n`, `prompt_n`, `predicted_n`, ...), or None.
        error: Why the answer is not whole, or the server's error message, or None.
    """

    number: int
    lane: str
    session_id: str | None
    agent_path: tuple[str, ...]
    request: Mapping[str, Any]
    started_s: float
    first_byte_s: float | None = None
    ended_s: float | None = None
    status: int | None = None
    source: Source = "server"
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ReceivedToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    timings: Mapping[str, Any] | None = None
    error: str | None = None


def tool_results_of(request: Mapping[str, Any]) -> Iterator[ToolResult]:
    """The tool results that a chat request carries, in the order of its messages."""
    names: dict[str, str] = {}
    messages = request.get("messages")
    for message in messages if isinstance(messages, list) else []:
        if not isinstance(message, dict):
            continue
        names.update(_called(message))
        if message.get("role") == "tool":
            call_id = str(message.get("tool_call_id", ""))
            yield ToolResult(names.get(call_id, ""), call_id, text_of(message))


def _called(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield str(call.get("id", "")), str(function.get("name", ""))


class Ledger:
    """What happened so far; every change is made under `changed` and notifies it.

    Args:
        journal: File that every exchange is appended to at its start and its end, or None.
        secret: Text that is never recorded, or None.
    """

    def __init__(self, journal: Path | None, *, secret: str | None) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.exchanges: dict[int, Exchange] = {}
        self.faults: list[Fault] = []
        self.open_requests = 0
        self._heard_s: dict[int, float] = {}
        self._journal = journal
        self._secret = secret
        self._stream: FileIO | None = None
        self._zero = time.monotonic()

    def open(self) -> None:
        """Open the journal and set the clock to zero.

        Raises:
            ProxyError: The journal cannot be written.
        """
        self._zero = time.monotonic()
        if self._journal is None:
            return
        try:
            self._stream = self._journal.open("ab", buffering=0)
        except OSError as error:
            raise ProxyError(
                f"{self._journal}: the journal cannot be written: {error.strerror}",
                hint="name a file in a folder that exists and is yours",
            ) from error

    def close(self) -> None:
        """Close the journal."""
        with self.changed:
            stream, self._stream = self._stream, None
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def now_s(self) -> float:
        """Seconds since `open`."""
        return time.monotonic() - self._zero

    @contextmanager
    def open_request(self) -> Iterator[None]:
        """Count a request as open inside the block."""
        self._count(+1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, difference: int) -> None:
        with self.changed:
            self.open_requests += difference
            self.changed.notify_all()

    def fault(self, kind: str, message: str) -> None:
        """Record what a trial cannot recover from."""
        with self.changed:
            self.faults.append(Fault(kind, self._without_secret(message), self.now_s()))
            self.changed.notify_all()

    def start(self, lane: Lane, request: Mapping[str, Any], headers: Mapping[str, str]) -> Exchange:
        """Record that a chat request has arrived."""
        kept = {name: headers[name] for name in _JOURNAL_HEADERS if name in headers}
        with self.changed:
            number = len(self.exchanges) + 1
            exchange = Exchange(number, lane.name, lane.session_id, lane.agent_path, request, self.now_s())
            self.exchanges[number] = exchange
            self._heard_s[number] = exchange.started_s
            self._write({"event": "start", **_started(exchange), "headers": kept, "request": request})
            self.changed.notify_all()
        return exchange

    def heard(self, number: int) -> None:
        """Note that a token of an exchange's answer has come."""
        self._heard_s[number] = self.now_s()

    def end(self, exchange: Exchange) -> None:
        """Record that a chat request was answered, as far as it was."""
        with self.changed:
            exchange = replace(exchange, ended_s=self.now_s())
            self.exchanges[exchange.number] = exchange
            self._heard_s.pop(exchange.number, None)
            self._write({"event": "end", **_ended(exchange)})
            self.changed.notify_all()

    def silence_s(self) -> float:
        """How long the quietest of the open chat requests has been without a token."""
        with self.changed:
            return max((self.now_s() - heard_s for heard_s in self._heard_s.values()), default=0.0)

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(self._without_secret(json.dumps(record)).encode("ascii") + b"\n")
        except OSError as error:
            # A full disk must not break the conversation; the trial hears of it once.
            self._stream.close()
            self._stream = None
            self.fault("journal-unwritable", f"{self._journal}: {error.strerror}")

    def _without_secret(self, text: str) -> str:
        if not self._secret:
            return text
        # Inside JSON a key may be written with escapes.
        return text.replace(self._secret, "[key]").replace(json.dumps(self._secret)[1:-1], "[key]")


_START_FIELDS = ("number", "lane", "session_id", "agent_path", "started_s")


def _started(exchange: Exchange) -> dict[str, Any]:
    return {name: getattr(exchange, name) for name in _START_FIELDS}


def _ended(exchange: Exchange) -> dict[str, Any]:
    record = asdict(replace(exchange, request={}))
    del record["request"]
    return record
