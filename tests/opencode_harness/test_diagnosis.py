"""What is told of a trial that did not pass: each cause from hand-made requests and llama-server's own lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opencode_harness.diagnosis import Diagnosis, Facts, diagnose
from opencode_harness.journal import Exchange
from opencode_harness.outcomes import Outcome
from opencode_harness.server_log import LogLine, lines_since, log_mark, task_of, vram_of

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
# From an embedded server (build 11549) at work for two trials at once; the answers' timings beside it.
LOG = """\
0.49.883.150 I slot   operator(): id  2 | task 6 | new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = 2246
1.35.647.799 I slot print_timing: id  2 | task 6 | prompt eval time =   30560.66 ms /  2246 tokens
1.35.648.361 I slot      release: id  2 | task 6 | stop processing: n_tokens = 2309, truncated = 0
1.41.545.099 I slot print_timing: id  0 | task 4 | prompt eval time =   47255.12 ms /  2247 tokens
"""
TIMINGS = {"cache_n": 0, "prompt_n": 2246, "prompt_ms": 30560.664, "predicted_n": 64}


def exchange(number: int = 1, lane: str = "main", **parts: Any) -> Exchange:
    return Exchange(number, lane, "ses_1", ("main",), parts.pop("request", {}), parts.pop("started_s", 5.0), **parts)


def lines(text: str = LOG) -> tuple[LogLine, ...]:
    return tuple(LogLine(number, line) for number, line in enumerate(text.splitlines(), start=101))


def diagnosed(*exchanges: Exchange, outcome: Outcome = Outcome.FAIL, **facts: Any) -> Diagnosis:
    found = diagnose(Facts(outcome, exchanges, **facts))
    assert found is not None
    return found


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.SKIP])
def test_what_passed_or_was_skipped_has_no_diagnosis(outcome: Outcome) -> None:
    assert diagnose(Facts(outcome, [exchange(error="HTTP status 500")])) is None


def test_a_diagnosis_names_turn_request_slot_task_lines_memory_and_moment() -> None:
    found = diagnosed(
        exchange(1, "title"),
        exchange(2, timings=TIMINGS, finish_reason="length", started_s=23.9),
        lines=lines(),
        vram_mib={"CUDA0": 22937.4},
        terminal_started_s=0.5,
    )
    assert (found.cause, found.request, found.lane, found.turn, found.slot, found.task, found.cast_s) == (
        "length-stop",
        2,
        "main",
        1,
        2,
        6,
        23.4,
    )
    assert [line.split(":")[0] for line in found.log_lines] == ["101", "102", "103"]
    told = "\n".join(found.lines())
    assert "turn 1 of the main conversation, request 2, slot 2, task 6, 23.4 s into the recording" in told
    assert "the server holds: CUDA0 22937 MiB" in told


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("E srv    send_error: task id = 4, error: the request exceeds the available context size", "context-overflow"),
        ("W slot update_slots: id 0 | task 9 | slot context shift, n_keep = 0, n_left = 4095", "context-overflow"),
        ("I slot      release: id  0 | task 9 | stop processing: n_tokens = 8191, truncated = 1", "context-overflow"),
        ("E decode: failed to find free space in the KV cache, retrying with smaller batch size", "kv-cache-full"),
        (
            "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9 MiB: cudaMalloc failed: out of memory",
            "out-of-memory",
        ),
        ("ggml_vulkan: Requested buffer size exceeds device limit: ErrorOutOfDeviceMemory", "out-of-memory"),
        (
            "W slot update_slots: id 0 | task 9 | forcing full prompt re-processing due to lack of cache data",
            "prompt-reprocessing",
        ),
        ("E srv operator(): got exception: Jinja Exception: raise_exception('roles must alternate')", "template-error"),
    ],
)
def test_the_servers_own_lines_tell_the_cause_and_are_quoted(line: str, cause: str) -> None:
    found = diagnosed(exchange(), lines=[LogLine(7, "I slot is fine"), LogLine(8, line)])
    assert (found.cause, found.log_lines) == (cause, (f"8: {line}",))


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({"error": "the request exceeds the available context size, try increasing it"}, "context-overflow"),
        ({"error": "Failed to parse input at pos 33: <tool_call>"}, "parser-error"),
        ({"text": '<tool_call>\n{"name": "read"}\n</tool_call>'}, "tool-call-as-text"),
        ({"finish_reason": "length"}, "length-stop"),
        ({"error": "the server hung up"}, "server-error"),
        ({"text": "The fruit is plum."}, None),
    ],
)
def test_what_passed_the_proxy_tells_the_cause_and_the_request(parts: dict[str, Any], cause: str | None) -> None:
    found = diagnosed(exchange(1), exchange(2, **parts))
    assert (found.cause, found.request, found.turn) == (cause, 2, 2)


def test_a_dialog_that_nobody_answered_is_told_before_all_else() -> None:
    found = diagnosed(
        exchange(finish_reason="length"), outcome=Outcome.AGENT_STUCK, open_dialog="△ Permission required"
    )
    assert found.cause == "dialog-unanswered"
    assert "△ Permission required" in found.summary


@pytest.mark.parametrize(("told", "real", "cause"), [(32768, 8192, "limit-context-above-server"), (8192, 8192, None)])
def test_a_context_that_the_server_does_not_have_is_told(told: int, real: int, cause: str | None) -> None:
    assert diagnosed(exchange(), context_tokens=told, n_ctx_slot=real).cause == cause


def test_a_server_that_lost_its_cache_is_told() -> None:
    system = {"role": "system", "content": "You are opencode."}
    first = exchange(1, request={"messages": [system]}, timings={"cache_n": 0, "prompt_n": 9000})
    second = exchange(2, request={"messages": [system, system]}, timings={"cache_n": 0, "prompt_n": 9100})
    found = diagnosed(first, second)
    assert (found.cause, found.request) == ("cache-lost", 2)
    assert "9000 tokens again" in found.summary


def test_a_trial_without_any_request_still_says_something() -> None:
    found = diagnosed(outcome=Outcome.INFRA)
    assert (found.cause, found.request, found.cast_s) == (None, None, None)
    assert found.lines() == [
        "likeliest cause: nothing in the requests or the server's log explains it; see the recording"
    ]


@pytest.mark.parametrize(
    "timings", [None, {}, {"prompt_ms": 30560.7, "prompt_n": 2246}, {"prompt_ms": "x", "prompt_n": 1}]
)
def test_timings_of_no_task_belong_to_none(timings: dict[str, Any] | None) -> None:
    assert task_of(timings, lines()) is None


def test_only_what_was_written_since_and_by_own_slots_is_read(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("before\nbefore too\n")
    mark = log_mark(path)
    with path.open("a") as file:
        file.write(LOG)
    assert [line.number for line in lines_since(path, mark)] == [3, 4, 5, 6]
    assert [line.number for line in lines_since(path, mark, slots=(2, 3))] == [3, 4, 5]
    path.unlink()
    assert lines_since(path, mark) == ()
    assert log_mark(path) is None
    assert lines_since(None, None) == ()


def test_what_the_server_holds_is_read_from_its_log() -> None:
    held = vram_of(LOGS / "llama-server-b10068.p16_unified_q8kv_lv4.log")
    assert held
    assert all(mib > 0 for mib in held.values())
    assert vram_of(LOGS / "no-such.log") == {}
