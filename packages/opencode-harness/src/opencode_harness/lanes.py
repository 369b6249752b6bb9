"""Which conversation a request of OpenCode belongs to: one lane is one strictly ordered conversation.

OpenCode 1.18.33 talks to its model in several conversations at once: the title of a session is asked for beside the
first main request, sub-agents run while the main agent waits, and a compaction has no tools. What tells them apart is
in the request: the `x-session-id` header, for a sub-agent also `x-parent-session-id`, whether it offers tools, and
the title's system prompt. Order is fixed inside a lane only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Lane", "LaneBook", "text_of"]

_TITLE_PROMPT_RE = re.compile(r"You are a title generator\b|Generate a title for this conversation\b")


@dataclass(frozen=True)
class Lane:
    """Where a request belongs.

    Attributes:
        name: `main`, `title`, `sub:N` (N counts sub-agents by first request, from 1), or `other` (no tools: a
            compaction, for instance).
        session_id: OpenCode's session, or None where the client sends none.
        agent_path: The agents from the main one down to the one that asks, such as `("main", "sub:1")`.
    """

    name: str
    session_id: str | None
    agent_path: tuple[str, ...]


class LaneBook:
    """Gives each request its lane; remembers sub-agents, so that each keeps its number."""

    def __init__(self) -> None:
        self._sub_agents: dict[str, tuple[str, ...]] = {}

    def assign(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> Lane:
        """The lane of a chat request.

        Args:
            headers: The request's headers, looked up case-insensitively where the mapping does so.
            body: The request's JSON body.
        """
        session_id = headers.get("x-session-id")
        path = self._agent_path(session_id, headers.get("x-parent-session-id"))
        if body.get("tools"):
            return Lane(path[-1], session_id, path)
        return Lane("title" if _asks_for_title(body) else "other", session_id, path)

    def _agent_path(self, session_id: str | None, parent_id: str | None) -> tuple[str, ...]:
        if session_id is None or parent_id is None:
            return ("main",)
        if session_id not in self._sub_agents:
            above = self._sub_agents.get(parent_id, ("main",))
            self._sub_agents[session_id] = (*above, f"sub:{len(self._sub_agents) + 1}")
        return self._sub_agents[session_id]


def _asks_for_title(body: Mapping[str, Any]) -> bool:
    messages = body.get("messages")
    opening = messages[:2] if isinstance(messages, list) else []
    return any(_TITLE_PROMPT_RE.match(text_of(message)) for message in opening if isinstance(message, Mapping))


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a chat message, whose content may be a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str))
