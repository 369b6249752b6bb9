"""Laws of reading GGUF: what the gguf package writes reads back equal, and no damage ends in anything but GGUFError."""

from __future__ import annotations

import json
import math
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_info import (
    Estimate,
    GGUFError,
    PredictingLayers,
    Settings,
    Summary,
    estimate,
    read_summary,
    render_tables,
    summary_document,
    with_companions,
)
from hypothesis import given, settings
from hypothesis import strategies as st

ARRAY = gguf.GGUFValueType.ARRAY
INTEGERS = {
    gguf.GGUFValueType.UINT8: (0, 2**8 - 1),
    gguf.GGUFValueType.INT8: (-(2**7), 2**7 - 1),
    gguf.GGUFValueType.UINT16: (0, 2**16 - 1),
    gguf.GGUFValueType.INT16: (-(2**15), 2**15 - 1),
    gguf.GGUFValueType.UINT32: (0, 2**32 - 1),
    gguf.GGUFValueType.INT32: (-(2**31), 2**31 - 1),
    gguf.GGUFValueType.UINT64: (0, 2**64 - 1),
    gguf.GGUFValueType.INT64: (-(2**63), 2**63 - 1),
}
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
scalars: dict[gguf.GGUFValueType, st.SearchStrategy[Any]] = {
    **{kind: st.integers(low, high) for kind, (low, high) in INTEGERS.items()},
    gguf.GGUFValueType.FLOAT32: st.floats(allow_nan=False, width=32),
    gguf.GGUFValueType.FLOAT64: st.floats(allow_nan=False),
    gguf.GGUFValueType.BOOL: st.booleans(),
    gguf.GGUFValueType.STRING: text,
}
scalar_values = st.one_of([st.tuples(st.just(kind), values) for kind, values in scalars.items()])
array_values = st.one_of(
    [
        st.lists(scalars[kind], min_size=1, max_size=80).map(lambda items, kind=kind: (kind, items))  # type: ignore[misc]
        for kind in (gguf.GGUFValueType.INT32, gguf.GGUFValueType.BOOL, gguf.GGUFValueType.STRING)
    ]
)
names = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=12)
metadata = st.dictionaries(names.map("any.{}".format), scalar_values | array_values, max_size=8)
tensors = st.dictionaries(
    names,
    st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([np.float32, np.float16, np.int8])),
    max_size=5,
)


def write(
    path: Path,
    values: dict[str, tuple[gguf.GGUFValueType, Any]],
    table: dict[str, Any],
    order: gguf.GGUFEndian,
    architecture: str = "llama",
) -> None:
    writer = gguf.GGUFWriter(path, architecture, endianess=order)
    for key, (kind, value) in values.items():
        if isinstance(value, list):
            writer.add_key_value(key, value, ARRAY, sub_type=kind)
        else:
            writer.add_key_value(key, value, kind)
    for name, (shape, dtype) in table.items():
        writer.add_tensor(name, np.zeros(shape, dtype=dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@settings(deadline=None)
@given(metadata, tensors, st.sampled_from(list(gguf.GGUFEndian)))
def test_what_the_writer_writes_reads_back_equal(
    values: dict[str, tuple[gguf.GGUFValueType, Any]], table: dict[str, Any], order: gguf.GGUFEndian
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        write(path, values, table, order)
        summary = read_summary(path)
        read = summary_document(summary, full=True)["metadata"]
        expected = {key: value for key, (_, value) in values.items()}
        infinite = [key for key, value in expected.items() if isinstance(value, float) and math.isinf(value)]
        assert read == {"general.architecture": "llama", **expected, **dict.fromkeys(infinite)}
        assert {tensor.name: list(reversed(tensor.shape)) for tensor in summary.all_tensors()} == {
            name: shape for name, (shape, _) in table.items()
        }
        sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in table.values()]
        assert (summary.tensors.bytes if summary.tensors else 0) == sum(sizes)


def sample() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        values = {
            "llama.context_length": (gguf.GGUFValueType.UINT32, 4096),
            "llama.embedding_length": (gguf.GGUFValueType.UINT32, 64),
            "llama.block_count": (gguf.GGUFValueType.UINT32, 2),
            "llama.attention.head_count": (gguf.GGUFValueType.INT32, [4, 4]),
            "llama.expert_count": (gguf.GGUFValueType.UINT32, 4),
            "llama.expert_used_count": (gguf.GGUFValueType.UINT32, 2),
            "llama.rope.freq_base": (gguf.GGUFValueType.FLOAT32, 1e4),
            "llama.rope.scaling.original_context_length": (gguf.GGUFValueType.UINT32, 1024),
            "tokenizer.ggml.tokens": (gguf.GGUFValueType.STRING, [f"t{n}" for n in range(80)]),
            "tokenizer.chat_template": (gguf.GGUFValueType.STRING, "{{ x }}"),
        }
        write(path, values, {"token_embd.weight": ([8, 4], np.float32)}, gguf.GGUFEndian.LITTLE)
        return path.read_bytes()


SAMPLE = sample()


def attempt(path: Path) -> tuple[GGUFError | None, Summary | None]:
    try:
        return None, read_summary(path)
    except GGUFError as error:
        return error, None


def read_everything(content: bytes) -> None:
    """Read a file of this content to the end; GGUFError is the only way that it may fail."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(content)
        refusal, summary = attempt(path)
        if summary is None:
            assert refusal is not None
            assert (refusal.path, bool(refusal.expected), bool(refusal.found)) == (str(path), True, True)
            return
        document = summary_document(summary, full=True)
        json.dumps(document, allow_nan=False)
        shown = render_tables(summary)
        assert all(character.isprintable() or character == "\n" for character in shown)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_damage_reads_or_is_refused(changes: list[tuple[int, int]]) -> None:
    content = bytearray(SAMPLE)
    for position, byte in changes:
        content[position] = byte
    read_everything(bytes(content))


@settings(deadline=None)
@given(st.integers(0, len(SAMPLE)), st.binary(max_size=40))
def test_any_splice_reads_or_is_refused(position: int, junk: bytes) -> None:
    read_everything(SAMPLE[:position] + junk + SAMPLE[position:])


@settings(deadline=None)
@given(st.integers(0, len(SAMPLE) - 200))
def test_truncation_anywhere_in_the_header_is_refused(n_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(SAMPLE[:n_bytes])
        refusal, _ = attempt(path)
        assert refusal is not None
        assert refusal.offset is not None
        assert refusal.offset <= n_bytes


SIZES = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "nextn_predict_layers",
    "full_attention_interval",
    "embedding_length_per_layer_input",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.shared_kv_layers",
    "rope.dimension_count",
    "shortconv.l_cache",
    "ssm.conv_kernel",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.group_count",
)
USUAL = {"block_count": 4, "context_length": 4096, "embedding_length": 64, "attention.head_count": 4}
architectures = st.sampled_from(
    ["llama", "gemma3", "gemma3n", "gemma4", "qwen35", "mamba", "deepseek2", "lfm2", "bert"]
)
sizes = st.sampled_from([0, 1, 3, 2**31, 2**32 - 1, 2**63, 2**64 - 1]).map(lambda n: (gguf.GGUFValueType.UINT64, n))
strange = st.sampled_from([-1, -(2**31)]).map(lambda n: (gguf.GGUFValueType.INT32, n))
by_layer = st.lists(st.integers(-2, 2**31 - 1), min_size=1, max_size=5).map(lambda n: (gguf.GGUFValueType.INT32, n))


@settings(deadline=None)
@given(
    architectures,
    st.dictionaries(st.sampled_from(SIZES), st.one_of(sizes, strange, by_layer, scalar_values), max_size=8),
    st.sampled_from([0, 1, 4096, 2**31]),
    st.sampled_from([None, 1, 7, 256, 2**30]),
    st.booleans(),
)
def test_any_sizes_are_estimated_or_refused(
    architecture: str,
    values: dict[str, tuple[gguf.GGUFValueType, Any]],
    ctx_size: int,
    parallel: int | None,
    kv_unified: bool,
) -> None:
    """Whatever numbers a file has, an estimate of it is made of sizes of 0 or more, or it is refused."""
    said = {**{key: (gguf.GGUFValueType.UINT32, value) for key, value in USUAL.items()}, **values}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        table = {"token_embd.weight": ([8, 64], np.float16), "blk.1.attn_q.weight": ([8, 64], np.float16)}
        said_by_key = {f"{architecture}.{key}": value for key, value in said.items()}
        write(path, said_by_key, table, gguf.GGUFEndian.LITTLE, architecture)
        summary = read_summary(path)
        render_tables(summary)
    start = Settings(ctx_size=ctx_size, parallel=parallel, kv_unified=kv_unified, memory_mib={"CUDA0": 100.0})
    for one in estimates(summary, start):
        found = [one.kv_bytes, one.recurrent_bytes, one.output_bytes, one.compute.low_bytes, one.host.used_bytes]
        assert min(found) >= 0
        assert one.compute.low_bytes <= one.compute.bytes <= one.compute.high_bytes


def estimates(summary: Summary, start: Settings) -> list[Estimate]:
    """The model's estimate, and the one with layers that predict further tokens, as far as they are not refused."""
    found: list[Estimate] = []
    with suppress(GGUFError):
        found.append(estimate(summary, start))
        found.append(with_companions(found[0], predicting=PredictingLayers(summary)))
    return found
