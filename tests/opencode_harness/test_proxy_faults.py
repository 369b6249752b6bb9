"""The proxy where things go wrong on purpose, where a limit ends a trial, and where it changes what the server gets."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from opencode_harness.cassette import Recorder
from opencode_harness.journal import Exchange
from opencode_harness.proxy import Proxy
from opencode_harness.proxy_faults import ProxyFault
from opencode_harness.scenario import Limits
from opencode_harness.turns import ToolCall, Turn

WAIT_S = 20.0
# Longer than any test may take: a stall of this length must be ended by something else.
FOR_EVER_S = 600.0
KIWI = Turn(text="The file says kiwi.")
PLUM = Turn(text="No, plum.")
READ = Turn((ToolCall("read", {"filePath": "a.txt"}),), finish_reason="tool_calls")
TITLE: dict[str, Any] = {
    "stream": True,
    "messages": [{"role": "system", "content": "You are a title generator. You output ONLY a thread title."}],
}
MAIN: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "tools": [{"type": "function", "function": {"name": "read"}}],
    "tool_choice": "auto",
    "messages": [{"role": "user", "content": "Which fruit? 🥝"}],
}
SUB = {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}
# As llama-server ends a stream (build 11549).
LAST = (
    b'data: {"choices":[],"usage":{"prompt_tokens":31,"completion_tokens":%d},'
    b'"timings":{"cache_n":0,"prompt_n":31}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STOP = b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}]}\n\n'


def said(content: str) -> bytes:
    choice = {"finish_reason": None, "index": 0, "delta": {"content": content}}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


HELLO = [said("Hey"), said(" kiwi"), said("!"), STOP, LAST % 3, DONE]


class Handler(BaseHTTPRequestHandler):
    """A model server that streams, in pieces of the test's choice."""

    protocol_version = "HTTP/1.1"
    server: Upstream

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        if self.server.refusal is not None:
            body = json.dumps(self.server.refusal).encode()
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # The proxy hangs up where it has heard enough.
        with suppress(ConnectionError):
            for piece in self.server.pieces():
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.server.hung_up.set()


class Upstream(ThreadingHTTPServer):
    def __init__(self, pieces: Callable[[], Iterator[bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pieces = pieces
        self.bodies: list[bytes] = []
        self.refusal: dict[str, Any] | None = None
        self.hung_up = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]


@contextmanager
def upstream(*pieces: bytes, streaming: Callable[[], Iterator[bytes]] | None = None) -> Iterator[Upstream]:
    server = Upstream(streaming or (lambda: iter(pieces)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def connect(proxy: Proxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", int(proxy.base_url.split(":")[2].split("/")[0]), timeout=WAIT_S)


def begin(proxy: Proxy, body: Any = MAIN) -> http.client.HTTPConnection:
    """Send a chat request and do not wait for its answer."""
    connection = connect(proxy)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"x-session-id": "ses_1"})
    return connection


def ask(proxy: Proxy, body: Any = MAIN, headers: dict[str, str] | None = None) -> requests.Response:
    sent = headers or {"x-session-id": "ses_1"}
    return requests.post(f"{proxy.base_url}/chat/completions", json=body, headers=sent, timeout=WAIT_S)


def events(proxy: Proxy) -> list[str]:
    """What a request gets whose stream may end too early, event by event, then `complete` or `cut`."""
    connection = begin(proxy)
    response = connection.getresponse()
    try:
        data, end = response.read(), "complete"
    except http.client.IncompleteRead as error:
        data, end = error.partial, "cut"
    connection.close()
    assert response.status == 200
    return [*data.decode().split("\n\n")[:-1], end]


def text(response: requests.Response) -> str:
    lines = [line[6:] for line in response.content.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for line in lines for choice in json.loads(line)["choices"])


def last(proxy: Proxy) -> Exchange:
    """The newest exchange, over: an answer can be whole at the client before its exchange has ended."""
    with proxy.changed:
        assert proxy.changed.wait_for(lambda: proxy.open_requests == 0, WAIT_S)
    return proxy.exchanges[-1]


def opened(proxy: Proxy, number: int = 1) -> None:
    """Wait until a request has arrived."""
    with proxy.changed:
        assert proxy.changed.wait_for(lambda: len(proxy.exchanges) == number, WAIT_S)


# Faults


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (429, "server_error"),
        (500, "server_error"),
        (503, "unavailable_error"),
    ],
)
def test_a_status_on_purpose_has_llama_servers_form_and_uses_no_turn_up(status: int, kind: str) -> None:
    faults = [ProxyFault(1, "status", status=status, message="Loading model")]
    with Proxy(upstream=None, turns=[KIWI], faults=faults) as proxy:
        response = ask(proxy)
        assert response.status_code == status
        assert response.json() == {"error": {"code": status, "message": "Loading model", "type": kind}}
        assert response.headers["content-type"] == "application/json; charset=utf-8"
        exchange = last(proxy)
        assert (exchange.status, exchange.error, exchange.source) == (status, "Loading model", "scripted")
        assert proxy.turns_left == 1
        assert text(ask(proxy)) == "The file says kiwi."
        # What goes wrong on purpose is no fault of the trial.
        assert list(proxy.faults) == []


def test_a_hang_up_ends_the_connection_without_an_answer_and_uses_no_turn_up() -> None:
    with Proxy(upstream=None, turns=[KIWI], faults=[ProxyFault(1, "hang-up")]) as proxy:
        connection = begin(proxy)
        with pytest.raises(http.client.RemoteDisconnected):
            connection.getresponse()
        connection.close()
        exchange = last(proxy)
        assert (exchange.status, exchange.first_byte_s) == (None, None)
        assert exchange.error == "the connection ended without an answer, on purpose"
        assert text(ask(proxy)) == "The file says kiwi."
        assert list(proxy.faults) == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_cut_stream_ends_after_so_many_events_and_its_turn_is_said_again(count: int) -> None:
    faults = [ProxyFault(1, "cut", after_events=count)]
    with Proxy(upstream=None, turns=[KIWI, PLUM], faults=faults) as proxy:
        *got, end = events(proxy)
        assert (len(got), end) == (count, "cut")
        exchange = last(proxy)
        assert (exchange.status, exchange.error) == (200, "the stream was cut, on purpose")
        # The first event only names the role; then the text comes, four characters an event.
        assert exchange.text == {0: "", 1: "", 3: "The file"}[count]
        assert proxy.turns_left == 2
        assert [text(ask(proxy)), text(ask(proxy))] == ["The file says kiwi.", "No, plum."]
        assert list(proxy.faults) == []


def test_a_cut_behind_the_last_event_leaves_out_the_mark_of_a_complete_answer_only() -> None:
    with Proxy(upstream=None, turns=[KIWI], faults=[ProxyFault(1, "cut", after_events=999)]) as proxy:
        *got, end = events(proxy)
        assert (got[-1], end) == ("data: [DONE]", "cut")
        assert last(proxy).text == "The file says kiwi."


@pytest.mark.parametrize("count", [0, 2])
def test_an_error_event_comes_after_so_many_events_in_a_stream_that_ends_well(count: int) -> None:
    faults = [ProxyFault(1, "error-event", message="Failed to parse input at pos 7", after_events=count)]
    with Proxy(upstream=None, turns=[KIWI], faults=faults) as proxy:
        *got, event, end = events(proxy)
        assert (len(got), end) == (count, "complete")
        assert json.loads(event.removeprefix("data: ")) == {
            "error": {"code": 500, "message": "Failed to parse input at pos 7", "type": "server_error"}
        }
        assert (last(proxy).status, last(proxy).error) == (200, "Failed to parse input at pos 7")
        assert text(ask(proxy)) == "The file says kiwi."
        assert list(proxy.faults) == []


def test_a_stall_comes_before_the_first_byte_and_then_the_turn() -> None:
    with Proxy(upstream=None, turns=[KIWI], faults=[ProxyFault(1, "stall", for_s=0.2)]) as proxy:
        assert text(ask(proxy)) == "The file says kiwi."
        exchange = last(proxy)
        assert exchange.first_byte_s is not None
        assert exchange.first_byte_s - exchange.started_s >= 0.2
        assert (exchange.error, proxy.turns_left) == (None, 0)


def test_a_stall_is_over_when_its_client_hangs_up() -> None:
    with Proxy(upstream=None, turns=[KIWI, PLUM], faults=[ProxyFault(1, "stall", for_s=FOR_EVER_S)]) as proxy:
        connection = begin(proxy)
        opened(proxy)
        connection.close()
        assert last(proxy).error == "the client hung up"
        assert last(proxy).first_byte_s is None
        assert list(proxy.faults) == []


def test_a_turn_whose_stall_the_client_did_not_wait_for_is_not_used_up() -> None:
    with Proxy(upstream=None, turns=[KIWI, PLUM], faults=[ProxyFault(1, "stall", for_s=FOR_EVER_S)]) as proxy:
        connection = begin(proxy)
        opened(proxy)
        connection.close()
        last(proxy)
        assert text(ask(proxy)) == "The file says kiwi."


def test_a_stall_is_over_when_the_proxy_is_stopped() -> None:
    proxy = Proxy(upstream=None, turns=[KIWI], faults=[ProxyFault(1, "stall", for_s=FOR_EVER_S)])
    with proxy:
        connection = begin(proxy)
        opened(proxy)
    with pytest.raises(ConnectionError):
        connection.getresponse()
    connection.close()
    assert proxy.exchanges[0].error in ("the proxy was stopped", "the client hung up")
    assert proxy.open_requests == 0


def test_only_main_requests_are_counted_and_hit() -> None:
    faults = [ProxyFault(2, "status"), ProxyFault(4, "status", status=500)]
    sub_turns = [Turn(text="sub", lane="sub:1")] * 2
    with Proxy(upstream=None, turns=[KIWI, PLUM, *sub_turns], faults=faults) as proxy:
        statuses = [
            ask(proxy, TITLE).status_code,
            ask(proxy).status_code,
            ask(proxy, headers=SUB).status_code,
            ask(proxy, TITLE).status_code,
            ask(proxy).status_code,
            ask(proxy, headers=SUB).status_code,
            # The repeated one is the third.
            ask(proxy).status_code,
            ask(proxy).status_code,
        ]
        assert statuses == [200, 200, 200, 200, 503, 200, 200, 500]
        assert proxy.turns_left == 0


# Faults in the real server's answers


@pytest.mark.parametrize("kind", ["status", "hang-up"])
def test_what_fails_at_once_is_not_asked_of_the_server(kind: Any) -> None:
    with upstream(*HELLO) as server, Proxy(upstream=server.url, faults=[ProxyFault(1, kind)]) as proxy:
        connection = begin(proxy)
        with suppress(http.client.RemoteDisconnected):
            assert connection.getresponse().status == 503
        connection.close()
        last(proxy)
        assert server.bodies == []
        assert ask(proxy).content == b"".join(HELLO)


@pytest.mark.parametrize("together", [1, 2, 6])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_servers_stream_is_cut_after_so_many_events_however_many_come_at_once(count: int, together: int) -> None:
    pieces = [b"".join(HELLO[start : start + together]) for start in range(0, len(HELLO), together)]
    faults = [ProxyFault(1, "cut", after_events=count)]
    with upstream(*pieces) as server, Proxy(upstream=server.url, faults=faults) as proxy:
        assert events(proxy) == [*(event.decode()[:-2] for event in HELLO[:count]), "cut"]
        assert last(proxy).error == "the stream was cut, on purpose"
        assert last(proxy).source == "server"
        assert ask(proxy).content == b"".join(HELLO)


@pytest.mark.parametrize("width", [1, 7, len(HELLO[0]) - 1], ids=["bytes", "inside-events", "inside-a-blank-line"])
def test_a_servers_stream_is_cut_after_so_many_events_wherever_it_is_split(width: int) -> None:
    data = b"".join(HELLO)
    pieces = [data[start : start + width] for start in range(0, len(data), width)]
    faults = [ProxyFault(1, "cut", after_events=2)]
    with upstream(*pieces) as server, Proxy(upstream=server.url, faults=faults) as proxy:
        assert events(proxy) == [HELLO[0].decode()[:-2], HELLO[1].decode()[:-2], "cut"]


def test_an_error_event_ends_the_servers_stream() -> None:
    faults = [ProxyFault(1, "error-event", message="Failed to parse", after_events=1)]
    with upstream(*HELLO) as server, Proxy(upstream=server.url, faults=faults) as proxy:
        first, error, end = events(proxy)
        assert (first, end) == (HELLO[0].decode()[:-2], "complete")
        assert '"Failed to parse"' in error
        assert (last(proxy).text, last(proxy).error) == ("Hey", "Failed to parse")


def test_a_cut_ends_the_servers_work() -> None:
    def endless() -> Iterator[bytes]:
        # Ends by the connection's end, which a full socket buffer brings to light.
        while True:
            yield said("Hey" * 1000)

    faults = [ProxyFault(1, "cut", after_events=1)]
    with upstream(streaming=endless) as server, Proxy(upstream=server.url, faults=faults) as proxy:
        assert len(events(proxy)) == 2
        assert server.hung_up.wait(WAIT_S)


def test_a_servers_answer_comes_whole_after_a_stall() -> None:
    faults = [ProxyFault(1, "stall", for_s=0.1)]
    with upstream(*HELLO) as server, Proxy(upstream=server.url, faults=faults) as proxy:
        assert ask(proxy).content == b"".join(HELLO)
        exchange = last(proxy)
        assert exchange.first_byte_s is not None
        assert exchange.first_byte_s - exchange.started_s >= 0.1
        assert len(server.bodies) == 1


@pytest.mark.parametrize("kind", ["cut", "error-event", "stall"])
def test_what_goes_wrong_on_purpose_is_never_recorded(tmp_path: Path, kind: Any) -> None:
    recorder = Recorder(tmp_path)
    with upstream(*HELLO) as server:
        faults = [ProxyFault(1, kind, after_events=1, for_s=0.0)]
        with Proxy(upstream=server.url, faults=faults, recorder=recorder) as proxy:
            events(proxy)
            assert text(ask(proxy)) == "Hey kiwi!"
            last(proxy)
    cassette = tmp_path / "x.cassette.jsonl"
    recorder.save(cassette, "x", {}, secrets=[])
    recorded = [line for line in map(json.loads, cassette.read_text().splitlines()) if "lane" in line]
    assert len(recorded) == 1


# Limits


def test_a_main_request_beyond_the_limit_of_turns_ends_the_trial_with_a_visible_answer() -> None:
    with Proxy(upstream=None, turns=[KIWI] * 9, limits=Limits(turns=2)) as proxy:
        ask(proxy, TITLE)
        assert [text(ask(proxy)), text(ask(proxy))] == ["The file says kiwi."] * 2
        assert list(proxy.faults) == []
        response = ask(proxy)
        assert response.status_code == 200
        assert text(response) == "[harness] turns: the agent asks for turn 3, the limit is 2"
        [fault] = proxy.faults
        assert (fault.kind, fault.message) == ("limit", "turns: the agent asks for turn 3, the limit is 2")
        assert proxy.turns_left == 7


def test_sub_agents_and_titles_take_no_main_turns() -> None:
    turns = [KIWI, *[Turn(text="sub", lane="sub:1")] * 3]
    with Proxy(upstream=None, turns=turns, limits=Limits(turns=1)) as proxy:
        assert text(ask(proxy)) == "The file says kiwi."
        assert [text(ask(proxy, headers=SUB)) for _ in range(3)] == ["sub"] * 3
        assert text(ask(proxy, TITLE)) == "Harness session"
        assert list(proxy.faults) == []


def test_a_repeated_request_counts_against_the_limit_of_turns() -> None:
    with Proxy(upstream=None, turns=[KIWI], faults=[ProxyFault(1, "status")], limits=Limits(turns=1)) as proxy:
        assert ask(proxy).status_code == 503
        assert text(ask(proxy)).startswith("[harness] turns: ")


def test_without_limits_nothing_ends_a_trial() -> None:
    with Proxy(upstream=None, turns=[KIWI] * 5) as proxy:
        assert proxy.tokens_left() is None
        assert [text(ask(proxy)) for _ in range(5)] == ["The file says kiwi."] * 5
        last(proxy)
        proxy.enforce_limits(FOR_EVER_S)
        assert list(proxy.faults) == []


@pytest.mark.parametrize(("limit", "answers"), [(7, 1), (14, 2), (15, 3)])
def test_a_request_after_all_tokens_were_generated_ends_the_trial(limit: int, answers: int) -> None:
    turn = Turn(text="kiwi", usage={"completion_tokens": 7})
    with Proxy(upstream=None, turns=[turn] * 9, limits=Limits(completion_tokens=limit)) as proxy:
        for _ in range(answers):
            assert text(ask(proxy)) == "kiwi"
            last(proxy)
        assert proxy.tokens_left() == limit - 7 * answers
        assert list(proxy.faults) == []
        told = f"completion_tokens: the models have generated all {limit} that they may"
        assert text(ask(proxy)) == f"[harness] {told}"
        assert [(fault.kind, fault.message) for fault in proxy.faults] == [("limit", told)]


def test_tokens_of_sub_agents_count_and_those_of_the_title_do_not() -> None:
    turns = [
        Turn(text="main", usage={"completion_tokens": 5}),
        Turn(text="s", lane="sub:1", usage={"completion_tokens": 3}),
    ]
    with Proxy(upstream=None, turns=turns, limits=Limits(completion_tokens=100)) as proxy:
        for body, headers in [(TITLE, None), (MAIN, None), (MAIN, SUB)]:
            ask(proxy, body, headers)
            last(proxy)
        assert proxy.tokens_left() == 92


def test_tokens_are_taken_from_the_servers_timings_where_it_tells_no_usage() -> None:
    ending = b'data: {"choices":[],"timings":{"predicted_n":4}}\n\n'
    with (
        upstream(said("kiwi"), STOP, ending, DONE) as server,
        Proxy(upstream=server.url, limits=Limits(completion_tokens=10)) as proxy,
    ):
        ask(proxy)
        last(proxy)
        assert proxy.tokens_left() == 6


def test_a_servers_stream_is_ended_when_it_has_generated_more_than_is_left() -> None:
    words = [said(word) for word in ("one ", "two ", "three ", "four ", "five ")]
    with (
        upstream(*words, STOP, LAST % 5, DONE) as server,
        Proxy(upstream=server.url, limits=Limits(completion_tokens=3)) as proxy,
    ):
        # The fourth shows that it goes on: an answer that ends with its last token is whole.
        assert text(ask(proxy)) == "one two three four "
        assert [fault.kind for fault in proxy.faults] == ["limit"]
        assert last(proxy).error == "the answer ended before it was complete"


def test_an_answer_that_ends_with_its_last_token_is_whole() -> None:
    with upstream(*HELLO) as server, Proxy(upstream=server.url, limits=Limits(completion_tokens=3)) as proxy:
        assert ask(proxy).content == b"".join(HELLO)
        assert last(proxy).error is None
        assert (proxy.faults, proxy.tokens_left()) == ((), 0)


def test_time_is_up_once_and_only_after_the_first_request() -> None:
    with Proxy(upstream=None, turns=[KIWI] * 2, limits=Limits(wall_s=0.0)) as proxy:
        proxy.enforce_limits(FOR_EVER_S)
        assert list(proxy.faults) == []
        ask(proxy)
        last(proxy)
        proxy.enforce_limits(FOR_EVER_S)
        proxy.enforce_limits(FOR_EVER_S)
        [fault] = proxy.faults
        assert fault.kind == "limit"
        assert fault.message.startswith("wall: ")
        assert fault.message.endswith(" s since the first request, the limit is 0 s")


def test_time_that_is_not_up_ends_nothing() -> None:
    with Proxy(upstream=None, turns=[KIWI], limits=Limits(wall_s=FOR_EVER_S)) as proxy:
        ask(proxy)
        last(proxy)
        proxy.enforce_limits(FOR_EVER_S)
        assert list(proxy.faults) == []


def test_a_model_that_fell_silent_for_too_long_is_told_once() -> None:
    with Proxy(upstream=None, turns=[KIWI], faults=[ProxyFault(1, "stall", for_s=FOR_EVER_S)]) as proxy:
        connection = begin(proxy)
        opened(proxy)
        proxy.enforce_limits(FOR_EVER_S)
        assert list(proxy.faults) == []
        proxy.enforce_limits(0.0)
        proxy.enforce_limits(0.0)
        [fault] = proxy.faults
        assert fault.kind == "model-stall"
        assert fault.message.startswith("the model sent no token for ")
        assert fault.message.endswith(" s (timeout 'stall' is 0 s)")
        connection.close()


def test_a_trial_without_an_open_request_is_not_silent() -> None:
    with Proxy(upstream=None, turns=[KIWI]) as proxy:
        ask(proxy)
        last(proxy)
        assert proxy.silence_s == 0.0
        proxy.enforce_limits(0.0)
        assert list(proxy.faults) == []


def test_each_token_ends_the_silence_and_a_comment_that_keeps_the_connection_alive_does_not() -> None:
    go_on = threading.Semaphore(0)

    def slowly() -> Iterator[bytes]:
        for piece in (said("Hey"), b": keep-alive\n\n", STOP):
            assert go_on.acquire(timeout=WAIT_S)
            yield piece
        yield DONE

    with upstream(streaming=slowly) as server, Proxy(upstream=server.url) as proxy:
        connection = begin(proxy)
        response = connection.getresponse()
        before_s = time.monotonic()
        go_on.release()
        assert response.read1() == said("Hey")
        assert proxy.silence_s <= time.monotonic() - before_s
        after_token_s = time.monotonic()
        go_on.release()
        assert response.read1() == b": keep-alive\n\n"
        after_comment_s = time.monotonic()
        assert proxy.silence_s >= after_comment_s - after_token_s
        go_on.release()
        response.read()
        connection.close()


# Guided turns

READ_ARGUMENTS = '{"filePath": "a.txt"}'


def guided(*turns: Turn, server: Upstream, slots: tuple[int, ...] = ()) -> Proxy:
    return Proxy(upstream=server.url, turns=turns, guided=True, slots=slots)


def literal(text: str, width: int) -> list[bytes]:
    """A server that says a text, so many characters a token."""
    tokens = [said(text[start : start + width]) for start in range(0, len(text), width)]
    return [*tokens, STOP, LAST % len(tokens), DONE]


def test_a_guided_request_carries_a_grammar_of_one_text_and_no_tools() -> None:
    with upstream(*literal("kiwi", 4)) as server, guided(Turn(text="kiwi"), server=server) as proxy:
        ask(proxy)
        assert server.asked == [
            {"model": "m", "stream": True, "messages": MAIN["messages"], "grammar": 'root ::= "kiwi"\n'}
        ]


@pytest.mark.parametrize(
    ("turn", "grammar"),
    [
        (READ, r'root ::= "{\"filePath\": \"a.txt\"}"'),
        (Turn(READ.tool_calls, "I look."), r'root ::= "I look.\n{\"filePath\": \"a.txt\"}"'),
        (Turn(READ.tool_calls * 2), r'root ::= "{\"filePath\": \"a.txt\"}\n{\"filePath\": \"a.txt\"}"'),
        (Turn(text='C:\\new\t"x"\r\n'), r'root ::= "C:\\new\t\"x\"\r\n"'),
        (Turn(text="kiwi 🥝 – π"), 'root ::= "kiwi 🥝 – π"'),
        (Turn(text="bell\x07 del\x7f"), r'root ::= "bell\x07 del\x7F"'),
        (Turn((ToolCall("read", arguments_text="not json"),)), 'root ::= "not json"'),
    ],
    ids=["call", "text-and-call", "two-calls", "escapes", "unicode", "control-characters", "no-json"],
)
def test_the_grammar_allows_the_turn_and_nothing_else(turn: Turn, grammar: str) -> None:
    with upstream(*literal("x", 1)) as server, guided(turn, server=server) as proxy:
        ask(proxy)
        assert server.asked[0]["grammar"] == grammar + "\n"


@pytest.mark.parametrize("width", [1, 3, 100])
def test_a_guided_text_comes_as_text_with_the_servers_own_counts(width: int) -> None:
    said_text = "The file\nsays kiwi. 🥝"
    with upstream(*literal(said_text, width)) as server, guided(Turn(text=said_text), server=server) as proxy:
        assert text(ask(proxy)) == said_text
        exchange = last(proxy)
        assert (exchange.text, exchange.tool_calls, exchange.finish_reason) == (said_text, (), "stop")
        assert exchange.timings == {"cache_n": 0, "prompt_n": 31}
        assert (exchange.usage or {})["prompt_tokens"] == 31
        assert (exchange.source, exchange.error) == ("server", None)


@pytest.mark.parametrize("width", [1, 3, 100])
@pytest.mark.parametrize(
    ("turn", "spoken", "called"),
    [
        (READ, "", ["read"]),
        (Turn(READ.tool_calls, "I look.\nNow:\n", "tool_calls"), "I look.\nNow:\n", ["read"]),
        (Turn((*READ.tool_calls, ToolCall("glob", {"filePath": "a.txt"}))), "", ["read", "glob"]),
        (Turn(READ.tool_calls * 3, "Three"), "Three", ["read", "read", "read"]),
    ],
    ids=["call", "text-with-line-ends-and-call", "two-calls", "text-and-three-calls"],
)
def test_guided_calls_come_as_calls_wherever_the_tokens_end(
    turn: Turn, spoken: str, called: list[str], width: int
) -> None:
    whole = "\n".join([*([spoken] if spoken else []), *[READ_ARGUMENTS] * len(called)])
    with upstream(*literal(whole, width)) as server, guided(turn, server=server) as proxy:
        assert text(ask(proxy)) == spoken
        exchange = last(proxy)
        assert exchange.text == spoken
        assert [(call.name, call.arguments_text) for call in exchange.tool_calls] == [
            (name, READ_ARGUMENTS) for name in called
        ]
        assert len({call.call_id for call in exchange.tool_calls}) == len(called)
        assert exchange.finish_reason == "tool_calls"
        assert exchange.timings == {"cache_n": 0, "prompt_n": 31}
        assert exchange.error is None


def test_ids_of_guided_calls_differ_between_turns() -> None:
    with upstream(*literal(READ_ARGUMENTS, 5)) as server, guided(READ, READ, server=server) as proxy:
        ask(proxy)
        ask(proxy)
        last(proxy)
        first, second = (exchange.tool_calls[0].call_id for exchange in proxy.exchanges)
        assert first != second


@pytest.mark.parametrize("turn", [Turn(text="kiwi"), Turn((ToolCall("read", arguments_text="kiwi"),))])
def test_a_guided_stream_is_passed_on_whole_wherever_its_bytes_are_split(turn: Turn) -> None:
    data = b"".join(literal("kiwi", 2))
    pieces = [data[start : start + 10] for start in range(0, len(data), 10)]
    with upstream(*pieces) as server, guided(turn, server=server) as proxy:
        assert ask(proxy).content.endswith(DONE)


@pytest.mark.parametrize("width", [1, 100])
def test_a_line_end_inside_guided_arguments_stays_where_it_is(width: int) -> None:
    broken = '{"filePath":\n"a.txt"'
    calls = (ToolCall("read", arguments_text=broken), *READ.tool_calls)
    with (
        upstream(*literal(f"{broken}\n{READ_ARGUMENTS}", width)) as server,
        guided(Turn(calls, finish_reason="tool_calls"), server=server) as proxy,
    ):
        ask(proxy)
        assert [call.arguments_text for call in last(proxy).tool_calls] == [broken, READ_ARGUMENTS]


def test_guided_titles_are_still_answered_by_the_proxy_itself() -> None:
    with upstream(*HELLO) as server, guided(KIWI, server=server) as proxy:
        assert text(ask(proxy, TITLE)) == "Harness session"
        assert server.bodies == []


def test_a_guided_request_beyond_the_last_turn_is_not_asked_of_the_server() -> None:
    with upstream(*literal("kiwi", 4)) as server, guided(Turn(text="kiwi"), server=server) as proxy:
        ask(proxy)
        assert text(ask(proxy)).startswith("[harness] no turn left")
        assert [fault.kind for fault in proxy.faults] == ["turns-exhausted"]
        assert len(server.bodies) == 1


def test_an_error_of_the_server_passes_a_guided_turn_unchanged() -> None:
    refusal = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    with upstream() as server, guided(READ, server=server) as proxy:
        server.refusal = refusal
        response = ask(proxy)
        assert (response.status_code, response.json()) == (503, refusal)


def test_a_guided_stream_can_be_cut_and_its_turn_is_said_again() -> None:
    faults = [ProxyFault(1, "cut", after_events=1)]
    with (
        upstream(*literal("kiwi", 1)) as server,
        Proxy(upstream=server.url, turns=[Turn(text="kiwi")], guided=True, faults=faults) as proxy,
    ):
        *got, end = events(proxy)
        assert (len(got), end) == (1, "cut")
        assert text(ask(proxy)) == "kiwi"
        assert [body["grammar"] for body in server.asked] == ['root ::= "kiwi"\n'] * 2


# Slots


def test_the_main_agent_gets_the_first_slot_and_sub_agents_the_second() -> None:
    with upstream(*HELLO) as server, Proxy(upstream=server.url, slots=(4, 7, 9)) as proxy:
        ask(proxy)
        ask(proxy, headers=SUB)
        ask(proxy, headers={"x-session-id": "ses_3", "x-parent-session-id": "ses_1"})
        ask(proxy)
        assert [body["id_slot"] for body in server.asked] == [4, 7, 7, 4]
        assert [body | {"id_slot": 0} for body in server.asked] == [MAIN | {"id_slot": 0}] * 4


def test_a_sub_agent_without_a_slot_of_its_own_is_left_to_the_server() -> None:
    with upstream(*HELLO) as server, Proxy(upstream=server.url, slots=(3,)) as proxy:
        ask(proxy)
        ask(proxy, headers=SUB)
        assert server.asked == [MAIN | {"id_slot": 3}, MAIN]


def test_the_leased_slot_replaces_the_one_that_the_client_asks_for() -> None:
    with upstream(*HELLO) as server, Proxy(upstream=server.url, slots=(0, 1)) as proxy:
        ask(proxy, {**MAIN, "id_slot": 5})
        assert server.asked[0]["id_slot"] == 0


def test_a_guided_request_goes_to_the_leased_slot_too() -> None:
    with upstream(*literal("kiwi", 4)) as server, guided(Turn(text="kiwi"), server=server, slots=(2, 3)) as proxy:
        ask(proxy)
        assert (server.asked[0]["id_slot"], server.asked[0]["grammar"]) == (2, 'root ::= "kiwi"\n')


def test_without_slots_the_body_passes_byte_for_byte() -> None:
    # Spacing, key order, a float and half a surrogate pair that a second encoding would change or refuse.
    body = b'{ "stream":true,"tools" : [ {"b":1.50, "a":"\\ud83d"} ],\n "messages":[]}'
    with upstream(*HELLO) as server, Proxy(upstream=server.url) as proxy:
        response = requests.post(f"{proxy.base_url}/chat/completions", data=body, timeout=WAIT_S)
        assert response.content == b"".join(HELLO)
        assert server.bodies == [body]
