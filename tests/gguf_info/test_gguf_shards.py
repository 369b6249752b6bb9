"""Split models, whole and in part."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_info import GGUFError, read_summary, render_tables, verify


@pytest.fixture
def split_model(tmp_path: Path) -> list[Path]:
    """A model that the gguf package's writer split into three parts of two tensors."""
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", split_max_tensors=2)
    writer.add_context_length(2048)
    for number in range(6):
        writer.add_tensor(f"blk.{number}.attn_norm.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(tmp_path.glob("big-*-of-00003.gguf"))


def test_any_part_or_the_folder_stands_for_the_model(split_model: list[Path]) -> None:
    for path in [*split_model, split_model[0].parent]:
        summary = read_summary(path)
        assert summary.file.shards == tuple(map(str, split_model))
        assert summary.tensors is not None
        assert summary.tensors.count == 6
        assert summary.architecture is not None
        assert summary.architecture.context_length == 2048
        assert "3 of 3 parts" in render_tables(summary)
        assert verify(summary) == ()


def test_missing_part_is_named(split_model: list[Path]) -> None:
    split_model[1].unlink()
    summary = read_summary(split_model[2])
    assert summary.file.missing_shards == (str(split_model[1]),)
    assert f"Part missing: {split_model[1]}" in render_tables(summary)
    assert [(fault.code, fault.path) for fault in verify(summary)] == [("part-missing", str(split_model[1]))]


def test_parts_in_the_wrong_order_are_a_fault(split_model: list[Path]) -> None:
    spare = split_model[0].with_name("spare")
    split_model[1].rename(spare)
    split_model[2].rename(split_model[1])
    spare.rename(split_model[2])
    assert [fault.code for fault in verify(read_summary(split_model[0]))] == ["split-order"]


def test_part_alone_under_another_name_is_a_fault(split_model: list[Path]) -> None:
    alone = split_model[0].with_name("alone.gguf")
    split_model[0].rename(alone)
    codes = [fault.code for fault in verify(read_summary(alone))]
    assert codes == ["split-count", "split-tensors"]


def test_parts_of_different_models_are_refused(split_model: list[Path]) -> None:
    split_model[1].write_bytes(split_model[0].read_bytes())
    with pytest.raises(GGUFError, match="in one part of the model"):
        read_summary(split_model[0])


def test_folder_with_two_models_names_them(split_model: list[Path], tiny_model: Path) -> None:
    with pytest.raises(GGUFError, match=r"2 models: big-00001-of-00003\.gguf, tiny\.gguf"):
        read_summary(tiny_model.parent)
