"""Turns as scenarios write them, and completions as they go over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opencode_harness.turns import (
    Answer,
    AnswerReader,
    ToolCall,
    Turn,
    TurnError,
    completion,
    read_completion,
    sse_events,
    substitute,
)

FRAME: dict[str, Any] = {"model": "m", "created": 1_796_107_699, "completion_id": "chatcmpl-7"}

# Recorded from xllamacpp 2026.10.11549 (llama.cpp build 11549) with SmolLM2-135M, `stream_options.include_usage` on,
# max_tokens 3; ids shortened.
RECORDED = b"""\
data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1796107699,\
"id":"chatcmpl-oW","model":"m","system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hey"}}],"created":1796107699,"id":"chatcmpl-oW",\
"model":"m","system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" there"}}],"created":1796107699,\
"id":"chatcmpl-oW","model":"m","system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":","}}],"created":1796107699,"id":"chatcmpl-oW",\
"model":"m","system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"created":1796107699,"id":"chatcmpl-oW",\
"model":"m","system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}

data: {"choices":[],"created":1796107699,"id":"chatcmpl-oW","model":"m","system_fingerprint":"b0-unknown",\
"object":"chat.completion.chunk","usage":{"completion_tokens":3,"prompt_tokens":31,"total_tokens":34,\
"prompt_tokens_details":{"cached_tokens":0}},"timings":{"cache_n":0,"prompt_n":31,"prompt_ms":190.439,\
"predicted_n":3,"predicted_ms":24.474}}

data: [DONE]

"""


def read(data: bytes) -> Answer:
    reader = AnswerReader()
    reader.feed(data)
    return reader.answer


def payloads(events: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"text": "Hi"}, Turn(text="Hi", finish_reason="stop")),
        ({"text": ""}, Turn(text="")),
        ({"text": "cut", "finish_reason": "length"}, Turn(text="cut", finish_reason="length")),
        ({"tool_calls": [{"name": "glob"}]}, Turn((ToolCall("glob"),), finish_reason="tool_calls")),
        (
            {"text": "I look", "tool_calls": [{"name": "read", "arguments": {"filePath": "/x"}}]},
            Turn((ToolCall("read", {"filePath": "/x"}),), "I look", "tool_calls"),
        ),
    ],
    ids=["text", "empty-text", "length", "bare-call", "text-and-call"],
)
def test_a_turn_is_read_from_a_scenarios_mapping(raw: dict[str, Any], expected: Turn) -> None:
    assert Turn.from_mapping(raw) == expected


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "a turn needs text, reasoning or tool_calls"),
        ({"tool_calls": []}, "a turn needs text, reasoning or tool_calls"),
        ({"txt": "Hi"}, "unknown key 'txt'"),
        ({"text": 5}, "text: must be text, found 5"),
        ({"tool_calls": "read"}, "tool_calls: must be a list"),
        ({"tool_calls": ["read"]}, "tool_calls[0]: must have name and arguments"),
        ({"tool_calls": [{"name": "read"}, {"name": ""}]}, "tool_calls[1].name: must name a tool"),
        ({"tool_calls": [{"name": "read", "args": {}}]}, "tool_calls[0]: unknown key 'args'"),
        ({"tool_calls": [{"name": "read", "arguments": [1]}]}, "tool_calls[0].arguments: must map names"),
        ({"text": "x", "finish_reason": 1}, "finish_reason: must be text"),
    ],
)
def test_a_wrong_turn_names_the_key_at_fault(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(TurnError) as caught:
        Turn.from_mapping(raw)
    assert str(caught.value).startswith(message)


def test_placeholders_are_filled_in_texts_and_nested_arguments() -> None:
    call = ToolCall("todowrite", {"items": [{"at": "{workspace}/a"}, 3], "{outside}": None})
    (turn,) = substitute([Turn((call,), "in {workspace}")], {"workspace": "/w", "outside": "/o"})
    assert turn == Turn((ToolCall("todowrite", {"items": [{"at": "/w/a"}, 3], "/o": None}),), "in /w")


def test_other_braces_are_left_alone() -> None:
    text = '{"workspace": {"a": 1}} {} {unknown} {{workspace}}'
    (turn,) = substitute([Turn(text=text)], {"workspace": "/w"})
    assert turn.text == '{"workspace": {"a": 1}} {} {unknown} {/w}'


def test_a_replacement_is_not_looked_at_again() -> None:
    (turn,) = substitute([Turn(text="{a}")], {"a": "{b}", "b": "wrong"})
    assert turn.text == "{b}"


def test_a_streamed_text_is_role_pieces_finish_and_done() -> None:
    events = list(sse_events(Turn(text="The file says kiwi."), **FRAME))
    assert events[-1] == b"data: [DONE]\n\n"
    assert all(event.startswith(b"data: ") and event.endswith(b"\n\n") for event in events)
    first, *middle, last = payloads(events)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(middle) > 1
    assert "".join(event["choices"][0]["delta"]["content"] for event in middle) == "The file says kiwi."
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert {event["object"] for event in (first, *middle, last)} == {"chat.completion.chunk"}


def test_a_streamed_tool_call_names_the_tool_once_then_brings_its_arguments_in_pieces() -> None:
    turn = Turn.from_mapping({"tool_calls": [{"name": "read", "arguments": {"filePath": "/tmp/demo/notes.txt"}}]})
    deltas = [event["choices"][0]["delta"] for event in payloads(list(sse_events(turn, **FRAME)))]
    head, *pieces = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert head == {
        "index": 0,
        "id": "call_chatcmpl-7_0",
        "type": "function",
        "function": {"name": "read", "arguments": ""},
    }
    assert len(pieces) > 1
    assert all(set(piece) == {"index", "function"} for piece in pieces)
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == {
        "filePath": "/tmp/demo/notes.txt"
    }


def test_a_long_text_is_sent_in_a_bounded_number_of_events() -> None:
    events = list(sse_events(Turn(text="x" * 1_000_000), **FRAME))
    assert len(events) <= 40


def test_an_unstreamed_completion_holds_the_whole_message() -> None:
    turn = Turn((ToolCall("read", {"filePath": "/x"}),), "I look", "tool_calls")
    choice = completion(turn, **FRAME)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"filePath": "/x"}'}


def test_a_recorded_llama_server_stream_is_read_with_usage_and_timings() -> None:
    answer = read(RECORDED)
    assert answer.text == "Hey there,"
    assert answer.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage["prompt_tokens"] == 31
    assert answer.timings is not None
    assert (answer.timings["cache_n"], answer.timings["prompt_n"]) == (0, 31)
    assert answer.ended
    assert answer.error is None


def test_a_cut_stream_keeps_what_came() -> None:
    answer = read(RECORDED[: RECORDED.index(b'{"content":","}')])
    assert (answer.text, answer.finish_reason, answer.ended) == ("Hey there", None, False)


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"error":{"code":500,"message":"Failed to parse input at pos 3","type":"server_error"}}\n\n',
        b'error: {"code":500,"message":"Failed to parse input at pos 3","type":"server_error"}\n\n',
    ],
    ids=["data", "error-line"],
)
def test_an_error_in_mid_stream_is_read(line: bytes) -> None:
    assert read(RECORDED[:300] + b"\n\n" + line).error == "Failed to parse input at pos 3"


@pytest.mark.parametrize(
    "data",
    [
        b": comment\n\nevent: x\nid: 1\nretry: 5\n",
        b"data: not json\n\n",
        b"data: 5\n\ndata: []\n\n",
        b'data: {"choices": 5}\n\ndata: {"choices": [5, {"delta": {"tool_calls": [5, {"index": "x"}]}}]}\n\n',
        b"\xff\xfe\n\ndata: \xff\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
    ],
    ids=["comments", "not-json", "not-objects", "wrong-types", "not-utf8", "deep"],
)
def test_bytes_that_are_no_completion_are_skipped(data: bytes) -> None:
    answer = read(data + RECORDED)
    assert (answer.text, answer.ended) == ("Hey there,", True)


def test_arguments_that_are_not_json_are_kept_as_text() -> None:
    delta = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "read", "arguments": '{"filePath": '}}]}
    (call,) = read(b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n").tool_calls
    assert (call.name, call.arguments_text, call.arguments) == ("read", '{"filePath": ', None)


def test_reasoning_is_kept_apart_from_the_text() -> None:
    answer = read(b'data: {"choices":[{"delta":{"reasoning_content":"hm"}},{"delta":{"content":"yes"}}]}\n\n')
    assert (answer.reasoning, answer.text) == ("hm", "yes")


def test_an_answer_in_one_piece_is_read() -> None:
    # Recorded like RECORDED, without `stream`.
    body = (
        b'{"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant","content":"Hello! I"}}],'
        b'"usage":{"completion_tokens":3,"prompt_tokens":31,"total_tokens":34},"id":"chatcmpl-HN",'
        b'"timings":{"cache_n":30,"prompt_n":1}}'
    )
    answer = read_completion(body)
    assert (answer.text, answer.finish_reason, answer.ended) == ("Hello! I", "length", True)
    assert answer.timings == {"cache_n": 30, "prompt_n": 1}


def test_an_error_object_is_read() -> None:
    # llama-server's answer while it loads its model.
    body = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
    assert read_completion(body).error == "Loading model"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"\xff"])
def test_other_bodies_give_an_empty_answer(body: bytes) -> None:
    assert read_completion(body) == Answer()
