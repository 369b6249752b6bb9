"""The usual request of a serving llama-server, matched whole: one match instead of one for each of its lines.

A request that runs alone, from the choice of its slot to its release, is most of a long log. The rule: a match covers
whole lines of which `serving.QUIET_LINE` knows every one, and holds no fact but the groups; so what `requests` takes
from it is what it would take from the lines one by one (a law in the tests). Requests that overlap, old wordings, lines
that are joined or cut, and anything but printable ASCII are left to `serving`.

The wordings are those of tools/server/server-context.cpp since build 7000 or so, behind the log's clock.
"""

from __future__ import annotations

import re
from functools import cache

__all__ = ["FIRST_LINE", "usual_run"]

CLOCK = rb"[.-9]+ I "
# No bar, because a bar begins what a line says about a task. As ranges, which `re` matches faster than an exception.
REST = rb"[ -{}~]*\n"
SLOT = CLOCK + rb"slot +%s: id +(?P=slot) \| task (?P=task) \| "
NO_TASK = CLOCK + rb"slot +%s: id +\d+ \| task -1 \| %s" + REST
PROMPT = SLOT % rb"(?:operator\(\)|update_slots|init_sampler|create_check)"
TIMING = SLOT % b"print_timing"


def _any(*lines: bytes) -> bytes:
    return rb"(?:" + rb"|".join(lines) + rb")*"


def _may(*lines: bytes) -> bytes:
    """Lines that may be left out together; an empty branch costs `re` less than a `?`."""
    return rb"(?:" + b"".join(lines) + rb"|)"


# No "v", because a joined line that begins with "srv" may say what was saved.
CACHE = CLOCK + rb"srv +(?:get_availabl: |update:  |load:  - )[ -uw-{}~]*\n"
SAVED = CLOCK + rb"srv   prompt_save:  - saving prompt with length (?P<saved>\d+)," + REST
USUAL = (
    CLOCK
    + rb"slot get_availabl: id +(?P<slot>\d+) \| task -1 \| selected slot by (?:LRU|LCP similarity|id)"
    + REST
    + _may(CACHE, _any(CACHE), _may(SAVED), _any(CACHE))
    + _may(NO_TASK % (b"launch_slot_", b"sampler chain: "))
    + _may(
        NO_TASK % (b"launch_slot_", b"sampler params: "),
        *(b"\t" + name + b" = " + REST for name in (b"repeat_last_n", b"dry_multiplier", b"top_k", b"mirostat")),
    )
    + CLOCK
    + rb"slot launch_slot_: id +(?P=slot) \| task (?P<task>\d+) \| processing task"
    + REST
    + _any(
        NO_TASK % (b"process_sing", b"saving idle slot")
        + _may(NO_TASK % (b"prompt_clear", b"clearing prompt with 0 tokens"))
    )
    + PROMPT
    + rb"new prompt, n_ctx_slot = \d+, n_keep = -?\d+, task\.n_tokens = (?P<prompt>\d+)\n"
    + PROMPT
    + rb"(?:cached )?n_tokens = \d+, memory_seq_rm \[(?P<kept>\d+), end\)\n"
    + _any(
        PROMPT + rb"(?:cached )?n_tokens = \d+, memory_seq_rm \[\d+, end\)\n",
        PROMPT + rb"(?:prompt processing (?:progress|done)|init sampler|created context checkpoint)" + REST,
    )
    + TIMING
    + rb"prompt eval time = +(?P<prompt_ms>\d+\.\d+) ms / +(?P<prompt_n>\d+) tokens "
    + REST
    + TIMING
    + rb" +eval time = +(?P<eval_ms>\d+\.\d+) ms / +(?P<eval_n>\d+) tokens "
    + REST
    + _may(TIMING + rb" +total time = " + REST)
    + _may(TIMING + rb" +graphs reused = " + REST)
    + (SLOT % b"release")
    + rb"stop processing: n_tokens = (?P<held>\d+), truncated = (?P<truncated>[01])\n"
    + _any(CLOCK + rb"srv +(?:update_slots|server_strea|log_server_r|params_from_): " + REST)
)
FIRST_LINE = b" | selected slot by "
"""What the first line of a request has in it."""


@cache
def _compiled() -> re.Pattern[bytes]:
    """Compiled when a log has requests: it takes as long as reading a start."""
    return re.compile(USUAL)


def usual_run(block: bytes, at: int) -> tuple[int, list[re.Match[bytes]]] | None:
    """The next usual requests, one directly behind the other.

    Args:
        block: Whole lines.
        at: Offset of a line's start to begin at.

    Returns:
        Where the first one starts, and the matches; None when there is none.
    """
    if FIRST_LINE not in block:
        return None
    usual = _compiled()
    while (found := block.find(FIRST_LINE, at)) >= 0:
        start = max(block.rfind(b"\n", at, found) + 1, at)
        matches = []
        end = start
        while match := usual.match(block, end):
            matches.append(match)
            end = match.end()
        if matches:
            return start, matches
        at = block.find(b"\n", found) + 1
        if not at:
            break
    return None
