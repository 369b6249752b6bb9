"""The typed view of a model's header: what people ask of it, by its field names.

The rule: keys come from the gguf package's `Keys` with the architecture filled in, so a new architecture needs no
code here; a key that has no field of its own is kept in `other`. What the file does not say is None, except where
llama.cpp's loader has a rule of its own: head sizes default to embedding / heads, KV heads to heads, and the vocabulary
to the token list, then to the embedding tensor.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gguf_info.constants import block_size, file_type_name, keys_below, type_name
from gguf_info.errors import GGUFError
from gguf_info.reader import Array, Header, Tensor, Value, read_header
from gguf_info.shards import find_shards

__all__ = [
    "Architecture",
    "Attention",
    "FileFacts",
    "General",
    "Moe",
    "Rope",
    "Summary",
    "TensorFacts",
    "Tokenizer",
    "TypeShare",
    "read_summary",
    "summarize",
    "tensor_bytes",
]

Numbers = int | tuple[int, ...] | None
"""A value that is one number, or one by layer."""


@dataclass(frozen=True)
class FileFacts:
    """The file itself.

    Attributes:
        path: As it was named, or the first part of a split model.
        version: GGUF version.
        endianness: `little` or `big`.
        size_bytes: Size of all its parts that are there.
        header_bytes: Bytes before the data section, of all its parts.
        alignment: `general.alignment`.
        shards: Paths of the parts that are there; empty for a model in one file.
        missing_shards: Paths of the parts that are not.
        missing_bytes: Bytes of tensor data that the tables promise and the parts that are there lack, as in a
            download that goes on; None when a tensor's size is not known.
    """

    path: str
    version: int
    endianness: str
    size_bytes: int
    header_bytes: int
    alignment: int
    shards: tuple[str, ...]
    missing_shards: tuple[str, ...]
    missing_bytes: int | None


@dataclass(frozen=True)
class General:
    """`general.*`; `file_type` by name, such as `Q4_1`. `other` also holds the keys of adapters."""

    architecture: str | None
    name: str | None
    file_type: str | None
    quantization_version: int | None
    size_label: str | None
    license: str | None
    other: Mapping[str, Value]


@dataclass(frozen=True)
class Architecture:
    """Sizes of the model; `other` holds the architecture's own keys that no section has."""

    context_length: int | None
    embedding_length: int | None
    block_count: int | None
    feed_forward_length: Numbers
    vocab_size: int | None
    other: Mapping[str, Value]


@dataclass(frozen=True)
class Attention:
    """`{arch}.attention.*`."""

    head_count: Numbers
    head_count_kv: Numbers
    key_length: int | None
    value_length: int | None
    sliding_window: int | None
    sliding_window_pattern: Numbers
    layer_norm_rms_epsilon: float | None
    other: Mapping[str, Value]


@dataclass(frozen=True)
class Moe:
    """Experts; `expert_used_percent` is used / count."""

    expert_count: int
    expert_used_count: Numbers
    expert_used_percent: float | None
    expert_group_count: int | None
    expert_shared_count: int | None
    expert_feed_forward_length: Numbers
    other: Mapping[str, Value]


@dataclass(frozen=True)
class Rope:
    """`{arch}.rope.*`; `context_extension` is context length / original context length."""

    dimension_count: int | None
    freq_base: float | None
    scaling_type: str | None
    scaling_factor: float | None
    original_context_length: int | None
    context_extension: float | None
    other: Mapping[str, Value]


@dataclass(frozen=True)
class Tokenizer:
    """`tokenizer.*`: how many tokens and merges there are, and whether there is a chat template."""

    model: str | None
    pre: str | None
    tokens: int | None
    merges: int | None
    chat_template: bool
    other: Mapping[str, Value]


@dataclass(frozen=True)
class TypeShare:
    """Tensors of one quantization type; bytes are None for a type whose block size is not known."""

    type: str
    tensors: int
    parameters: int
    percent: float
    bytes: int | None
    bits_per_weight: float | None


@dataclass(frozen=True)
class TensorFacts:
    """All tensors of the model, and their types by falling share of the parameters."""

    count: int
    parameters: int
    bytes: int | None
    by_type: tuple[TypeShare, ...]


@dataclass(frozen=True)
class Summary:
    """What is in a model. A section that the file has nothing for is None; `headers` are those of all its parts."""

    file: FileFacts
    general: General
    architecture: Architecture | None
    attention: Attention | None
    moe: Moe | None
    rope: Rope | None
    tokenizer: Tokenizer | None
    tensors: TensorFacts | None
    headers: tuple[Header, ...]

    @property
    def metadata(self) -> Mapping[str, Value]:
        """Metadata of the first part, which alone has all of it."""
        return self.headers[0].metadata

    def all_tensors(self) -> tuple[Tensor, ...]:
        """The tensor tables of all parts, in order."""
        return tuple(tensor for header in self.headers for tensor in header.tensors)

    def chat_template(self) -> str | None:
        """The default chat template's text."""
        value = self.metadata.get("tokenizer.chat_template")
        return value if isinstance(value, str) else None


def read_summary(path: str | os.PathLike[str]) -> Summary:
    """What is in a model: a file, any part of a split model, or a folder with one model.

    Raises:
        GGUFError: A file cannot be read as GGUF.
    """
    shards = find_shards(path)
    headers = [read_header(file) for file in shards.found]
    return summarize(headers, missing_shards=shards.missing, is_split=shards.is_split)


def summarize(headers: Sequence[Header], *, missing_shards: Sequence[str] = (), is_split: bool = False) -> Summary:
    """The typed view of headers that were read; the first has the metadata.

    Raises:
        GGUFError: A tensor occurs in two parts.
    """
    _require_distinct(headers)
    first = headers[0]
    keys = _Keys(first.metadata)
    tensors = [tensor for header in headers for tensor in header.tensors]
    architecture = _architecture(keys, tensors)
    return Summary(
        file=_file_facts(headers, missing_shards, is_split),
        general=_general(keys),
        attention=_attention(keys, architecture),
        moe=_moe(keys),
        rope=_rope(keys, architecture),
        architecture=architecture if _is_filled(architecture) else None,
        tokenizer=_tokenizer(keys),
        tensors=_tensor_facts(tensors) if tensors else None,
        headers=tuple(headers),
    )


def tensor_bytes(tensor: Tensor) -> int | None:
    """Bytes of a tensor's data: values / block x bytes a block; None for a type whose block size is not known."""
    block = block_size(tensor.type_number)
    return None if block is None else tensor.parameters * block[1] // block[0]


class _Keys:
    """Takes values out of metadata by their constant's name, and knows what was left."""

    def __init__(self, metadata: Mapping[str, Value]) -> None:
        self.metadata = metadata
        self.taken: set[str] = set()
        name = metadata.get("general.architecture")
        self.architecture = name if isinstance(name, str) else ""

    def value(self, group: str, constant: str) -> Value | None:
        key = keys_below(group, self.architecture).get(constant, "")
        self.taken.add(key)
        return self.metadata.get(key)

    def text(self, group: str, constant: str) -> str | None:
        value = self.value(group, constant)
        return value if isinstance(value, str) else None

    def whole(self, group: str, constant: str) -> int | None:
        value = self.value(group, constant)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def real(self, group: str, constant: str) -> float | None:
        value = self.value(group, constant)
        return float(value) if isinstance(value, (int, float)) else None

    def numbers(self, group: str, constant: str) -> Numbers:
        value = self.value(group, constant)
        if isinstance(value, Array) and value.items is not None and value.item_type not in ("f32", "f64", "str"):
            return tuple(int(item) for item in value.items)
        return value if isinstance(value, int) else None

    def length(self, group: str, constant: str) -> int | None:
        value = self.value(group, constant)
        return value.length if isinstance(value, Array) else None

    def rest(self, *prefixes: str, without: Iterable[str] = ()) -> dict[str, Value]:
        """Values below the prefixes that no field took, by the key's end."""
        found: dict[str, Value] = {}
        for key, value in self.metadata.items():
            prefix = next((prefix for prefix in prefixes if key.startswith(prefix)), None)
            if prefix is not None and key not in self.taken and not any(key.startswith(other) for other in without):
                found[key if prefix.startswith("adapter") else key[len(prefix) :]] = value
        return found


def _is_filled(section: object) -> bool:
    return any(value not in (None, {}) for value in vars(section).values())


def _general(keys: _Keys) -> General:
    file_type = keys.whole("General", "FILE_TYPE")
    return General(
        architecture=keys.text("General", "ARCHITECTURE"),
        name=keys.text("General", "NAME"),
        file_type=None if file_type is None else file_type_name(file_type),
        quantization_version=keys.whole("General", "QUANTIZATION_VERSION"),
        size_label=keys.text("General", "SIZE_LABEL"),
        license=keys.text("General", "LICENSE"),
        other=keys.rest("general.", "adapter."),
    )


def _architecture(keys: _Keys, tensors: Sequence[Tensor]) -> Architecture:
    architecture = keys.architecture
    return Architecture(
        context_length=keys.whole("LLM", "CONTEXT_LENGTH"),
        embedding_length=keys.whole("LLM", "EMBEDDING_LENGTH"),
        block_count=keys.whole("LLM", "BLOCK_COUNT"),
        feed_forward_length=keys.numbers("LLM", "FEED_FORWARD_LENGTH"),
        vocab_size=_vocab_size(keys, tensors),
        other=keys.rest(
            f"{architecture}.",
            without=[f"{architecture}.{group}" for group in ("attention.", "rope.", "expert_")],
        )
        if architecture
        else {},
    )


def _vocab_size(keys: _Keys, tensors: Sequence[Tensor]) -> int | None:
    said = keys.whole("LLM", "VOCAB_SIZE") or keys.length("Tokenizer", "LIST")
    if said:
        return said
    return next((t.shape[1] for t in tensors if t.name == "token_embd.weight" and len(t.shape) > 1), None)


def _attention(keys: _Keys, architecture: Architecture) -> Attention | None:
    heads = keys.numbers("Attention", "HEAD_COUNT")
    head_size = _default_head_size(architecture.embedding_length, heads)
    heads_kv = keys.numbers("Attention", "HEAD_COUNT_KV")
    key_length, value_length = keys.whole("Attention", "KEY_LENGTH"), keys.whole("Attention", "VALUE_LENGTH")
    attention = Attention(
        head_count=heads,
        head_count_kv=heads if heads_kv is None else heads_kv,
        key_length=head_size if key_length is None else key_length,
        value_length=head_size if value_length is None else value_length,
        sliding_window=keys.whole("Attention", "SLIDING_WINDOW"),
        sliding_window_pattern=keys.numbers("Attention", "SLIDING_WINDOW_PATTERN"),
        layer_norm_rms_epsilon=keys.real("Attention", "LAYERNORM_RMS_EPS"),
        other=keys.rest(f"{keys.architecture}.attention."),
    )
    return attention if _is_filled(attention) else None


def _default_head_size(embedding_length: int | None, heads: Numbers) -> int | None:
    count = max(heads, default=0) if isinstance(heads, tuple) else heads
    return embedding_length // count if embedding_length and count and count > 0 else None


def _moe(keys: _Keys) -> Moe | None:
    count = keys.whole("LLM", "EXPERT_COUNT")
    if not count:
        return None
    used = keys.numbers("LLM", "EXPERT_USED_COUNT")
    return Moe(
        expert_count=count,
        expert_used_count=used,
        expert_used_percent=100 * used / count if isinstance(used, int) else None,
        expert_group_count=keys.whole("LLM", "EXPERT_GROUP_COUNT"),
        expert_shared_count=keys.whole("LLM", "EXPERT_SHARED_COUNT"),
        expert_feed_forward_length=keys.numbers("LLM", "EXPERT_FEED_FORWARD_LENGTH"),
        other={f"expert_{name}": value for name, value in keys.rest(f"{keys.architecture}.expert_").items()},
    )


def _rope(keys: _Keys, architecture: Architecture) -> Rope | None:
    original = keys.whole("Rope", "SCALING_ORIG_CTX_LEN")
    context = architecture.context_length
    rope = Rope(
        dimension_count=keys.whole("Rope", "DIMENSION_COUNT"),
        freq_base=keys.real("Rope", "FREQ_BASE"),
        scaling_type=keys.text("Rope", "SCALING_TYPE"),
        scaling_factor=keys.real("Rope", "SCALING_FACTOR"),
        original_context_length=original,
        context_extension=context / original if context and original else None,
        other=keys.rest(f"{keys.architecture}.rope."),
    )
    return rope if _is_filled(rope) else None


def _tokenizer(keys: _Keys) -> Tokenizer | None:
    tokenizer = Tokenizer(
        model=keys.text("Tokenizer", "MODEL"),
        pre=keys.text("Tokenizer", "PRE"),
        tokens=keys.length("Tokenizer", "LIST"),
        merges=keys.length("Tokenizer", "MERGES"),
        chat_template=keys.text("Tokenizer", "CHAT_TEMPLATE") is not None,
        other=keys.rest("tokenizer.ggml.", "tokenizer."),
    )
    said = (tokenizer.model, tokenizer.pre, tokenizer.tokens, tokenizer.merges)
    return tokenizer if tokenizer.chat_template or tokenizer.other or any(v is not None for v in said) else None


def _tensor_facts(tensors: Sequence[Tensor]) -> TensorFacts:
    by_type: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.type_number, []).append(tensor)
    parameters = sum(tensor.parameters for tensor in tensors)
    shares = [_share(type_name(number), members, parameters) for number, members in by_type.items()]
    return TensorFacts(
        count=len(tensors),
        parameters=parameters,
        bytes=_total(share.bytes for share in shares),
        by_type=tuple(sorted(shares, key=lambda share: -share.parameters)),
    )


def _share(name: str, tensors: Sequence[Tensor], all_parameters: int) -> TypeShare:
    parameters = sum(tensor.parameters for tensor in tensors)
    n_bytes = _total(tensor_bytes(tensor) for tensor in tensors)
    return TypeShare(
        type=name,
        tensors=len(tensors),
        parameters=parameters,
        percent=100 * parameters / all_parameters if all_parameters else 0.0,
        bytes=n_bytes,
        bits_per_weight=8 * n_bytes / parameters if n_bytes is not None and parameters else None,
    )


def _total(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def _file_facts(headers: Sequence[Header], missing_shards: Sequence[str], is_split: bool) -> FileFacts:
    first = headers[0]
    return FileFacts(
        path=first.path,
        version=first.version,
        endianness=first.endianness,
        size_bytes=sum(header.size_bytes for header in headers),
        header_bytes=sum(header.data_offset for header in headers),
        alignment=first.alignment,
        shards=tuple(header.path for header in headers) if is_split else (),
        missing_shards=tuple(missing_shards),
        missing_bytes=_total(_missing_bytes(header) for header in headers),
    )


def _missing_bytes(header: Header) -> int | None:
    end = 0
    for tensor in header.tensors:
        size = tensor_bytes(tensor)
        if size is None:
            return None
        end = max(end, header.data_offset + tensor.offset + size)
    return max(0, end - header.size_bytes)


def _require_distinct(headers: Sequence[Header]) -> None:
    seen: dict[str, str] = {}
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in seen:
                raise GGUFError(
                    header.path,
                    None,
                    expected="each tensor in one part of the model",
                    found=f"{tensor.name!r} in {seen[tensor.name]} too",
                    hint="do the parts belong to one model?",
                )
            seen[tensor.name] = header.path
