"""Whose doing a lost cache is, told from two requests and the server's own counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opencode_harness.evidence import Source
from opencode_harness.journal import Exchange
from opencode_harness.prefix import PrefixChange, prefix_changes

SYSTEM = {"role": "system", "content": "You are opencode. Today is Monday."}
QUESTION = {"role": "user", "content": "Which fruit?"}
ANSWER = {"role": "assistant", "content": "Kiwi."}
MORE = {"role": "user", "content": "Which colour?"}
READ = {"type": "function", "function": {"name": "read"}}
WRITE = {"type": "function", "function": {"name": "write"}}


def told(cache_n: int, prompt_n: int) -> dict[str, Any]:
    return {"cache_n": cache_n, "prompt_n": prompt_n}


def asked(
    number: int,
    messages: Sequence[Mapping[str, Any]],
    timings: Mapping[str, Any] | None = None,
    *,
    lane: str = "main",
    tools: Sequence[Mapping[str, Any]] = (READ,),
    source: Source = "server",
) -> Exchange:
    request = {"model": "m", "tools": list(tools), "messages": list(messages)}
    return Exchange(number, lane, "ses_1", ("main",), request, float(number), timings=timings, source=source)


def test_a_conversation_that_grew_and_was_reused_has_no_cause() -> None:
    before = asked(1, [SYSTEM, QUESTION], told(0, 2000))
    after = asked(2, [SYSTEM, QUESTION, ANSWER, MORE], told(1990, 60))
    assert list(prefix_changes([before, after])) == [PrefixChange("main", 2, 2, None, None, 10, None)]


def test_a_request_that_is_repeated_word_by_word_has_no_cause() -> None:
    before = asked(1, [SYSTEM, QUESTION], told(0, 2000))
    assert list(prefix_changes([before, asked(2, [SYSTEM, QUESTION], told(1999, 1))])) == [
        PrefixChange("main", 2, 2, None, None, 1, None)
    ]


@pytest.mark.parametrize(("reused", "lost", "cause"), [(1936, 64, None), (1935, 65, "server"), (0, 2000, "server")])
def test_messages_that_were_only_added_and_computed_again_are_the_servers_doing(
    reused: int, lost: int, cause: str | None
) -> None:
    before = asked(1, [SYSTEM, QUESTION], told(500, 1500))
    after = asked(2, [SYSTEM, QUESTION, ANSWER], told(reused, 2100 - reused))
    (change,) = prefix_changes([before, after])
    assert (change.lost_tokens, change.cause, change.changed_message) == (lost, cause, None)


def test_a_system_prompt_that_changed_is_the_agents_doing_however_much_the_server_lost() -> None:
    tuesday = {**SYSTEM, "content": "You are opencode. Today is Tuesday."}
    before = asked(1, [SYSTEM, QUESTION], told(0, 2000))
    (change,) = prefix_changes([before, asked(2, [tuesday, QUESTION, ANSWER], told(10, 2100))])
    # `{"content": "` has 13 characters, `You are opencode. Today is ` has 27.
    assert change == PrefixChange("main", 2, 0, 0, 40, 1990, "agent")


def test_a_message_in_the_middle_that_changed_is_named_with_all_before_it_kept() -> None:
    pruned = {"role": "assistant", "content": "Kiwi"}
    before = asked(1, [SYSTEM, QUESTION, ANSWER, MORE], told(0, 2000))
    (change,) = prefix_changes([before, asked(2, [SYSTEM, QUESTION, pruned, MORE, ANSWER], told(1800, 300))])
    assert (change.kept_messages, change.changed_message, change.difference_at) == (2, 2, 13 + len("Kiwi"))
    assert (change.lost_tokens, change.cause) == (200, "agent")


def test_keys_in_another_order_are_the_same_message() -> None:
    turned = {"content": "Which fruit?", "role": "user"}
    (change,) = prefix_changes([asked(1, [SYSTEM, QUESTION]), asked(2, [SYSTEM, turned, ANSWER])])
    assert (change.kept_messages, change.cause) == (2, None)


@pytest.mark.parametrize("tools", [(READ, WRITE), (WRITE,), ()], ids=["added", "replaced", "taken-away"])
def test_a_tool_list_that_changed_is_the_agents_doing_and_comes_before_all_messages(
    tools: tuple[Mapping[str, Any], ...],
) -> None:
    before = asked(1, [SYSTEM, QUESTION], told(0, 2000))
    (change,) = prefix_changes([before, asked(2, [SYSTEM, QUESTION, ANSWER], told(0, 2100), tools=tools)])
    assert (change.kept_messages, change.changed_message, change.cause) == (0, -1, "agent")


def test_the_same_tools_in_another_order_are_the_agents_doing() -> None:
    before = asked(1, [SYSTEM], tools=(READ, WRITE))
    (change,) = prefix_changes([before, asked(2, [SYSTEM], tools=(WRITE, READ))])
    # `[{"function": {"name": "` has 24 characters, and there `read` and `write` differ.
    assert (change.changed_message, change.difference_at, change.cause) == (-1, 24, "agent")


def test_a_compaction_that_drops_messages_is_the_agents_doing_and_nothing_is_left_to_compare() -> None:
    before = asked(1, [SYSTEM, QUESTION, ANSWER, MORE], told(0, 2000))
    (change,) = prefix_changes([before, asked(2, [SYSTEM, QUESTION], told(900, 1))])
    assert change == PrefixChange("main", 2, 2, 2, None, 1100, "agent")


def test_a_compaction_that_puts_a_summary_in_their_place_is_the_agents_doing() -> None:
    summary = {"role": "user", "content": "What we did so far: a kiwi."}
    before = asked(1, [SYSTEM, QUESTION, ANSWER, MORE], told(0, 2000))
    (change,) = prefix_changes([before, asked(2, [SYSTEM, summary], told(900, 50))])
    assert (change.kept_messages, change.changed_message, change.cause) == (1, 1, "agent")
    # `Which` and `What` differ at their third character.
    assert change.difference_at == 13 + 2


def test_lanes_that_take_turns_are_compared_with_themselves_only() -> None:
    task = {"role": "user", "content": "Look for fruit."}
    exchanges = [
        asked(1, [SYSTEM, QUESTION], told(0, 2000)),
        asked(2, [QUESTION], lane="title", tools=()),
        asked(3, [task], told(0, 500), lane="sub:1"),
        asked(4, [SYSTEM, QUESTION, ANSWER], lane="other", tools=()),
        asked(5, [SYSTEM, QUESTION, ANSWER], told(100, 2000)),
        asked(6, [task, ANSWER], told(490, 30), lane="sub:1"),
        asked(7, [MORE], lane="other", tools=()),
        asked(8, [MORE], lane="title", tools=()),
        asked(9, [task], told(0, 500), lane="sub:2"),
    ]
    assert list(prefix_changes(exchanges)) == [
        PrefixChange("main", 5, 2, None, None, 1900, "server"),
        PrefixChange("sub:1", 6, 1, None, None, 10, None),
    ]


def test_each_request_is_compared_with_the_one_just_before_it() -> None:
    exchanges = [
        asked(1, [SYSTEM], told(0, 1000)),
        asked(2, [SYSTEM, QUESTION], told(995, 105)),
        asked(3, [SYSTEM, QUESTION, ANSWER], told(995, 205)),
    ]
    found = [
        (change.request, change.kept_messages, change.lost_tokens, change.cause) for change in prefix_changes(exchanges)
    ]
    assert found == [(2, 1, 5, None), (3, 2, 105, "server")]


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, None), (None, told(0, 2100)), (told(0, 2000), None), ({"prompt_n": 2000}, told(0, 2100))],
)
def test_without_the_servers_timings_nothing_is_known_to_be_lost(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> None:
    (change,) = prefix_changes([asked(1, [SYSTEM], before), asked(2, [SYSTEM, QUESTION], after)])
    assert (change.lost_tokens, change.cause) == (None, None)


def test_without_timings_a_changed_message_is_still_the_agents_doing() -> None:
    (change,) = prefix_changes([asked(1, [SYSTEM]), asked(2, [QUESTION])])
    assert (change.lost_tokens, change.cause) == (None, "agent")


def test_a_scripted_answer_loses_no_cache_of_a_server() -> None:
    exchanges = [
        asked(1, [SYSTEM], told(0, 2000)),
        asked(2, [SYSTEM, QUESTION], {"cache_n": 0, "prompt_n": 2100}, source="scripted"),
    ]
    (change,) = prefix_changes(exchanges)
    assert (change.lost_tokens, change.cause) == (None, None)


def test_a_cache_that_holds_more_than_the_request_before_lost_nothing() -> None:
    # The answer's own tokens are in the cache, too.
    (change,) = prefix_changes([asked(1, [SYSTEM], told(0, 1000)), asked(2, [SYSTEM, ANSWER], told(1050, 10))])
    assert (change.lost_tokens, change.cause) == (0, None)


@pytest.mark.parametrize("messages", [None, 5, "text", {}])
def test_a_request_without_a_list_of_messages_does_no_harm(messages: object) -> None:
    odd = Exchange(1, "main", None, ("main",), {"messages": messages}, 0.0)
    (change,) = prefix_changes([odd, Exchange(2, "main", None, ("main",), {"messages": messages}, 1.0)])
    assert (change.kept_messages, change.changed_message, change.cause) == (0, None, None)


def test_first_requests_follow_none() -> None:
    assert list(prefix_changes([])) == []
    assert list(prefix_changes([asked(1, [SYSTEM]), asked(2, [SYSTEM], lane="sub:1")])) == []


any_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "tool"]), "content": st.text(max_size=9)}
)
conversation = st.lists(any_message, max_size=5)


@settings(deadline=None)
@given(conversation, any_message, any_message, conversation, conversation)
def test_the_agent_is_blamed_exactly_where_a_message_that_was_sent_is_not_repeated(
    shared: list[dict[str, str]],
    then: dict[str, str],
    now: dict[str, str],
    rest: list[dict[str, str]],
    added: list[dict[str, str]],
) -> None:
    grown = prefix_changes([asked(1, shared), asked(2, [*shared, *added])])
    assert [(change.kept_messages, change.changed_message, change.cause) for change in grown] == [
        (len(shared), None, None)
    ]
    if then != now:
        changed = prefix_changes([asked(1, [*shared, then, *rest]), asked(2, [*shared, now, *added])])
        assert [(change.kept_messages, change.changed_message, change.cause) for change in changed] == [
            (len(shared), len(shared), "agent")
        ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["main", "sub:1", "sub:2", "title", "other"]), conversation), max_size=12))
def test_what_other_lanes_ask_in_between_changes_nothing(sent: list[tuple[str, list[dict[str, str]]]]) -> None:
    exchanges = [asked(number, messages, lane=lane) for number, (lane, messages) in enumerate(sent, start=1)]
    together = list(prefix_changes(exchanges))
    for lane in ("main", "sub:1", "sub:2", "title", "other"):
        alone = [exchange for exchange in exchanges if exchange.lane == lane]
        assert [change for change in together if change.lane == lane] == list(prefix_changes(alone))
