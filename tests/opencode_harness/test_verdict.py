"""What a trial amounts to: every outcome is reached from hand-made records, and each has its policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from opencode_harness.checks import CheckFailure
from opencode_harness.evidence import Source
from opencode_harness.journal import Exchange
from opencode_harness.outcomes import OUTCOME_OF_PROBLEM, POLICIES, Outcome, exit_code
from opencode_harness.tui import TerminalOutcome, Timings, TuiRun
from opencode_harness.turns import ReceivedToolCall
from opencode_harness.verdict import KvMode, Problem, contamination, outcome_of, terminal_problem

FAILURE = CheckFailure("screen_contains", 3, "'kiwi' not found")
CALL = ReceivedToolCall("c1", "read", "{}")
QWEN_CALL = '<tool_call>\n{"name": "read", "arguments": {"filePath": "notes.txt"}}\n</tool_call>'
OUTCOME_BY_KIND = {
    "model-stall": Outcome.MODEL_STALL,
    "agent-stuck": Outcome.AGENT_STUCK,
    "server-parser": Outcome.SERVER_PARSER,
    "turn-timeout": Outcome.LIMIT,
    "limit": Outcome.LIMIT,
    "rejected": Outcome.FAIL,
    "turns-exhausted": Outcome.FAIL,
    "turns-unused": Outcome.FAIL,
    "unscripted-request": Outcome.FAIL,
    "stale-cassette": Outcome.STALE_CASSETTE,
    "tool-diverged": Outcome.TOOL_DIVERGED,
    "contaminated": Outcome.CONTAMINATED,
    "skip": Outcome.SKIP,
    "no-upstream": Outcome.INFRA,
    "upstream-unreachable": Outcome.INFRA,
    "upstream-timeout": Outcome.INFRA,
    "journal-unwritable": Outcome.INFRA,
    "proxy-error": Outcome.INFRA,
    "ready-timeout": Outcome.INFRA,
    "input-timeout": Outcome.INFRA,
    "exited": Outcome.INFRA,
    "a-kind-that-nobody-knows": Outcome.INFRA,
}


def terminal(outcome: TerminalOutcome, open_dialog: str = "") -> TuiRun:
    return TuiRun(
        outcome=outcome,
        exit_status=0,
        message="what was seen",
        stdout_text="",
        stderr_text="",
        ready_rows=(),
        done_rows=(),
        final_rows=(),
        screen_text="",
        scrollback="",
        open_dialog=open_dialog,
        dialogs=(),
        timings=Timings(None, None, None, None),
    )


def answered(lane: str = "main", source: Source = "server", **parts: Any) -> Exchange:
    return Exchange(1, lane, "ses_1", ("main",), {}, 0.0, source=source, **parts)


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("done", None),
        ("ready-timeout", "ready-timeout"),
        ("input-timeout", "input-timeout"),
        ("exited", "exited"),
    ],
)
def test_what_the_terminal_tells_is_the_problem_whatever_the_model_does(
    outcome: TerminalOutcome, kind: str | None, is_waiting: bool, rejects: bool
) -> None:
    problem = terminal_problem(terminal(outcome), rejects=rejects, is_waiting_for_model=is_waiting)
    assert problem == (None if kind is None else Problem(kind, "what was seen"))


@pytest.mark.parametrize(("rejects", "expected"), [(True, None), (False, Problem("rejected", "what was seen"))])
def test_a_rejection_is_as_it_should_be_only_where_the_scenario_rejects(
    rejects: bool, expected: Problem | None
) -> None:
    assert terminal_problem(terminal("rejected"), rejects=rejects, is_waiting_for_model=False) == expected


@pytest.mark.parametrize(
    ("open_dialog", "is_waiting", "kind"),
    [
        ("", True, "turn-timeout"),
        ("", False, "agent-stuck"),
        ("△ Permission required", True, "agent-stuck"),
        ("△ Permission required", False, "agent-stuck"),
    ],
    ids=["model-at-work", "nothing-open", "dialog-beside-a-request", "dialog"],
)
def test_a_turn_that_does_not_end_is_stuck_unless_a_model_is_at_work(
    open_dialog: str, is_waiting: bool, kind: str
) -> None:
    problem = terminal_problem(terminal("turn-timeout", open_dialog), rejects=False, is_waiting_for_model=is_waiting)
    assert problem == Problem(kind, "what was seen")
    assert outcome_of([problem], [], []) is (Outcome.LIMIT if kind == "turn-timeout" else Outcome.AGENT_STUCK)


@pytest.mark.parametrize("open_dialog", ["", "△ Permission required"])
def test_a_program_that_ended_is_not_stuck_even_with_a_dialog_open(open_dialog: str) -> None:
    problem = terminal_problem(terminal("exited", open_dialog), rejects=False, is_waiting_for_model=False)
    assert problem == Problem("exited", "what was seen")


@pytest.mark.parametrize(
    "exchanges",
    [
        [],
        [answered(timings={"cache_n": 0, "prompt_n": 9000})],
        [answered(timings={"cache_n": 0}), answered(timings={"cache_n": 8990})],
        [answered("title", timings={"cache_n": 40}), answered(timings={"cache_n": 0})],
        [answered("sub:1", timings={"cache_n": 40})],
        [answered("other", timings={"cache_n": 40})],
        [answered(source="scripted")],
        [answered(source="cassette", timings={"cache_n": 40})],
        [answered(source="scripted"), answered(timings={"cache_n": 0})],
        [answered(error="the server hung up")],
    ],
    ids=[
        "nothing-asked",
        "cold",
        "warm-later",
        "warm-title",
        "sub-agent",
        "compaction",
        "scripted",
        "cassette",
        "scripted-first",
        "no-answer",
    ],
)
def test_a_first_main_prompt_that_a_server_computed_whole_is_not_contaminated(exchanges: Sequence[Exchange]) -> None:
    assert contamination(exchanges, "cold") is None


@pytest.mark.parametrize(
    ("exchanges", "told"),
    [
        ([answered(timings={"cache_n": 512, "prompt_n": 8500})], "reused 512 cached tokens and computed 8500"),
        ([answered(timings=None)], "carries no timings"),
        ([answered(timings={"prompt_n": 9000})], "carries no timings"),
        ([answered(source="scripted"), answered(timings={"cache_n": 1, "prompt_n": 2})], "reused 1 cached tokens"),
        ([answered(timings={"cache_n": 7}), answered(timings={"cache_n": 0})], "reused 7 cached tokens"),
    ],
)
def test_a_first_main_prompt_that_is_not_proved_cold_is_contaminated(exchanges: Sequence[Exchange], told: str) -> None:
    problem = contamination(exchanges, "cold")
    assert problem is not None
    assert problem.kind == "contaminated"
    assert told in problem.message
    assert outcome_of([problem], [], exchanges) is Outcome.CONTAMINATED


@pytest.mark.parametrize("kv_mode", ["warm", "shared"])
def test_only_a_cold_trial_claims_an_empty_cache(kv_mode: KvMode) -> None:
    assert contamination([answered(timings={"cache_n": 512})], kv_mode) is None


@pytest.mark.parametrize(("kind", "outcome"), OUTCOME_BY_KIND.items())
def test_a_problem_decides_whatever_else_was_recorded(kind: str, outcome: Outcome) -> None:
    cut = answered(finish_reason="length", text=QWEN_CALL)
    assert outcome_of([Problem(kind, "x")], [FAILURE], [cut]) is outcome
    assert outcome_of([Problem(kind, "x"), Problem("limit", "y")], [], []) is outcome


def test_every_problem_kind_that_is_told_apart_is_in_the_table_above() -> None:
    assert {kind for kind, outcome in OUTCOME_BY_KIND.items() if outcome is not Outcome.INFRA} == set(
        OUTCOME_OF_PROBLEM
    )


def test_without_problem_and_failure_a_trial_has_passed_whatever_its_answers_look_like() -> None:
    assert outcome_of([], [], []) is Outcome.PASS
    odd = answered(text=QWEN_CALL, error="Failed to parse input at pos 0", finish_reason="length")
    assert outcome_of([], [], [odd]) is Outcome.PASS


def test_a_failed_expectation_after_plain_answers_is_a_failure() -> None:
    assert outcome_of([], [FAILURE], []) is Outcome.FAIL
    plain = answered(text="The fruit is plum. Is 3 < 4?", finish_reason="stop")
    assert outcome_of([], [FAILURE], [plain, answered(tool_calls=(CALL,), finish_reason="tool_calls")]) is Outcome.FAIL


@pytest.mark.parametrize(
    "error",
    [
        # As llama-server says them (common/chat.cpp and its predecessors).
        "Failed to parse input at pos 33: <tool_call>",
        "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] unexpected end of input",
        "The model produced output that does not match the expected peg-native format",
        "output does not match the expected GBNF grammar",
        "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error",
    ],
)
@pytest.mark.parametrize("lane", ["main", "sub:1", "other"])
def test_a_failure_after_a_parsers_error_is_the_servers(error: str, lane: str) -> None:
    assert outcome_of([], [FAILURE], [answered(), answered(lane, error=error)]) is Outcome.SERVER_PARSER


@pytest.mark.parametrize(
    "error", ["Loading model", "the server hung up", "the client hung up", "HTTP status 500", "context size exceeded"]
)
def test_a_failure_after_another_error_is_not_the_parsers(error: str) -> None:
    assert outcome_of([], [FAILURE], [answered(error=error)]) is Outcome.FAIL


@pytest.mark.parametrize(
    "text",
    [
        QWEN_CALL,
        "I look. <function=read>\n<parameter=filePath>\nnotes.txt\n</parameter>\n</function>",
        '[TOOL_CALLS][{"name": "read", "arguments": {}}]',
        '<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"filePath": "notes.txt"}',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read",
        "<|tool_call|>[]",
        "<|tool_call>call:read{}<tool_call|>",
    ],
    ids=["hermes", "qwen3-coder", "mistral", "gpt-oss", "deepseek", "granite", "gemma"],
)
def test_a_failure_with_call_markup_left_in_the_text_is_the_servers_unless_calls_were_parsed(text: str) -> None:
    assert outcome_of([], [FAILURE], [answered(text=text, finish_reason="stop")]) is Outcome.SERVER_PARSER
    # A model that quotes its own markup beside a call that did arrive was understood.
    assert outcome_of([], [FAILURE], [answered(text=text, tool_calls=(CALL,))]) is Outcome.FAIL


def test_a_failure_after_a_cut_answer_is_truncated() -> None:
    cut = answered(text="The fruit is", finish_reason="length")
    assert outcome_of([], [FAILURE], [cut]) is Outcome.TRUNCATED
    assert outcome_of([], [FAILURE], [answered("sub:1", finish_reason="length"), answered()]) is Outcome.TRUNCATED


def test_a_parsers_fault_is_told_before_a_cut_answer() -> None:
    exchanges = [answered(finish_reason="length"), answered(text=QWEN_CALL)]
    assert outcome_of([], [FAILURE], exchanges) is Outcome.SERVER_PARSER


def test_what_happened_to_the_title_excuses_no_failure() -> None:
    title = answered("title", text=QWEN_CALL, error="parse error", finish_reason="length")
    assert outcome_of([], [FAILURE], [title]) is Outcome.FAIL


def test_every_outcome_has_one_policy_and_a_meaning_of_its_own() -> None:
    assert set(POLICIES) == set(Outcome)
    assert len({policy.meaning for policy in POLICIES.values()}) == 12


@pytest.mark.parametrize(
    ("outcome", "counts", "retries", "status"),
    [
        ("pass", True, False, 0),
        ("fail", True, False, 1),
        ("model_stall", True, False, 1),
        ("agent_stuck", True, False, 1),
        ("server_parser", True, False, 1),
        ("limit", True, False, 1),
        ("truncated", True, False, 1),
        ("stale_cassette", False, False, 4),
        ("tool_diverged", False, False, 4),
        ("contaminated", False, True, 3),
        ("infra", False, True, 3),
        ("skip", False, False, 0),
    ],
)
def test_only_what_the_environment_broke_is_tried_again_and_never_counts(
    outcome: str, counts: bool, retries: bool, status: int
) -> None:
    policy = POLICIES[Outcome(outcome)]
    assert (policy.counts, policy.retries, policy.exit_code) == (counts, retries, status)
    assert exit_code([Outcome(outcome)]) == status


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([], 0),
        ([Outcome.PASS, Outcome.SKIP], 0),
        ([Outcome.INFRA, Outcome.PASS], 3),
        ([Outcome.CONTAMINATED, Outcome.STALE_CASSETTE], 4),
        ([Outcome.INFRA, Outcome.TOOL_DIVERGED, Outcome.SKIP], 4),
        ([Outcome.INFRA, Outcome.STALE_CASSETTE, Outcome.FAIL, Outcome.PASS], 1),
        ([Outcome.INFRA, Outcome.LIMIT], 1),
    ],
)
def test_a_failure_is_told_before_a_stale_cassette_and_that_before_a_broken_environment(
    outcomes: list[Outcome], status: int
) -> None:
    assert exit_code(outcomes) == status
    assert exit_code(iter(reversed(outcomes))) == status
