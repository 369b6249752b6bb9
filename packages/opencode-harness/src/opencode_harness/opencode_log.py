"""What OpenCode's own log says: when the agent is done, and what it asked for.

The log is `key=value` lines, written as it goes (`$XDG_DATA_HOME/opencode/log/opencode.log`, OpenCode 1.18.33); it
may hold bytes that are not text. Only whole lines are read, so a line that is being written is seen later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OpenCodeLog", "PermissionAsked"]

_FIELD = re.compile(r'([\w.]+)=("(?:[^"\\]|\\.)*"|\S+)')


@dataclass(frozen=True)
class PermissionAsked:
    """A permission that OpenCode asked the user for.

    Attributes:
        permission: Its name, such as `external_directory`.
        patterns: The patterns that it was asked for, as printed.
    """

    permission: str
    patterns: str


class OpenCodeLog:
    """Follows the log of one trial from its beginning.

    Attributes:
        turns_ended: How often the agent loop of the first session was left: one per prompt answered.
        asked: The permissions asked for, in order.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._main_session: str | None = None
        self.turns_ended = 0
        self.asked: list[PermissionAsked] = []

    def refresh(self) -> None:
        """Read what was added since the last call."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                added = log.read()
        except OSError:
            return
        self._offset += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        for line in lines:
            self._note(_fields(line.decode("utf-8", "replace")))

    def _note(self, fields: dict[str, str]) -> None:
        message = fields.get("message")
        session = fields.get("session.id")
        if message == "loop" and self._main_session is None:
            self._main_session = session
        elif message == "exiting loop" and session == self._main_session:
            self.turns_ended += 1
        elif message == "asking" and "permission" in fields:
            self.asked.append(PermissionAsked(fields["permission"], fields.get("patterns", "")))


def _fields(line: str) -> dict[str, str]:
    """The fields of one line; a quoted value is unquoted, and a key that comes twice keeps its first value."""
    fields: dict[str, str] = {}
    for key, value in _FIELD.findall(line):
        text = value[1:-1].replace('\\"', '"') if value.startswith('"') else value
        fields.setdefault(key, text)
    return fields
