"""Who answers a trial's chat requests: the scenario's turns, a cassette, or the server. One pure decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opencode_harness.scenario import Scenario
from opencode_harness.turns import Turn

__all__ = ["AnswerSource", "Oracle", "can_be_guided", "choose_source"]

Oracle = Literal["solution", "nothing"]

_NOTHING = Turn(text="I leave everything as it is.")


@dataclass(frozen=True)
class AnswerSource:
    """Who answers.

    Attributes:
        kind: `turns` (the proxy, with the scenario's turns), `guided` (the server, made to say them), `cassette`,
            `server`, or `none` where the trial cannot be run.
        turns: The turns, with their placeholders.
        reason: Why there is none.
    """

    kind: Literal["turns", "guided", "cassette", "server", "none"]
    turns: tuple[Turn, ...] = ()
    reason: str = ""

    @property
    def asks_server(self) -> bool:
        """Whether the answers come from the server."""
        return self.kind in ("server", "guided")


def can_be_guided(turns: tuple[Turn, ...]) -> bool:
    """Whether a server can be made to say the turns: real counts and endings cannot be prescribed."""
    return all(_can_be_said(turn) for turn in turns)


def _can_be_said(turn: Turn) -> bool:
    said = [*([] if turn.text is None else [turn.text]), *(call.wire_arguments for call in turn.tool_calls)]
    # A grammar cannot make a model say nothing.
    is_sayable = bool(said) and all(said)
    ending = "tool_calls" if turn.tool_calls else "stop"
    return is_sayable and not turn.usage and turn.reasoning is None and turn.finish_reason == ending


def choose_source(
    scenario: Scenario,
    *,
    has_server: bool,
    has_cassette: bool,
    oracle: Oracle | None = None,
    guided: bool = False,
    live: bool = False,
) -> AnswerSource:
    """Who answers.

    Args:
        scenario: The scenario.
        has_server: Whether there is a server.
        has_cassette: Whether the scenario's cassette is there.
        oracle: `solution` answers with the scenario's solution, `nothing` with an agent that does nothing.
        guided: The server is made to say the turns of every scenario that can be guided.
        live: The server answers scenarios that have a cassette, too.
    """
    if oracle == "nothing":
        prompts = 1 + len(scenario.then) + len(scenario.resume)
        return AnswerSource("turns", (_NOTHING,) * prompts)
    if oracle == "solution":
        solution = scenario.solution or scenario.turns
        if solution is None:
            return AnswerSource("none", reason="nobody wrote its solution; add `solution:`, a list of turns")
        return AnswerSource("turns", solution)
    if scenario.turns is not None:
        return _scripted(scenario.turns, scenario.guided, guided, has_server)
    if has_cassette and not live:
        return AnswerSource("cassette")
    if has_server:
        return AnswerSource("server")
    hint = "name one with --server URL, or record: opencode-harness record"
    return AnswerSource("none", reason=f"it needs a server or a cassette; {hint} {scenario.path}")


def _scripted(turns: tuple[Turn, ...], must_be_guided: bool, may_be_guided: bool, has_server: bool) -> AnswerSource:
    if must_be_guided and not has_server:
        return AnswerSource("none", reason="its turns are said by a real server; name one with --server URL")
    if has_server and (must_be_guided or (may_be_guided and can_be_guided(turns))):
        return AnswerSource("guided", turns)
    return AnswerSource("turns", turns)
