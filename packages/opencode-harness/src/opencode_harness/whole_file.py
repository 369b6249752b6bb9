"""Files that are whole or not there, whatever ends the process that writes them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a text as UTF-8 in place of what the file holds, at once.

    Raises:
        OSError: It cannot be written; the file then is what it was.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
