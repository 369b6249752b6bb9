"""What `read_summary` says about files that another writer wrote."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_info import GGUFError, Settings, estimate, read_header, read_summary, render_tables, summary_document

WriteBytes = Callable[..., Path]


def test_gpt_oss_shares_by_type_are_the_published_ones(gpt_oss: Path) -> None:
    """72 MXFP4 tensors hold 91.4 % of the parameters, 98 Q8_0 8.6 %, 289 F32 0.04 %; 4 of 32 experts are used."""
    document = summary_document(read_summary(gpt_oss))
    shares = [(row["type"], row["tensors"], round(row["percent"], 2)) for row in document["tensors"]["by_type"]]
    assert shares == [("MXFP4", 72, 91.37), ("Q8_0", 98, 8.58), ("F32", 289, 0.04)]
    assert document["tensors"]["count"] == 459
    assert document["tensors"]["bytes"] == 12_096_558_336  # llama.cpp prints 11536.18 MiB for this model
    assert document["moe"]["expert_used_percent"] == 12.5
    assert document["rope"]["context_extension"] == 32.0
    assert document["general"]["file_type"] == "MXFP4_MOE"
    table = render_tables(read_summary(gpt_oss), sections=["tensors"])
    assert "│ MXFP4 │      72 │ 19,110,297,600 │          91.4 % │" in table
    assert "│ Q8_0  │      98 │  1,795,276,800 │           8.6 % │" in table
    assert "│ F32   │     289 │      9,182,784 │          0.04 % │" in table


def test_summary_of_a_small_model_has_every_field(tiny_model: Path) -> None:
    document = summary_document(read_summary(tiny_model))
    assert document["file"]["version"] == 3
    assert document["file"]["endianness"] == "little"
    assert document["file"]["size_bytes"] == tiny_model.stat().st_size
    assert document["file"]["missing_bytes"] == 0
    assert document["file"]["shards"] == []
    assert document["general"]["architecture"] == "llama"
    assert document["general"]["file_type"] == "Q4_1"
    assert document["general"]["languages"] == ["en", "de"]
    assert document["architecture"] == {
        "context_length": 4096,
        "embedding_length": 64,
        "block_count": 1,
        "feed_forward_length": 128,
        "vocab_size": 6,
    }
    assert document["attention"]["head_count"] == 4
    assert document["attention"]["head_count_kv"] == 2
    assert document["attention"]["key_length"] == 16  # embedding / heads, as the file has no key_length
    assert document["attention"]["sliding_window"] is None
    assert document["moe"] is None
    assert document["tokenizer"]["tokens"] == 6
    assert document["tokenizer"]["merges"] is None
    assert document["tokenizer"]["chat_template"] is True
    assert document["tensors"]["parameters"] == 6 * 64 + 64 * 64 + 64


def test_metadata_arrays_are_summarised_unless_full(tiny_model: Path) -> None:
    summary = read_summary(tiny_model)
    short, full = summary_document(summary)["metadata"], summary_document(summary, full=True)["metadata"]
    assert short["tokenizer.ggml.tokens"] == {"array": "str", "length": 6}
    assert full["tokenizer.ggml.tokens"] == ["<s>", "</s>", "a", "b", "c", "\x1b[31m"]
    assert full["tokenizer.ggml.token_type"] == [3, 3, 1, 1, 1, 1]


def test_every_field_equals_the_gguf_package_reader(tiny_model: Path, gpt_oss: Path) -> None:
    for path in (tiny_model, gpt_oss):
        header, other = read_header(path), gguf.GGUFReader(path)
        metadata = summary_document(read_summary(path), full=True)["metadata"]
        theirs = {key: field.contents() for key, field in other.fields.items() if not key.startswith("GGUF.")}
        assert metadata == theirs
        assert [
            (t.name, list(t.shape), t.type_number, header.data_offset + t.offset, t.parameters) for t in header.tensors
        ] == [
            (t.name, [int(n) for n in t.shape], int(t.tensor_type), int(t.data_offset), int(t.n_elements))
            for t in other.tensors
        ]


def test_layers_with_a_window_are_counted_by_the_architectures_rule(gpt_oss: Path) -> None:
    """The file has the window and not its pattern; a server's log shows 12 layers in each cache."""
    assert "sliding-window layers │ 12 of 24" in render_tables(read_summary(gpt_oss))


def test_an_adapter_shows_its_kind(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "lora.gguf", "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 16.0)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros((8, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    summary = read_summary(tmp_path / "lora.gguf")
    general = summary_document(summary)["general"]
    assert (general["type"], general["adapter.type"], general["adapter.lora.alpha"]) == ("adapter", "lora", 16.0)
    assert summary.tensors is not None
    with pytest.raises(GGUFError, match="a language model") as caught:
        estimate(summary)
    assert "not an adapter" in caught.value.hint


def test_an_embedding_model_shows_its_pooling_and_has_no_cache(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "bert.gguf", "bert")
    writer.add_block_count(12)
    writer.add_context_length(512)
    writer.add_embedding_length(384)
    writer.add_feed_forward_length(1536)
    writer.add_head_count(12)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_causal_attention(False)
    writer.add_tensor("token_embd.weight", np.zeros((32, 384), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    summary = read_summary(tmp_path / "bert.gguf")
    document = summary_document(summary)
    assert (document["architecture"]["pooling_type"], document["attention"]["causal"]) == (1, False)
    prediction = estimate(summary, Settings(embedding=True, ctx_size=512))
    assert (prediction.cache, prediction.recurrent_bytes) == ((), 0)
    assert prediction.weights_total_bytes == 32 * 384 * 4


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_versions_and_byte_orders_read_alike(write_gguf: WriteBytes, version: int, order: str) -> None:
    path = write_gguf(
        version=version,
        order=order,
        metadata=[
            (b"general.architecture", 8, b"llama"),
            (b"llama.block_count", 4, struct.pack(order + "I", 7)),
            (b"llama.attention.layer_norm_rms_epsilon", 6, struct.pack(order + "f", 0.5)),
        ],
        tensors=[(b"token_embd.weight", (32, 10), 8, 0)],
        data=b"\0" * 340,
    )
    summary = read_summary(path)
    assert (summary.file.version, summary.file.endianness) == (version, "little" if order == "<" else "big")
    assert summary.architecture is not None
    assert (summary.architecture.block_count, summary.architecture.vocab_size) == (7, 10)
    assert summary.attention is not None
    assert summary.attention.layer_norm_rms_epsilon == 0.5
    assert summary.tensors is not None
    assert summary.tensors.bytes == 340


def test_big_endian_file_of_the_gguf_writer(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_context_length(2048)
    writer.add_array("llama.attention.head_count_kv", [4, 0, 4])
    writer.add_tensor("output_norm.weight", np.ones(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    summary = read_summary(tmp_path / "big.gguf")
    assert summary.file.endianness == "big"
    assert summary.attention is not None
    assert summary.attention.head_count_kv == (4, 0, 4)
    assert "4, 0, 4" in render_tables(summary, sections=["attention"])


def test_unknown_quantization_type_is_shown_by_number(write_gguf: WriteBytes) -> None:
    path = write_gguf(tensors=[(b"a", (32,), 1234, 0), (b"b", (3,), 0, 32)])
    summary = read_summary(path)
    assert summary.tensors is not None
    assert summary.tensors.bytes is None
    assert [(share.type, share.bytes) for share in summary.tensors.by_type] == [("type 1234", None), ("F32", 12)]
    assert summary.file.missing_bytes is None
    assert "│ type 1234 │" in render_tables(summary)


def test_empty_sections_are_left_out_of_tables_and_null_in_json(write_gguf: WriteBytes) -> None:
    path = write_gguf(metadata=[(b"general.type", 8, b"adapter"), (b"adapter.lora.alpha", 6, struct.pack("<f", 16))])
    summary = read_summary(path)
    document = summary_document(summary)
    for section in ("architecture", "attention", "moe", "rope", "tokenizer", "tensors"):
        assert document[section] is None
    assert document["general"]["adapter.lora.alpha"] == 16.0
    tables = render_tables(summary)
    assert "General" in tables
    assert "RoPE" not in tables


def test_projector_file_shows_its_encoder(write_gguf: WriteBytes) -> None:
    path = write_gguf(
        metadata=[
            (b"general.architecture", 8, b"clip"),
            (b"clip.has_vision_encoder", 7, b"\1"),
            (b"clip.vision.block_count", 4, struct.pack("<I", 27)),
        ]
    )
    document = summary_document(read_summary(path))
    assert document["architecture"]["vision.block_count"] == 27
    assert document["architecture"]["has_vision_encoder"] is True


def test_control_characters_are_made_visible_in_tables(write_gguf: WriteBytes) -> None:
    path = write_gguf(metadata=[(b"general.name", 8, "evil\x1b[2J\u202e".encode())])
    tables = render_tables(read_summary(path))
    assert "evil\\x1b[2J\\u202e" in tables
    assert "\x1b" not in tables


def test_ascii_tables_are_pure_ascii(tiny_model: Path) -> None:
    tables = render_tables(read_summary(tiny_model), ascii_only=True)
    assert tables.isascii()
    assert "+--" in tables


def test_non_finite_numbers_are_null_in_json(write_gguf: WriteBytes) -> None:
    path = write_gguf(
        metadata=[(b"x", 6, struct.pack("<f", float("nan"))), (b"y", 12, struct.pack("<d", float("inf")))]
    )
    assert json.dumps(summary_document(read_summary(path))["metadata"], allow_nan=False) == '{"x": null, "y": null}'


def test_reading_does_not_import_numpy(tiny_model: Path) -> None:
    code = "import sys, gguf_info; gguf_info.read_summary(sys.argv[1]); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, str(tiny_model)], check=False).returncode == 0


def test_unfinished_download_is_said_not_refused(tiny_model: Path) -> None:
    whole = tiny_model.stat().st_size
    os.truncate(tiny_model, whole - 300)
    summary = read_summary(tiny_model)
    assert summary.file.missing_bytes == 300
    assert "short of 300 bytes" in render_tables(summary)


def test_long_array_is_read_only_on_request(write_gguf: WriteBytes) -> None:
    items = struct.pack("<IQ5000I", 4, 5000, *range(5000))
    header = read_header(write_gguf(metadata=[(b"long", 9, items)]))
    assert header.metadata["long"].items is None  # type: ignore[union-attr]
    assert list(header.read_array("long")) == list(range(5000))


def test_array_of_arrays_is_skipped(write_gguf: WriteBytes) -> None:
    inner = struct.pack("<IQ2H", 2, 2, 7, 8)
    header = read_header(
        write_gguf(metadata=[(b"nested", 9, struct.pack("<IQ", 9, 2) + inner * 2), (b"after", 0, b"\5")])
    )
    assert header.metadata["after"] == 5
    with pytest.raises(GGUFError, match="nested"):
        list(header.read_array("nested"))
