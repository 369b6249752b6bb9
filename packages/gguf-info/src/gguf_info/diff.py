"""What differs between two models: metadata, tensors, and the chat template as a text diff.

The rule: only what a model is counts. Where a tensor's data lies, how the file is split or aligned, and in what order
keys stand makes no difference. Tensors are compared by shape and type; their data is not read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, Literal

from gguf_info.constants import type_name
from gguf_info.document import plain_value
from gguf_info.model import Summary
from gguf_info.reader import Array, Tensor

__all__ = ["Change", "ModelDiff", "diff_document", "diff_models"]

TEMPLATE = "tokenizer.chat_template"
# They say how the model lies in its files.
_OF_THE_FILE = ("general.alignment", "split.no", "split.count", "split.tensors.count")
_ABSENT = object()


@dataclass(frozen=True)
class Change:
    """One key or tensor that is not alike; `before` and `after` are None where it is not there."""

    name: str
    kind: Literal["added", "removed", "changed"]
    before: Any
    after: Any


@dataclass(frozen=True)
class ModelDiff:
    """What differs from one model to another; all empty when they are alike.

    Attributes:
        metadata: Keys, in the first file's order; without the chat template.
        tensors: Tensors by name; before and after are `{"shape": [...], "type": str}`.
        types: Number of tensors by quantization type where it differs.
        chat_template: A unified diff, line by line.
    """

    metadata: tuple[Change, ...]
    tensors: tuple[Change, ...]
    types: tuple[Change, ...]
    chat_template: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the models are alike."""
        return not (self.metadata or self.tensors or self.types or self.chat_template)


def diff_models(before: Summary, after: Summary) -> ModelDiff:
    """Compare two models.

    Raises:
        GGUFError: A file changed while an array was read from it.
    """
    tensors = [{tensor.name: _tensor(tensor) for tensor in summary.all_tensors()} for summary in (before, after)]
    types = [{t.type: t.tensors for t in s.tensors.by_type} if s.tensors else {} for s in (before, after)]
    return ModelDiff(
        metadata=tuple(_metadata_changes(before, after)),
        tensors=tuple(_changes(*tensors)),
        types=tuple(_changes(*types)),
        chat_template=tuple(
            difflib.unified_diff(
                (before.chat_template() or "").splitlines(),
                (after.chat_template() or "").splitlines(),
                before.file.path,
                after.file.path,
                lineterm="",
            )
        ),
    )


def diff_document(before: Summary, after: Summary, difference: ModelDiff) -> dict[str, Any]:
    """The document that `gguf-info diff --format json` prints."""
    document = asdict(difference)
    return {"schema_version": 1, "before": before.file.path, "after": after.file.path, "same": difference.is_empty} | {
        name: list(value) for name, value in document.items()
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "type": type_name(tensor.type_number)}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for name in dict.fromkeys([*before, *after]):
        if name not in after:
            yield Change(name, "removed", before[name], None)
        elif name not in before:
            yield Change(name, "added", None, after[name])
        elif before[name] != after[name]:
            yield Change(name, "changed", before[name], after[name])


def _metadata_changes(before: Summary, after: Summary) -> Iterator[Change]:
    hidden = {*_OF_THE_FILE, TEMPLATE}
    for key in dict.fromkeys([*before.metadata, *after.metadata]):
        if key in hidden:
            continue
        old, new = before.metadata.get(key), after.metadata.get(key)
        if old is None or new is None:
            yield Change(key, "added" if old is None else "removed", plain_value(old), plain_value(new))
        elif isinstance(old, Array) and isinstance(new, Array):
            yield from _array_change(before, after, key, old, new)
        elif plain_value(old) != plain_value(new) or type(old) is not type(new):
            yield Change(key, "changed", plain_value(old), plain_value(new))


def _array_change(before: Summary, after: Summary, key: str, old: Array, new: Array) -> Iterator[Change]:
    if "array" in (old.item_type, new.item_type):
        first = None if (old.item_type, old.length) == (new.item_type, new.length) else 0
    else:
        pairs = zip_longest(before.headers[0].read_array(key), after.headers[0].read_array(key), fillvalue=_ABSENT)
        # NaN is not itself, and no difference.
        first = next((n for n, (a, b) in enumerate(pairs) if a is not b and a != b and (a == a or b == b)), None)
    if first is not None or old.item_type != new.item_type:
        place = {"first_difference": first}
        yield Change(key, "changed", {**_summary(old), **place}, {**_summary(new), **place})


def _summary(array: Array) -> dict[str, Any]:
    return {"array": array.item_type, "length": array.length}
