"""Laws of turns and of the completions that carry them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from opencode_harness.turns import AnswerReader, ToolCall, Turn, sse_events, substitute

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
calls = st.builds(
    ToolCall, st.text(min_size=1, max_size=12), st.dictionaries(st.text(max_size=8), json_values, max_size=4)
)
turns = st.builds(
    Turn,
    st.lists(calls, max_size=3).map(tuple),
    st.none() | st.text(max_size=200),
    st.sampled_from(["stop", "tool_calls", "length"]),
)


def streamed(turn: Turn) -> bytes:
    return b"".join(sse_events(turn, model="m", created=0, completion_id="chatcmpl-1"))


def read_in_parts(data: bytes, cuts: Sequence[int]) -> AnswerReader:
    reader = AnswerReader()
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(borders):
        reader.feed(data[start:end])
    return reader


@given(turns, st.lists(st.integers(min_value=0), max_size=12))
def test_a_streamed_turn_is_read_back_whole_wherever_it_is_split(turn: Turn, cuts: list[int]) -> None:
    answer = read_in_parts(streamed(turn), cuts).answer
    assert answer.text == (turn.text or "")
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        (call.name, dict(call.arguments)) for call in turn.tool_calls
    ]
    assert (answer.finish_reason, answer.ended, answer.error) == (turn.finish_reason, True, None)


@given(st.binary(max_size=300), st.lists(st.integers(min_value=0), max_size=6))
def test_any_bytes_split_anywhere_give_the_same_answer_and_never_raise(data: bytes, cuts: list[int]) -> None:
    mixed = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' + data + b"\ndata: [DONE]\n\n"
    assert read_in_parts(mixed, cuts).answer == read_in_parts(mixed, []).answer


@given(turns)
def test_substituting_what_does_not_occur_changes_nothing(turn: Turn) -> None:
    assert substitute([turn], {"a-name-longer-than-any-generated-text-could-contain-by-chance": "x"}) == (turn,)


@given(st.text(max_size=50), st.text(max_size=50))
def test_a_placeholder_becomes_its_place_exactly(before: str, place: str) -> None:
    (turn,) = substitute([Turn(text=before.replace("{", "") + "{workspace}")], {"workspace": place})
    assert turn.text == before.replace("{", "") + place
