"""What a scenario's keys mean: one function for each key, in one table.

Each check takes the value under the key and what the trial showed, and returns nothing when it holds or one message
that says what was expected and what was found. No check reads a file or waits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opencode_harness.evidence import CalledTool, Evidence
from opencode_harness.file_checks import file_message, shown_change
from opencode_harness.scenario import Expectation
from opencode_harness.workspace import changed_files

__all__ = ["CheckFailure", "assert_matches_all", "assert_not_matches_any", "evaluate"]

_SHOWN_CHARS = 1200


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


def _shows(field: str, what: str) -> Callable[[Any, Evidence], str | None]:
    def check(value: Any, evidence: Evidence) -> str | None:
        text = getattr(evidence, field)
        return None if _unspaced(value) in _unspaced(text) else _not_found(repr(value), what, text)

    return check


def _shows_not(field: str, what: str) -> Callable[[Any, Evidence], str | None]:
    def check(value: Any, evidence: Evidence) -> str | None:
        return f"{what} holds {value!r}" if _unspaced(value) in _unspaced(getattr(evidence, field)) else None

    return check


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
    return "\n".join(shown_change(change) for change in changes) or None


def _expected_file(value: Any, evidence: Evidence) -> str | None:
    name, expected = value
    path = _in_workspace(name, evidence)
    if isinstance(expected, Mapping) and "absent" in expected:
        return f"{name} exists" if path in evidence.paths_after else None
    after = evidence.after.get(path)
    if after is None and path in evidence.paths_after:
        return f"{name} is a folder"
    return file_message(name, _filled(expected, evidence), evidence.before.get(path), after)


def _in_workspace(name: str, evidence: Evidence) -> str:
    return f"{evidence.project_dir.rstrip('/')}/{name}" if evidence.project_dir else name


def _filled(value: Any, evidence: Evidence) -> Any:
    """A value with {workspace} and {outside} replaced in its texts."""
    if isinstance(value, str):
        for name, place in evidence.places.items():
            value = value.replace("{" + name + "}", place)
        return value
    if isinstance(value, Mapping):
        return {key: _filled(item, evidence) for key, item in value.items()}
    return [_filled(item, evidence) for item in value] if isinstance(value, list) else value


def _permissions_asked(value: Any, evidence: Evidence) -> str | None:
    return _same_list("permissions asked", value, [asked.permission for asked in evidence.asked])


def _tools_called(value: Any, evidence: Evidence) -> str | None:
    return _same_list("tools called", value, [tool.name for tool in evidence.tools])


def _same_list(what: str, expected: list[str], found: list[str]) -> str | None:
    return None if expected == found else f"{what}: expected {expected or 'none'}, found {found or 'none'}"


def _tool_results(value: Any, evidence: Evidence) -> str | None:
    text = "\n".join(tool.text for tool in evidence.tools)
    return _message_of(assert_matches_all, text, value, "the tool results")


def _call_made(value: Any, evidence: Evidence) -> str | None:
    if any(_meets(call, value, evidence) for call in evidence.calls):
        return None
    return f"no such call: {_shown_call(value['name'], value.get('arguments'))}; {_calls_in_words(evidence.calls)}"


def _call_not_made(value: Any, evidence: Evidence) -> str | None:
    made = [call for call in evidence.calls if _meets(call, value, evidence)]
    return f"the {made[0].lane} agent called {_shown_call(made[0].name, made[0].arguments)}" if made else None


def _meets(call: CalledTool, wanted: Mapping[str, Any], evidence: Evidence) -> bool:
    lane = wanted.get("lane", "main")
    if call.name != wanted["name"] or lane not in ("any", call.lane):
        return False
    arguments = wanted.get("arguments", {})
    if arguments and call.arguments is None:
        return False
    return all(
        name in (call.arguments or {}) and _same_argument((call.arguments or {})[name], _filled(value, evidence))
        for name, value in arguments.items()
    )


def _same_argument(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping) and set(wanted) == {"matches"}:
        text = found if isinstance(found, str) else json.dumps(found)
        return re.search(wanted["matches"], text) is not None
    return bool(found == wanted)


def _shown_call(name: str, arguments: Mapping[str, Any] | None) -> str:
    return f"{name} {json.dumps(arguments, ensure_ascii=False)}" if arguments else name


def _calls_in_words(calls: tuple[CalledTool, ...]) -> str:
    lines = [f"  {call.lane}: {_shown_call(call.name, call.arguments)}"[:200] for call in calls]
    return "the models called:\n" + "\n".join(lines) if lines else "no model called any tool"


def _exit_code(value: Any, evidence: Evidence) -> str | None:
    found = evidence.exit_status
    return None if found == value else f"OpenCode's exit status: expected {value}, found {found}"


def _bound(value: Any, evidence: Evidence) -> str | None:
    name, limit = value
    found = _BOUNDED[name](evidence)
    if found is None:
        return f"{name}: nothing tells how much it was"
    if name == "cache_hit_min":
        return f"cache_hit_min: {found:.2f} of the prompt tokens were reused, wanted {limit}" if found < limit else None
    return f"{name}: {found:g}, more than {limit:g}" if found > limit else None


def _requests(evidence: Evidence) -> float | None:
    return sum(answer.lane != "title" for answer in evidence.answers)


def _prompt_tokens(evidence: Evidence) -> float | None:
    counts = [answer.prompt_tokens for answer in evidence.answers if answer.lane != "title"]
    return max((count for count in counts if count is not None), default=None)


def _completion_tokens(evidence: Evidence) -> float | None:
    counts = [answer.completion_tokens for answer in evidence.answers if answer.lane != "title"]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _cache_hit(evidence: Evidence) -> float | None:
    later = [(answer.cache_n, answer.prompt_n) for answer in evidence.served[1:]]
    pairs = [(reused, computed) for reused, computed in later if reused is not None and computed is not None]
    total = sum(reused + computed for reused, computed in pairs)
    return sum(reused for reused, _ in pairs) / total if total else None


_BOUNDED: Mapping[str, Callable[[Evidence], float | None]] = {
    "requests": _requests,
    "prompt_tokens": _prompt_tokens,
    "completion_tokens": _completion_tokens,
    "turn_s": lambda evidence: evidence.turn_s,
    "cache_hit_min": _cache_hit,
}


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
    "screen_contains": _shows("screen", "the screen"),
    "screen_not_contains": _shows_not("screen", "the screen"),
    "screen_contains_re": _matches("screen", "the screen"),
    "screen_not_contains_re": _not_matches("screen", "the screen"),
    "scrollback_contains": _shows("scrollback", "what was on the screen"),
    "scrollback_not_contains": _shows_not("scrollback", "what was on the screen"),
    "scrollback_contains_re": _matches("scrollback", "what was on the screen"),
    "scrollback_not_contains_re": _not_matches("scrollback", "what was on the screen"),
    "files_unchanged": _files_unchanged,
    "expected_files": _expected_file,
    "permissions_asked": _permissions_asked,
    "tools_called": _tools_called,
    "tool_results_contain_re": _tool_results,
    "tool_calls_made": _call_made,
    "tool_calls_not_made": _call_not_made,
    "cold_start": _cold_start,
    "exit_code": _exit_code,
    "bounds": _bound,
}
