"""GGUF files to read: written by the gguf package, which shares no code with the reader, or byte by byte."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from phantoms import write_phantom

F32 = gguf.GGMLQuantizationType.F32
TensorRow = tuple[str, tuple[int, ...], gguf.GGMLQuantizationType]


def write_header_only(writer: gguf.GGUFWriter, tensors: Sequence[TensorRow], path: Path) -> Path:
    """Write the header, and the tensors' data as a hole of the right size; shapes are rows first."""
    data_bytes = 0
    for name, shape, kind in tensors:
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        n_bytes = math.prod(shape) // block * block_bytes
        plain = kind == F32
        dtype = np.dtype(np.float32 if plain else np.uint8)
        writer.add_tensor_info(
            name, shape if plain else gguf.quant_shape_to_byte_shape(shape, kind), dtype, n_bytes, kind
        )
        data_bytes += -(-n_bytes // 32) * 32
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, -(-path.stat().st_size // 32) * 32 + data_bytes)
    return path


@pytest.fixture
def write_sparse(tmp_path: Path) -> Callable[[gguf.GGUFWriter, Sequence[TensorRow]], Path]:
    """Write what a writer has and a tensor table of true sizes, over data that is a hole."""
    return lambda writer, tensors: write_header_only(writer, tensors, tmp_path / "sparse.gguf")


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A complete llama of one block: 3 tensors, 6 tokens, a chat template."""
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_name("Tiny")
    writer.add_file_type(3)
    writer.add_languages(["en", "de"])
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", "a", "b", "c", "\x1b[31m"])
    writer.add_token_types([3, 3, 1, 1, 1, 1])
    writer.add_chat_template("{% for m in messages %}\n{{ m.content }}\x1b[0m{% endfor %}")
    writer.add_tensor("token_embd.weight", np.zeros((6, 64), dtype=np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((64, 64), dtype=np.float16))
    writer.add_tensor("output_norm.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "tiny.gguf"


Phantom = Callable[[str], Path]


@pytest.fixture(scope="session")
def phantom(tmp_path_factory: pytest.TempPathFactory) -> Phantom:
    """The file of a phantom model by its name, written once; nobody may change it."""
    folder = tmp_path_factory.mktemp("phantoms")

    def file(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            write_phantom(name, path)
        return path

    return file


@pytest.fixture(scope="session")
def mmproj(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A projector of 2 MiB."""
    path = tmp_path_factory.mktemp("projector") / "mmproj.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_tensor("v.patch_embd.weight", np.zeros((1024, 1024), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def gpt_oss(tmp_path: Path) -> Path:
    """gpt-oss-20b MXFP4: its published hyperparameters and tensor table, a short vocabulary list, no weights."""
    n_layer, n_embd, n_vocab, n_expert, n_head, n_head_kv, head_size = 24, 2880, 201_088, 32, 64, 8, 64
    q8, mxfp4 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.MXFP4
    writer = gguf.GGUFWriter(None, "gpt-oss")
    writer.add_file_type(38)
    writer.add_block_count(n_layer)
    writer.add_context_length(131_072)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_embd)
    writer.add_vocab_size(n_vocab)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head_kv)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_sliding_window(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_expert_count(n_expert)
    writer.add_expert_used_count(4)
    writer.add_expert_feed_forward_length(n_embd)
    writer.add_rope_freq_base(150_000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(32.0)
    writer.add_rope_scaling_orig_ctx_len(4096)
    tensors: list[TensorRow] = [
        ("token_embd.weight", (n_vocab, n_embd), q8),
        ("output.weight", (n_vocab, n_embd), q8),
        ("output_norm.weight", (n_embd,), F32),
    ]
    widths = {"q": n_head * head_size, "k": n_head_kv * head_size, "v": n_head_kv * head_size}
    for block in (f"blk.{layer}." for layer in range(n_layer)):
        tensors += [(f"{block}{name}.weight", (n_embd,), F32) for name in ("attn_norm", "post_attention_norm")]
        for name, rows in widths.items():
            tensors += [(f"{block}attn_{name}.weight", (rows, n_embd), q8), (f"{block}attn_{name}.bias", (rows,), F32)]
        tensors += [
            (f"{block}attn_output.weight", (n_embd, n_head * head_size), q8),
            (f"{block}attn_output.bias", (n_embd,), F32),
            (f"{block}attn_sinks.weight", (n_head,), F32),
            (f"{block}ffn_gate_inp.weight", (n_expert, n_embd), F32),
            (f"{block}ffn_gate_inp.bias", (n_expert,), F32),
        ]
        for name in ("gate", "up", "down"):
            tensors.append((f"{block}ffn_{name}_exps.weight", (n_expert, n_embd, n_embd), mxfp4))
            tensors.append((f"{block}ffn_{name}_exps.bias", (n_expert, n_embd), F32))
    return write_header_only(writer, tensors, tmp_path / "gpt-oss-20b.gguf")


WriteBytes = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteBytes:
    """Write a GGUF file byte by byte: any version, byte order, and nonsense."""

    def write(
        *,
        version: int = 3,
        order: str = "<",
        n_tensors: int | None = None,
        n_keys: int | None = None,
        metadata: Sequence[tuple[bytes, int, bytes]] = (),
        tensors: Sequence[tuple[bytes, Sequence[int], int, int]] = (),
        data: bytes = b"",
        name: str = "model.gguf",
    ) -> Path:
        length = struct.Struct(order + ("I" if version == 1 else "Q"))

        def text(value: bytes) -> bytes:
            return length.pack(len(value)) + value

        parts = [b"GGUF", struct.pack(order + "I", version)]
        parts.append(length.pack(len(tensors) if n_tensors is None else n_tensors))
        parts.append(length.pack(len(metadata) if n_keys is None else n_keys))
        for key, kind, value in metadata:
            parts += [text(key), struct.pack(order + "I", kind), text(value) if kind == 8 else value]
        for tensor, shape, kind, offset in tensors:
            parts += [text(tensor), struct.pack(order + "I", len(shape)), *(length.pack(size) for size in shape)]
            parts.append(struct.pack(order + "IQ", kind, offset))
        header = b"".join(parts)
        path = tmp_path / name
        path.write_bytes(header + b"\0" * (-len(header) % 32) + data)
        return path

    return write
