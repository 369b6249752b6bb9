"""A trial's figures from hand-made exchanges, whose sums were worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from opencode_harness.accounting import answer_figures, called_tools, lane_totals, request_figures
from opencode_harness.evidence import AnswerFigures, CalledTool
from opencode_harness.journal import Exchange
from opencode_harness.turns import ReceivedToolCall

# From llama-server's last event (build 11549), shortened.
TIMINGS = {
    "cache_n": 1024,
    "prompt_n": 37,
    "prompt_ms": 118.4567,
    "prompt_per_token_ms": 3.2015,
    "predicted_n": 12,
    "predicted_ms": 240.25,
}
USAGE = {"prompt_tokens": 1061, "completion_tokens": 12, "total_tokens": 1073}
SYSTEM = {"role": "system", "content": "You are opencode."}
QUESTION = {"role": "user", "content": "Which fruit?"}


def exchange(number: int = 1, lane: str = "main", **parts: Any) -> Exchange:
    path = ("main",) if lane in ("main", "title", "other") else ("main", lane)
    return Exchange(number, lane, "ses_1", path, parts.pop("request", {}), parts.pop("started_s", 0.0), **parts)


def test_an_answers_figures_are_those_that_the_server_told() -> None:
    told = exchange(usage=USAGE, timings=TIMINGS, finish_reason="stop")
    assert answer_figures(told) == AnswerFigures("main", "server", 1024, 37, 1061, 12, "stop")


def test_an_answer_that_told_nothing_has_no_figures() -> None:
    assert answer_figures(exchange(lane="sub:1", source="scripted")) == AnswerFigures("sub:1", "scripted")


def test_a_count_of_zero_is_a_figure() -> None:
    figures = answer_figures(exchange(timings={"cache_n": 0, "prompt_n": 0}, usage={"completion_tokens": 0}))
    assert (figures.cache_n, figures.prompt_n, figures.completion_tokens) == (0, 0, 0)


@pytest.mark.parametrize("odd", [None, True, "1024", 1024.0, [1024], {}])
def test_what_is_no_count_is_no_figure(odd: object) -> None:
    told = exchange(timings={"cache_n": odd, "prompt_n": odd}, usage={"prompt_tokens": odd, "completion_tokens": odd})
    assert answer_figures(told) == AnswerFigures("main", "server")


def test_called_tools_are_those_of_all_lanes_in_order_with_what_was_no_object_as_none() -> None:
    exchanges = [
        exchange(1, "title"),
        exchange(
            2, tool_calls=(ReceivedToolCall("a", "read", '{"filePath": "x"}'), ReceivedToolCall("b", "task", "{}"))
        ),
        exchange(3, "sub:1", tool_calls=(ReceivedToolCall("c", "bash", '{"command": '),)),
        exchange(4, tool_calls=(ReceivedToolCall("d", "read", "[1]"),)),
    ]
    assert called_tools(exchanges) == (
        CalledTool("main", "read", {"filePath": "x"}),
        CalledTool("main", "task", {}),
        CalledTool("sub:1", "bash", None),
        CalledTool("main", "read", None),
    )


def test_each_request_is_told_with_times_in_milliseconds_and_what_it_shares_with_the_last() -> None:
    first = exchange(
        1,
        request={"tools": [], "messages": [SYSTEM]},
        started_s=0.12345,
        first_byte_s=1.00049,
        ended_s=2.9996,
        status=200,
        finish_reason="stop",
        usage=USAGE,
        timings={"cache_n": 0, "prompt_n": 1061},
    )
    second = exchange(
        2,
        request={"tools": [], "messages": [SYSTEM, QUESTION]},
        started_s=3.0,
        status=503,
        source="cassette",
        error="Loading model",
        timings={"cache_n": 0, "prompt_n": 1100},
    )
    assert request_figures([first, second]) == [
        {
            "number": 1,
            "lane": "main",
            "agent_path": ["main"],
            "source": "server",
            "status": 200,
            "started_s": 0.123,
            "first_byte_s": 1.0,
            "ended_s": 3.0,
            "finish_reason": "stop",
            "error": None,
            "usage": USAGE,
            "timings": {"cache_n": 0, "prompt_n": 1061},
            "prefix": None,
        },
        {
            "number": 2,
            "lane": "main",
            "agent_path": ["main"],
            "source": "cassette",
            "status": 503,
            "started_s": 3.0,
            "first_byte_s": None,
            "ended_s": None,
            "finish_reason": None,
            "error": "Loading model",
            "usage": None,
            "timings": {"cache_n": 0, "prompt_n": 1100},
            "prefix": {
                "lane": "main",
                "request": 2,
                "kept_messages": 1,
                "changed_message": None,
                "difference_at": None,
                "lost_tokens": 1061,
                "cause": "server",
            },
        },
    ]


def test_only_a_request_that_follows_one_in_its_own_conversation_shares_a_prefix() -> None:
    lanes = ["title", "main", "sub:1", "other", "main", "sub:1", "other", "title", "sub:2"]
    figures = request_figures([exchange(number, lane) for number, lane in enumerate(lanes, start=1)])
    assert [figure["number"] for figure in figures if figure["prefix"] is not None] == [5, 6]
    assert figures[2]["agent_path"] == ["main", "sub:1"]


def test_the_figures_are_json_as_they_are() -> None:
    figures = request_figures([exchange(1, usage=USAGE, timings=TIMINGS), exchange(2, usage=USAGE)])
    assert json.loads(json.dumps(figures)) == figures
    assert request_figures([]) == []


def test_totals_are_summed_by_lane_in_the_order_of_first_requests() -> None:
    exchanges = [
        exchange(1, "title"),
        exchange(
            2, timings={"cache_n": 0, "prompt_n": 1000, "prompt_ms": 300.1, "predicted_n": 5, "predicted_ms": 50.2}
        ),
        exchange(3, "sub:1", timings={"cache_n": 10, "prompt_n": 20}),
        exchange(
            4, timings={"cache_n": 990, "prompt_n": 40, "prompt_ms": 12.2, "predicted_n": 7, "predicted_ms": 70.1}
        ),
    ]
    totals = lane_totals(exchanges)
    assert list(totals) == ["title", "main", "sub:1"]
    assert totals == {
        "title": {"requests": 1},
        "main": {
            "requests": 2,
            "cache_n": 990,
            "prompt_n": 1040,
            "prompt_ms": 312.3,
            "predicted_n": 12,
            "predicted_ms": 120.3,
        },
        "sub:1": {"requests": 1, "cache_n": 10, "prompt_n": 20},
    }


def test_a_request_that_told_no_timings_is_counted_and_adds_nothing() -> None:
    totals = lane_totals(
        [exchange(1, timings=TIMINGS), exchange(2, error="the client hung up"), exchange(3, timings={})]
    )
    assert totals == {
        "main": {
            "requests": 3,
            "cache_n": 1024,
            "prompt_n": 37,
            "prompt_ms": 118.457,
            "predicted_n": 12,
            "predicted_ms": 240.25,
        }
    }


@pytest.mark.parametrize("timings", [{"prompt_n": "many"}, {"prompt_n": None}, {"prompt_n": [1]}, {"draft_n": 3}])
def test_what_is_no_number_or_no_timing_of_ours_is_left_out_of_totals(timings: Mapping[str, object]) -> None:
    assert lane_totals([exchange(timings=timings)]) == {"main": {"requests": 1}}


def test_milliseconds_do_not_pile_up_rounding_noise() -> None:
    totals = lane_totals([exchange(number, timings={"prompt_ms": 0.1}) for number in range(1, 1001)])
    assert totals == {"main": {"requests": 1000, "prompt_ms": 100.0}}


def test_no_requests_have_no_totals() -> None:
    assert lane_totals([]) == {}
