"""YAML with places: every key and value remembers the line and column that it was written at.

Only plain data is built (mappings with text keys, sequences, scalars); a duplicated key, an alias and a tag are
refused, since each makes a scenario mean something else than it reads.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from opencode_harness.errors import ScenarioError

__all__ = ["KeyPath", "Location", "YamlSource", "read_yaml"]

Location = tuple[int, int]
KeyPath = tuple[str | int, ...]

_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null")}
_LARGEST_BYTES = 4 * 1024 * 1024
_DEEPEST = 40
_HALF_PAIR_RE = re.compile("[\ud800-\udfff]")
# No number of a scenario comes near, and longer ones cannot even be printed; a NaN is below nothing.
_BEYOND_NUMBERS = 2**63


@dataclass(frozen=True)
class YamlSource:
    """A parsed document and where each of its parts stands.

    Attributes:
        path: The file that it was read from.
        data: Mappings, lists and scalars.
        locations: 1-based (line, column) by key path; a mapping entry has the place of its key.
    """

    path: Path
    data: Any
    locations: dict[KeyPath, Location]

    def locate(self, key_path: KeyPath) -> Location:
        """Place of `key_path`, or of its nearest ancestor that has one."""
        while key_path and key_path not in self.locations:
            key_path = key_path[:-1]
        return self.locations.get(key_path, (1, 1))

    def error(self, key_path: KeyPath, message: str, *, hint: str = "") -> ScenarioError:
        """A `ScenarioError` that names the place of `key_path`."""
        line, column = self.locate(key_path)
        return ScenarioError(self.path, line, column, message, hint=hint)


def read_yaml(path: Path) -> YamlSource:
    """Read one YAML document.

    Raises:
        ScenarioError: The file cannot be read, is not UTF-8, is not YAML, or uses a feature refused above.
    """
    text = _read_text(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise ScenarioError(path, 1, 1, "the file is empty", hint="a scenario needs at least `prompt:`")
        builder = _Builder(path)
        return YamlSource(path, builder.build(node, ()), builder.locations)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ScenarioError(path, line, column, f"not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ScenarioError(path, 1, 1, f"not valid YAML: {error}") from error
    except RecursionError as error:
        raise ScenarioError(path, 1, 1, "nested too deeply") from error


def _read_text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for a writer
            raise ScenarioError(path, None, None, "not a regular file")
        if path.stat().st_size > _LARGEST_BYTES:
            raise ScenarioError(path, None, None, f"larger than {_LARGEST_BYTES} bytes")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(path, None, None, f"not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise ScenarioError(path, None, None, error.strerror or str(error)) from error


class _Builder:
    """Turns composed nodes into data, noting the place of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.locations: dict[KeyPath, Location] = {}
        self._scalars = yaml.constructor.SafeConstructor()
        self._seen: set[int] = set()

    def build(self, node: yaml.Node, key_path: KeyPath) -> Any:
        self.locations.setdefault(key_path, _place(node))
        self._refuse_the_unusual(node, key_path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key_path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*key_path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            value = self._scalars.construct_object(node)
        except (ValueError, KeyError, yaml.constructor.ConstructorError) as error:
            kind = node.tag.rpartition(":")[2]
            raise self._error(node, f"this is no {kind}", hint="quote the value to make it text") from error
        if isinstance(value, str) and _HALF_PAIR_RE.search(value):
            raise self._error(node, "half a surrogate pair is no text", hint='write one character, as in "\\U0001F600"')
        if isinstance(value, (int, float)) and not abs(value) < _BEYOND_NUMBERS:
            raise self._error(node, "this number is too large")
        return value

    def _mapping(self, node: yaml.MappingNode, key_path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key, str) or _HALF_PAIR_RE.search(key):
                raise self._error(key_node, "a key must be plain text")
            if key in result:
                raise self._error(key_node, f"the key {key!r} is given twice")
            entry = (*key_path, key)
            self.locations[entry] = _place(key_node)
            result[key] = self.build(value_node, entry)
        return result

    def _refuse_the_unusual(self, node: yaml.Node, key_path: KeyPath) -> None:
        if id(node) in self._seen:
            raise self._error(node, "YAML aliases are not supported", hint="write it out")
        self._seen.add(id(node))
        if len(key_path) > _DEEPEST:
            raise self._error(node, "nested too deeply")
        if node.tag not in _PLAIN_TAGS:
            raise self._error(node, f"unsupported value ({node.tag})", hint="quote the value to make it text")

    def _error(self, node: yaml.Node, message: str, *, hint: str = "") -> ScenarioError:
        line, column = _place(node)
        return ScenarioError(self.path, line, column, message, hint=hint)


def _place(node: yaml.Node) -> Location:
    return node.start_mark.line + 1, node.start_mark.column + 1
