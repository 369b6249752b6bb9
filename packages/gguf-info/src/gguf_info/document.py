"""A summary as a JSON document: the contract for scripts.

The rule: a key is never dropped. What the file does not say is null, and so is a section with nothing in it. Arrays in
`metadata` are summarised as their type and length unless they are asked for. A number that JSON cannot hold (NaN,
infinity) is null.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gguf_info.constants import type_name
from gguf_info.model import Summary, tensor_bytes
from gguf_info.reader import Array, Tensor, Value

__all__ = ["SCHEMA_VERSION", "flat_fields", "plain_value", "summary_document", "tensor_rows"]

SCHEMA_VERSION = 1


def summary_document(summary: Summary, *, full: bool = False) -> dict[str, Any]:
    """The document that `gguf-info --format json FILE` prints.

    Args:
        summary: What `read_summary` read.
        full: Arrays in `metadata` as lists, read from the file; otherwise `{"array": type, "length": n}`.

    Raises:
        GGUFError: The file can no longer be read (only with `full`).
    """
    sections = ("file", "general", "architecture", "attention", "moe", "rope", "tokenizer", "tensors")
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    document.update({name: plain_value(getattr(summary, name)) for name in sections})
    document["metadata"] = {key: _metadata_value(summary, key, value, full) for key, value in summary.metadata.items()}
    return document


def tensor_rows(summary: Summary, tensors: tuple[Tensor, ...]) -> Iterator[dict[str, Any]]:
    """Tensors as JSON objects; `offset` counts from the start of the data section, shapes are fastest first."""
    for tensor in tensors:
        yield {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "type": type_name(tensor.type_number),
            "parameters": tensor.parameters,
            "bytes": tensor_bytes(tensor),
            "offset": tensor.offset,
        }


def flat_fields(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Leaves of a document with their dotted names; an item of a list goes by its type, kind or name."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from flat_fields(item, f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for item in value:
            label = next(name for name in ("type", "kind", "role", "name", "path") if name in item)
            rest = {name: inner for name, inner in item.items() if name != label}
            yield from flat_fields(rest, f"{prefix}.{item[label]}")
    elif isinstance(value, list):
        yield prefix, " ".join(map(str, value))
    else:
        yield prefix, value


def plain_value(value: object) -> Any:
    """A value as JSON has it: dataclasses as objects, with the keys of `other` beside their own."""
    if is_dataclass(value) and not isinstance(value, (type, Array)):
        plain = {
            field.name: plain_value(getattr(value, field.name)) for field in fields(value) if field.name != "other"
        }
        other = getattr(value, "other", {})
        return {**{key: plain_value(item) for key, item in other.items()}, **plain} if other else plain
    if isinstance(value, Array):
        return _summarized(value) if value.items is None else [plain_value(item) for item in value.items]
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _metadata_value(summary: Summary, key: str, value: Value, full: bool) -> Any:
    if not (full and isinstance(value, Array)) or value.item_type == "array":
        return _summarized(value)
    return [plain_value(item) for item in summary.headers[0].read_array(key)]


def _summarized(value: Value) -> Any:
    return {"array": value.item_type, "length": value.length} if isinstance(value, Array) else plain_value(value)
