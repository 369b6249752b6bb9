"""Reads a GGUF header: version, metadata and tensor table, in bounded reads.

The file is read forward through a window of about a megabyte, never mapped: a mapped file that shrinks kills the
process. Every length and count comes from the file, so each is compared with the bytes left before anything is
allocated. Arrays are skipped and remembered by place, except short ones of numbers; `Header.read_array` reads one.

Format: GGUF specification (docs/gguf.md of ggml), versions 1 to 3, either byte order.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Literal

from gguf_info.errors import GGUFError
from gguf_info.shards import is_url

__all__ = ["Array", "Header", "Tensor", "Value", "read_header", "read_range"]

_MAGIC = b"GGUF"
_VERSIONS = (1, 2, 3)
_WINDOW_BYTES = 1 << 20
# Several times what any model has; they bound the time and memory that a hostile file can take.
_MOST_KEPT_BYTES = 16 << 20
_MOST_KEYS = 20_000
_MOST_TENSORS = 100_000
_MOST_STRINGS = 4_000_000
_MOST_NESTED_ARRAYS = 50_000
_MOST_DIMENSIONS = 4
_DEEPEST_ARRAY = 4
_SHORT_ARRAY = 4096
_SHORT_TEXT_ARRAY = 64

# Value types by number: struct's letter; a bool is a byte. 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_TYPE_NAMES = {
    0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool", 8: "str", 9: "array", 10: "u64",
    11: "i64", 12: "f64",
}  # fmt: skip


@dataclass(frozen=True)
class Array:
    """An array: where it is, and its items if they are few numbers.

    Attributes:
        item_type: `str`, `u32`, `f32`, ...
        length: Number of items.
        offset: Byte offset of its first item.
        items: The items of a short array (up to 4096 numbers, or 64 texts); None for any other, which
            `Header.read_array` reads.
    """

    item_type: str
    length: int
    offset: int
    items: tuple[int | float | bool | str, ...] | None = None


Value = int | float | bool | str | Array


@dataclass(frozen=True)
class Tensor:
    """One row of the tensor table.

    Attributes:
        name: Its name.
        shape: Sizes, fastest first.
        type_number: Quantization type.
        offset: Bytes from the start of the data section.
    """

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int

    @property
    def parameters(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """What a GGUF file says before its data.

    Attributes:
        path: The file.
        version: 1, 2 or 3.
        endianness: Byte order of the file.
        size_bytes: Size of the file.
        alignment: `general.alignment`, 32 by default.
        data_offset: Where the data section starts: the size of the header, padded to the alignment.
        metadata: Values by key, in file order.
        tensors: The tensor table, in file order.
    """

    path: str
    version: int
    endianness: Literal["little", "big"]
    size_bytes: int
    alignment: int
    data_offset: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]

    def read_array(self, key: str) -> Iterator[int | float | bool | str]:
        """Items of the array under `key`, read from the file one by one.

        Raises:
            GGUFError: There is no such array, or the file has changed.
        """
        value = self.metadata.get(key)
        if not isinstance(value, Array) or value.item_type == "array":
            raise GGUFError(self.path, None, expected=f"an array of scalars or text under {key!r}", found="none")
        if value.items is not None:
            yield from value.items
            return
        number = next(number for number, name in _TYPE_NAMES.items() if name == value.item_type)
        with _opened(self.path) as (stream, size_bytes):
            stream.seek(value.offset)
            cursor = _Cursor(self.path, stream, size_bytes, start=value.offset)
            cursor.set_format(self.version, self.endianness)
            for _ in range(value.length):
                yield cursor.string("an item", kept=False) if number == _STRING else cursor.scalar(number)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read the header of one GGUF file.

    Raises:
        GGUFError: It cannot be opened, is no regular file, or breaks the format; names offset, expected and found.
    """
    path = os.fspath(path)
    with _opened(path) as (stream, size_bytes):
        cursor = _Cursor(path, stream, size_bytes)
        version, endianness = _read_start(cursor)
        n_tensors = cursor.count("tensor count", _MOST_TENSORS, smallest_item_bytes=4 + 4 + 4 + 8)
        n_keys = cursor.count("metadata count", _MOST_KEYS, smallest_item_bytes=4 + 4 + 1)
        metadata = _read_metadata(cursor, n_keys)
        alignment = _alignment(cursor, metadata)
        tensors = _read_tensors(cursor, n_tensors)
        data_offset = -(-cursor.offset // alignment) * alignment
    return Header(path, version, endianness, size_bytes, alignment, data_offset, metadata, tensors)


def read_range(path: str, offset: int, n_bytes: int, chunk_bytes: int) -> Iterator[bytes]:
    """Bytes of a file, in chunks of at most `chunk_bytes`.

    Raises:
        GGUFError: The file ends before.
    """
    with _opened(path) as (stream, size_bytes):
        if offset + n_bytes > size_bytes:
            found = f"{max(size_bytes - offset, 0)} bytes to the end of the file"
            raise GGUFError(path, offset, expected=f"{n_bytes} bytes of data", found=found, hint="is the file whole?")
        stream.seek(offset)
        cursor = _Cursor(path, stream, size_bytes, start=offset)
        for done in range(0, n_bytes, chunk_bytes):
            yield cursor.take(min(chunk_bytes, n_bytes - done), "data")


@contextmanager
def _opened(path: str) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file or a URL, open for reading, and its size."""
    if is_url(path):
        from gguf_info.remote import opened_url  # the network's modules cost more than reading a header

        with opened_url(path) as opened:
            yield opened
        return
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer. Windows has neither flag, and needs O_BINARY.
        flags = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
        descriptor = os.open(path, os.O_RDONLY | flags)
    except (OSError, ValueError) as error:
        found = (getattr(error, "strerror", None) or str(error)).lower()
        raise GGUFError(path, None, expected="a GGUF file", found=found, hint="check the path") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            found = "a folder" if stat.S_ISDIR(status.st_mode) else "something that is no regular file"
            raise GGUFError(path, None, expected="a GGUF file", found=found, hint="name the file itself")
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as stream:
            yield stream, status.st_size
    finally:
        os.close(descriptor)


class _Cursor:
    """Reads forward through a window, and knows the offset of everything it reads."""

    def __init__(self, path: str, stream: BinaryIO, size_bytes: int, start: int = 0) -> None:
        self.path = path
        self._budget_bytes = _MOST_KEPT_BYTES
        self._strings_left = _MOST_STRINGS
        self._nested_left = _MOST_NESTED_ARRAYS
        self._stream = stream
        self._size_bytes = size_bytes
        self._window = b""
        self._position = 0
        self._window_offset = start
        self.set_format(3, "little")

    def set_format(self, version: int, endianness: Literal["little", "big"]) -> None:
        """Lengths are u32 in version 1 and u64 later; the byte order is the file's."""
        order = "<" if endianness == "little" else ">"
        self._length = struct.Struct(order + ("I" if version == 1 else "Q"))
        self._scalars = {number: struct.Struct(order + letter) for number, letter in _SCALARS.items()}
        self._order = order

    @property
    def offset(self) -> int:
        """Offset of the next byte."""
        return self._window_offset + self._position

    @property
    def left(self) -> int:
        """Bytes of the file after the offset."""
        return self._size_bytes - self.offset

    def error(self, expected: str, found: str, *, at: int | None = None, hint: str = "") -> GGUFError:
        return GGUFError(self.path, self.offset if at is None else at, expected=expected, found=found, hint=hint)

    def take(self, n_bytes: int, what: str) -> bytes:
        """The next bytes.

        Raises:
            GGUFError: The file ends before.
        """
        self._fill(n_bytes, what)
        taken = self._window[self._position : self._position + n_bytes]
        self._position += n_bytes
        return taken

    def skip(self, n_bytes: int, what: str) -> None:
        """Move on without reading."""
        self._require(n_bytes, what)
        inside = len(self._window) - self._position
        if n_bytes <= inside:
            self._position += n_bytes
            return
        self._window_offset = self.offset + n_bytes
        self._window, self._position = b"", 0
        self._stream.seek(self._window_offset)

    def scalar(self, type_number: int) -> int | float | bool:
        layout = self._scalars[type_number]
        (value,) = layout.unpack(self.take(layout.size, _TYPE_NAMES[type_number]))
        number: int | float | bool = bool(value) if type_number == _BOOL else value
        return number

    def u32(self, what: str) -> int:
        (value,) = self._scalars[4].unpack(self.take(4, what))
        return int(value)

    def u64(self, what: str) -> int:
        (value,) = self._scalars[10].unpack(self.take(8, what))
        return int(value)

    def length(self, what: str) -> int:
        (value,) = self._length.unpack(self.take(self._length.size, what))
        return int(value)

    def count(self, what: str, most: int, smallest_item_bytes: int) -> int:
        """A count from the file, checked against a limit and the bytes that its items need at least."""
        at = self.offset
        value = self.length(what)
        if value > most or value * smallest_item_bytes > self.left:
            raise self.error(f"a {what} that fits the file", str(value), at=at, hint="the file is damaged or cut")
        return value

    def keep(self, n_bytes: int, what: str) -> None:
        """Count bytes that stay in memory.

        Raises:
            GGUFError: They would be more than any model's header keeps.
        """
        self._budget_bytes -= n_bytes
        if self._budget_bytes < 0:
            raise self.error(
                f"a header with less than {_MOST_KEPT_BYTES >> 20} MiB of text", f"{n_bytes} bytes of {what}"
            )

    def nested_array(self) -> None:
        """Count an array inside an array.

        Raises:
            GGUFError: There are more than any model has.
        """
        self._nested_left -= 1
        if self._nested_left < 0:
            raise self.error(f"at most {_MOST_NESTED_ARRAYS} nested arrays", "another one")

    def string(self, what: str, *, kept: bool = True) -> str:
        at = self.offset
        n_bytes = self.length(f"length of {what}")
        if n_bytes > self.left:
            raise self.error(f"{what} that fits the file", f"a length of {n_bytes}", at=at)
        if kept or n_bytes > _MOST_KEPT_BYTES:
            self.keep(n_bytes, what)
        return self.take(n_bytes, what).decode("utf-8", "replace")

    def skip_strings(self, n_items: int) -> None:
        """Move over an array of strings; the loop stays inside the window as long as it can."""
        self._strings_left -= n_items
        if self._strings_left < 0:
            raise self.error(f"at most {_MOST_STRINGS} strings", f"an array of {n_items} more")
        unpack, size = self._length.unpack_from, self._length.size
        while n_items:
            self._fill(size, "a length")
            window, position = self._window, self._position
            end = len(window) - size
            while n_items and position <= end:
                (n_bytes,) = unpack(window, position)
                if position + size + n_bytes > len(window):
                    break
                position += size + n_bytes
                n_items -= 1
            self._position = position
            if n_items:
                self.skip(self.length("a length"), "a string")
                n_items -= 1

    def scalars(self, type_number: int, n_items: int) -> tuple[int | float | bool, ...]:
        layout = struct.Struct(f"{self._order}{n_items}{_SCALARS[type_number]}")
        values = layout.unpack(self.take(layout.size, "array items"))
        return tuple(map(bool, values)) if type_number == _BOOL else values

    def scalar_bytes(self, type_number: int) -> int:
        return self._scalars[type_number].size

    def _require(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.left:
            raise self.error(
                f"{n_bytes} bytes of {what}",
                f"{max(self.left, 0)} bytes to the end of the file",
                hint="is the file whole?",
            )

    def _fill(self, n_bytes: int, what: str) -> None:
        """Have at least `n_bytes` in the window."""
        self._require(n_bytes, what)
        if n_bytes <= len(self._window) - self._position:
            return
        parts = [self._window[self._position :]]
        self._window_offset, self._position = self.offset, 0
        missing = n_bytes - len(parts[0])
        while missing > 0:
            try:
                part = self._stream.read(max(missing, _WINDOW_BYTES))
            except OSError as error:
                raise self.error(f"{n_bytes} bytes of {what}", error.strerror or str(error)) from error
            if not part:
                raise self.error(f"{n_bytes} bytes of {what}", "a file that became shorter while it was read")
            parts.append(part)
            missing -= len(part)
        self._window = b"".join(parts)


def _read_start(cursor: _Cursor) -> tuple[int, Literal["little", "big"]]:
    magic = cursor.take(4, "the magic")
    if magic != _MAGIC:
        raise cursor.error("'GGUF'", repr(magic)[1:], at=0, hint="this is no GGUF file")
    raw = cursor.take(4, "the version")
    orders: tuple[Literal["little", "big"], ...] = ("little", "big")
    for endianness in orders:
        version = int.from_bytes(raw, endianness)
        if version in _VERSIONS:
            cursor.set_format(version, endianness)
            return version, endianness
    raise cursor.error("GGUF version 1, 2 or 3", str(int.from_bytes(raw, "little")), at=4, hint="a newer gguf-info?")


def _read_metadata(cursor: _Cursor, n_keys: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(n_keys):
        at = cursor.offset
        key = cursor.string("a metadata key")
        if key in metadata:
            raise cursor.error("each metadata key once", f"{key!r} again", at=at)
        metadata[key] = _read_value(cursor, cursor.u32("a value type"), depth=0)
    return metadata


def _read_value(cursor: _Cursor, type_number: int, depth: int) -> Value:
    if type_number in _SCALARS:
        return cursor.scalar(type_number)
    if type_number == _STRING:
        return cursor.string("a value")
    if type_number == _ARRAY:
        return _read_array(cursor, depth)
    raise cursor.error("a value type from 0 to 12", str(type_number), at=cursor.offset - 4)


def _read_array(cursor: _Cursor, depth: int) -> Array:
    if depth >= _DEEPEST_ARRAY:
        raise cursor.error(f"arrays nested at most {_DEEPEST_ARRAY} deep", "another one inside")
    at = cursor.offset
    item_type = cursor.u32("an item type")
    n_items = cursor.length("an array length")
    offset = cursor.offset
    if item_type in _SCALARS:
        n_bytes = n_items * cursor.scalar_bytes(item_type)
        if n_items <= _SHORT_ARRAY and not depth:
            cursor.keep(n_items * 8, "array items")
            return Array(_TYPE_NAMES[item_type], n_items, offset, cursor.scalars(item_type, n_items))
        cursor.skip(n_bytes, "array items")
    elif item_type in (_STRING, _ARRAY):
        if n_items * 4 > cursor.left:
            raise cursor.error("an array that fits the file", f"{n_items} items", at=at)
        if item_type == _STRING and n_items <= _SHORT_TEXT_ARRAY and not depth:
            texts = tuple(cursor.string("an array item") for _ in range(n_items))
            return Array(_TYPE_NAMES[item_type], n_items, offset, texts)
        if item_type == _STRING:
            cursor.skip_strings(n_items)
        else:
            for _ in range(n_items):
                cursor.nested_array()
                _read_array(cursor, depth + 1)
    else:
        raise cursor.error("an item type from 0 to 12", str(item_type), at=at)
    return Array(_TYPE_NAMES[item_type], n_items, offset)


def _alignment(cursor: _Cursor, metadata: Mapping[str, Value]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.error("general.alignment as a power of two", repr(alignment))
    return alignment


def _read_tensors(cursor: _Cursor, n_tensors: int) -> tuple[Tensor, ...]:
    tensors: dict[str, Tensor] = {}
    for _ in range(n_tensors):
        at = cursor.offset
        name = cursor.string("a tensor name")
        if name in tensors:
            raise cursor.error("each tensor name once", f"{name!r} again", at=at)
        n_dimensions = cursor.u32("a number of dimensions")
        if n_dimensions > _MOST_DIMENSIONS:
            raise cursor.error(f"at most {_MOST_DIMENSIONS} dimensions", str(n_dimensions), at=cursor.offset - 4)
        shape = tuple(cursor.length("a size") for _ in range(n_dimensions))
        if math.prod(shape) >= 2**63:
            raise cursor.error("a tensor below 2^63 values", " x ".join(map(str, shape)), at=at)
        type_number = cursor.u32("a tensor type")
        tensors[name] = Tensor(name, shape, type_number, cursor.u64("a tensor offset"))
    return tuple(tensors.values())
