"""What a server's answers to the questions of `probe` show, by answers that servers have given."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_launch.chat import StreamedAnswer, whole_answer
from llama_launch.cli import main
from llama_launch.client import Client
from llama_launch.errors import ServerRefused, ServerUnreachable
from llama_launch.probe import PROBES, run_probe, wilson_interval
from scripted_server import Scripted, scripted_server

Capture = pytest.CaptureFixture[str]
CHAT = "/v1/chat/completions"
BY_NAME = {probe.name: probe for probe in PROBES}


def whole(content: str = "", *, reasoning: str = "", calls: object = None, cache_n: int = 0) -> dict[str, object]:
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls}
    timings = {"cache_n": cache_n, "prompt_n": 20}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "timings": timings}


def call(name: str, arguments: object) -> list[dict[str, object]]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return [{"id": "c", "type": "function", "function": {"name": name, "arguments": text}}]


def stream(*deltas: Mapping[str, object]) -> str:
    pieces = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas]
    return "".join(f"data: {piece}\n\n" for piece in [*pieces, "[DONE]"])


READ = call("read", {"filePath": "notes.txt"})


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted_server() as scripted:
        scripted.answer("/props", {"chat_template_caps": {"supports_tools": True}})
        yield scripted


@pytest.mark.parametrize(
    ("probe", "answer", "kind"),
    [
        ("tool call", whole(calls=READ), "tool-call"),
        ("tool call", whole(calls=call("read", {"path": "notes.txt"})), "wrong-arguments"),
        ("tool call", whole(calls=call("read", '{"filePath": "notes')), "wrong-arguments"),
        ("tool call", whole(calls=call("write", {"filePath": "notes.txt"})), "wrong-arguments"),
        ("tool call", whole('<tool_call>{"name": "read", "arguments": {}}</tool_call>'), "text"),
        ("tool call", whole('{"name": "read", "arguments": {"filePath": "notes.txt"}}'), "text"),
        ("tool call", whole("The file holds a list of fruit."), "no-call"),
        ("tool call", whole(reasoning="I should read the file."), "only-reasoning"),
        ("tool call", whole(), "empty"),
        ("after a tool result", whole("A kiwi."), "answer"),
        ("after a tool result", whole(), "empty"),
        ("nested arguments", whole(calls=call("edit", {"file": {"path": "a"}, "lines": [3, 5]})), "tool-call"),
        ("nested arguments", whole(calls=call("edit", {"file": '{"path": "a"}', "lines": [3, 5]})), "wrong-arguments"),
        ("nested arguments", whole(calls=call("edit", {"file": {"path": "a"}, "lines": "3,5"})), "wrong-arguments"),
        ("an answer in words", whole("Hello"), "answer"),
        ("an answer in words", whole(reasoning="The user wants"), "only-reasoning"),
        ("prefix reused", whole("x", cache_n=300), "reused"),
        ("prefix reused", whole("x", cache_n=3), "not-reused"),
        ("prefix reused", {"choices": []}, "unknown"),
    ],
)
def test_an_answer_is_told_by_its_kind(server: Scripted, probe: str, answer: object, kind: str) -> None:
    server.answer(CHAT, answer)
    (verdict,) = run_probe(Client(server.url), BY_NAME[probe]).verdicts
    assert verdict.kind == kind
    good = {"tool-call": True, "answer": True, "reused": True, "unknown": None}
    assert verdict.is_good is good.get(kind, False)


def test_a_streamed_call_is_put_together(server: Scripted) -> None:
    first = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "read", "arguments": ""}}]}
    pieces = [
        {"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in ('{"file', 'Path":"notes.txt"}')
    ]
    server.answer(CHAT, stream(first, *pieces))
    (verdict,) = run_probe(Client(server.url), BY_NAME["tool call, streamed"]).verdicts
    assert verdict.kind == "tool-call"
    assert server.asked[-1][2]["stream"] is True


@given(
    content=st.text(),
    arguments=st.text(),
    cuts=st.lists(st.integers(0, 40), max_size=6).map(sorted),
)
def test_however_an_answer_is_cut_it_is_the_same(content: str, arguments: str, cuts: list[int]) -> None:
    def parts(text: str) -> list[str]:
        edges = [0, *cuts, len(text)]
        return [text[start:end] for start, end in itertools.pairwise(edges)] if len(text) else [""]

    pieces = StreamedAnswer()
    pieces.take_document({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}}]}, "delta")
    for part in parts(content):
        pieces.take_document({"choices": [{"delta": {"content": part}}]}, "delta")
    for part in parts(arguments):
        delta = {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
        pieces.take_document({"choices": [{"delta": delta}]}, "delta")
    calls = call("f", arguments)
    expected = whole_answer({"choices": [{"message": {"content": content, "tool_calls": calls}}]})
    assert pieces.answer() == expected


def test_an_error_in_mid_stream_is_the_servers_refusal(server: Scripted) -> None:
    """What build 10068 sends when its parser gives up behind the first pieces."""
    error = {"error": {"code": 500, "message": "Failed to parse input at pos 12", "type": "server_error"}}
    server.answer(CHAT, 'data: {"choices": [{"delta": {"content": "x"}}]}\n\ndata: ' + json.dumps(error) + "\n\n")
    (verdict,) = run_probe(Client(server.url), BY_NAME["tool call, streamed"]).verdicts
    assert (verdict.kind, verdict.is_good) == ("refused", False)
    assert "Failed to parse input at pos 12" in verdict.detail


def test_a_stream_that_is_no_json_is_told(server: Scripted) -> None:
    server.answer(CHAT, "data: {\n\n")
    with pytest.raises(ServerRefused, match="a stream of JSON pieces"):
        Client(server.url).chat({"stream": True})


@pytest.mark.parametrize(
    "document", [None, [], {"choices": 3}, {"choices": [3]}, {"choices": [{"message": {"tool_calls": [3]}}]}]
)
def test_odd_documents_are_empty_answers(document: object) -> None:
    answer = whole_answer(document)
    assert (answer.content, answer.reasoning) == ("", "")


def test_rates_have_their_intervals(server: Scripted, capsys: Capture) -> None:
    """8 of 10 are 49 to 94 per cent by Wilson's interval (Agresti and Coull 1998 and any table of it)."""
    server.answer(CHAT, *[whole(calls=READ)] * 8, whole("no"), whole("no"))
    result = run_probe(Client(server.url), BY_NAME["tool call"], 10)
    assert (result.n_good, result.n_judged) == (8, 10)
    low, high = wilson_interval(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    seeds = [body["seed"] for method, path, body in server.asked if path == CHAT]
    assert seeds == list(range(1, 11))


@given(n=st.integers(1, 500), data=st.data())
def test_the_interval_holds_the_rate_and_never_claims_certainty(n: int, data: st.DataObject) -> None:
    n_good = data.draw(st.integers(0, n))
    low, high = wilson_interval(n_good, n)
    assert 0 <= low <= n_good / n <= high <= 1
    assert high - low > 0


def test_the_command_says_what_to_do(server: Scripted, capsys: Capture) -> None:
    server.answer(CHAT, whole('<tool_call>{"name": "read"}</tool_call>'))
    assert main(["probe", "--url", server.url]) == 1
    shown = capsys.readouterr().out
    assert "0 of 1" in shown
    assert "hint: calls came back as text" in shown
    assert "--jinja" in shown


def test_a_template_without_tools_is_told(server: Scripted, capsys: Capture) -> None:
    server.answers["/props"] = [(200, json.dumps({"chat_template_caps": {"supports_tools": False}}))]
    server.answer(CHAT, whole("I cannot."))
    assert main(["probe", "--url", server.url, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert "no place for tools" in document["hints"][0]
    assert document["probes"][0]["verdicts"][0]["kind"] == "no-call"


def test_a_server_that_does_everything_right_is_status_0(server: Scripted, capsys: Capture) -> None:
    read = stream(
        {"tool_calls": [{"index": 0, "function": {"name": "read", "arguments": '{"filePath": "notes.txt"}'}}]}
    )
    edit = whole(calls=call("edit", {"file": {"path": "main.py"}, "lines": [3, 5]}))
    server.answer(
        CHAT, whole(calls=READ), read, whole("A kiwi."), edit, whole("Hello"), whole("x"), whole("y", cache_n=99)
    )
    assert main(["probe", "--url", server.url]) == 0
    assert "hint" not in capsys.readouterr().out


def test_calls_that_ask_are_tried_again_and_others_never(server: Scripted) -> None:
    server.answers["/slots"] = [(503, "loading"), (503, "loading"), (200, "[]")]
    assert Client(server.url).slots() == ()
    server.answer(CHAT, "busy", status=503)
    with pytest.raises(ServerRefused, match="503"):
        Client(server.url).chat({})
    server.answer("/health", "loading", status=503)
    assert not Client(server.url).is_healthy()
    counts = {path: sum(asked[1] == path for asked in server.asked) for path in ("/slots", CHAT, "/health")}
    assert counts == {"/slots": 3, CHAT: 1, "/health": 1}


def test_nothing_that_answers_is_status_3(capsys: Capture) -> None:
    with scripted_server() as gone:
        url = gone.url
    assert main(["probe", "--url", url]) == 3
    assert "nothing answers" in capsys.readouterr().err
    with pytest.raises(ServerUnreachable):
        Client(url).chat({})
