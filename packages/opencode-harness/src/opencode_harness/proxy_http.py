"""The proxy's HTTP side: connections, requests, answers passed on byte for byte and read on the side."""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from opencode_harness.cassette import Recorder, Take
from opencode_harness.evidence import Source
from opencode_harness.journal import Exchange, Ledger
from opencode_harness.lanes import LaneBook
from opencode_harness.proxy_answers import OwnAnswer, PassedOn, error_event, first_events
from opencode_harness.proxy_faults import ProxyFault
from opencode_harness.turns import Answer, AnswerReader, read_completion
from opencode_harness.upstream import OWN_HEADERS, Upstream, UpstreamCall

__all__ = ["ChatService", "ProxyServer"]

_CHAT_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
_READ_BYTES = 64 * 1024
_MAX_KEPT_BYTES = 16 * 1024 * 1024
# How long stop() waits for threads whose sockets it has closed: they end at once unless the machine is overloaded.
_STOP_TIMEOUT_S = 0.9
_POLL_INTERVAL_S = 0.02
# How soon a stall notices that its client has gone.
_STALL_LOOK_S = 0.1


class ChatService(Protocol):
    """What the HTTP side asks about requests."""

    upstream: Upstream | None
    max_request_bytes: int
    lanes: LaneBook
    ledger: Ledger
    recorder: Recorder | None

    def fault_of(self, exchange: Exchange) -> ProxyFault | None:
        """What goes wrong on purpose with a chat request; to be asked once."""

    def answer(self, exchange: Exchange, body: bytes, fault: ProxyFault | None) -> OwnAnswer | PassedOn:
        """What a chat request is answered with."""

    def tokens_left(self) -> int | None:
        """How many tokens the models may still generate; None for any number."""

    def out_of_tokens(self) -> None:
        """The models have generated all that they may."""


@dataclass
class Tap:
    """Reads an answer on the side while it is passed on."""

    ledger: Ledger
    number: int | None = None
    take: Take | None = None
    status: int | None = None
    first_byte_s: float | None = None
    error: str | None = None
    _reader: AnswerReader | None = None
    _body: bytearray = field(default_factory=bytearray)

    def head(self, status: int, content_type: str) -> None:
        """Note how the answer begins."""
        self.status = status
        if self.take is not None:
            self.take.head(status, content_type)
        if content_type.startswith("text/event-stream"):
            self._reader = AnswerReader()

    def feed(self, data: bytes) -> None:
        """Read a piece of the answer's body."""
        now_s = self.ledger.now_s()
        if self.first_byte_s is None:
            self.first_byte_s = now_s
        if self.take is not None:
            self.take.feed(data, now_s)
        if self._reader is not None:
            known = self._reader.deltas
            self._reader.feed(data)
            if self.number is not None and self._reader.deltas > known:
                self.ledger.heard(self.number)
        elif len(self._body) + len(data) <= _MAX_KEPT_BYTES:
            self._body += data

    @property
    def deltas(self) -> int:
        """How many pieces of text, reasoning or calls have come: about one for each token."""
        return 0 if self._reader is None else self._reader.deltas

    def result(self, exchange: Exchange, source: Source) -> Exchange:
        """The exchange with what was read of its answer."""
        answer = self._reader.answer if self._reader is not None else read_completion(bytes(self._body))
        return replace(
            exchange,
            first_byte_s=self.first_byte_s,
            status=self.status,
            source=source,
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


class ClientGone(Exception):
    """The client hung up, or the proxy was stopped, before the answer was complete."""


@contextmanager
def _client_errors() -> Iterator[None]:
    """Tell a client that hung up from a server that did: both are OSErrors."""
    try:
        yield
    except OSError as error:
        raise ClientGone from error


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


def _received(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body as it arrives.

    Raises:
        http.client.IncompleteRead: It ended before its length.
    """
    while data := response.read1(_READ_BYTES):
        yield data
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)


class ProxyServer(ThreadingHTTPServer):
    """The listening socket, and the connections and threads that came of it."""

    daemon_threads = True

    def __init__(self, proxy: ChatService) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_INTERVAL_S,), name="harness-proxy", daemon=True
        )

    def start(self) -> None:
        """Accept connections, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Cut off all connections and end all threads."""
        self.stopping.set()
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
    server: ProxyServer
    _has_body = False
    _chunked = False

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the journal is the log."""

    def _handle(self) -> None:
        ledger = self.server.proxy.ledger
        with ledger.open_request():
            try:
                self._route()
            except ClientGone:
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
        elif self.server.proxy.upstream is not None:
            self._forward(self.server.proxy.upstream, body, Tap(self.server.proxy.ledger))
        else:
            self._send_error(404, "not_found_error", f"{self.command} {path}: this proxy has no upstream server")

    def _read_body(self) -> bytes | None:
        """The request's body, or None when it was refused."""
        limit = self.server.proxy.max_request_bytes
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
            raise ClientGone
        return body

    def _chat(self, body: bytes) -> None:
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            return self._send_error(400, "invalid_request_error", f"the request's body is not JSON: {error}")
        if not isinstance(request, dict):
            return self._send_error(400, "invalid_request_error", "the request's body is not a JSON object")
        proxy = self.server.proxy
        with proxy.ledger.changed:
            lane = proxy.lanes.assign(self.headers, request)  # type: ignore[arg-type]
            exchange = proxy.ledger.start(lane, request, self.headers)  # type: ignore[arg-type]
        tap = Tap(proxy.ledger, exchange.number)
        source: Source = "scripted"
        try:
            fault = proxy.fault_of(exchange)
            if fault is not None and fault.kind == "stall":
                # Before anything is taken from turns or cassette: a client that does not wait asks again.
                self._stall(fault.for_s)
            answer = proxy.answer(exchange, body, fault)
            source = answer.source
            self._answer(answer, exchange, tap)
        except ClientGone:
            tap.error = "the proxy was stopped" if self.server.stopping.is_set() else "the client hung up"
            raise
        finally:
            proxy.ledger.end(tap.result(exchange, source))
        return None

    def _answer(self, answer: OwnAnswer | PassedOn, exchange: Exchange, tap: Tap) -> None:
        fault = answer.fault
        if fault is not None and fault.kind == "hang-up":
            tap.error = "the connection ended without an answer, on purpose"
            self.close_connection = True
            return
        if isinstance(answer, OwnAnswer):
            self._serve(answer, tap)
            return
        proxy = self.server.proxy
        assert proxy.upstream is not None  # nothing is passed on without
        if proxy.recorder is not None and fault is None:
            tap.take = proxy.recorder.begin(exchange.lane, exchange.number, exchange.request, exchange.started_s)
        self._forward(proxy.upstream, answer.body, tap, answer)
        if tap.take is not None and tap.error is None:
            tap.take.done()

    def _stall(self, for_s: float) -> None:
        """Say nothing for a while; ends early when the client hangs up or the proxy is stopped."""
        gone = threading.Event()
        with _on_disconnect(self.connection, gone.set):
            deadline_s = time.monotonic() + for_s
            while not gone.is_set() and time.monotonic() < deadline_s:
                left_s = min(_STALL_LOOK_S, deadline_s - time.monotonic())
                if self.server.stopping.wait(max(0.0, left_s)):
                    raise ClientGone
        if gone.is_set():
            raise ClientGone

    def _serve(self, answer: OwnAnswer, tap: Tap) -> None:
        """Answer without the server."""
        tap.head(answer.status, answer.content_type)
        if not answer.content_type.startswith("text/event-stream"):
            body = b"".join(answer.pieces)
            self._send_head(answer.status, [("Content-Type", answer.content_type)], len(body))
            tap.feed(body)
            self._send_data(body)
            return
        headers = [("Content-Type", answer.content_type), ("Cache-Control", "no-cache")]
        self._send_head(answer.status, headers, None)
        self._send_pieces(answer.pieces, answer.fault, tap)

    def _send_pieces(self, pieces: Iterable[bytes], fault: ProxyFault | None, tap: Tap) -> None:
        """Send a stream, or as much of it as its fault lets through."""
        is_cut = fault is not None and fault.kind in {"cut", "error-event"}
        for piece in first_events(pieces, fault.after_events) if fault is not None and is_cut else pieces:
            tap.feed(piece)
            self._send_data(piece)
        if fault is not None and fault.kind == "cut":
            tap.error = "the stream was cut, on purpose"
            self.close_connection = True
            return
        if fault is not None and fault.kind == "error-event":
            event = error_event(fault.message)
            tap.feed(event)
            self._send_data(event)
        self._send_end()

    def _forward(self, upstream: Upstream, body: bytes, tap: Tap, passed: PassedOn | None = None) -> None:
        """Pass the request on, and the answer back as it arrives."""
        call = upstream.call(self.command, self.path, dict(self.headers.items()), body or None)
        try:
            with _on_disconnect(self.connection, call.abort):
                self._relay(upstream, call, tap, passed or PassedOn(body))
        finally:
            call.connection.close()

    def _relay(self, upstream: Upstream, call: UpstreamCall, tap: Tap, passed: PassedOn) -> None:
        try:
            response = call.send()
        except (OSError, http.client.HTTPException) as error:
            if call.aborted:
                raise ClientGone from error
            return self._upstream_failed(upstream, call, error, tap)
        with response:
            tap.head(response.status, response.headers.get("content-type", ""))
            headers = [(name, value) for name, value in response.getheaders() if name.lower() not in OWN_HEADERS]
            is_changed = passed.transform is not None and response.status == 200
            length = None if response.chunked or is_changed else response.getheader("content-length")
            self._send_head(response.status, headers, None if length is None else int(length))
            pieces = _received(response)
            self._relay_body(
                map(passed.transform, pieces) if passed.transform and is_changed else pieces, call, tap, passed
            )
        return None

    def _relay_body(self, pieces: Iterator[bytes], call: UpstreamCall, tap: Tap, passed: PassedOn) -> None:
        try:
            self._send_pieces(self._within_tokens(pieces, tap), passed.fault, tap)
        except (OSError, http.client.HTTPException) as error:
            if call.aborted:
                raise ClientGone from error
            # A cut is passed on as a cut: the connection ends without the mark of a complete answer.
            silent = isinstance(error, TimeoutError)
            tap.error = f"the server fell silent for {call.read_timeout_s:g} s" if silent else "the server hung up"
            self.close_connection = True

    def _within_tokens(self, pieces: Iterator[bytes], tap: Tap) -> Iterator[bytes]:
        """The pieces of a stream until the models have generated all that they may."""
        left = self.server.proxy.tokens_left()
        for piece in pieces:
            yield piece
            if left is not None and tap.deltas > left:
                self.server.proxy.out_of_tokens()
                return

    def _upstream_failed(self, upstream: Upstream, call: UpstreamCall, error: Exception, tap: Tap) -> None:
        connected = call.connected
        if isinstance(error, TimeoutError) and connected:
            status, kind = 504, "upstream-timeout"
            message = f"the server at {upstream.address} did not answer within {upstream.read_timeout_s:g} s"
        else:
            status, kind = 502, "upstream-unreachable"
            verb = "hung up before it answered" if connected else "cannot be reached"
            message = f"the server at {upstream.address} {verb}: {error}; is it running?"
        self.server.proxy.ledger.fault(kind, message)
        tap.head(status, "application/json")
        tap.error = message
        self._send_error(status, kind, message)

    def _send_error(self, status: int, kind: str, message: str) -> None:
        data = json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode("ascii")
        self._send_head(status, [("Content-Type", "application/json")], len(data))
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
        # An empty chunk would be the mark of a complete answer.
        if not self._has_body or not data:
            return
        # One write, and so one packet, for each piece: it leaves at once and whole.
        with _client_errors():
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _send_end(self) -> None:
        if self._chunked:
            with _client_errors():
                self.wfile.write(b"0\r\n\r\n")
