"""What each layer of a model keeps per token or per sequence: rows of the KV cache, or a recurrent state.

The rule: the file's own keys come first; where llama.cpp's code and not the file knows (the period of sliding-window
layers, layers that share another's cache), a table here says it by architecture. An architecture whose cache follows
rules that are not in the table is refused, never guessed. Formats: llama-hparams.cpp and llama-kv-cache.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gguf_info.errors import GGUFError
from gguf_info.model import Attention, Numbers, Summary
from gguf_info.reader import Array, Value

__all__ = [
    "CacheLayer",
    "StateLayer",
    "by_layer",
    "cache_layers",
    "layer_count",
    "predicting_cache_layers",
    "predicting_layer_count",
    "sliding_window",
    "state_layers",
    "windowed_layer_count",
]


@dataclass(frozen=True)
class CacheLayer:
    """A layer with a KV cache of its own.

    Attributes:
        index: Number of the layer.
        kind: `full` in a model with one kind of attention, else `non-swa` or `swa`; `mla` for latent attention.
        k_values: Values of K in one cell.
        v_values: Values of V in one cell.
    """

    index: int
    kind: str
    k_values: int
    v_values: int


@dataclass(frozen=True)
class StateLayer:
    """A recurrent layer: values of its R and S states for one sequence."""

    index: int
    r_values: int
    s_values: int


@dataclass(frozen=True)
class _Windows:
    """Which layers are sliding-window layers: all but the last of each `period`, or all but the first."""

    period: int
    default_window: int | None = None
    is_dense_first: bool = False
    only_n_layer: int | None = None


_WINDOWS = {
    "gpt-oss": _Windows(2),
    "gemma2": _Windows(2, default_window=4096),
    "gemma3": _Windows(6),
    "gemma3n": _Windows(5),
    "cohere2": _Windows(4),
    "olmo2": _Windows(4),
    "exaone4": _Windows(4, only_n_layer=64),
    "afmoe": _Windows(4),
    "exaone-moe": _Windows(4),
    "llama4": _Windows(4, default_window=8192),
    "smallthinker": _Windows(4, default_window=4096, is_dense_first=True),
}
_MOST_LAYERS = 4096
_WINDOW_IGNORED = ("phi3",)
_FIRST_SHARED_LAYER = {"gemma3n": 20}
_FULL_ATTENTION_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
_ALL_RECURRENT = ("mamba", "mamba2")
_ATTENTION_AND_STATE = ("falcon-h1",)
_SHARES_THE_TARGETS_CACHE = ("gemma4-assistant",)
_NO_CACHE = ("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "neo-bert", "modern-bert",
             "gemma-embedding")  # fmt: skip
# Caches or states of other shapes, by a key that gives them away.
_UNKNOWN_SHAPES = {
    "attention.indexer.": "an indexer cache",
    "kda.": "delta attention states",
    "wkv.": "RWKV states",
}


def layer_count(summary: Summary) -> int:
    """Number of the model's layers.

    Raises:
        GGUFError: The file is no language model, or says a number that none has.
    """
    architecture = summary.architecture
    if architecture is None or not architecture.block_count or summary.general.architecture == "clip":
        raise GGUFError(
            summary.file.path,
            None,
            expected="a language model with block_count",
            found=summary.general.architecture or "no architecture",
            hint="estimate needs the model itself, not an adapter or projector",
        )
    if not 0 < architecture.block_count <= _MOST_LAYERS:
        expected, found = f"1 to {_MOST_LAYERS} layers", str(architecture.block_count)
        raise GGUFError(summary.file.path, None, expected=expected, found=found, hint="is the file a model's?")
    return architecture.block_count


def predicting_layer_count(summary: Summary) -> int:
    """How many of the layers, the last ones, only predict further tokens (`nextn_predict_layers`, MTP).

    The server loads and runs them for `--spec-type draft-mtp` alone, in a context of their own.

    Raises:
        GGUFError: The file is no language model.
    """
    n_layer, architecture = layer_count(summary), summary.architecture
    said = _whole(architecture.other.get("nextn_predict_layers")) if architecture else None
    return min(said or 0, n_layer)


def sliding_window(summary: Summary) -> int:
    """The window in tokens that sliding-window layers attend to; 0 for a model that has none."""
    name = summary.general.architecture or ""
    rule = _WINDOWS.get(name)
    if name in _WINDOW_IGNORED or (rule and rule.only_n_layer not in (None, layer_count(summary))):
        return 0
    said = summary.attention.sliding_window if summary.attention else None
    default = rule.default_window if rule else None
    return said if said is not None else default or 0


def windowed_layer_count(summary: Summary) -> int | None:
    """How many layers attend to a window, by the file or the architecture's rule; None where neither says it."""
    try:
        return sum(_windowed_layers(summary, layer_count(summary)))
    except GGUFError:
        return None


def cache_layers(summary: Summary) -> tuple[CacheLayer, ...]:
    """The layers that have a KV cache of their own.

    Raises:
        GGUFError: The file lacks heads or sizes, or its architecture's cache follows rules that are not known here.
    """
    n_layer = layer_count(summary)
    _require_known_shape(summary)
    name, attention = summary.general.architecture or "", summary.attention
    if name in _NO_CACHE or name in _ALL_RECURRENT:
        return ()
    if attention is None or attention.head_count_kv is None or attention.key_length is None:
        raise GGUFError(summary.file.path, None, expected="attention heads and sizes", found="none in the metadata")
    heads = by_layer(attention.head_count_kv, n_layer)
    windowed = _windowed_layers(summary, n_layer)
    return tuple(
        _cache_layer(summary, attention, index, heads[index], windowed)
        for index in range(_layers_with_own_cache(summary, n_layer))
        if heads[index] and not _is_recurrent_only(summary, index, heads)
    )


def predicting_cache_layers(summary: Summary) -> tuple[CacheLayer, ...]:
    """The layers with a cache of the context that predicts further tokens: each such layer has attention.

    Raises:
        GGUFError: The file has no such layers, or lacks heads or sizes.
    """
    n_layer, n_predicting = layer_count(summary), predicting_layer_count(summary)
    attention = summary.attention
    if not n_predicting:
        raise GGUFError(
            summary.file.path,
            None,
            expected="layers that predict further tokens (nextn_predict_layers)",
            found="none",
            hint="leave out --spec-type draft-mtp, or give the model that has them with --model-draft",
        )
    _require_known_shape(summary)
    if summary.general.architecture in _SHARES_THE_TARGETS_CACHE:
        return ()
    if attention is None or attention.head_count_kv is None or attention.key_length is None:
        raise GGUFError(summary.file.path, None, expected="attention heads and sizes", found="none in the metadata")
    # An array by layer may end with the layers of the main stack.
    known = [heads for heads in by_layer(attention.head_count_kv, n_layer) if heads]
    heads = by_layer(attention.head_count_kv, n_layer)
    windowed = _windowed_layers(summary, n_layer)
    return tuple(
        _cache_layer(summary, attention, index, heads[index] or known[-1], windowed)
        for index in range(n_layer - n_predicting, n_layer)
        if known
    )


def state_layers(summary: Summary) -> tuple[StateLayer, ...]:
    """The layers that have a recurrent state.

    Raises:
        GGUFError: The file lacks the sizes of the state.
    """
    n_layer = layer_count(summary)
    attention = summary.attention
    heads = by_layer(attention.head_count_kv, n_layer) if attention and attention.head_count_kv is not None else []
    name = summary.general.architecture or ""
    indices = [
        index
        for index in range(n_layer - predicting_layer_count(summary))
        if name in (*_ALL_RECURRENT, *_ATTENTION_AND_STATE) or (heads and _is_recurrent_only(summary, index, heads))
    ]
    if not indices:
        return ()
    r_values, s_values = _state_values(summary)
    return tuple(StateLayer(index, r_values, s_values) for index in indices)


def by_layer(value: Numbers, n_layer: int) -> list[int]:
    """One number a layer; a missing tail counts as 0."""
    if isinstance(value, tuple):
        return [*value, *[0] * (n_layer - len(value))][:n_layer]
    return [value or 0] * n_layer


def _cache_layer(
    summary: Summary, attention: Attention, index: int, n_head_kv: int, windowed: Sequence[bool]
) -> CacheLayer:
    rank, other = _whole(attention.other.get("kv_lora_rank")), attention.other
    if rank and "key_length_mla" in other:
        rope = (summary.rope.dimension_count if summary.rope else None) or 0
        return CacheLayer(index, "mla", rank + rope, 0)
    key_length, value_length = attention.key_length or 0, attention.value_length or 0
    if windowed[index]:
        key_length = _whole(other.get("key_length_swa")) or key_length
        value_length = _whole(other.get("value_length_swa")) or value_length
    kind = ("swa" if windowed[index] else "non-swa") if any(windowed) else "full"
    return CacheLayer(index, kind, n_head_kv * key_length, n_head_kv * value_length)


def _windowed_layers(summary: Summary, n_layer: int) -> list[bool]:
    if not sliding_window(summary):
        return [False] * n_layer
    pattern = summary.attention.sliding_window_pattern if summary.attention else None
    if isinstance(pattern, tuple):
        return [bool(value) for value in by_layer(pattern, n_layer)]
    rule = _WINDOWS.get(summary.general.architecture or "")
    period = pattern if pattern is not None else rule.period if rule else None
    if period is None:
        raise GGUFError(
            summary.file.path,
            None,
            expected="an architecture whose sliding-window layers are known",
            found=f"{summary.general.architecture!r} with a window and no pattern",
            hint="a newer gguf-info may know it",
        )
    if rule and rule.is_dense_first:
        return [index % period != 0 for index in range(n_layer)]
    return [period == 0 or index % period < period - 1 for index in range(n_layer)]


def _layers_with_own_cache(summary: Summary, n_layer: int) -> int:
    """Layers before the first that shares another's cache, and before those that only predict further tokens."""
    attention = summary.attention
    shared = _whole(attention.other.get("shared_kv_layers")) if attention else None
    first_shared = _FIRST_SHARED_LAYER.get(summary.general.architecture or "", n_layer)
    own = n_layer - shared if shared is not None else min(first_shared, n_layer)
    return max(0, min(own, n_layer - predicting_layer_count(summary)))


def _is_recurrent_only(summary: Summary, index: int, heads: Sequence[int]) -> bool:
    architecture = summary.architecture
    name = summary.general.architecture or ""
    other = architecture.other if architecture else {}
    listed = summary.attention.other.get("recurrent_layers") if summary.attention else None
    if isinstance(listed, Array) and listed.items is not None:
        return index < len(listed.items) and bool(listed.items[index])
    interval = _whole(other.get("full_attention_interval")) or _FULL_ATTENTION_INTERVAL.get(name)
    if interval:
        return (index + 1) % interval != 0
    if not any(key.startswith(("ssm.", "shortconv.")) for key in other) or name in _ATTENTION_AND_STATE:
        return False
    if name.startswith("nemotron_h"):  # layers of heads, of a feed-forward network, or of a state
        feed_forward = by_layer(architecture.feed_forward_length if architecture else None, len(heads))
        return heads[index] == 0 and feed_forward[index] == 0
    return heads[index] == 0


def _state_values(summary: Summary) -> tuple[int, int]:
    architecture = summary.architecture
    other = architecture.other if architecture else {}
    cache = _whole(other.get("shortconv.l_cache"))
    if cache and architecture and architecture.embedding_length:
        return architecture.embedding_length * (cache - 1), 0
    sizes = [_whole(other.get(f"ssm.{name}")) for name in ("conv_kernel", "inner_size", "state_size")]
    conv, inner, state = sizes
    if conv is None or inner is None or state is None:
        raise GGUFError(summary.file.path, None, expected="the sizes of the recurrent state", found=str(sizes))
    groups = _whole(other.get("ssm.group_count")) or 0
    return (conv - 1) * (inner + 2 * groups * state), state * inner


def _require_known_shape(summary: Summary) -> None:
    prefix = f"{summary.general.architecture}."
    for key in summary.metadata:
        for start, shape in _UNKNOWN_SHAPES.items():
            if key.startswith(prefix + start):
                raise GGUFError(
                    summary.file.path,
                    None,
                    expected="an architecture whose cache is known",
                    found=f"{summary.general.architecture!r} with {shape}",
                    hint="a newer gguf-info may know it",
                )


def _whole(value: Value | None) -> int | None:
    if isinstance(value, Array) and value.items and isinstance(value.items[0], int):
        return int(max(item for item in value.items if isinstance(item, int)))
    return value if isinstance(value, int) and value >= 0 else None
