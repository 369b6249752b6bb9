"""The `gguf` package's constants, loaded alone.

Importing the package itself loads numpy and takes longer than reading a header.
Keys, block sizes, file types and type numbers are facts of the format; they come from the installed `gguf`, so that a
newer one brings new types and keys without a change here.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["block_size", "block_size_by_name", "file_type_name", "gguf_constants", "keys_below", "type_name"]

_MODULE = "_gguf_info_constants"


@cache
def gguf_constants() -> ModuleType:
    """The module `gguf.constants`, executed by itself.

    Raises:
        ImportError: The `gguf` package is not installed.
    """
    package = importlib.util.find_spec("gguf")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the package 'gguf' is not installed")
    path = Path(next(iter(package.submodule_search_locations))) / "constants.py"
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    return module


@cache
def type_name(type_number: int) -> str:
    """Name of a tensor's quantization type, such as `Q8_0`; `type 99` when this gguf package does not know it."""
    try:
        return str(gguf_constants().GGMLQuantizationType(type_number).name)
    except ValueError:
        return f"type {type_number}"


@cache
def block_size(type_number: int) -> tuple[int, int] | None:
    """Values in a block and bytes that it takes, or None for a type that this gguf package does not know."""
    module = gguf_constants()
    try:
        values, size_bytes = module.GGML_QUANT_SIZES[module.GGMLQuantizationType(type_number)]
    except (KeyError, ValueError):
        return None
    return int(values), int(size_bytes)


@cache
def block_size_by_name(name: str) -> tuple[int, int]:
    """Values in a block and bytes that it takes, of a type by its name in flags, such as `q8_0`.

    Raises:
        KeyError: There is no such type.
    """
    module = gguf_constants()
    values, size_bytes = module.GGML_QUANT_SIZES[module.GGMLQuantizationType[name.upper()]]
    return int(values), int(size_bytes)


def file_type_name(file_type: int) -> str:
    """Name of `general.file_type` as file names have it, such as `Q4_1` or `Q4_K_M`, or its number."""
    try:
        return str(gguf_constants().LlamaFileType(file_type).name).removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return str(file_type)


@cache
def keys_below(group: str, architecture: str) -> dict[str, str]:
    """Metadata keys of one group of the gguf package's `Keys`, by constant name, filled in for an architecture.

    Args:
        group: Such as `Attention`, `LLM` or `Rope`.
        architecture: Replaces `{arch}`.
    """
    constants: Any = getattr(gguf_constants().Keys, group)
    templates = {name: value for name, value in vars(constants).items() if name.isupper() and isinstance(value, str)}
    return {name: template.replace("{arch}", architecture) for name, template in templates.items()}
