"""The proxy over real sockets, with a fake model server behind it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from opencode_harness.errors import ProxyError
from opencode_harness.journal import Exchange, ToolResult
from opencode_harness.proxy import Proxy
from opencode_harness.turns import ReceivedToolCall, Turn

WAIT_S = 20.0
READ = Turn.from_mapping({"tool_calls": [{"name": "read", "arguments": {"filePath": "/tmp/demo/notes.txt"}}]})
KIWI = Turn(text="The file says kiwi.")
TOOLS = [{"type": "function", "function": {"name": "read"}}]
TITLE_REQUEST: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "messages": [
        {"role": "system", "content": "You are a title generator. You output ONLY a thread title."},
        {"role": "user", "content": "Which fruit?"},
    ],
}
MAIN_REQUEST: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": TOOLS,
    "messages": [{"role": "system", "content": "You are opencode."}, {"role": "user", "content": "Which fruit?"}],
}
COMPACTION = {**MAIN_REQUEST, "tools": []}
EVENTS = [
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}]}\n\n',
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hey"}}]}\n\n',
    'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" kiwi 🥝"}}]}\n\n'.encode(),
    b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":31,"completion_tokens":3,"total_tokens":34},'
    b'"timings":{"cache_n":0,"prompt_n":31}}\n\n',
    b"data: [DONE]\n\n",
]
Behaviour = Callable[["Upstream"], None]


class Upstream(BaseHTTPRequestHandler):
    """A model server; what a POST does is the test's `behaviour`."""

    protocol_version = "HTTP/1.1"
    server: UpstreamServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.seen.append((self.path, dict(self.headers.items()), b""))
        self.answer_json(200, {"status": "ok"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((self.path, dict(self.headers.items()), body))
        self.server.behaviour(self)

    def answer_json(self, status: int, payload: Any) -> None:
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def wait_for_hang_up(self) -> None:
        """Block until the other side closes, as a server does that looks whether its client is still there."""
        with suppress(ConnectionResetError):
            assert self.connection.recv(1) == b""
        self.server.hung_up.set()


class UpstreamServer(ThreadingHTTPServer):
    """Remembers what it was asked."""

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), Upstream)
        self.behaviour = behaviour
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.hung_up = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def upstream(behaviour: Behaviour) -> Iterator[UpstreamServer]:
    server = UpstreamServer(behaviour)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def stream_all(handler: Upstream) -> None:
    handler.begin_stream()
    for event in EVENTS:
        handler.chunk(event)
    handler.end_stream()


def ask(proxy: Proxy, body: Any, **headers: str) -> requests.Response:
    sent = {"x-session-id": "ses_1", "Authorization": "Bearer client-key"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.post(f"{proxy.base_url}/chat/completions", json=body, headers=sent, timeout=WAIT_S)


def idle(proxy: Proxy) -> bool:
    """Wait until no request is open: an answer can be whole at the client before its exchange has ended."""
    with proxy.changed:
        return proxy.changed.wait_for(lambda: proxy.open_requests == 0, WAIT_S)


def last(proxy: Proxy) -> Exchange:
    assert idle(proxy)
    return proxy.exchanges[-1]


def connect(proxy: Proxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", int(proxy.base_url.split(":")[2].split("/")[0]), timeout=WAIT_S)


def begin(proxy: Proxy, body: Any) -> http.client.HTTPConnection:
    """Send a chat request and do not wait for its answer."""
    connection = connect(proxy)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection


def text_of(response: requests.Response) -> str:
    lines = [line[6:] for line in response.content.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


# Scripted turns


def test_turns_are_served_in_order_and_titles_beside_them() -> None:
    with Proxy(upstream=None, turns=[READ, KIWI]) as proxy:
        ask(proxy, MAIN_REQUEST)
        assert text_of(ask(proxy, TITLE_REQUEST)) == "Harness session"
        assert proxy.turns_left == 1
        assert text_of(ask(proxy, MAIN_REQUEST)) == "The file says kiwi."
        assert idle(proxy)
    first, title, second = proxy.exchanges
    assert [exchange.lane for exchange in proxy.exchanges] == ["main", "title", "main"]
    arguments = '{"filePath": "/tmp/demo/notes.txt"}'
    assert first.tool_calls == (ReceivedToolCall("call_chatcmpl-harness-1_0", "read", arguments),)
    assert (first.finish_reason, title.finish_reason, second.finish_reason) == ("tool_calls", "stop", "stop")
    assert {(each.source, each.status, each.error) for each in proxy.exchanges} == {("scripted", 200, None)}
    assert proxy.faults == ()
    assert proxy.turns_left == 0


def test_a_request_without_stream_gets_one_json_object() -> None:
    with Proxy(upstream=None, turns=[KIWI]) as proxy:
        answer = ask(proxy, {**MAIN_REQUEST, "stream": False}).json()
        assert answer["choices"][0]["message"]["content"] == "The file says kiwi."
        assert answer["model"] == "m"
        assert last(proxy).text == "The file says kiwi."


def test_a_request_beyond_the_last_turn_is_a_fault_and_gets_a_visible_answer() -> None:
    with Proxy(upstream=None, turns=[KIWI]) as proxy:
        ask(proxy, MAIN_REQUEST)
        response = ask(proxy, MAIN_REQUEST)
        assert response.status_code == 200
        assert text_of(response) == "[harness] no turn left: all 1 turns were served"
        (fault,) = proxy.faults
        assert (fault.kind, fault.message) == ("turns-exhausted", "no turn left: all 1 turns were served")


@pytest.mark.parametrize(
    ("body", "headers", "lane"),
    [(COMPACTION, {}, "other"), (MAIN_REQUEST, {"x_parent_session_id": "ses_0"}, "sub:1")],
    ids=["compaction", "sub-agent"],
)
def test_a_lane_without_turns_is_a_fault_and_takes_none(body: Any, headers: dict[str, str], lane: str) -> None:
    with Proxy(upstream=None, turns=[KIWI]) as proxy:
        assert text_of(ask(proxy, body, **headers)).startswith("[harness] ")
        assert [fault.kind for fault in proxy.faults] == ["unscripted-request"]
        assert lane in proxy.faults[0].message
        assert proxy.turns_left == 1


def test_neither_turns_nor_a_server_is_a_fault() -> None:
    with Proxy(upstream=None) as proxy:
        assert text_of(ask(proxy, MAIN_REQUEST)).startswith("[harness] ")
        assert [fault.kind for fault in proxy.faults] == ["no-upstream"]


def test_title_and_main_at_once_each_get_their_own_answer() -> None:
    with Proxy(upstream=None, turns=[KIWI] * 20) as proxy, ThreadPoolExecutor(8) as pool:
        bodies = [TITLE_REQUEST, MAIN_REQUEST] * 20
        texts = [text_of(response) for response in pool.map(lambda body: ask(proxy, body), bodies)]
        assert texts == ["Harness session", "The file says kiwi."] * 20
        assert idle(proxy)
        assert [exchange.number for exchange in proxy.exchanges] == list(range(1, 41))


def test_tool_results_are_collected_once_with_the_name_of_their_tool() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        *MAIN_REQUEST["messages"],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "1: the fruit is kiwi"},
    ]
    orphan = {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "lost"}]}
    with Proxy(upstream=None, turns=[KIWI] * 2) as proxy:
        ask(proxy, {**MAIN_REQUEST, "messages": messages})
        ask(proxy, {**MAIN_REQUEST, "messages": [*messages, orphan]})
        assert proxy.tool_results() == (
            ToolResult("read", "c1", "1: the fruit is kiwi"),
            ToolResult("", "c2", "lost"),
        )


# The real server's answers


def test_a_stream_passes_byte_for_byte_and_is_read_on_the_side() -> None:
    with upstream(stream_all) as server, Proxy(upstream=server.url) as proxy:
        body = {**MAIN_REQUEST, "messages": [{"role": "user", "content": "x" * 200_000}]}
        response = ask(proxy, body)
        assert response.content == b"".join(EVENTS)
        exchange = last(proxy)
        assert (exchange.text, exchange.finish_reason, exchange.status) == ("Hey kiwi 🥝", "stop", 200)
        assert exchange.timings == {"cache_n": 0, "prompt_n": 31}
        assert exchange.usage == {"prompt_tokens": 31, "completion_tokens": 3, "total_tokens": 34}
        assert exchange.source == "server"
        assert exchange.error is None
        assert exchange.first_byte_s is not None
        assert exchange.ended_s is not None
        assert exchange.started_s <= exchange.first_byte_s <= exchange.ended_s
        path, headers, sent = server.seen[0]
        assert path == "/v1/chat/completions"
        assert json.loads(sent) == body
        assert headers["Authorization"] == "Bearer client-key"
        assert headers["x-session-id"] == "ses_1"
        assert headers["Accept-Encoding"] == "identity"


def test_each_piece_arrives_before_the_server_sends_the_next() -> None:
    arrived = threading.Semaphore(0)

    def piece_by_piece(handler: Upstream) -> None:
        handler.begin_stream()
        data = b"".join(EVENTS)
        for start in range(0, len(data), 37):  # inside events and inside the kiwi's four bytes
            handler.chunk(data[start : start + 37])
            assert arrived.acquire(timeout=WAIT_S)
        handler.end_stream()

    with upstream(piece_by_piece) as server, Proxy(upstream=server.url) as proxy:
        connection = begin(proxy, MAIN_REQUEST)
        response = connection.getresponse()
        pieces = []
        while piece := response.read1():
            pieces.append(piece)
            arrived.release()
        connection.close()
        assert b"".join(pieces) == b"".join(EVENTS)
        assert {len(piece) for piece in pieces[:-1]} == {37}
        assert last(proxy).text == "Hey kiwi 🥝"


def test_the_title_is_not_asked_of_the_server() -> None:
    with upstream(stream_all) as server, Proxy(upstream=server.url) as proxy:
        assert text_of(ask(proxy, TITLE_REQUEST)) == "Harness session"
        assert server.seen == []


def test_a_status_passes_with_its_body_and_headers() -> None:
    # llama-server's answer while it loads its model.
    loading = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    with upstream(lambda handler: handler.answer_json(503, loading)) as server, Proxy(upstream=server.url) as proxy:
        response = ask(proxy, MAIN_REQUEST)
        assert (response.status_code, response.json()) == (503, loading)
        assert response.headers["Retry-After"] == "1"
        assert (last(proxy).status, last(proxy).error) == (503, "Loading model")
        assert proxy.faults == ()  # OpenCode waits and asks again


@pytest.mark.parametrize("mark", ["", "0\r\n\r\n"], ids=["cut", "ended-without-done"])
def test_a_cut_stream_is_passed_on_as_it_came(mark: str) -> None:
    def cut(handler: Upstream) -> None:
        handler.begin_stream()
        handler.chunk(EVENTS[1])
        handler.wfile.write(mark.encode())
        handler.close_connection = True

    with upstream(cut) as server, Proxy(upstream=server.url) as proxy:
        connection = begin(proxy, MAIN_REQUEST)
        response = connection.getresponse()
        if mark:
            assert response.read() == EVENTS[1]
        else:
            with pytest.raises(http.client.IncompleteRead) as caught:
                response.read()
            assert caught.value.partial == EVENTS[1]
        connection.close()
        assert last(proxy).text == "Hey"
        assert last(proxy).error == ("the answer ended before it was complete" if mark else "the server hung up")


def test_a_server_that_is_not_there_is_a_fault_and_a_502_that_name_its_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with Proxy(upstream=f"http://{address}") as proxy:
            response = ask(proxy, MAIN_REQUEST)
            assert response.status_code == 502
            assert address in response.json()["error"]["message"]
            (fault,) = proxy.faults
            assert fault.kind == "upstream-unreachable"
            assert address in fault.message
            assert last(proxy).status == 502


def test_a_server_that_hangs_up_without_an_answer_is_a_fault() -> None:
    def hang_up(handler: Upstream) -> None:
        handler.close_connection = True

    with upstream(hang_up) as server, Proxy(upstream=server.url) as proxy:
        assert ask(proxy, MAIN_REQUEST).status_code == 502
        assert "hung up before it answered" in proxy.faults[0].message


def test_a_server_that_stays_silent_is_a_fault_and_a_504() -> None:
    with (
        upstream(lambda handler: handler.wait_for_hang_up()) as server,
        Proxy(upstream=server.url, read_timeout_s=0.2) as proxy,
    ):
        assert ask(proxy, MAIN_REQUEST).status_code == 504
        assert [fault.kind for fault in proxy.faults] == ["upstream-timeout"]
        assert server.hung_up.wait(WAIT_S)


def test_a_server_that_falls_silent_in_mid_stream_is_named() -> None:
    def stall(handler: Upstream) -> None:
        handler.begin_stream()
        handler.chunk(EVENTS[1])
        handler.wait_for_hang_up()

    with upstream(stall) as server, Proxy(upstream=server.url, read_timeout_s=0.2) as proxy:
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            ask(proxy, MAIN_REQUEST)
        assert last(proxy).error == "the server fell silent for 0.2 s"


@pytest.mark.parametrize("streaming", [False, True], ids=["while-the-prompt-is-processed", "in-mid-stream"])
def test_a_client_that_hangs_up_ends_the_servers_work(streaming: bool) -> None:
    working = threading.Event()

    def work(handler: Upstream) -> None:
        if streaming:
            handler.begin_stream()
            handler.chunk(EVENTS[1])
        working.set()
        handler.wait_for_hang_up()

    with upstream(work) as server, Proxy(upstream=server.url) as proxy:
        connection = begin(proxy, MAIN_REQUEST)
        assert working.wait(WAIT_S)
        if streaming:
            response = connection.getresponse()
            assert response.read1() == EVENTS[1]
            response.close()
        connection.close()
        assert server.hung_up.wait(WAIT_S)
        assert last(proxy).error == "the client hung up"
        assert proxy.faults == ()


def test_other_paths_pass_with_their_query() -> None:
    with upstream(stream_all) as server, Proxy(upstream=f"{server.url}/v1/") as proxy:
        response = requests.get(f"{proxy.base_url}/models?x=1", timeout=WAIT_S)
        assert response.json() == {"status": "ok"}
        assert server.seen[0][0] == "/v1/models?x=1"
        assert proxy.exchanges == ()


def test_other_paths_without_a_server_are_not_found() -> None:
    with Proxy(upstream=None, turns=[KIWI]) as proxy:
        response = requests.get(f"{proxy.base_url}/models", timeout=WAIT_S)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"
        assert requests.head(f"{proxy.base_url}/models", timeout=WAIT_S).content == b""


def test_one_connection_serves_many_requests() -> None:
    with upstream(stream_all) as server, Proxy(upstream=server.url) as proxy:
        connection = connect(proxy)
        for _ in range(3):
            connection.request("POST", "/v1/chat/completions", json.dumps(MAIN_REQUEST))
            assert connection.getresponse().read() == b"".join(EVENTS)
        connection.close()


def test_an_old_client_gets_the_stream_without_chunks() -> None:
    with upstream(stream_all) as server, Proxy(upstream=server.url) as proxy:
        body = json.dumps(MAIN_REQUEST).encode()
        with socket.create_connection(("127.0.0.1", connect(proxy).port), WAIT_S) as client:
            head = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            answer = client.makefile("rb").read()
        assert answer.partition(b"\r\n\r\n")[2] == b"".join(EVENTS)


# Requests that are wrong


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 400), (b"\xff", 400), (b"[" * 100_000, 400)])
def test_a_body_that_is_no_json_object_is_refused(body: bytes, status: int) -> None:
    with Proxy(upstream=None, turns=[KIWI]) as proxy:
        response = requests.post(f"{proxy.base_url}/chat/completions", data=body, timeout=WAIT_S)
        assert response.status_code == status
        assert "not" in response.json()["error"]["message"]
        assert (proxy.exchanges, proxy.turns_left) == ((), 1)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Content-Length: 1001", 413),
        ("Content-Length: " + "9" * 5000, 413),
        ("Content-Length: -1", 400),
        ("Content-Length: ²", 400),
        ("Transfer-Encoding: chunked", 411),
    ],
)
def test_a_body_of_no_or_too_great_length_is_refused_unread(header: str, status: int) -> None:
    with Proxy(upstream=None, turns=[KIWI], max_request_bytes=1000) as proxy:
        with socket.create_connection(("127.0.0.1", connect(proxy).port), WAIT_S) as client:
            client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode("latin-1"))
            answer = client.makefile("rb").read()  # ends: the connection is closed
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "body", [{"tools": TOOLS}, {"tools": TOOLS, "messages": 5}, {"tools": 5, "messages": [5, {"tool_calls": [5]}]}]
)
def test_odd_requests_are_answered_and_do_no_harm(body: Any) -> None:
    with Proxy(upstream=None, turns=[KIWI]) as proxy:
        assert ask(proxy, body).status_code == 200
        assert proxy.tool_results() == ()


# Keys and the journal


def test_the_journal_holds_start_and_end_of_each_exchange_and_no_key(tmp_path: Path) -> None:
    journal = tmp_path / "requests.jsonl"
    with (
        upstream(stream_all) as server,
        Proxy(upstream=server.url, journal=journal, upstream_api_key='sk-"upstream') as proxy,
    ):
        messages = [{"role": "user", "content": 'my key is sk-"upstream'}]
        ask(proxy, {**MAIN_REQUEST, "messages": messages}, x_api_key="other-key")
        assert idle(proxy)
        text = journal.read_text()  # flushed line by line, not at the end
        assert server.seen[0][1]["Authorization"] == 'Bearer sk-"upstream'
    assert journal.read_text() == text
    start, end = (json.loads(line) for line in text.splitlines())
    assert (start["event"], start["number"], start["lane"]) == ("start", 1, "main")
    assert start["headers"]["x-session-id"] == "ses_1"
    assert start["request"]["messages"] == [{"role": "user", "content": "my key is [key]"}]
    assert (end["event"], end["number"], end["status"], end["text"]) == ("end", 1, 200, "Hey kiwi 🥝")
    assert end["timings"] == {"cache_n": 0, "prompt_n": 31}
    for secret in ("sk-", "client-key", "other-key"):
        assert secret not in text


def test_a_journal_that_cannot_be_opened_is_told_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "requests.jsonl"
    with pytest.raises(ProxyError, match=r"missing.*cannot be written"):
        Proxy(upstream=None, turns=[KIWI], journal=path).start()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_fault_once_and_the_conversation_goes_on() -> None:
    with Proxy(upstream=None, turns=[KIWI, KIWI], journal=Path("/dev/full")) as proxy:
        assert text_of(ask(proxy, MAIN_REQUEST)) == "The file says kiwi."
        assert text_of(ask(proxy, MAIN_REQUEST)) == "The file says kiwi."
        assert [fault.kind for fault in proxy.faults] == ["journal-unwritable"]


# Start, stop, waiting


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "http://x:99999", "http://[::1"])
def test_an_upstream_that_is_no_http_address_is_refused(url: str) -> None:
    with pytest.raises(ProxyError, match="upstream"):
        Proxy(upstream=url)


def test_stop_cuts_open_requests_off_and_frees_port_and_threads() -> None:
    working = threading.Event()

    def work(handler: Upstream) -> None:
        working.set()
        handler.wait_for_hang_up()

    with upstream(work) as server:
        proxy = Proxy(upstream=server.url)
        proxy.start()
        idle = connect(proxy)
        idle.connect()
        busy = begin(proxy, MAIN_REQUEST)
        assert working.wait(WAIT_S)
        assert proxy.open_requests == 1
        before_s = time.monotonic()
        proxy.stop()
        assert time.monotonic() - before_s < 1.0
        assert server.hung_up.wait(WAIT_S)
        with pytest.raises(ConnectionError):
            busy.getresponse()
        for connection in (idle, busy):
            connection.close()
        assert proxy.exchanges[0].error == "the proxy was stopped"
        assert proxy.open_requests == 0
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("harness-proxy")]
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", idle.port))
        proxy.stop()
        with pytest.raises(ProxyError, match="started before"):
            proxy.start()


def test_it_listens_on_loopback_only() -> None:
    with Proxy(upstream=None, turns=[KIWI]) as proxy:
        assert proxy.base_url.startswith("http://127.0.0.1:")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", connect(proxy).port), WAIT_S)


def test_a_fault_wakes_whoever_waits_for_a_change() -> None:
    with Proxy(upstream=None, turns=[KIWI]) as proxy, ThreadPoolExecutor(1) as pool:
        with proxy.changed:
            asked = pool.submit(ask, proxy, COMPACTION)
            assert proxy.changed.wait_for(lambda: bool(proxy.faults), WAIT_S)
        asked.result()
