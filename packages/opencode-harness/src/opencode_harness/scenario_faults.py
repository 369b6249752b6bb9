"""What is wrong with a scenario file, told so that a person can mend it: place, what was found, what was meant.

The JSON Schema says what is allowed; this module puts its findings into words, and checks what a schema cannot: that
patterns compile, that paths and links stay inside, that files do not stand in each other's way.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, cast

import jsonpath
import jsonschema
from jsonpath.exceptions import JSONPathError
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from opencode_harness.errors import ScenarioError
from opencode_harness.turns import Turn, TurnError
from opencode_harness.yaml_source import KeyPath, YamlSource

__all__ = ["PATTERN_KEYS", "scenario_faults"]

PATTERN_KEYS = (
    "stdout_contains_re",
    "stdout_not_contains_re",
    "stderr_contains_re",
    "stderr_not_contains_re",
    "screen_contains_re",
    "screen_not_contains_re",
    "scrollback_contains_re",
    "scrollback_not_contains_re",
    "tool_results_contain_re",
)
_FILE_KEYS = ("files", "outside_files")
_JSON_TYPES: Mapping[str, str] = {"object": "a mapping", "array": "a list", "string": "text", "integer": "a number"}
# Keys of a fault's kind: what each kind needs, and may have besides.
_FAULT_KEYS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "status": (frozenset({"status"}), frozenset({"message"})),
    "hang-up": (frozenset(), frozenset()),
    "cut": (frozenset({"after_events"}), frozenset()),
    "stall": (frozenset({"for_s"}), frozenset()),
    "error-event": (frozenset({"message"}), frozenset({"after_events"})),
}


def scenario_faults(source: YamlSource, schema: Mapping[str, Any]) -> list[ScenarioError]:
    """Everything that is wrong with a scenario, in the order of the file; nothing when it is right."""
    validator = jsonschema.Draft202012Validator(schema)
    faults = [_told(source, fault) for fault in validator.iter_errors(source.data)]
    if not faults:
        faults = [fault for check in _MORE_CHECKS for fault in check(source)]
    return sorted(faults, key=lambda fault: (fault.line or 0, fault.column or 0))


def _told(source: YamlSource, fault: jsonschema.ValidationError) -> ScenarioError:
    fault = _nearest(fault)
    path = tuple(fault.absolute_path)
    if "propertyNames" in fault.absolute_schema_path:
        return source.error((*path, str(fault.instance)), f"{fault.instance!r} is not a path inside the folder")
    if fault.validator == "additionalProperties":
        return _unknown_key(source, path, fault)
    if fault.validator == "required":
        return source.error(path, fault.message.replace(" is a required property", " is missing"))
    if fault.validator == "enum":
        allowed = [str(value) for value in cast("list[object]", fault.validator_value)]
        return source.error(path, f"{_dotted(path)}: {fault.instance!r} is not allowed", hint=_meant(fault, allowed))
    if fault.validator == "anyOf":
        return source.error(path, f"{_dotted(path)}: {fault.instance!r} is not {_forms(fault)}")
    return source.error(path, f"{_dotted(path)}: {fault.message}")


def _nearest(fault: jsonschema.ValidationError) -> jsonschema.ValidationError:
    """Of the forms that a value may have, the fault in the one that it seems to be meant as."""
    while fault.validator == "anyOf" and fault.context:
        branches: dict[Any, list[jsonschema.ValidationError]] = {}
        for part in fault.context:
            branches.setdefault(part.schema_path[0], []).append(part)
        meant = [parts for parts in branches.values() if not any(_is_of_other_type(part) for part in parts)]
        if len(meant) != 1:
            break
        fault = meant[0][0]
    return fault


def _is_of_other_type(part: jsonschema.ValidationError) -> bool:
    return part.validator == "type" and not part.path


def _forms(fault: jsonschema.ValidationError) -> str:
    types = [part.validator_value for part in fault.context or () if _is_of_other_type(part)]
    return " or ".join(dict.fromkeys(_JSON_TYPES.get(str(name), str(name)) for name in types)) or "in any known form"


def _unknown_key(source: YamlSource, path: KeyPath, fault: jsonschema.ValidationError) -> ScenarioError:
    known = list(fault.schema.get("properties", {})) if isinstance(fault.schema, Mapping) else []
    unknown = next(key for key in cast("dict[str, object]", fault.instance) if key not in known)
    close = difflib.get_close_matches(unknown, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "known keys: " + ", ".join(known)
    return source.error((*path, unknown), f"unknown key {unknown!r}", hint=hint)


def _meant(fault: jsonschema.ValidationError, allowed: list[str]) -> str:
    close = difflib.get_close_matches(str(fault.instance), allowed, n=1)
    return f"did you mean {close[0]!r}?" if close else "allowed: " + ", ".join(allowed)


def _dotted(key_path: KeyPath) -> str:
    return ".".join(str(part) for part in key_path) or "the file"


def _bad_patterns(source: YamlSource) -> Iterator[ScenarioError]:
    for key_path, pattern in _patterns(source.data):
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            yield source.error(key_path, f"not a regular expression: {pattern!r}: {error}")


def _patterns(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    for key in PATTERN_KEYS:
        yield from _numbered((key,), data.get(key, []))
    for path, expected in data.get("expected_files", {}).items():
        if isinstance(expected, dict):
            yield from _numbered(("expected_files", path, "matches"), expected.get("matches", []))
    for key in ("tool_calls_made", "tool_calls_not_made"):
        for index, call in enumerate(_as_list(data.get(key, []))):
            for name, wanted in call.get("arguments", {}).items():
                if isinstance(wanted, dict) and set(wanted) == {"matches"} and isinstance(wanted["matches"], str):
                    yield (key, index, "arguments", name), wanted["matches"]


def _numbered(key_path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, str]]:
    yield from (((*key_path, index), pattern) for index, pattern in enumerate(_as_list(value)))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _bad_files(source: YamlSource) -> Iterator[ScenarioError]:
    for key in _FILE_KEYS:
        files = source.data.get(key, {})
        paths = {PurePosixPath(name): name for name in files}
        for name, file in files.items():
            # No file may stand where another one, or the project, needs a folder.
            for folder in PurePosixPath(name).parents:
                if folder in paths:
                    message = f"{paths[folder]!r} is a file, so {name!r} cannot lie below it"
                    yield source.error((key, name), message)
            if isinstance(file, dict):
                yield from _bad_file(source, (key, name), file)
    for name, expected in source.data.get("expected_files", {}).items():
        if isinstance(expected, dict):
            yield from _bad_expected_file(source, ("expected_files", name), expected)


def _bad_file(source: YamlSource, key_path: KeyPath, file: Mapping[str, Any]) -> Iterator[ScenarioError]:
    kinds = [kind for kind in ("text", "base64", "link") if kind in file]
    if len(kinds) != 1:
        yield source.error(key_path, "a file needs exactly one of text, base64 and link")
    elif "repeat" in file and kinds != ["text"]:
        yield source.error((*key_path, "repeat"), "repeat goes with text")
    yield from _bad_base64(source, key_path, file)
    link = file.get("link")
    if link is not None and os.path.normpath(PurePosixPath(str(key_path[-1])).parent / link).startswith(".."):
        yield source.error((*key_path, "link"), f"the link to {link!r} leads out of the folder")


def _bad_base64(source: YamlSource, key_path: KeyPath, file: Mapping[str, Any]) -> Iterator[ScenarioError]:
    try:
        base64.b64decode(file.get("base64", ""), validate=True)
    except (binascii.Error, ValueError) as error:
        yield source.error((*key_path, "base64"), f"not base64: {error}")


def _bad_expected_file(source: YamlSource, key_path: KeyPath, file: Mapping[str, Any]) -> Iterator[ScenarioError]:
    yield from _bad_base64(source, key_path, file)
    if "absent" in file and len(file) > 1:
        yield source.error((*key_path, "absent"), "a file that is absent has no other property")
    for path in file.get("json", {}):
        try:
            jsonpath.compile(path)
        except (JSONPathError, RecursionError) as error:
            yield source.error((*key_path, "json", path), f"not a JSON path: {path!r}: {error}")
    if "diff" in file and not any(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in _lines(file["diff"])):
        yield source.error((*key_path, "diff"), "a diff needs at least one line that begins with + or -")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def _bad_turns(source: YamlSource) -> Iterator[ScenarioError]:
    for key in ("turns", "solution"):
        for index, turn in enumerate(source.data.get(key, [])):
            try:
                Turn.from_mapping(turn)
            except TurnError as error:
                yield source.error((key, index), str(error), hint=error.hint)
    if "guided" in source.data and "turns" not in source.data:
        yield source.error(("guided",), "guided needs turns: they are what the server is made to say")
    if "solution" in source.data and "turns" in source.data:
        yield source.error(("solution",), "a scenario with turns is its own solution", hint="remove one of the two")


def _bad_faults(source: YamlSource) -> Iterator[ScenarioError]:
    seen = set()
    for index, fault in enumerate(source.data.get("faults", [])):
        needed, optional = _FAULT_KEYS[fault["kind"]]
        given = set(fault) - {"at", "kind"}
        for key in sorted(needed - given):
            yield source.error(("faults", index), f"a fault of kind {fault['kind']!r} needs {key!r}")
        for key in sorted(given - needed - optional):
            yield source.error(("faults", index, key), f"{key!r} means nothing for a fault of kind {fault['kind']!r}")
        if fault["at"] in seen:
            yield source.error(("faults", index, "at"), f"request {fault['at']} has two faults")
        seen.add(fault["at"])


def _bad_requirements(source: YamlSource) -> Iterator[ScenarioError]:
    versions = source.data.get("requires", {}).get("opencode", "")
    try:
        SpecifierSet(versions)
    except InvalidSpecifier as error:
        yield source.error(
            ("requires", "opencode"), f"not a version range: {error}", hint="write for example >=1.18,<2"
        )


_MORE_CHECKS: tuple[Callable[[YamlSource], Iterator[ScenarioError]], ...] = (
    _bad_patterns,
    _bad_files,
    _bad_turns,
    _bad_faults,
    _bad_requirements,
)
