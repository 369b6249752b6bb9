"""Models that are split over several files: the names of their parts.

The rule: any part stands for the whole, and so does a folder that holds one model. The parts' names follow from the
pattern `NAME-00001-of-00003.gguf` that llama.cpp's loader and `llama-gguf-split` use; a part that is not there is
named, not refused.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gguf_info.errors import GGUFError

__all__ = ["ShardSet", "find_shards", "is_url"]

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_MOST_SHARDS = 1000


@dataclass(frozen=True)
class ShardSet:
    """The files of one model.

    Attributes:
        found: Paths that exist, in order of their number.
        missing: Paths that should exist.
        is_split: Whether the name says that the model has several files.
    """

    found: tuple[str, ...]
    missing: tuple[str, ...] = ()
    is_split: bool = False


def find_shards(path: str | os.PathLike[str]) -> ShardSet:
    """The files that belong to a path: the file alone, all parts of its model, or the one model in a folder.

    Raises:
        GGUFError: A folder with no model or with several.
    """
    text = os.fspath(path)
    if is_url(text):
        return _on_a_server(text)
    if Path(text).is_dir():
        text = _only_model(Path(text))
    match = _SHARD.fullmatch(Path(text).name)
    if match is None or not 1 < int(match["count"]) <= _MOST_SHARDS:
        return ShardSet((text,))
    folder = Path(text).parent
    count = int(match["count"])
    names = [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, count + 1)]
    # The named file itself is opened even if it is not there, so that the error names it.
    there = [str(folder / name) for name in names if (folder / name).exists()] or [text]
    return ShardSet(tuple(there), tuple(str(folder / name) for name in names if str(folder / name) not in there), True)


def _on_a_server(url: str) -> ShardSet:
    match = _SHARD.fullmatch(unquote(urlsplit(url).path.rpartition("/")[2]))
    if match is None or not 1 < int(match["count"]) <= _MOST_SHARDS:
        return ShardSet((url,))
    from gguf_info.remote import url_exists, url_sibling

    names = [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, int(match["count"]) + 1)]
    parts = [url_sibling(url, name) for name in names]
    there = [part for part in parts if url_exists(part)] or [url]
    return ShardSet(tuple(there), tuple(part for part in parts if part not in there), True)


def is_url(path: str) -> bool:
    """Whether a path names a file on a web server."""
    return path.startswith(("http://", "https://"))


def _only_model(folder: Path) -> str:
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".gguf" and file.is_file())
    models: dict[str, Path] = {}
    for file in files:
        match = _SHARD.fullmatch(file.name)
        models.setdefault(match["stem"] + match["count"] if match else file.name, file)
    if len(models) == 1:
        return str(next(iter(models.values())))
    names = ", ".join(file.name for file in models.values())
    raise GGUFError(
        str(folder),
        None,
        expected="a folder with one model",
        found=f"{len(models)} models: {names}" if models else "no .gguf file",
        hint="name the file itself",
    )
