"""A loopback HTTP proxy between OpenCode and the model server, which serves scripted turns or passes real ones on.

What passes is passed on byte for byte as it arrives; a copy is read on the side, so that a trial knows lanes, tool
calls, tool results, token counts and the server's timings without looking at the screen. llama-server sends `timings`
in the last event of every stream without being asked (build 11549), so request bodies are never changed.

OpenCode repeats a request that got a 5xx for ever. Whatever a trial cannot recover from is therefore also recorded as
a `Fault`, and `Proxy.changed` is notified, so that a trial ends with a message instead of a timeout.

Upstream calls use `http.client`: a call must be cut off from another thread while it waits for the answer's first
byte (a long prompt takes minutes), for which the socket has to be at hand before there is a response.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import FileIO
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from opencode_harness.errors import HarnessError
from opencode_harness.lanes import Lane, LaneBook, text_of
from opencode_harness.turns import (
    Answer,
    AnswerReader,
    ReceivedToolCall,
    Turn,
    completion,
    read_completion,
    sse_events,
)

__all__ = ["Exchange", "Fault", "Proxy", "ProxyError", "ToolResult"]

_CHAT_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
_TITLE = Turn(text="Harness session")
_READ_BYTES = 64 * 1024
_MAX_KEPT_BYTES = 16 * 1024 * 1024
# How long stop() waits for threads whose sockets it has closed: they end at once unless the machine is overloaded.
_STOP_TIMEOUT_S = 0.9
_POLL_INTERVAL_S = 0.02
# Headers that describe one connection (RFC 9110, 7.6.1), or that the proxy states itself.
_OWN_HEADERS = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "accept-encoding",  # an answer must come uncompressed to be read on the side
        "expect",
    }
)
# The journal names what it keeps, so that a new kind of credential header is never kept by oversight.
_JOURNAL_HEADERS = ("user-agent", "content-type", "x-session-id", "x-parent-session-id")


class ProxyError(HarnessError):
    """The proxy cannot be started: a wrong upstream address, or a journal that cannot be written."""


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
        scripted: Whether the proxy answered itself.
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
    scripted: bool = False
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ReceivedToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    timings: Mapping[str, Any] | None = None
    error: str | None = None


class Proxy:
    """The proxy of one trial: a context manager that listens on a free port of 127.0.0.1.

    Title requests are always answered by the proxy itself. With `turns`, the main lane gets them in order, and every
    other chat request is a fault; without, chat requests go upstream. Everything else goes upstream where there is
    one. All properties may be read from any thread at any time, also after `stop()`.

    Args:
        upstream: The server's address, such as `http://127.0.0.1:8080` (a trailing `/v1` is ignored), or None.
        turns: The main lane's turns, or empty when the upstream answers.
        journal: File for one JSON object per line, at the start and end of each exchange; appended to.
        upstream_api_key: Sent upstream as bearer key in place of the client's; never recorded.
        connect_timeout_s: For reaching the upstream.
        read_timeout_s: Longest silence of the upstream, the processing of a prompt included.
        max_request_bytes: Larger requests are refused with 413.

    Raises:
        ProxyError: The upstream's address is not an HTTP address.
    """

    def __init__(
        self,
        *,
        upstream: str | None,
        turns: Sequence[Turn] = (),
        journal: Path | None = None,
        upstream_api_key: str | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 600.0,
        max_request_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._upstream = (
            None if upstream is None else _Upstream(upstream, upstream_api_key, connect_timeout_s, read_timeout_s)
        )
        self._turns = tuple(turns)
        self._served = 0
        self._max_request_bytes = max_request_bytes
        self._lanes = LaneBook()
        self._ledger = _Ledger(journal, secret=upstream_api_key)
        self._server: _Server | None = None
        self._base_url = ""

    def __enter__(self) -> Proxy:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen.

        Raises:
            ProxyError: The journal cannot be opened, or the proxy was started before.
        """
        if self._base_url:
            raise ProxyError("this proxy was started before", hint="make a new one for each trial")
        self._ledger.open()
        self._server = _Server(self)
        self._base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._server.start()

    def stop(self) -> None:
        """Cut off open requests, free the port, end all threads, close the journal. Further calls do nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            self._ledger.close()

    @property
    def base_url(self) -> str:
        """Address for OpenCode's provider, ending in `/v1`; empty before `start()`."""
        return self._base_url

    @property
    def changed(self) -> threading.Condition:
        """Notified when an exchange starts or ends and when a fault is recorded."""
        return self._ledger.changed

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults in the order of their recording."""
        with self.changed:
            return tuple(self._ledger.faults)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Chat exchanges in the order of arrival, open ones included."""
        with self.changed:
            return tuple(self._ledger.exchanges.values())

    @property
    def turns_left(self) -> int:
        """Scripted turns that were not asked for yet."""
        with self.changed:
            return len(self._turns) - self._served

    @property
    def open_requests(self) -> int:
        """Requests that are being answered now."""
        with self.changed:
            return self._ledger.open_requests

    @property
    def last_activity_s(self) -> float:
        """When a request last started, received bytes or ended, in seconds since the proxy's start."""
        return self._ledger.last_activity_s

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no request is open; False when the time is up before."""
        with self.changed:
            return self.changed.wait_for(lambda: self._ledger.open_requests == 0, timeout_s)

    def tool_results(self) -> tuple[ToolResult, ...]:
        """What tools answered: each result that a main request carried, once, in the order of appearance."""
        found: dict[tuple[str | None, str], ToolResult] = {}
        for exchange in self.exchanges:
            if exchange.lane == "main":
                for result in _tool_results(exchange.request):
                    found.setdefault((exchange.session_id, result.call_id), result)
        return tuple(found.values())

    def _scripted(self, lane: Lane) -> Turn | None:
        """The turn that the proxy itself answers with, or None where the upstream answers."""
        if lane.name == "title":
            return _TITLE
        if not self._turns:
            return None if self._upstream else self._refuse("no-upstream", "there is neither a turn nor a server")
        if lane.name != "main":
            return self._refuse("unscripted-request", f"turns are for the main agent, but the {lane.name} lane asks")
        with self.changed:
            if self._served < len(self._turns):
                self._served += 1
                return self._turns[self._served - 1]
        return self._refuse("turns-exhausted", f"no turn left: all {len(self._turns)} turns were served")

    def _refuse(self, kind: str, message: str) -> Turn:
        # Not an HTTP error: OpenCode would repeat the request for ever. A last text makes the mistake visible.
        self._ledger.fault(kind, message)
        return Turn(text=f"[harness] {message}")


def _tool_results(request: Mapping[str, Any]) -> Iterator[ToolResult]:
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


class _Ledger:
    """What happened so far; every change is made under `changed` and notifies it."""

    def __init__(self, journal: Path | None, *, secret: str | None) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.exchanges: dict[int, Exchange] = {}
        self.faults: list[Fault] = []
        self.open_requests = 0
        self.last_activity_s = 0.0
        self._journal = journal
        self._secret = secret
        self._stream: FileIO | None = None
        self._zero = time.monotonic()

    def open(self) -> None:
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
        with self.changed:
            stream, self._stream = self._stream, None
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def now_s(self) -> float:
        return time.monotonic() - self._zero

    def touch(self) -> float:
        self.last_activity_s = self.now_s()
        return self.last_activity_s

    @contextmanager
    def open_request(self) -> Iterator[None]:
        self._count(+1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, difference: int) -> None:
        with self.changed:
            self.touch()
            self.open_requests += difference
            self.changed.notify_all()

    def fault(self, kind: str, message: str) -> None:
        with self.changed:
            self.faults.append(Fault(kind, self._without_secret(message), self.now_s()))
            self.changed.notify_all()

    def start(self, lane: Lane, request: Mapping[str, Any], headers: Mapping[str, str]) -> Exchange:
        kept = {name: headers[name] for name in _JOURNAL_HEADERS if name in headers}
        with self.changed:
            number = len(self.exchanges) + 1
            exchange = Exchange(number, lane.name, lane.session_id, lane.agent_path, request, self.touch())
            self.exchanges[number] = exchange
            self._write({"event": "start", **_started(exchange), "headers": kept, "request": request})
            self.changed.notify_all()
        return exchange

    def end(self, exchange: Exchange) -> None:
        with self.changed:
            exchange = replace(exchange, ended_s=self.touch())
            self.exchanges[exchange.number] = exchange
            self._write({"event": "end", **_ended(exchange)})
            self.changed.notify_all()

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


class _Upstream:
    """Where requests go."""

    def __init__(self, url: str, api_key: str | None, connect_timeout_s: float, read_timeout_s: float) -> None:
        parts = _split_url(url)
        self._connection_class = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.api_key = api_key
        self.connect_timeout_s = connect_timeout_s
        self.read_timeout_s = read_timeout_s

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> _UpstreamCall:
        connection = self._connection_class(self._host, self._port, timeout=self.connect_timeout_s)
        sent = {name: value for name, value in headers.items() if name.lower() not in _OWN_HEADERS}
        if self.api_key is not None:
            sent = {name: value for name, value in sent.items() if name.lower() != "authorization"}
            sent["Authorization"] = f"Bearer {self.api_key}"
        sent |= {"Accept-Encoding": "identity", "Connection": "close"}
        return _UpstreamCall(connection, self.read_timeout_s, method, self._prefix + path, sent, body)


def _split_url(url: str) -> SplitResult:
    hint = "write it like http://127.0.0.1:8080"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or 1) > 0
    except ValueError as error:
        raise ProxyError(f"upstream {url!r}: {error}", hint=hint) from error
    if not valid:
        raise ProxyError(f"upstream {url!r} is not an HTTP address", hint=hint)
    return parts


@dataclass
class _UpstreamCall:
    """One request to the upstream, which any thread can cut off at any time."""

    connection: http.client.HTTPConnection
    read_timeout_s: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    aborted: bool = False
    _socket: socket.socket | None = None

    def send(self) -> http.client.HTTPResponse:
        """Send the request and wait for the answer's head.

        Raises:
            OSError: The upstream cannot be reached, hangs up or stays silent; or the call was aborted.
            http.client.HTTPException: What it answers is not HTTP.
        """
        self.connect()
        self.connection.request(self.method, self.path, body=self.body, headers=dict(self.headers))
        return self.connection.getresponse()

    def connect(self) -> None:
        self.connection.connect()
        self._socket = self.connection.sock
        self._socket.settimeout(self.read_timeout_s)
        if self.aborted:
            raise ConnectionAbortedError("aborted before the request was sent")

    def abort(self) -> None:
        self.aborted = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


@dataclass
class _Tap:
    """Reads an answer on the side while it is passed on."""

    ledger: _Ledger
    status: int | None = None
    first_byte_s: float | None = None
    error: str | None = None
    _reader: AnswerReader | None = None
    _body: bytearray = field(default_factory=bytearray)

    def head(self, status: int, content_type: str) -> None:
        self.status = status
        if content_type.startswith("text/event-stream"):
            self._reader = AnswerReader()

    def feed(self, data: bytes) -> None:
        now_s = self.ledger.touch()
        if self.first_byte_s is None:
            self.first_byte_s = now_s
        if self._reader is not None:
            self._reader.feed(data)
        elif len(self._body) + len(data) <= _MAX_KEPT_BYTES:
            self._body += data

    def result(self, exchange: Exchange, *, scripted: bool) -> Exchange:
        answer = self._reader.answer if self._reader is not None else read_completion(bytes(self._body))
        return replace(
            exchange,
            first_byte_s=self.first_byte_s,
            status=self.status,
            scripted=scripted,
            text=answer.text,
            reasoning=answer.reasoning,
            tool_calls=answer.tool_calls,
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            timings=answer.timings,
            error=self._fault_of(answer),
        )

    def _fault_of(self, answer: Answer) -> str | None:
        if self.error is not None or answer.error is not None:
            return self.error or answer.error
        if self.status is not None and self.status >= 400:
            return f"HTTP status {self.status}"
        return None if answer.ended else "the answer ended before it was complete"


class _ClientGone(Exception):
    """The client hung up, or the proxy was stopped, before the answer was complete."""


@contextmanager
def _client_errors() -> Iterator[None]:
    """Tell a client that hung up from a server that did: both are OSErrors."""
    try:
        yield
    except OSError as error:
        raise _ClientGone from error


@contextmanager
def _on_disconnect(client: socket.socket, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` from another thread if the client hangs up inside the block."""
    wake, waker = socket.socketpair()
    thread = threading.Thread(target=_watch, args=(client, wake, action), name="harness-proxy-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        waker.close()
        thread.join()
        wake.close()


def _watch(client: socket.socket, wake: socket.socket, action: Callable[[], None]) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        ready = {key.fileobj for key, _ in selector.select()}
    if wake not in ready and _hung_up(client):
        action()


def _hung_up(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Server(ThreadingHTTPServer):
    """The listening socket, and the connections and threads that came of it."""

    daemon_threads = True

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self.stopping = False
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_INTERVAL_S,), name="harness-proxy", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping = True
        self.shutdown()
        self.server_close()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        for thread in (self._thread, *connections.values()):
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread that `stop()` knows before it runs."""
        thread = threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name="harness-proxy-request",
            daemon=True,
        )
        with self._lock:
            self._connections[request] = thread
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection and forget it."""
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up between two requests is no error; everything else is caught where it happens."""


class _Handler(BaseHTTPRequestHandler):
    """One client connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    _has_body = False
    _chunked = False

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the journal is the log."""

    def _handle(self) -> None:
        ledger = self.server.proxy._ledger
        with ledger.open_request():
            try:
                self._route()
            except _ClientGone:
                self.close_connection = True
            except Exception as error:
                # A defect of the proxy itself: the trial must hear of it, and OpenCode must not hang.
                ledger.fault("proxy-error", f"{type(error).__name__}: {error}")
                self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _handle  # noqa: N815

    def _route(self) -> None:
        path = self.path.partition("?")[0]
        body = self._read_body()
        if body is None:
            return
        if path in _CHAT_PATHS and self.command == "POST":
            self._chat(body)
        elif self.server.proxy._upstream is not None:
            self._forward(self.server.proxy._upstream, body, _Tap(self.server.proxy._ledger))
        else:
            self._send_error(404, "not_found_error", f"{self.command} {path}: this proxy has no upstream server")

    def _read_body(self) -> bytes | None:
        """The request's body, or None when it was refused."""
        limit = self.server.proxy._max_request_bytes
        length = self.headers.get("content-length", "0")
        refusal = None
        if "transfer-encoding" in self.headers:
            refusal = (411, "a request body needs a Content-Length")
        elif not (length.isascii() and length.isdecimal()):
            refusal = (400, f"Content-Length {length!r} is not a number")
        elif len(length) > 18 or int(length) > limit:
            refusal = (413, f"the request has {length} bytes, more than the {limit} that are allowed")
        if refusal is not None:
            self.close_connection = True  # the body was not read: what follows is not a request
            self._send_error(refusal[0], "invalid_request_error", refusal[1])
            return None
        with _client_errors():
            body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise _ClientGone
        return body

    def _chat(self, body: bytes) -> None:
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            return self._send_error(400, "invalid_request_error", f"the request's body is not JSON: {error}")
        if not isinstance(request, dict):
            return self._send_error(400, "invalid_request_error", "the request's body is not a JSON object")
        proxy = self.server.proxy
        with proxy.changed:
            lane = proxy._lanes.assign(self.headers, request)  # type: ignore[arg-type]
            exchange = proxy._ledger.start(lane, request, self.headers)  # type: ignore[arg-type]
        turn = proxy._scripted(lane)
        tap = _Tap(proxy._ledger)
        try:
            if turn is not None:
                self._serve(turn, exchange, tap)
            elif proxy._upstream is not None:
                self._forward(proxy._upstream, body, tap)
        except _ClientGone:
            tap.error = "the proxy was stopped" if self.server.stopping else "the client hung up"
            raise
        finally:
            proxy._ledger.end(tap.result(exchange, scripted=turn is not None))
        return None

    def _serve(self, turn: Turn, exchange: Exchange, tap: _Tap) -> None:
        """Answer with a scripted turn."""
        frame = {
            "model": str(exchange.request.get("model", "")),
            "created": int(time.time()),
            "completion_id": f"chatcmpl-harness-{exchange.number}",
        }
        if not exchange.request.get("stream"):
            tap.head(200, "application/json")
            self._send_json(200, completion(turn, **frame), tap)  # type: ignore[arg-type]
            return
        tap.head(200, "text/event-stream")
        self._send_head(200, [("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache")], None)
        for event in sse_events(turn, **frame):  # type: ignore[arg-type]
            tap.feed(event)
            self._send_data(event)
        self._send_end()

    def _forward(self, upstream: _Upstream, body: bytes, tap: _Tap) -> None:
        """Pass the request on, and the answer back as it arrives."""
        call = upstream.call(self.command, self.path, dict(self.headers.items()), body or None)
        try:
            with _on_disconnect(self.connection, call.abort):
                self._relay(upstream, call, tap)
        finally:
            call.connection.close()

    def _relay(self, upstream: _Upstream, call: _UpstreamCall, tap: _Tap) -> None:
        try:
            response = call.send()
        except (OSError, http.client.HTTPException) as error:
            if call.aborted:
                raise _ClientGone from error
            return self._upstream_failed(upstream, call, error, tap)
        with response:
            tap.head(response.status, response.headers.get("content-type", ""))
            headers = [(name, value) for name, value in response.getheaders() if name.lower() not in _OWN_HEADERS]
            length = None if response.chunked else response.getheader("content-length")
            self._send_head(response.status, headers, None if length is None else int(length))
            self._relay_body(response, call, tap)
        return None

    def _relay_body(self, response: http.client.HTTPResponse, call: _UpstreamCall, tap: _Tap) -> None:
        try:
            while data := response.read1(_READ_BYTES):
                tap.feed(data)
                self._send_data(data)
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
        except (OSError, http.client.HTTPException) as error:
            if call.aborted:
                raise _ClientGone from error
            # A cut is passed on as a cut: the connection ends without the mark of a complete answer.
            silent = isinstance(error, TimeoutError)
            tap.error = f"the server fell silent for {call.read_timeout_s:g} s" if silent else "the server hung up"
            self.close_connection = True
            return
        self._send_end()

    def _upstream_failed(self, upstream: _Upstream, call: _UpstreamCall, error: Exception, tap: _Tap) -> None:
        connected = call._socket is not None
        if isinstance(error, TimeoutError) and connected:
            status, kind = 504, "upstream-timeout"
            message = f"the server at {upstream.address} did not answer within {upstream.read_timeout_s:g} s"
        else:
            status, kind = 502, "upstream-unreachable"
            verb = "hung up before it answered" if connected else "cannot be reached"
            message = f"the server at {upstream.address} {verb}: {error}; is it running?"
        self.server.proxy._ledger.fault(kind, message)
        tap.head(status, "application/json")
        tap.error = message
        self._send_error(status, kind, message)

    def _send_error(self, status: int, kind: str, message: str) -> None:
        self._send_json(status, {"error": {"message": message, "type": kind, "code": status}}, None)

    def _send_json(self, status: int, payload: Mapping[str, Any], tap: _Tap | None) -> None:
        data = json.dumps(payload).encode("ascii")
        self._send_head(status, [("Content-Type", "application/json")], len(data))
        if tap is not None:
            tap.feed(data)
        self._send_data(data)

    def _send_head(self, status: int, headers: Sequence[tuple[str, str]], length: int | None) -> None:
        """Status line and headers; without a length the body is sent in chunks, or up to the connection's end."""
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self._has_body = self.command != "HEAD" and status >= 200 and status not in {204, 304}
        self._chunked = length is None and self._has_body and self.request_version != "HTTP/1.0"
        if self._chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif length is not None:
            self.send_header("Content-Length", str(length))
        if self.close_connection or (length is None and self._has_body and not self._chunked):
            self.send_header("Connection", "close")
        with _client_errors():
            self.end_headers()

    def _send_data(self, data: bytes) -> None:
        if not self._has_body:
            return
        # One write, and so one packet, for each piece: it leaves at once and whole.
        with _client_errors():
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _send_end(self) -> None:
        if self._chunked:
            with _client_errors():
                self.wfile.write(b"0\r\n\r\n")
