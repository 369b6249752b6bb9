"""A model's header as the sections that a person asks for; pure, from a `Header`.

What the file does not say is None, never a zero. Two things are derived as llama.cpp derives them, and said to be:
head dimensions (embedding / heads) and the vocabulary's size (tokens, then the embedding's second size).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf_info.constants import block_size, file_type_name, keys_below, type_name
from gguf_info.errors import GGUFError
from gguf_info.reader import ArrayRef, Header, Tensor, Value, read_header

__all__ = ["Summary", "TensorType", "read_summary", "summarise", "summary_document"]

_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_MOST_SHARDS = 1000

# JSON field of the architecture section and the gguf package's constant for its key.
_ARCHITECTURE = {
    "context_length": "CONTEXT_LENGTH",
    "embedding_length": "EMBEDDING_LENGTH",
    "block_count": "BLOCK_COUNT",
    "feed_forward_length": "FEED_FORWARD_LENGTH",
    "vocab_size": "VOCAB_SIZE",
}
_MOE = {
    "expert_count": "EXPERT_COUNT",
    "expert_used_count": "EXPERT_USED_COUNT",
    "expert_group_count": "EXPERT_GROUP_COUNT",
    "expert_shared_count": "EXPERT_SHARED_COUNT",
    "expert_feed_forward_length": "EXPERT_FEED_FORWARD_LENGTH",
}
_ROPE = {
    "dimension_count": "DIMENSION_COUNT",
    "freq_base": "FREQ_BASE",
    "scaling_type": "SCALING_TYPE",
    "scaling_factor": "SCALING_FACTOR",
    "original_context_length": "SCALING_ORIG_CTX_LEN",
}
# Always there in the attention section; whatever else the file has of that group follows.
_ATTENTION_ALWAYS = (
    "head_count",
    "head_count_kv",
    "key_length",
    "value_length",
    "sliding_window",
    "sliding_window_pattern",
    "layer_norm_rms_epsilon",
)
_GENERAL_ALWAYS = ("architecture", "name", "file_type", "quantization_version", "size_label", "license")


@dataclass(frozen=True)
class TensorType:
    """Tensors of one quantization type.

    Attributes:
        type: Name, such as `Q8_0`, or `type N` when unknown.
        tensors: How many.
        parameters: Values in them.
        percent: Of all parameters.
        bytes: Their size, or None when the type's block size is unknown.
        bits_per_weight: bytes x 8 / parameters.
    """

    type: str
    tensors: int
    parameters: int
    percent: float
    bytes: int | None
    bits_per_weight: float | None


@dataclass(frozen=True)
class Summary:
    """A model, section by section; the fields are those of the JSON document.

    Attributes:
        header: The header of the file that was named (the first shard's, for a split model).
        shards: Paths of all shards that are there; one for a model that is not split.
        missing_shards: Names of shards that should be there.
        present_bytes: Bytes of all shards that are there.
        expected_bytes: Bytes that they should have by their tensor tables, None when a type's size is unknown.
        general: `general.*`, arrays summarised.
        architecture: Sizes of the model.
        attention: Heads, head dimensions, window; `derived` names what is not in the file.
        moe: Experts, or None for a dense model.
        rope: Rotary embedding, or None when the file says nothing of it.
        tokenizer: Vocabulary, or None.
        tensor_types: By type, most parameters first.
        tensors: All tensors of all shards.
    """

    header: Header
    shards: tuple[Path, ...]
    missing_shards: tuple[str, ...]
    present_bytes: int
    expected_bytes: int | None
    general: Mapping[str, Any]
    architecture: Mapping[str, Any]
    attention: Mapping[str, Any] | None
    moe: Mapping[str, Any] | None
    rope: Mapping[str, Any] | None
    tokenizer: Mapping[str, Any] | None
    tensor_types: tuple[TensorType, ...]
    tensors: tuple[Tensor, ...] = field(repr=False)

    @property
    def is_complete(self) -> bool | None:
        """Whether all data is there; None when a tensor type of unknown size makes it impossible to say."""
        if self.missing_shards:
            return False
        return None if self.expected_bytes is None else self.present_bytes >= self.expected_bytes


def read_summary(path: str | Path) -> Summary:
    """Read one model: a GGUF file, any shard of a split model, or a folder that holds one of these.

    Raises:
        GGUFError: The file breaks the format, or the folder holds none or several models.
    """
    first, missing = _shards_of(_file_of(Path(path)))
    headers = [read_header(shard) for shard in first]
    return summarise(headers, missing)


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    models = sorted(path.glob("*.gguf"))
    firsts = [model for model in models if not (match := _SHARD.match(model.name)) or int(match["number"]) == 1]
    if len(firsts) != 1:
        raise GGUFError(path, None, expected="one GGUF model in the folder", found=str(len(firsts)), hint="name a file")
    return firsts[0]


def _shards_of(path: Path) -> tuple[list[Path], tuple[str, ...]]:
    """All shards that are there, in order, and the names of those that are not."""
    match = _SHARD.match(path.name)
    if match is None or not 1 <= int(match["count"]) <= _MOST_SHARDS:
        return [path], ()
    count = int(match["count"])
    shards = [path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    there = [shard for shard in shards if shard == path or shard.is_file()]
    return there, tuple(shard.name for shard in shards if shard not in there)


def summarise(headers: Sequence[Header], missing_shards: tuple[str, ...] = ()) -> Summary:
    """The sections of a model from the headers of its shards; the first shard's metadata counts."""
    header = headers[0]
    tensors = tuple(tensor for each in headers for tensor in each.tensors)
    metadata = header.metadata
    architecture = str(metadata.get("general.architecture", ""))
    sizes = _picked(metadata, keys_below("LLM", architecture), _ARCHITECTURE)
    sizes["vocab_size"] = _vocab_size(sizes["vocab_size"], metadata, tensors)
    return Summary(
        header=header,
        shards=tuple(each.path for each in headers),
        missing_shards=missing_shards,
        present_bytes=sum(each.size_bytes for each in headers),
        expected_bytes=_expected_bytes(headers),
        general=_general(metadata),
        architecture=sizes,
        attention=_attention(metadata, architecture, sizes),
        moe=_moe(metadata, architecture),
        rope=_rope(metadata, architecture, sizes),
        tokenizer=_tokenizer(metadata),
        tensor_types=_tensor_types(tensors),
        tensors=tensors,
    )


def _picked(metadata: Mapping[str, Value], keys: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, Any]:
    return {name: _plain(metadata.get(keys[constant])) for name, constant in fields.items()}


def _plain(value: Value | None) -> Any:
    """A value as JSON has it: short arrays as lists, long ones by type and length."""
    if isinstance(value, ArrayRef):
        return {"array": value.item_type, "length": value.length}
    return list(value) if isinstance(value, tuple) else value


def _general(metadata: Mapping[str, Value]) -> dict[str, Any]:
    prefix = "general."
    found = {key.removeprefix(prefix): _plain(value) for key, value in metadata.items() if key.startswith(prefix)}
    general = {**dict.fromkeys(_GENERAL_ALWAYS), **found}
    if isinstance(general["file_type"], int):
        general["file_type"] = file_type_name(general["file_type"])
    return general


def _vocab_size(given: Any, metadata: Mapping[str, Value], tensors: Sequence[Tensor]) -> int | None:
    if isinstance(given, int):
        return given
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, ArrayRef):
        return tokens.length
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    return embedding.shape[1] if embedding is not None and len(embedding.shape) > 1 else None


def _attention(metadata: Mapping[str, Value], architecture: str, sizes: Mapping[str, Any]) -> dict[str, Any] | None:
    prefix = f"{architecture}.attention."
    found = {key.removeprefix(prefix): _plain(value) for key, value in metadata.items() if key.startswith(prefix)}
    if not found:
        return None
    attention: dict[str, Any] = {**dict.fromkeys(_ATTENTION_ALWAYS), **found}
    derived = [name for name in ("key_length", "value_length") if attention[name] is None]
    head_dimension = _head_dimension(sizes["embedding_length"], attention["head_count"])
    attention.update(dict.fromkeys(derived, head_dimension))
    attention["derived"] = derived if head_dimension is not None else []
    return attention


def _head_dimension(embedding_length: Any, head_count: Any) -> int | None:
    heads = max(head_count, default=0) if isinstance(head_count, list) else head_count
    return embedding_length // heads if isinstance(embedding_length, int) and isinstance(heads, int) and heads else None


def _moe(metadata: Mapping[str, Value], architecture: str) -> dict[str, Any] | None:
    moe = _picked(metadata, keys_below("LLM", architecture), _MOE)
    count, used = moe["expert_count"], moe["expert_used_count"]
    if not count:
        return None
    known = isinstance(count, int) and isinstance(used, int)
    moe["expert_used_percent"] = round(100 * used / count, 2) if known else None
    return moe


def _rope(metadata: Mapping[str, Value], architecture: str, sizes: Mapping[str, Any]) -> dict[str, Any] | None:
    rope = _picked(metadata, keys_below("Rope", architecture), _ROPE)
    if all(value is None for value in rope.values()):
        return None
    original, trained = rope["original_context_length"], sizes["context_length"]
    known = isinstance(original, int) and isinstance(trained, int) and original > 0
    rope["context_extension"] = trained / original if known else rope["scaling_factor"]
    return rope


def _tokenizer(metadata: Mapping[str, Value]) -> dict[str, Any] | None:
    def length(key: str) -> int | None:
        value = metadata.get(key)
        return value.length if isinstance(value, ArrayRef) else None

    if not any(key.startswith("tokenizer.") for key in metadata):
        return None
    return {
        "model": _plain(metadata.get("tokenizer.ggml.model")),
        "pre": _plain(metadata.get("tokenizer.ggml.pre")),
        "tokens": length("tokenizer.ggml.tokens"),
        "merges": length("tokenizer.ggml.merges"),
        "chat_template": "tokenizer.chat_template" in metadata,
    }


def tensor_bytes(tensor: Tensor) -> int | None:
    """Size of a tensor's data, or None for a type of unknown block size."""
    size = block_size(tensor.type_number)
    return None if size is None else tensor.parameters // size[0] * size[1]


def _tensor_types(tensors: Sequence[Tensor]) -> tuple[TensorType, ...]:
    total = sum(tensor.parameters for tensor in tensors)
    by_type: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.type_number, []).append(tensor)
    rows = [_tensor_type(number, members, total) for number, members in by_type.items()]
    return tuple(sorted(rows, key=lambda row: (-row.parameters, row.type)))


def _tensor_type(type_number: int, tensors: Sequence[Tensor], total: int) -> TensorType:
    parameters = sum(tensor.parameters for tensor in tensors)
    sizes = [tensor_bytes(tensor) for tensor in tensors]
    n_bytes = None if None in sizes else sum(size for size in sizes if size is not None)
    return TensorType(
        type=type_name(type_number),
        tensors=len(tensors),
        parameters=parameters,
        percent=100 * parameters / total if total else 0.0,
        bytes=n_bytes,
        bits_per_weight=n_bytes * 8 / parameters if n_bytes is not None and parameters else None,
    )


def _expected_bytes(headers: Sequence[Header]) -> int | None:
    """What the shards should measure: each ends where its last tensor does."""
    total = 0
    for header in headers:
        end = 0
        for tensor in header.tensors:
            size = tensor_bytes(tensor)
            if size is None:
                return None
            end = max(end, tensor.offset + size)
        total += header.data_offset + end
    return total


def summary_document(summary: Summary, *, full: bool = False) -> dict[str, Any]:
    """The JSON document, schema version 1.

    Args:
        summary: The model.
        full: Whether `metadata` holds long arrays item by item instead of by type and length.
    """
    header = summary.header
    sizes = [row.bytes for row in summary.tensor_types]
    return {
        "schema_version": 1,
        "file": {
            "path": str(header.path),
            "version": header.version,
            "endianness": header.endianness,
            "size_bytes": summary.present_bytes,
            "header_bytes": header.data_offset,
            "alignment": header.alignment,
            "shards": [str(shard) for shard in summary.shards],
            "missing_shards": list(summary.missing_shards),
            "expected_bytes": summary.expected_bytes,
            "complete": summary.is_complete,
        },
        "general": dict(summary.general),
        "architecture": dict(summary.architecture),
        "attention": _copied(summary.attention),
        "moe": _copied(summary.moe),
        "rope": _copied(summary.rope),
        "tokenizer": _copied(summary.tokenizer),
        "tensors": {
            "count": len(summary.tensors),
            "parameters": sum(tensor.parameters for tensor in summary.tensors),
            "bytes": None if None in sizes else sum(size for size in sizes if size is not None),
            "by_type": [vars(row) for row in summary.tensor_types],
        },
        "metadata": {key: _metadata_value(header, key, full=full) for key in header.metadata},
    }


def _copied(section: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if section is None else dict(section)


def _metadata_value(header: Header, key: str, *, full: bool) -> Any:
    value = header.metadata[key]
    if full and isinstance(value, ArrayRef) and value.item_type != "array":
        return list(header.read_array(key))
    return _plain(value)
