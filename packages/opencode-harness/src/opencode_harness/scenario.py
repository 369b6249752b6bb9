"""A scenario: what is typed into OpenCode, what the model answers, and what must be true afterwards.

A file is checked against the JSON Schema that ships beside this module; each fault is told with file, line, column
and, for a misspelt key, the key that was probably meant.
"""

from __future__ import annotations

import difflib
import importlib.resources
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import jsonschema

from opencode_harness.errors import ScenarioError
from opencode_harness.turns import Turn, TurnError
from opencode_harness.yaml_source import Location, YamlSource, read_yaml

__all__ = ["Expectation", "Scenario", "load_scenario", "scenario_paths", "scenario_schema"]

PermissionAnswer = Literal["always", "once", "reject"]

_PATTERN_KEYS = (
    "stdout_contains_re",
    "stdout_not_contains_re",
    "stderr_contains_re",
    "stderr_not_contains_re",
    "screen_contains_re",
    "screen_not_contains_re",
    "tool_results_contain_re",
)
_CHECK_KEYS = (
    "stdout_contains",
    "stdout_not_contains",
    "screen_contains",
    "screen_not_contains",
    *_PATTERN_KEYS,
    "files_unchanged",
    "expected_files",
    "permissions_asked",
    "tools_called",
    "cold_start",
)


@dataclass(frozen=True)
class Expectation:
    """One thing that must be true afterwards.

    Attributes:
        key: The scenario key that asks for it, such as `stdout_contains_re`.
        value: What the key holds: a text, a pattern, a list, a mapping entry.
        line: Line of the scenario file that asks for it.
    """

    key: str
    value: Any
    line: int


@dataclass(frozen=True)
class Scenario:
    """A validated scenario file; texts may still hold the placeholders {workspace} and {outside}.

    Attributes:
        path: The file.
        name: The file's name without its endings.
        prompt: What is typed.
        prompt_line: Line of the `prompt` key.
        project_dir: Folder below the workspace that OpenCode starts in ("" = the workspace itself).
        files: Project files by relative path.
        outside_files: Files of the folder beside the workspace.
        permission: Entries that replace those of the pre-granted permission block.
        permission_answer: How dialogs are answered.
        turns: The model's turns, or None when the real server answers.
        max_output_tokens: `limit.output` of the model, or None for the default.
        timeouts_s: Timeouts that differ from the defaults, by name.
        expectations: What must be true afterwards, in file order.
        description: One sentence, or an empty string.
        tags: Free words that pytest's -k selects by.
    """

    path: Path
    name: str
    prompt: str
    prompt_line: int
    project_dir: str
    files: Mapping[str, str]
    outside_files: Mapping[str, str]
    permission: Mapping[str, Any]
    permission_answer: PermissionAnswer
    turns: tuple[Turn, ...] | None
    max_output_tokens: int | None
    timeouts_s: Mapping[str, float]
    expectations: tuple[Expectation, ...]
    description: str
    tags: tuple[str, ...]

    @property
    def place(self) -> str:
        """`FILE:LINE` of the prompt, for failures that belong to no single expectation."""
        return f"{self.path}:{self.prompt_line}"


@cache
def scenario_schema() -> dict[str, Any]:
    """The JSON Schema of scenario files, as shipped with the package."""
    source = importlib.resources.files("opencode_harness").joinpath("schemas/scenario.schema.json")
    schema: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return schema


def scenario_paths(roots: Iterable[Path]) -> list[Path]:
    """Scenario files named by `roots`: a file stands for itself, a folder for every .yaml and .yml below it.

    Raises:
        ScenarioError: A root does not exist, or a folder holds no scenario.
    """
    found: list[Path] = []
    for root in roots:
        if root.is_dir():
            below = sorted(path for path in root.rglob("*") if path.suffix in {".yaml", ".yml"})
            if not below:
                raise ScenarioError(root, None, None, "no scenario (*.yaml) below this folder")
            found += below
        elif root.exists():
            found.append(root)
        else:
            raise ScenarioError(root, None, None, "no such file or folder", hint="name a scenario or a folder")
    return list(dict.fromkeys(found))


def load_scenario(path: Path) -> Scenario:
    """Read and validate one scenario file.

    Raises:
        ScenarioError: With file, line and column, for the first fault in the file.
    """
    source = read_yaml(path)
    _validate(source)
    data = source.data
    expectations = tuple(_expectations(source))
    if not expectations:
        raise source.error((), "the scenario checks nothing", hint="add at least one of: " + ", ".join(_CHECK_KEYS))
    return Scenario(
        path=path,
        name=path.stem.removesuffix(".scenario"),
        prompt=data["prompt"],
        prompt_line=source.locate(("prompt",))[0],
        project_dir=data.get("project_dir", ""),
        files=data.get("files", {}),
        outside_files=data.get("outside_files", {}),
        permission=data.get("permission", {}),
        permission_answer=data.get("permission_answer", "always"),
        turns=_turns(source),
        max_output_tokens=data.get("max_output_tokens"),
        timeouts_s=data.get("timeouts", {}),
        expectations=expectations,
        description=data.get("description", ""),
        tags=tuple(_as_list(data.get("tags", []))),
    )


def _turns(source: YamlSource) -> tuple[Turn, ...] | None:
    raw = source.data.get("turns")
    if raw is None:
        return None
    turns = []
    for index, turn in enumerate(raw):
        try:
            turns.append(Turn.from_mapping(turn))
        except TurnError as error:
            raise source.error(("turns", index), str(error), hint=error.hint) from error
    return tuple(turns)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _expectations(source: YamlSource) -> Iterator[Expectation]:
    for key in source.data:
        if key not in _CHECK_KEYS:
            continue
        value = source.data[key]
        for part, where in _parts(key, value):
            if part is not False:
                yield Expectation(key, part, source.locate((key, *where))[0])


def _parts(key: str, value: Any) -> Iterator[tuple[Any, tuple[str | int, ...]]]:
    """Split a key's value into what is checked, and reported, one by one."""
    if key == "expected_files":
        yield from ((item, (item[0],)) for item in value.items())
    elif key in {"permissions_asked", "tools_called"}:
        yield _as_list(value), ()
    elif isinstance(value, list):
        yield from ((item, (index,)) for index, item in enumerate(value))
    else:
        yield value, ()


def _validate(source: YamlSource) -> None:
    validator = jsonschema.Draft202012Validator(scenario_schema())
    faults = sorted(validator.iter_errors(source.data), key=lambda fault: _place_of(source, fault))
    if faults:
        raise _explained(source, faults[0])
    _check_patterns(source)
    _check_files(source)


def _check_files(source: YamlSource) -> None:
    """No file may stand where another one, or the project, needs a folder."""
    for key in ("files", "outside_files"):
        names = source.data.get(key, {})
        paths = {PurePosixPath(name): name for name in names}
        for name in names:
            for folder in PurePosixPath(name).parents:
                if folder in paths:
                    message = f"{paths[folder]!r} is a file, so {name!r} cannot lie below it"
                    raise source.error((key, name), message)


def _place_of(source: YamlSource, fault: jsonschema.ValidationError) -> Location:
    return source.locate(_key_path(source, fault))


def _key_path(source: YamlSource, fault: jsonschema.ValidationError) -> tuple[str | int, ...]:
    path = tuple(fault.absolute_path)
    unknown = _unknown_keys(fault)
    if unknown:
        return (*path, unknown[0])
    if "propertyNames" in fault.absolute_schema_path:
        return (*path, str(fault.instance))
    return path


def _unknown_keys(fault: jsonschema.ValidationError) -> list[str]:
    if fault.validator != "additionalProperties" or not isinstance(fault.schema, Mapping):
        return []
    if not isinstance(fault.instance, Mapping):
        return []
    known = fault.schema.get("properties", {})
    return [key for key in fault.instance if key not in known]


def _explained(source: YamlSource, fault: jsonschema.ValidationError) -> ScenarioError:
    key_path = _key_path(source, fault)
    unknown = _unknown_keys(fault)
    if unknown:
        known = list(fault.schema["properties"]) if isinstance(fault.schema, Mapping) else []
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "known keys: " + ", ".join(known)
        return source.error(key_path, f"unknown key {unknown[0]!r}", hint=hint)
    if "propertyNames" in fault.absolute_schema_path:
        return source.error(key_path, f"{fault.instance!r} is not a path inside the folder")
    if fault.validator == "required":
        return source.error(key_path, fault.message.replace(" is a required property", " is missing"))
    return source.error(key_path, f"{_dotted(key_path)}: {_reason(fault)}")


def _reason(fault: jsonschema.ValidationError) -> str:
    if fault.validator == "anyOf":
        best = min(fault.context or [fault], key=lambda part: -len(part.absolute_path))
        return best.message
    return fault.message


def _dotted(key_path: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in key_path) or "the file"


def _check_patterns(source: YamlSource) -> None:
    for key in _PATTERN_KEYS:
        for index, pattern in enumerate(_as_list(source.data.get(key, []))):
            _check_pattern(source, (key, index), pattern)
    for path, expected in source.data.get("expected_files", {}).items():
        if isinstance(expected, dict):
            for index, pattern in enumerate(_as_list(expected.get("matches", []))):
                _check_pattern(source, ("expected_files", path, "matches", index), pattern)


def _check_pattern(source: YamlSource, key_path: tuple[str | int, ...], pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise source.error(key_path, f"not a regular expression: {pattern!r}: {error}") from error
