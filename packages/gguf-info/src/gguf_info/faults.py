"""Checks a model's files against the rules that llama.cpp's loader keeps, without loading it.

The rule: a fault is something that a loader refuses or reads wrongly; what cannot be checked (a quantization type whose
block size is not known) is a note, and a note does not make a file bad. Rules: gguf.cpp and llama-model-loader.cpp.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gguf_info.constants import block_size, type_name
from gguf_info.errors import GGUFError
from gguf_info.model import Summary, tensor_bytes
from gguf_info.reader import Header, Tensor, read_range

__all__ = ["Fault", "header_fault", "tensor_digests", "verify", "verify_document"]

_LONGEST_NAME_BYTES = 63
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, or a note of what could not be checked.

    Attributes:
        code: A word for programs, such as `overlap`.
        severity: `fault` or `note`.
        path: The file it is in.
        tensor: The tensor it is about, or None.
        message: What is expected and what was found.
    """

    code: str
    severity: Literal["fault", "note"]
    path: str
    tensor: str | None
    message: str


def verify(summary: Summary) -> tuple[Fault, ...]:
    """All faults of a model's files, in the order of the files and their tensors."""
    return (
        *_architecture(summary),
        *_parts(summary),
        *(fault for header in summary.headers for fault in _tensors(header)),
    )


def verify_document(summary: Summary, faults: tuple[Fault, ...], digests: Mapping[str, str] | None) -> dict[str, Any]:
    """The document that `gguf-info verify --format json` prints; `sha256` is null unless digests were asked for."""
    return {
        "schema_version": 1,
        "path": summary.file.path,
        "ok": not any(fault.severity == "fault" for fault in faults),
        "faults": [asdict(fault) for fault in faults],
        "sha256": None if digests is None else dict(digests),
    }


def tensor_digests(summary: Summary) -> Iterator[tuple[str, str]]:
    """Each tensor's name and the SHA-256 of its data, in order; tensors of unknown size are left out.

    Raises:
        GGUFError: The data ends before the tensor does.
    """
    for header in summary.headers:
        for tensor in header.tensors:
            size = tensor_bytes(tensor)
            if size is None:
                continue
            digest = hashlib.sha256()
            for chunk in read_range(header.path, header.data_offset + tensor.offset, size, _CHUNK_BYTES):
                digest.update(chunk)
            yield tensor.name, digest.hexdigest()


def _architecture(summary: Summary) -> Iterator[Fault]:
    if summary.general.architecture is None:
        message = "expected general.architecture as text, found none"
        yield Fault("no-architecture", "fault", summary.file.path, None, message)


def _parts(summary: Summary) -> Iterator[Fault]:
    for path in summary.file.missing_shards:
        yield Fault("part-missing", "fault", path, None, "a part of the split model is not there")
    n_files = len(summary.file.shards) + len(summary.file.missing_shards) or 1
    for header in summary.headers:
        count = header.metadata.get("split.count", 1 if n_files == 1 else None)
        if count not in (n_files, 0):
            message = f"expected split.count {n_files} by the file's name, found {count}"
            yield Fault("split-count", "fault", header.path, None, message)
    numbers = [header.metadata.get("split.no") for header in summary.headers]
    if summary.file.shards and not summary.file.missing_shards and numbers != list(range(n_files)):
        message = f"expected split.no 0 to {n_files - 1} in the order of the names, found {numbers}"
        yield Fault("split-order", "fault", summary.file.path, None, message)
    promised = summary.headers[0].metadata.get("split.tensors.count")
    n_tensors = len(summary.all_tensors())
    if isinstance(promised, int) and not summary.file.missing_shards and promised != n_tensors:
        message = f"expected {promised} tensors by split.tensors.count, found {n_tensors}"
        yield Fault("split-tensors", "fault", summary.file.path, None, message)


def _tensors(header: Header) -> Iterator[Fault]:
    def fault(code: str, tensor: Tensor, message: str, severity: Literal["fault", "note"] = "fault") -> Fault:
        return Fault(code, severity, header.path, tensor.name, message)

    end, before = 0, None
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.offset):
        name_bytes = len(tensor.name.encode("utf-8", "replace"))
        if name_bytes > _LONGEST_NAME_BYTES:
            yield fault("long-name", tensor, f"expected a name below 64 bytes, found {name_bytes}")
        if tensor.offset % header.alignment:
            message = f"expected an offset that is a multiple of {header.alignment}, found {tensor.offset}"
            yield fault("misaligned", tensor, message)
        block = block_size(tensor.type_number)
        if block is None:
            yield fault("unknown-type", tensor, f"size unknown: {type_name(tensor.type_number)}", "note")
            continue
        if tensor.shape and tensor.shape[0] % block[0]:
            message = f"expected rows of a multiple of {block[0]} values for {type_name(tensor.type_number)}"
            yield fault("part-block", tensor, f"{message}, found {tensor.shape[0]}")
        size = tensor_bytes(tensor) or 0
        if before is not None and tensor.offset < end:
            message = f"expected data from offset {end} on, after {before}, found offset {tensor.offset}"
            yield fault("overlap", tensor, message)
        if header.data_offset + tensor.offset + size > header.size_bytes:
            message = f"expected {size} bytes of data from byte {header.data_offset + tensor.offset}"
            yield fault("data-short", tensor, f"{message}, found the file's end at {header.size_bytes}")
        end, before = max(end, tensor.offset + size), tensor.name


def header_fault(error: GGUFError) -> Fault | None:
    """A header that breaks the format, as a fault; None if the file is no GGUF file at all or cannot be opened."""
    if error.offset is None or error.offset <= 4:
        return None
    message = f"byte {error.offset}: expected {error.expected}, found {error.found}"
    return Fault("header", "fault", error.path, None, message)
