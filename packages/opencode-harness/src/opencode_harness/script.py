"""A scenario's turns as they are asked for: one queue for each conversation."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from opencode_harness.turns import Turn

__all__ = ["Script"]


class Script:
    """Hands out turns, each lane its own in their order.

    Attributes:
        length: How many turns there are.
    """

    def __init__(self, turns: Iterable[Turn]) -> None:
        self._queues: defaultdict[str, deque[Turn]] = defaultdict(deque)
        for turn in turns:
            self._queues[turn.lane].append(turn)
        self.lanes = frozenset(self._queues)
        self.length = self.left

    @property
    def left(self) -> int:
        """Turns that were not used yet."""
        return sum(len(queue) for queue in self._queues.values())

    def next_for(self, lane: str, *, keep: bool = False) -> Turn | None:
        """The lane's next turn, or None when it has no more.

        Args:
            lane: The conversation.
            keep: Leave it for the next request, too.
        """
        queue = self._queues[lane]
        if not queue:
            return None
        return queue[0] if keep else queue.popleft()
