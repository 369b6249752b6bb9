"""Who answers a trial's chat requests: every combination that matters, with the answerer it must give."""

from __future__ import annotations

from pathlib import Path

import pytest
from opencode_harness.answer_source import AnswerSource, Oracle, can_be_guided, choose_source
from opencode_harness.scenario import Scenario, load_scenario
from opencode_harness.turns import ToolCall, Turn

KIWI = Turn(text="It is kiwi.")
PLUM = Turn(text="It is plum.")
READ = Turn((ToolCall("read", {"filePath": "/tmp/notes.txt"}),), finish_reason="tool_calls")
TURNS = "turns: [{text: It is kiwi.}]\n"
GUIDED = TURNS + "guided: true\n"
# A turn whose counts no server can be made to give.
COUNTED = "turns: [{text: It is kiwi., usage: {prompt_tokens: 9000}}]\n"
SOLUTION = "solution: [{text: It is plum.}]\n"
NO_SERVER_OR_CASSETTE = (
    "it needs a server or a cassette; name one with --server URL, or record: opencode-harness record "
)


def scenario(folder: Path, more: str = "") -> Scenario:
    path = folder / "fruit.yaml"
    path.write_text("prompt: Which fruit?\nscreen_contains: kiwi\n" + more)
    return load_scenario(path)


@pytest.mark.parametrize(
    ("has_cassette", "has_server", "live", "kind"),
    [
        (True, True, False, "cassette"),
        (True, False, False, "cassette"),
        (True, True, True, "server"),
        (True, False, True, "none"),
        (False, True, False, "server"),
        (False, True, True, "server"),
        (False, False, False, "none"),
        (False, False, True, "none"),
    ],
)
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("more", ["", SOLUTION])
def test_a_scenario_without_turns_is_answered_by_its_cassette_unless_live_else_by_the_server(
    tmp_path: Path, more: str, guided: bool, has_cassette: bool, has_server: bool, live: bool, kind: str
) -> None:
    source = choose_source(
        scenario(tmp_path, more), has_server=has_server, has_cassette=has_cassette, live=live, guided=guided
    )
    assert (source.kind, source.turns) == (kind, ())
    assert source.reason == (f"{NO_SERVER_OR_CASSETTE}{tmp_path / 'fruit.yaml'}" if kind == "none" else "")


@pytest.mark.parametrize(
    ("more", "has_server", "guided", "kind"),
    [
        (TURNS, False, False, "turns"),
        (TURNS, False, True, "turns"),
        (TURNS, True, False, "turns"),
        (TURNS, True, True, "guided"),
        (COUNTED, False, True, "turns"),
        (COUNTED, True, False, "turns"),
        (COUNTED, True, True, "turns"),
        (GUIDED, True, False, "guided"),
        (GUIDED, True, True, "guided"),
        (GUIDED, False, False, "none"),
        (GUIDED, False, True, "none"),
    ],
)
@pytest.mark.parametrize("has_cassette", [False, True])
@pytest.mark.parametrize("live", [False, True])
def test_a_scenario_with_turns_is_never_answered_by_a_cassette_and_guided_only_where_a_server_is(
    tmp_path: Path, live: bool, has_cassette: bool, more: str, has_server: bool, guided: bool, kind: str
) -> None:
    source = choose_source(
        scenario(tmp_path, more), has_server=has_server, has_cassette=has_cassette, live=live, guided=guided
    )
    assert source.kind == kind
    assert [turn.text for turn in source.turns] == ([] if kind == "none" else ["It is kiwi."])
    assert ("name one with --server URL" in source.reason) == (kind == "none")


@pytest.mark.parametrize("has_server", [False, True])
@pytest.mark.parametrize("has_cassette", [False, True])
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("more", "oracle", "expected"),
    [
        (SOLUTION, "solution", AnswerSource("turns", (PLUM,))),
        (TURNS, "solution", AnswerSource("turns", (KIWI,))),
        (GUIDED, "solution", AnswerSource("turns", (KIWI,))),
        (
            "",
            "solution",
            AnswerSource("none", reason="nobody wrote its solution; add `solution:`, a list of turns"),
        ),
        (SOLUTION, "nothing", AnswerSource("turns", (Turn(text="I leave everything as it is."),))),
        (GUIDED, "nothing", AnswerSource("turns", (Turn(text="I leave everything as it is."),))),
        ("", "nothing", AnswerSource("turns", (Turn(text="I leave everything as it is."),))),
    ],
)
def test_an_oracle_asks_nobody_whatever_there_is_besides(
    tmp_path: Path,
    more: str,
    oracle: Oracle,
    expected: AnswerSource,
    live: bool,
    guided: bool,
    has_cassette: bool,
    has_server: bool,
) -> None:
    source = choose_source(
        scenario(tmp_path, more),
        has_server=has_server,
        has_cassette=has_cassette,
        oracle=oracle,
        guided=guided,
        live=live,
    )
    assert source == expected


@pytest.mark.parametrize(
    ("more", "prompts"),
    [("then: Which colour?\n", 2), ("then: [a, b]\n", 3), ("resume: c\n", 2), ("then: [a, b]\nresume: [c, d]\n", 5)],
)
def test_an_agent_that_does_nothing_answers_each_prompt_once(tmp_path: Path, more: str, prompts: int) -> None:
    source = choose_source(scenario(tmp_path, more), has_server=False, has_cassette=False, oracle="nothing")
    assert [turn.text for turn in source.turns] == ["I leave everything as it is."] * prompts


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ((KIWI,), True),
        ((READ,), True),
        ((READ, KIWI), True),
        ((Turn(READ.tool_calls, "I look.", "tool_calls"),), True),
        ((Turn(text="kiwi", lane="sub:1"),), True),
        ((Turn(text="kiwi", usage={"completion_tokens": 7}),), False),
        ((Turn(text="kiwi", reasoning="Let me think."),), False),
        ((Turn(text="kiwi", reasoning=""),), False),
        ((Turn(text="kiwi", finish_reason="length"),), False),
        ((Turn(text=""),), False),
        ((Turn(READ.tool_calls, ""),), False),
        ((Turn(),), False),
        ((KIWI, READ, Turn(text="kiwi", finish_reason="length")), False),
    ],
    ids=[
        "text",
        "call",
        "call-then-text",
        "text-and-call",
        "sub-agent",
        "counts",
        "reasoning",
        "empty-reasoning",
        "cut",
        "empty-text",
        "empty-text-and-call",
        "nothing",
        "one-of-three",
    ],
)
def test_a_server_can_be_made_to_say_texts_and_calls_but_no_counts_thoughts_or_cut_endings(
    turns: tuple[Turn, ...], expected: bool
) -> None:
    assert can_be_guided(turns) is expected


def test_a_call_whose_arguments_are_no_text_at_all_cannot_be_guided() -> None:
    assert not can_be_guided((Turn((ToolCall("read", arguments_text=""),), finish_reason="tool_calls"),))


@pytest.mark.parametrize(
    "turn", [Turn(READ.tool_calls, finish_reason="stop"), Turn(text="kiwi", finish_reason="tool_calls")]
)
def test_an_ending_that_does_not_fit_the_turn_cannot_be_guided(turn: Turn) -> None:
    assert not can_be_guided((turn,))
