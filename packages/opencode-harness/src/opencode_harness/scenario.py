"""A scenario: what is typed into OpenCode, what the model answers, and what must be true afterwards.

A file is checked against the JSON Schema that ships beside this module; each fault is told with file, line, column
and, for a misspelt key, the key that was probably meant.
"""

from __future__ import annotations

import base64
import importlib.resources
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from opencode_harness.errors import ScenarioError
from opencode_harness.proxy_faults import ProxyFault
from opencode_harness.scenario_faults import PATTERN_KEYS, scenario_faults
from opencode_harness.turns import Turn
from opencode_harness.workspace import FileSpec
from opencode_harness.yaml_source import YamlSource, read_yaml

__all__ = [
    "Expectation",
    "Limits",
    "Requirements",
    "Scenario",
    "find_faults",
    "load_scenario",
    "scenario_paths",
    "scenario_schema",
]

PermissionAnswer = Literal["always", "once", "reject"]

_CHECK_KEYS = (
    "stdout_contains",
    "stdout_not_contains",
    "screen_contains",
    "screen_not_contains",
    "scrollback_contains",
    "scrollback_not_contains",
    *PATTERN_KEYS,
    "files_unchanged",
    "expected_files",
    "permissions_asked",
    "tools_called",
    "tool_calls_made",
    "tool_calls_not_made",
    "cold_start",
    "exit_code",
    "bounds",
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
class Limits:
    """Where a trial is ended; None for no limit.

    Attributes:
        turns: Main requests.
        completion_tokens: Tokens generated in all conversations.
        wall_s: Seconds from the first request on.
    """

    turns: int | None = None
    completion_tokens: int | None = None
    wall_s: float | None = None


@dataclass(frozen=True)
class Requirements:
    """What must be there for a scenario to be run.

    Attributes:
        opencode: Versions of OpenCode, such as `>=1.18,<2`; "" for any.
        commands: Programs on PATH.
        context_tokens: Context of a slot of the server, or None.
    """

    opencode: str = ""
    commands: tuple[str, ...] = ()
    context_tokens: int | None = None


@dataclass(frozen=True)
class Scenario:
    """A validated scenario file; texts may still hold the placeholders {workspace} and {outside}.

    Attributes:
        path: The file.
        name: The file's name without its endings.
        prompt: What is typed.
        prompt_line: Line of the `prompt` key.
        then: Prompts typed in the same conversation afterwards.
        resume: Prompts typed after OpenCode was left and started again with --continue.
        project_dir: Folder below the workspace that OpenCode starts in ("" = the workspace itself).
        files: Project files by relative path.
        outside_files: Files of the folder beside the workspace.
        git: Whether the project is a git repository.
        requires: What must be there.
        permission: Entries that replace those of the pre-granted permission block.
        permission_answer: How dialogs are answered.
        turns: The model's turns, or None when a cassette or the real server answers.
        guided: Whether the real server is made to say the turns.
        solution: Turns that solve the task, or None where there are `turns` or nobody wrote any.
        faults: What goes wrong on purpose.
        limits: Where the trial is ended.
        max_output_tokens: `limit.output` of the model, or None for the default.
        timeouts_s: Timeouts that differ from the defaults, by name.
        expectations: What must be true afterwards, in file order.
        description: One sentence, or an empty string.
        tags: Free words that scenarios are selected by.
    """

    path: Path
    name: str
    prompt: str
    prompt_line: int
    then: tuple[str, ...]
    resume: tuple[str, ...]
    project_dir: str
    files: Mapping[str, FileSpec]
    outside_files: Mapping[str, FileSpec]
    git: bool
    requires: Requirements
    permission: Mapping[str, Any]
    permission_answer: PermissionAnswer
    turns: tuple[Turn, ...] | None
    guided: bool
    solution: tuple[Turn, ...] | None
    faults: tuple[ProxyFault, ...]
    limits: Limits
    max_output_tokens: int | None
    timeouts_s: Mapping[str, float]
    expectations: tuple[Expectation, ...]
    description: str
    tags: tuple[str, ...]

    @property
    def place(self) -> str:
        """`FILE:LINE` of the prompt, for failures that belong to no single expectation."""
        return f"{self.path}:{self.prompt_line}"

    @property
    def cassette(self) -> Path:
        """Where the scenario's cassette lies, or would lie."""
        return self.path.with_name(self.name + ".cassette.jsonl")


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


def find_faults(path: Path) -> list[ScenarioError]:
    """Everything that is wrong with a scenario file, in its order; nothing when `load_scenario` takes it."""
    try:
        return _faults(read_yaml(path))
    except ScenarioError as error:
        return [error]


def load_scenario(path: Path) -> Scenario:
    """Read and validate one scenario file.

    Raises:
        ScenarioError: With file, line and column, for the first fault in the file.
    """
    source = read_yaml(path)
    faults = _faults(source)
    if faults:
        raise faults[0]
    data = source.data
    requires, limits = data.get("requires", {}), data.get("limits", {})
    return Scenario(
        path=path,
        name=path.stem.removesuffix(".scenario"),
        prompt=data["prompt"],
        prompt_line=source.locate(("prompt",))[0],
        then=tuple(_as_list(data.get("then", []))),
        resume=tuple(_as_list(data.get("resume", []))),
        project_dir=data.get("project_dir", ""),
        files=_files(data.get("files", {})),
        outside_files=_files(data.get("outside_files", {})),
        git=data.get("git", False),
        requires=Requirements(
            requires.get("opencode", ""),
            tuple(_as_list(requires.get("commands", []))),
            requires.get("context_tokens"),
        ),
        permission=data.get("permission", {}),
        permission_answer=data.get("permission_answer", "always"),
        turns=_turns(data.get("turns")),
        guided=data.get("guided", False),
        solution=_turns(data.get("solution")),
        faults=tuple(ProxyFault(**fault) for fault in data.get("faults", [])),
        limits=Limits(limits.get("turns"), limits.get("completion_tokens"), limits.get("wall")),
        max_output_tokens=data.get("max_output_tokens"),
        timeouts_s=data.get("timeouts", {}),
        expectations=tuple(_expectations(source)),
        description=data.get("description", ""),
        tags=tuple(_as_list(data.get("tags", []))),
    )


def _faults(source: YamlSource) -> list[ScenarioError]:
    faults = scenario_faults(source, scenario_schema())
    if not faults and not any(_expectations(source)):
        hint = "add at least one of: " + ", ".join(_CHECK_KEYS)
        faults.append(source.error((), "the scenario checks nothing", hint=hint))
    return faults


def _files(raw: Mapping[str, Any]) -> dict[str, FileSpec]:
    return {name: _file({"text": file} if isinstance(file, str) else file) for name, file in raw.items()}


def _file(raw: Mapping[str, Any]) -> FileSpec:
    if "base64" in raw:
        data = base64.b64decode(raw["base64"])
    else:
        data = (raw.get("text", "") * raw.get("repeat", 1)).encode("utf-8")
    return FileSpec(data, raw.get("executable", False), raw.get("link"))


def _turns(raw: list[Mapping[str, Any]] | None) -> tuple[Turn, ...] | None:
    return None if raw is None else tuple(Turn.from_mapping(turn) for turn in raw)


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
    if key in {"expected_files", "bounds"}:
        yield from ((item, (item[0],)) for item in value.items())
    elif key in {"permissions_asked", "tools_called"}:
        yield _as_list(value), ()
    elif isinstance(value, list):
        yield from ((item, (index,)) for index, item in enumerate(value))
    else:
        yield value, ()
