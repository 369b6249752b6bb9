"""How a trial can end, and what follows from each ending: one enum, one policy table.

An error is not a wrong answer: what the environment broke is told apart from what the agent, the model or the server
did, is tried again, and never counts for or against a model.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["OUTCOME_OF_PROBLEM", "POLICIES", "Outcome", "Policy", "exit_code"]


class Outcome(enum.Enum):
    """How a trial ended."""

    PASS = "pass"
    FAIL = "fail"
    MODEL_STALL = "model_stall"
    AGENT_STUCK = "agent_stuck"
    SERVER_PARSER = "server_parser"
    LIMIT = "limit"
    TRUNCATED = "truncated"
    STALE_CASSETTE = "stale_cassette"
    TOOL_DIVERGED = "tool_diverged"
    CONTAMINATED = "contaminated"
    INFRA = "infra"
    SKIP = "skip"


@dataclass(frozen=True)
class Policy:
    """What follows from an outcome.

    Attributes:
        meaning: For a person.
        counts: Whether the trial is one of those that a pass rate is made of.
        retries: Whether the trial is tried again, once.
        exit_code: The run's exit status when this is the worst that happened.
    """

    meaning: str
    counts: bool
    retries: bool
    exit_code: int


POLICIES: Mapping[Outcome, Policy] = {
    Outcome.PASS: Policy("every expectation holds", counts=True, retries=False, exit_code=0),
    Outcome.FAIL: Policy("an expectation does not hold", counts=True, retries=False, exit_code=1),
    Outcome.MODEL_STALL: Policy("the model sent no token for too long", counts=True, retries=False, exit_code=1),
    Outcome.AGENT_STUCK: Policy(
        "the agent waits for somebody, or for nothing at all", counts=True, retries=False, exit_code=1
    ),
    Outcome.SERVER_PARSER: Policy(
        "the server could not parse, or parsed wrongly, what the model wrote", counts=True, retries=False, exit_code=1
    ),
    Outcome.LIMIT: Policy("a limit of turns, tokens or time was reached", counts=True, retries=False, exit_code=1),
    Outcome.TRUNCATED: Policy("an answer was cut at its length limit", counts=True, retries=False, exit_code=1),
    Outcome.STALE_CASSETTE: Policy(
        "OpenCode asks otherwise than when the cassette was recorded", counts=False, retries=False, exit_code=4
    ),
    Outcome.TOOL_DIVERGED: Policy(
        "a tool answered otherwise than when the cassette was recorded", counts=False, retries=False, exit_code=4
    ),
    Outcome.CONTAMINATED: Policy("the first prompt was not computed cold", counts=False, retries=True, exit_code=3),
    Outcome.INFRA: Policy("the environment broke: server, terminal, disk", counts=False, retries=True, exit_code=3),
    Outcome.SKIP: Policy("what the scenario requires is not there", counts=False, retries=False, exit_code=0),
}
# Of several kinds of trouble, what the tests were made to find is told first.
_WORST_FIRST = (1, 4, 3, 0)

# What a trial that could not be carried through counts as; whatever is not named here is the environment's fault.
OUTCOME_OF_PROBLEM: Mapping[str, Outcome] = {
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
}


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """The exit status of a run: 0 well, 1 a failure, 4 a cassette that no longer fits, 3 the environment's fault."""
    codes = {POLICIES[outcome].exit_code for outcome in outcomes}
    return next((code for code in _WORST_FIRST if code in codes), 0)
