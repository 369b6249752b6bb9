"""What a scenario's keys mean: one function for each key, in one table.

Each check takes the value under the key and what the trial showed, and returns nothing when it holds or one message
that says what was expected and what was found. No check reads a file or waits.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opencode_harness.opencode_log import PermissionAsked
from opencode_harness.scenario import Expectation
from opencode_harness.workspace import FileChange, changed_files

__all__ = [
    "CheckFailure",
    "Evidence",
    "ServedAnswer",
    "ToolOutcome",
    "assert_matches_all",
    "assert_not_matches_any",
    "evaluate",
]

_SHOWN_CHARS = 1200


@dataclass(frozen=True)
class ToolOutcome:
    """A tool's result as OpenCode reported it to the model."""

    name: str
    text: str


@dataclass(frozen=True)
class ServedAnswer:
    """Timings of a main request that the real server answered: prompt tokens reused and computed."""

    cache_n: int | None
    prompt_n: int | None


@dataclass(frozen=True)
class Evidence:
    """What a trial showed.

    Attributes:
        stdout: The terminal's bytes without escapes.
        stderr: What OpenCode wrote to stderr.
        screen: The screen at the end of the turn, rows joined whatever their wrapping.
        project_dir: The project's folder, relative to the workspace ("" = the same).
        before: Text files of the workspace before OpenCode started.
        after: The same, afterwards.
        paths_after: Every path of the workspace afterwards, whatever it holds.
        asked: Permissions asked for.
        tools: Tool results, in the order in which they were reported.
        served: Main requests that the real server answered, in order.
        slot_tokens: Prompt tokens that each slot holds after the turn; None when the server does not tell.
    """

    stdout: str
    stderr: str
    screen: str
    project_dir: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    paths_after: Collection[str]
    asked: tuple[PermissionAsked, ...]
    tools: tuple[ToolOutcome, ...]
    served: tuple[ServedAnswer, ...]
    slot_tokens: Mapping[int, int] | None = None


@dataclass(frozen=True)
class CheckFailure:
    """An expectation that does not hold.

    Attributes:
        key: The scenario key.
        line: Line of the scenario file.
        message: Expected, found.
    """

    key: str
    line: int
    message: str


def evaluate(expectations: Iterable[Expectation], evidence: Evidence) -> tuple[CheckFailure, ...]:
    """All expectations that do not hold, in file order."""
    failures = []
    for expectation in expectations:
        message = _CHECKS[expectation.key](expectation.value, evidence)
        if message is not None:
            failures.append(CheckFailure(expectation.key, expectation.line, message))
    return tuple(failures)


def assert_matches_all(text: str, patterns: Iterable[str], *, what: str = "text") -> None:
    """Assert that every pattern is found in `text`.

    Raises:
        AssertionError: Names the first pattern that is not found, and shows the end of the text.
    """
    for pattern in patterns:
        assert re.search(pattern, text), _not_found(f"/{pattern}/", what, text)


def assert_not_matches_any(text: str, patterns: Iterable[str], *, what: str = "text") -> None:
    """Assert that no pattern is found in `text`.

    Raises:
        AssertionError: Names the first pattern that is found, and what it matched.
    """
    for pattern in patterns:
        match = re.search(pattern, text)
        assert match is None, f"{what} holds {match.group(0)!r}, which /{pattern}/ forbids"


def _not_found(wanted: str, what: str, text: str) -> str:
    shown = text[-_SHOWN_CHARS:].strip()
    return f"{wanted} not found in {what}; it ends with:\n{shown}" if shown else f"{wanted} not found: {what} is empty"


def _contains(field: str, what: str) -> Callable[[Any, Evidence], str | None]:
    def check(value: Any, evidence: Evidence) -> str | None:
        text = getattr(evidence, field)
        return None if value in text else _not_found(repr(value), what, text)

    return check


def _not_contains(field: str, what: str) -> Callable[[Any, Evidence], str | None]:
    def check(value: Any, evidence: Evidence) -> str | None:
        return f"{what} holds {value!r}" if value in getattr(evidence, field) else None

    return check


def _shows(value: Any, evidence: Evidence) -> str | None:
    found = _unspaced(value) in _unspaced(evidence.screen)
    return None if found else _not_found(repr(value), "the screen", evidence.screen)


def _shows_not(value: Any, evidence: Evidence) -> str | None:
    return f"the screen holds {value!r}" if _unspaced(value) in _unspaced(evidence.screen) else None


def _unspaced(text: str) -> str:
    """Text without white space: what wraps is broken at spaces or, if need be, inside a word."""
    return "".join(text.split())


def _matches(field: str, what: str) -> Callable[[Any, Evidence], str | None]:
    def check(value: Any, evidence: Evidence) -> str | None:
        return _message_of(assert_matches_all, getattr(evidence, field), value, what)

    return check


def _not_matches(field: str, what: str) -> Callable[[Any, Evidence], str | None]:
    def check(value: Any, evidence: Evidence) -> str | None:
        return _message_of(assert_not_matches_any, getattr(evidence, field), value, what)

    return check


def _message_of(assertion: Callable[..., None], text: str, pattern: str, what: str) -> str | None:
    try:
        assertion(text, [pattern], what=what)
    except AssertionError as error:
        return str(error)
    return None


def _files_unchanged(value: Any, evidence: Evidence) -> str | None:
    changes = changed_files(evidence.before, evidence.after)
    if value is not True:
        path = _in_workspace(value, evidence)
        if path not in evidence.before:
            return f"{value!r} was not among the files at the start"
        changes = tuple(change for change in changes if change.path == path)
    return "\n".join(_shown(change) for change in changes) or None


def _expected_file(value: Any, evidence: Evidence) -> str | None:
    name, expected = value
    path = _in_workspace(name, evidence)
    if isinstance(expected, Mapping) and "absent" in expected:
        return f"{name} exists" if path in evidence.paths_after else None
    found = evidence.after.get(path)
    if found is None:
        return f"{name} is no text file" if path in evidence.paths_after else f"{name} does not exist"
    if isinstance(expected, str):
        return _exact_text(name, expected, found)
    patterns = expected["matches"] if isinstance(expected["matches"], list) else [expected["matches"]]
    messages = (_message_of(assert_matches_all, found, pattern, name) for pattern in patterns)
    return next((message for message in messages if message), None)


def _exact_text(name: str, expected: str, found: str) -> str | None:
    return None if found == expected else f"{name} differs\n" + _difference(expected, found, "expected", "found")


def _in_workspace(name: str, evidence: Evidence) -> str:
    return f"{evidence.project_dir.rstrip('/')}/{name}" if evidence.project_dir else name


def _shown(change: FileChange) -> str:
    if change.kind != "changed":
        return f"{change.path} {change.kind}"
    difference = _difference(change.before or "", change.after or "", "before", "after")
    return f"{change.path} changed\n{difference}"


def _difference(old: str, new: str, old_name: str, new_name: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="", n=1)
    text = "\n".join(lines) or f"{old_name} {old[-80:]!r}\n{new_name} {new[-80:]!r}"
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "\n…"


def _permissions_asked(value: Any, evidence: Evidence) -> str | None:
    return _same_list("permissions asked", value, [asked.permission for asked in evidence.asked])


def _tools_called(value: Any, evidence: Evidence) -> str | None:
    return _same_list("tools called", value, [tool.name for tool in evidence.tools])


def _same_list(what: str, expected: list[str], found: list[str]) -> str | None:
    return None if expected == found else f"{what}: expected {expected or 'none'}, found {found or 'none'}"


def _tool_results(value: Any, evidence: Evidence) -> str | None:
    text = "\n".join(tool.text for tool in evidence.tools)
    return _message_of(assert_matches_all, text, value, "the tool results")


def _cold_start(value: Any, evidence: Evidence) -> str | None:
    if not evidence.served:
        return "no main request was answered by the server"
    first = evidence.served[0]
    if first.cache_n is None:
        return "the server's answer carried no timings, so nothing shows that it started cold"
    if first.cache_n != 0:
        return (
            f"the server reused {first.cache_n} cached tokens and computed {first.prompt_n}; "
            "start it with --cache-ram 0 and a slot-save path, so that erased slots stay empty"
        )
    if not first.prompt_n:
        return "the server computed no prompt token"
    if evidence.slot_tokens is not None and max(evidence.slot_tokens.values(), default=0) < first.prompt_n:
        return f"no slot holds the {first.prompt_n} tokens of this prompt afterwards: {dict(evidence.slot_tokens)}"
    return None


_CHECKS: Mapping[str, Callable[[Any, Evidence], str | None]] = {
    "stdout_contains": _contains("stdout", "stdout"),
    "stdout_not_contains": _not_contains("stdout", "stdout"),
    "stdout_contains_re": _matches("stdout", "stdout"),
    "stdout_not_contains_re": _not_matches("stdout", "stdout"),
    "stderr_contains_re": _matches("stderr", "stderr"),
    "stderr_not_contains_re": _not_matches("stderr", "stderr"),
    "screen_contains": _shows,
    "screen_not_contains": _shows_not,
    "screen_contains_re": _matches("screen", "the screen"),
    "screen_not_contains_re": _not_matches("screen", "the screen"),
    "files_unchanged": _files_unchanged,
    "expected_files": _expected_file,
    "permissions_asked": _permissions_asked,
    "tools_called": _tools_called,
    "tool_results_contain_re": _tool_results,
    "cold_start": _cold_start,
}
