"""Lanes of requests that OpenCode 1.18.33 really sent (data/opencode-1.18.33-requests.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opencode_harness.lanes import Lane, LaneBook, text_of

RECORDED: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("data").joinpath("opencode-1.18.33-requests.json").read_text(encoding="utf-8")
)["requests"]
TOOLS = [{"type": "function", "function": {"name": "read"}}]


def sub_agent(session_id: str, parent_id: str) -> dict[str, str]:
    return {"x-session-id": session_id, "x-parent-session-id": parent_id}


def test_a_recorded_conversation_is_told_apart_lane_by_lane() -> None:
    book = LaneBook()
    lanes = [book.assign(request["headers"], request["body"]) for request in RECORDED]
    main, sub = ("main",), ("main", "sub:1")
    assert lanes == [
        Lane("title", "ses_0001", main),
        Lane("main", "ses_0001", main),
        Lane("sub:1", "ses_0002", sub),
        Lane("main", "ses_0001", main),
        Lane("main", "ses_0001", main),
        Lane("other", "ses_0001", main),  # the compaction
        Lane("main", "ses_0001", main),
    ]


def test_title_and_main_may_arrive_in_either_order() -> None:
    book = LaneBook()
    lanes = [book.assign(request["headers"], request["body"]).name for request in (RECORDED[1], RECORDED[0])]
    assert lanes == ["main", "title"]


def test_sub_agents_are_numbered_by_their_first_request_and_keep_their_number() -> None:
    book = LaneBook()
    sessions = ["ses_b", "ses_c", "ses_b", "ses_c"]
    lanes = [book.assign(sub_agent(session, "ses_a"), {"tools": TOOLS}).name for session in sessions]
    assert lanes == ["sub:1", "sub:2", "sub:1", "sub:2"]


def test_a_sub_agent_of_a_sub_agent_has_both_in_its_path() -> None:
    book = LaneBook()
    book.assign(sub_agent("ses_b", "ses_a"), {"tools": TOOLS})
    lane = book.assign(sub_agent("ses_c", "ses_b"), {"tools": TOOLS})
    assert (lane.name, lane.agent_path) == ("sub:2", ("main", "sub:1", "sub:2"))


def test_a_compaction_that_quotes_a_title_prompt_is_no_title_request() -> None:
    messages = [
        {"role": "system", "content": "You are a context summarization agent."},
        {"role": "user", "content": "[User]: Why does it say 'You are a title generator'?"},
    ]
    assert LaneBook().assign({"x-session-id": "ses_a"}, {"messages": messages}).name == "other"


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": None}, {"messages": [None, 5]}, {"messages": [{"content": [{"type": "image"}]}], "tools": []}],
)
def test_a_request_without_tools_and_without_session_is_other(body: dict[str, Any]) -> None:
    assert LaneBook().assign({}, body) == Lane("other", None, ("main",))


def test_text_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}]
    assert text_of({"role": "user", "content": parts}) == "ab"
