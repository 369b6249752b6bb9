"""The package's error.

GGUFError    a file that cannot be read as GGUF, or a question that it cannot answer
"""

from __future__ import annotations

__all__ = ["GGUFError"]


class GGUFError(Exception):
    """What is wrong with a file, and where.

    Attributes:
        path: The file, as it was named.
        offset: Byte offset of the fault, or None when the file could not be opened.
        expected: What should stand there.
        found: What does.
        hint: What to do about it, or an empty string.
    """

    def __init__(self, path: str, offset: int | None, *, expected: str, found: str, hint: str = "") -> None:
        place = str(path) if offset is None else f"{path}, byte {offset}"
        super().__init__(f"{place}: expected {expected}, found {found}")
        self.path = path
        self.message = str(self)
        self.offset = offset
        self.expected = expected
        self.found = found
        self.hint = hint
