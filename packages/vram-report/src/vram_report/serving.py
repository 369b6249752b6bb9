"""Stretches of request lines, read as a whole: a long log is mostly these.

The rule: a stretch is a run of lines whose starts `QUIET_LINE` knows; it is scanned with a few expressions over the
raw bytes instead of line by line, and gives the same facts in the same order as `records` does for its lines (a law in
the tests). Every other line, and every line behind a wrapper, takes the ordinary way.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from typing import BinaryIO

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
    rb"\n(?:(?P<prompt_time>prompt eval time = +(?P<prompt_ms>\d+\.\d+) ms / +(?P<prompt_n>\d+) tokens)"
    rb"|(?P<eval_time> +eval time = +(?P<eval_ms>\d+\.\d+) ms / +(?P<eval_n>\d+) tokens))"
)
# Marks of a text that must be cleaned up line by line.
UNCLEAN = (b"\x1b", b"\0", b"\r")
SAVED = re.compile(rb"(?P<req_save>saving prompt with length (?P<saved>\d+)(?=[\s,;]))")
IDLE = b"all slots are idle"
BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 23
SHORTEST_BYTES = 1 << 11


class Stretch:
    """Consecutive request lines.

    Attributes:
        text: Their bytes.
        line: Number of the first line.
        lines: How many there are.
    """

    def __init__(self, text: bytes, line: int, lines: int) -> None:
        self.text = text
        self.line = line
        self.lines = lines
        self._counted = (0, line)

    def line_at(self, offset: int) -> int:
        """The number of the line at an offset; cheap when asked for in the order of the text."""
        start, line = self._counted
        if offset < start:
            start, line = 0, self.line
        self._counted = (offset, line + self.text.count(b"\n", start, offset))
        return self._counted[1]

    def idle_offsets(self) -> tuple[int, int]:
        """Where it first and last says that the server is idle; -1 when it never does."""
        return self.text.find(IDLE), self.text.rfind(IDLE)

    def facts(self) -> Iterator[re.Match[bytes]]:
        """Each fact, whose kind is the match's last group, in the order of the text."""
        matches = [pattern.finditer(self.text) for pattern in self._others()]
        facts = SLOT_FACT.finditer(self.text)
        return heapq.merge(facts, *matches, key=re.Match.start) if matches else facts

    def _others(self) -> Iterator[re.Pattern[bytes]]:
        """Patterns of rare lines that this stretch may hold."""
        if b"\nprompt eval" in self.text or b"\n       eval" in self.text:
            yield LOOSE_TIME
        if b"saving prompt" in self.text:
            yield SAVED


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """The stream in blocks of whole lines; the last may end in a cut line. Bytes without line ends are passed over."""
    while block := stream.read(BLOCK_BYTES):
        if not block.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE_BYTES)
            block += rest
            if len(rest) == LONGEST_LINE_BYTES:
                block = block[: block.rfind(b"\n") + 1] + b"\n"
            while len(rest) == LONGEST_LINE_BYTES and not rest.endswith(b"\n"):
                rest = stream.readline(LONGEST_LINE_BYTES)
        yield block


def segments(block: bytes) -> Iterator[tuple[bytes, bool]]:
    """The parts of a block in order, and whether each is a stretch of request lines."""
    unclean = any(mark in block for mark in UNCLEAN)
    at = 0
    for match in STRETCH.finditer(block):
        start, end = match.span()
        if end - start < SHORTEST_BYTES or (unclean and any(mark in match[0] for mark in UNCLEAN)):
            continue
        if start > at:
            yield block[at:start], False
        yield block[start:end], True
        at = end
    if at < len(block):
        yield block[at:], False
