"""TOML files that a person wrote, with the place in each message."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from llama_launch.errors import ProfileError
from llama_launch.small_file import read_small_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["parsed_toml", "toml_text"]


def toml_text(path: Path, hint: str) -> str:
    """The text of a file.

    Args:
        path: The file.
        hint: What to name instead when there is none.

    Raises:
        ProfileError: It cannot be read, or is not text.
    """
    try:
        return read_small_file(path).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not UTF-8 at byte {error.start}", hint=hint) from error
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}", hint=hint) from error


def parsed_toml(text: str, place: str) -> dict[str, Any]:
    """The document in a TOML text.

    Raises:
        ProfileError: It is not TOML; names the place, and the line as far as it is known.
    """
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{place}: not TOML: {error}") from error
    except RecursionError as error:
        raise ProfileError(f"{place}: not TOML that can be read: nested too deeply") from error
    return document
