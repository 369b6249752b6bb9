"""Stretches of request lines, read as a whole: a long log is mostly these.

The rule: a stretch is a run of lines whose starts `QUIET_LINE` knows; it is scanned with a few expressions over the
raw bytes instead of line by line, and gives the same facts in the same order as `records` does for its lines (a law in
the tests). Every other line, and every line behind a wrapper, takes the ordinary way.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from vram_report.usual_requests import FIRST_LINE, usual_run

__all__ = ["SLOT_FACT", "Stretch", "blocks", "segments"]

PREFIX = rb"(?:[0-9.]+ [IW] )?"
QUIET_LINE = (
    PREFIX + rb"(?:slot (?:update_slots|get_availabl|launch_slot_|print_timing|init_sampler|create_check|slot_save_an"
    rb"|prompt_clear|process_sing|     release|  operator\(\)): id "
    rb"|srv  (?:log_server_r|params_from_|get_availabl|update_slots|server_strea): "
    rb"|srv (?:  prompt_save:  - |       update:  |         load:  - |         stop: cancel )"
    rb"|prompt eval time =|       eval time =|      total time =|reasoning-budget: "
    rb"|\t(?:repeat_last_n|dry_multiplier|top_k|mirostat) = ).*\n"
)
STRETCH = re.compile(rb"^(?:" + QUIET_LINE + rb")+", re.MULTILINE)
SLOT_FACT = re.compile(
    rb"id +(\d+) \| task (-?\d+) \| (?:"
    rb"(?P<req_prompt>new prompt, n_ctx_slot = \d+, n_keep = -?\d+, "
    rb"(?:task\.n_tokens|n_prompt_tokens) = (?P<prompt>\d+)(?=[\s,;]))"
    rb"|(?P<req_launch>processing task)"
    rb"|(?P<req_done>prompt processing done)"
    rb"|(?P<req_kept>(?:(?:cached )?n_tokens = \d+, )?(?:memory_seq_rm|kv cache rm) \[(?P<kept>\d+), end\))"
    rb"|(?P<req_release>stop processing: (?:n_tokens|n_past) = (?P<held>\d+), truncated = (?P<truncated>[01]))"
    rb"|(?P<req_select>selected slot by (?:LRU|LCP similarity|id))"
    rb"|(?P<req_clear>clearing prompt(?! with 0 tokens))"
    rb"|(?P<req_full>forcing full prompt re-processing due to (?P<reason>[\w -]+?)"
    rb"(?: \(likely due to (?P<detail>[^,)\n]+)|\s*\n))"
    rb"|(?P<prompt_time>prompt eval time = +(?P<prompt_ms>\d+\.\d+) ms / +(?P<prompt_n>\d+) tokens)"
    rb"|(?P<eval_time> +eval time = +(?P<eval_ms>\d+\.\d+) ms / +(?P<eval_n>\d+) tokens)"
    rb"|(?P<req_timing>(?=\n)))"
)
# Builds before 2026 print these on lines of their own, below the line that names slot and task.
LOOSE_TIME = re.compile(
    rb"^(?:(?P<prompt_time>prompt eval time = +(?P<prompt_ms>\d+\.\d+) ms / +(?P<prompt_n>\d+) tokens)"
    rb"|(?P<eval_time> +eval time = +(?P<eval_ms>\d+\.\d+) ms / +(?P<eval_n>\d+) tokens))",
    re.MULTILINE,
)
# Marks of a text that must be cleaned up line by line.
UNCLEAN = (b"\x1b", b"\0", b"\r")
SAVED = re.compile(rb"(?P<req_save>saving prompt with length (?P<saved>\d+)(?=[\s,;]))")
IDLE = b"all slots are idle"
BLOCK_BYTES = 1 << 18
LONGEST_LINE_BYTES = 1 << 23
# A search for stretches takes longer than reading a start: fewer lines about a task than this are not worth it.
TASK = b" | task "
FEWEST_TASKS = 16
SHORTEST_BYTES = 1 << 11


class Stretch:
    """Consecutive request lines: a span of a block.

    Attributes:
        text: The block's bytes, or the lines' alone.
        start: Where the lines begin in it; all offsets count from the text's begin.
        end: Where they end.
        line: Number of the first line.
        lines: How many there are.
        requests: The usual requests that they consist of, one behind the other; empty when there is more to them.
    """

    def __init__(self, text: bytes, span: tuple[int, int], line: int, requests: Sequence[re.Match[bytes]]) -> None:
        self.text = text
        self.start, self.end = span
        self.line = line
        self.lines = text.count(b"\n", self.start, self.end)
        self.requests = requests
        self._counted = (self.start, line)

    def line_at(self, offset: int) -> int:
        """The number of the line at an offset; cheap near the end, and when asked for in the order of the text."""
        start, line = self._counted
        if self.end - offset < abs(offset - start):
            return self.line + self.lines - self.text.count(b"\n", offset, self.end)
        if offset < start:
            start, line = self.start, self.line
        self._counted = (offset, line + self.text.count(b"\n", start, offset))
        return self._counted[1]

    def idle_offsets(self) -> tuple[int, int]:
        """Where it first and last says that the server is idle; -1 when it never does."""
        return self.text.find(IDLE, self.start, self.end), self.text.rfind(IDLE, self.start, self.end)

    def facts(self) -> Iterator[re.Match[bytes]]:
        """Each fact, whose kind is the match's last group, in the order of the text."""
        matches = [pattern.finditer(self.text, self.start, self.end) for pattern in self._others()]
        facts = SLOT_FACT.finditer(self.text, self.start, self.end)
        return heapq.merge(facts, *matches, key=re.Match.start) if matches else facts

    def _others(self) -> Iterator[re.Pattern[bytes]]:
        """Patterns of rare lines that this stretch may hold."""
        if self._has_line(b"prompt eval") or self._has_line(b"       eval"):
            yield LOOSE_TIME
        if self._has(b"saving prompt"):
            yield SAVED

    def _has_line(self, start: bytes) -> bool:
        return self.text.startswith(start, self.start) or self._has(b"\n" + start)

    def _has(self, text: bytes) -> bool:
        return self.text.find(text, self.start, self.end) >= 0


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """The stream in blocks of whole lines, and of whole requests where a block has some.

    The last may end in a cut line. Bytes without line ends are passed over.
    """
    kept = b""
    while block := stream.read(BLOCK_BYTES):
        if not block.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE_BYTES)
            block += rest
            if len(rest) == LONGEST_LINE_BYTES:
                block = block[: block.rfind(b"\n") + 1] + b"\n"
            while len(rest) == LONGEST_LINE_BYTES and not rest.endswith(b"\n"):
                rest = stream.readline(LONGEST_LINE_BYTES)
        last = block.rfind(b"\n", 0, max(block.rfind(FIRST_LINE), 0)) + 1
        yield kept + block[:last] if last else kept + block
        kept = block[last:] if last else b""
    if kept:
        yield kept


def segments(block: bytes) -> Iterator[tuple[int, int, Sequence[re.Match[bytes]] | None]]:
    """Where the parts of a block begin and end, in order; of a stretch its usual requests, None for other lines."""
    unclean = any(mark in block for mark in UNCLEAN)
    at = 0
    while not unclean and (run := usual_run(block, at)):
        start, requests = run
        yield from _segments(block, at, start, unclean)
        at = requests[-1].end()
        yield start, at, requests
    yield from _segments(block, at, len(block), unclean)


def _segments(
    block: bytes, at: int, stop: int, unclean: bool
) -> Iterator[tuple[int, int, Sequence[re.Match[bytes]] | None]]:
    is_start = block.count(TASK, at, stop) < FEWEST_TASKS
    for match in () if is_start else STRETCH.finditer(block, at, stop):
        start, end = match.span()
        if end - start < SHORTEST_BYTES or (unclean and any(mark in match[0] for mark in UNCLEAN)):
            continue
        if start > at:
            yield at, start, None
        yield start, end, ()
        at = end
    if at < stop:
        yield at, stop, None
