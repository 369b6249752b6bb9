"""What the server did after its start: requests, reuse of cached prompts, speed, and whose slot was taken.

The rule: a request is followed from its launch to its release by its task number; what is kept of it afterwards are
sums, so memory does not grow with the log (only full re-processings, which are rare, are listed).

Tokens kept from the cache are those before the first position that the server removes ("memory_seq_rm [N, end)");
tokens computed are those of its timing line, or the rest of the prompt when the request was cancelled after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from vram_report.document import FullReprocessing, Requests
from vram_report.records import Record
from vram_report.serving import SLOT_FACT, Stretch

__all__ = ["REQUEST_KINDS", "RequestFacts", "Takeover", "summarize", "take_request", "take_stretch"]


Match = re.Match[bytes]
USUAL_GROUPS = ("slot", "task", "kept", "prompt_n", "eval_n", "held", "prompt_ms", "eval_ms", "saved", "truncated")


@dataclass(eq=False, repr=False)
class Task:
    """One request while it runs."""

    slot: int | None = None
    prompt_tokens: int | None = None
    kept: int | None = None
    computed: int | None = None
    prompt_done: bool = False


@dataclass(eq=False, repr=False)
class Held:
    """What a slot holds between requests."""

    task: int
    tokens: int


@dataclass(frozen=True)
class Takeover:
    """A request that took a slot holding another prompt."""

    line: int
    slot: int
    task: int
    previous_task: int
    held: int
    kept: int


@dataclass(eq=False, repr=False)
class RequestFacts:
    """Sums over the requests of a run, and the requests still running."""

    launched: int = 0
    timed: int = 0
    computed: int = 0
    reused: int = 0
    reuse_known: bool = False
    computed_known: bool = False
    prompt_ms: float = 0.0
    prompt_timed_tokens: int = 0
    eval_ms: float = 0.0
    generated: int = 0
    generated_known: bool = False
    full: list[FullReprocessing] = field(default_factory=list)
    truncated: int = 0
    truncated_line: int | None = None
    exceeded: int = 0
    exceeded_line: int | None = None
    max_slot_tokens: int | None = None
    running: dict[int, Task] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    saved_tokens: set[int] = field(default_factory=set)
    timing_task: int | None = None
    takeovers: int = 0
    tokens_lost: int = 0
    worst_takeover: Takeover | None = None

    def task(self, slot: int, number: int) -> Task:
        """The running request of that number."""
        task = self.running.get(number)
        if task is None:
            task = self.running[number] = Task(slot=slot)
        return task


def _number(fields: Mapping[str, str | None], key: str) -> int:
    return int(fields[key] or 0)


def take_request(facts: RequestFacts, record: Record) -> None:
    """Add one record of kind `req_*`."""
    HANDLERS[record.kind](facts, record)


def take_stretch(facts: RequestFacts, stretch: Stretch) -> tuple[int, int] | None:
    """Add all facts of a stretch of request lines; returns an offset in the first and in the last one's line."""
    if stretch.requests:
        _take_usual(facts, stretch)
        return stretch.requests[0].start("slot"), stretch.requests[-1].start("held")
    first = last = None
    for match in stretch.facts():
        STRETCH_HANDLERS[match.lastgroup or ""](facts, match, stretch)
        first, last = first or match, match
    return (first.end() - 1, last.end() - 1) if first and last else None


def _take_usual(facts: RequestFacts, stretch: Stretch) -> None:
    """Add requests that ran one after the other, all at once, as their lines would in their order."""
    requests = stretch.requests
    texts = zip(*(request.group(*USUAL_GROUPS) for request in requests), strict=True)
    slots, numbers, kept, computed, generated, held, prompt_ms, eval_ms, saved, truncated = texts
    n_computed, n_kept, n_held = (list(map(int, column)) for column in (computed, kept, held))
    facts.launched += len(requests)
    facts.timed += len(requests)
    facts.timing_task = int(numbers[-1])
    facts.computed, facts.computed_known = facts.computed + sum(n_computed), True
    facts.reused, facts.reuse_known = facts.reused + sum(n_kept), True
    facts.generated, facts.generated_known = facts.generated + sum(map(int, generated)), True
    facts.prompt_timed_tokens += sum(n_computed)
    facts.prompt_ms = reduce(add, map(float, prompt_ms), facts.prompt_ms)
    facts.eval_ms = reduce(add, map(float, eval_ms), facts.eval_ms)
    facts.max_slot_tokens = max(facts.max_slot_tokens or 0, *n_held)
    for index, (slot, number) in enumerate(zip(map(int, slots), map(int, numbers), strict=True)):
        facts.saved_tokens = {int(saved[index])} if saved[index] else set()
        before = _lost(facts, slot, n_kept[index])
        if before is not None and _take_over(facts, before, n_kept[index]):
            line = stretch.line_at(requests[index].start("kept"))
            facts.worst_takeover = Takeover(line, slot, number, before.task, before.tokens, n_kept[index])
        facts.held[slot] = Held(number, n_held[index])
        facts.running.pop(number, None)
        if truncated[index] == b"1":
            _truncate(facts, stretch.line_at(requests[index].start("held")))


def _launch(facts: RequestFacts, slot: int, number: int) -> None:
    facts.launched += 1
    facts.running[number] = Task(slot=slot)


def _keep(facts: RequestFacts, slot: int, number: int, kept: int) -> Held | None:
    """Note the tokens kept from the cache; returns what the slot held when most of it was lost."""
    task = facts.task(slot, number)
    if task.kept is not None:
        return None
    task.kept = kept
    return _lost(facts, slot, kept)


def _lost(facts: RequestFacts, slot: int, kept: int) -> Held | None:
    """What the slot held, unless most of it was kept or had been saved."""
    held = facts.held.pop(slot, None)
    if held is None or held.tokens in facts.saved_tokens or kept * 2 >= held.tokens:
        return None
    return held


def _take_over(facts: RequestFacts, held: Held, kept: int) -> bool:
    """Count a request that took a slot from another prompt; returns whether it lost more than any before."""
    lost = held.tokens - kept
    facts.takeovers += 1
    facts.tokens_lost += lost
    worst = facts.worst_takeover
    return worst is None or lost > worst.held - worst.kept


def _time_prompt(facts: RequestFacts, ms: float, tokens: int) -> None:
    facts.timed += 1
    facts.prompt_timed_tokens += tokens
    facts.prompt_ms += ms
    task = facts.running.get(facts.timing_task) if facts.timing_task is not None else None
    if task is None:
        facts.computed, facts.computed_known = facts.computed + tokens, True
    else:
        task.computed = tokens


def _time_answer(facts: RequestFacts, ms: float, tokens: int) -> None:
    facts.generated += tokens
    facts.generated_known = True
    facts.eval_ms += ms


def _release(facts: RequestFacts, slot: int, number: int, tokens: int) -> None:
    facts.max_slot_tokens = max(tokens, facts.max_slot_tokens or 0)
    facts.held[slot] = Held(number, tokens)
    _count(facts, facts.running.pop(number, None))


def _truncate(facts: RequestFacts, line: int) -> None:
    facts.truncated += 1
    facts.truncated_line = facts.truncated_line or line


def _reprocess(facts: RequestFacts, line: int, reason: str, detail: str | None) -> None:
    facts.full.append(FullReprocessing(line, f"{reason}, likely due to {detail}" if detail else reason))


def _count(facts: RequestFacts, task: Task | None) -> None:
    if task is None:
        return
    kept, computed = task.kept, task.computed
    if computed is None and task.prompt_done and task.prompt_tokens is not None and kept is not None:
        computed = task.prompt_tokens - kept
    if kept is None and computed is not None and task.prompt_tokens is not None:
        kept = max(0, task.prompt_tokens - computed)
    if computed is not None:
        facts.computed, facts.computed_known = facts.computed + computed, True
    if kept is not None:
        facts.reused, facts.reuse_known = facts.reused + kept, True


def _on_select(facts: RequestFacts, record: Record) -> None:
    facts.saved_tokens.clear()


def _on_save(facts: RequestFacts, record: Record) -> None:
    facts.saved_tokens.add(_number(record.fields, "tokens"))


def _on_clear(facts: RequestFacts, record: Record) -> None:
    facts.held.pop(_number(record.fields, "slot"), None)


def _on_launch(facts: RequestFacts, record: Record) -> None:
    _launch(facts, _number(record.fields, "slot"), _number(record.fields, "task"))


def _task_of(facts: RequestFacts, record: Record) -> Task:
    return facts.task(_number(record.fields, "slot"), _number(record.fields, "task"))


def _on_prompt(facts: RequestFacts, record: Record) -> None:
    _task_of(facts, record).prompt_tokens = _number(record.fields, "tokens")


def _on_kept(facts: RequestFacts, record: Record) -> None:
    slot, number, kept = (_number(record.fields, key) for key in ("slot", "task", "tokens"))
    before = _keep(facts, slot, number, kept)
    if before is not None and _take_over(facts, before, kept):
        facts.worst_takeover = Takeover(record.line, slot, number, before.task, before.tokens, kept)


def _on_done(facts: RequestFacts, record: Record) -> None:
    _task_of(facts, record).prompt_done = True


def _on_timing(facts: RequestFacts, record: Record) -> None:
    facts.timing_task = _number(record.fields, "task")


def _on_prompt_time(facts: RequestFacts, record: Record) -> None:
    _time_prompt(facts, float(record.fields["ms"] or 0), _number(record.fields, "tokens"))


def _on_eval_time(facts: RequestFacts, record: Record) -> None:
    _time_answer(facts, float(record.fields["ms"] or 0), _number(record.fields, "tokens"))


def _on_release(facts: RequestFacts, record: Record) -> None:
    if record.fields["truncated"] in ("1", "true"):
        _truncate(facts, record.line)
    _release(facts, *(_number(record.fields, key) for key in ("slot", "task", "tokens")))


def _on_full(facts: RequestFacts, record: Record) -> None:
    _reprocess(facts, record.line, record.fields["reason"] or "", record.fields["detail"])


def _on_exceeded(facts: RequestFacts, record: Record) -> None:
    facts.exceeded += 1
    facts.exceeded_line = facts.exceeded_line or record.line


HANDLERS: dict[str, Callable[[RequestFacts, Record], None]] = {
    "req_select": _on_select,
    "req_save": _on_save,
    "req_clear": _on_clear,
    "req_launch": _on_launch,
    "req_prompt": _on_prompt,
    "req_kept": _on_kept,
    "req_done": _on_done,
    "req_timing": _on_timing,
    "req_prompt_time": _on_prompt_time,
    "req_eval_time": _on_eval_time,
    "req_release": _on_release,
    "req_full": _on_full,
    "req_exceeded": _on_exceeded,
}

REQUEST_KINDS = frozenset(HANDLERS)
"""The kinds of records that this module takes."""

NO_TASK = b"-1"


def _at_select(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    if match[2] == NO_TASK:
        facts.saved_tokens.clear()


def _at_save(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    facts.saved_tokens.add(int(match["saved"]))


def _at_clear(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    if match[2] == NO_TASK:
        facts.held.pop(int(match[1]), None)


def _at_launch(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    _launch(facts, int(match[1]), int(match[2]))


def _at_prompt(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    number = int(match[2])
    (facts.running.get(number) or facts.task(int(match[1]), number)).prompt_tokens = int(match["prompt"])


def _at_kept(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    slot, number, kept = int(match[1]), int(match[2]), int(match["kept"])
    before = _keep(facts, slot, number, kept)
    if before is not None and _take_over(facts, before, kept):
        line = stretch.line_at(match.start())
        facts.worst_takeover = Takeover(line, slot, number, before.task, before.tokens, kept)


def _at_done(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    facts.task(int(match[1]), int(match[2])).prompt_done = True


def _at_timing(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    facts.timing_task = int(match[2])


def _at_prompt_time(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    if match.re is SLOT_FACT:
        facts.timing_task = int(match[2])
    _time_prompt(facts, float(match["prompt_ms"]), int(match["prompt_n"]))


def _at_eval_time(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    _time_answer(facts, float(match["eval_ms"]), int(match["eval_n"]))


def _at_release(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    if match["truncated"] == b"1":
        _truncate(facts, stretch.line_at(match.start()))
    _release(facts, int(match[1]), int(match[2]), int(match["held"]))


def _at_full(facts: RequestFacts, match: Match, stretch: Stretch) -> None:
    detail = match["detail"]
    text = detail.decode("utf-8", "replace") if detail else None
    _reprocess(facts, stretch.line_at(match.start()), match["reason"].decode("utf-8", "replace"), text)


STRETCH_HANDLERS: dict[str, Callable[[RequestFacts, Match, Stretch], None]] = {
    "req_select": _at_select,
    "req_save": _at_save,
    "req_clear": _at_clear,
    "req_launch": _at_launch,
    "req_prompt": _at_prompt,
    "req_kept": _at_kept,
    "req_done": _at_done,
    "req_timing": _at_timing,
    "prompt_time": _at_prompt_time,
    "eval_time": _at_eval_time,
    "req_release": _at_release,
    "req_full": _at_full,
}


def _rate(tokens: int, ms: float) -> float | None:
    return round(1000 * tokens / ms, 2) if ms > 0 else None


def summarize(facts: RequestFacts) -> Requests | None:
    """The requests of a run, or None when its lines end with the start."""
    seen = max(facts.launched, facts.timed)
    if not seen and not facts.full and not facts.exceeded and facts.max_slot_tokens is None:
        return None
    running = [task for task in facts.running.values() if task.computed is not None or task.prompt_done]
    totals = RequestFacts(computed=facts.computed, reused=facts.reused)
    totals.computed_known, totals.reuse_known = facts.computed_known, facts.reuse_known
    for task in running:
        _count(totals, task)
    return Requests(
        count=seen,
        prompt_tokens_computed=totals.computed if totals.computed_known else None,
        prompt_tokens_reused=totals.reused if totals.reuse_known else None,
        prompt_tokens_per_second=_rate(facts.prompt_timed_tokens, facts.prompt_ms),
        generated_tokens=facts.generated if facts.generated_known else None,
        tokens_per_second=_rate(facts.generated, facts.eval_ms),
        full_reprocessings=facts.full,
        truncated=facts.truncated,
        context_exceeded=facts.exceeded,
        max_slot_tokens=facts.max_slot_tokens,
    )
