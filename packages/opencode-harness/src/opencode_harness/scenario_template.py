"""A scenario to start from."""

from __future__ import annotations

from pathlib import Path

from opencode_harness.errors import HarnessError

__all__ = ["write_new_scenario"]

_TEMPLATE = """\
# The keys: docs/scenarios.md. Check this file: opencode-harness validate {path}
description: Reads a file and says what is in it.
tags: [read]
prompt: Which fruit does notes.txt name?
files:
  notes.txt: |
    The fruit is kiwi.
# What the model says, in order. Without `turns` the server answers (or a cassette, once recorded).
turns:
  - tool_calls:
      - name: read
        arguments: {{filePath: "{{workspace}}/notes.txt"}}
  - text: The fruit is kiwi.
screen_contains: The fruit is kiwi.
files_unchanged: true
"""


def write_new_scenario(path: Path) -> None:
    """Write a scenario that passes as it is; a file that is there is never replaced.

    Raises:
        HarnessError: The file is there, or cannot be written.
    """
    if path.suffix not in {".yaml", ".yml"}:
        raise HarnessError(f"{path}: a scenario file ends in .yaml", hint=f"write {path.with_suffix('.yaml')}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(_TEMPLATE.format(path=path))
    except FileExistsError as error:
        raise HarnessError(f"{path} is there already", hint="choose another name") from error
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}", hint="choose another folder") from error
