"""What the server did after its start, against values counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from vram_report import Requests, Run, parse, read_log

FOLDER = Path(__file__).parents[2] / "fixtures" / "logs"
SERVING = ["main: model loaded\n", "srv  update_slots: all slots are idle\n"]


def served(*lines: str) -> Run:
    (run,) = parse([*SERVING, *(line + "\n" for line in lines)])
    return run


def requests_of(*lines: str) -> Requests:
    requests = served(*lines).requests
    assert requests is not None
    return requests


def codes(run: Run) -> set[str]:
    return {finding.code for finding in run.findings}


def test_four_requests_of_a_recorded_start() -> None:
    requests = read_log(FOLDER / "cuda-4xA6000-qwen35moe-2starts.log").runs[0].requests
    assert requests is not None
    assert requests.count == 4
    assert requests.prompt_tokens_computed == 1198 + 4 + 95 + 4
    assert requests.prompt_tokens_reused == 0 + 1194 + 1194 + 1285
    assert requests.generated_tokens == 168 + 332
    assert requests.prompt_tokens_per_second == pytest.approx((1198 + 95) / (0.61601 + 0.14047), abs=0.01)
    assert requests.max_slot_tokens == 1620


def test_timing_on_the_line_of_its_task_belongs_to_that_task() -> None:
    requests = read_log(FOLDER / "llama-server-b10068.slotsave_metrics_lv4.log").runs[0].requests
    assert requests is not None
    assert (requests.count, requests.prompt_tokens_computed, requests.prompt_tokens_reused) == (1, 7, 0)
    assert (requests.generated_tokens, requests.tokens_per_second) == (8, 82.06)


def test_a_log_that_ends_with_the_start_has_no_requests() -> None:
    assert served().requests is None


def test_full_reprocessing_carries_line_and_stated_reason() -> None:
    run = served(
        "slot launch_slot_: id  2 | task 319 | processing task, is_child = 0",
        "slot update_slots: id  2 | task 319 | forcing full prompt re-processing due to lack of cache data (likely due "
        "to SWA or hybrid/recurrent memory, see https://example.org/pull/13194)",
    )
    assert run.requests is not None
    (full,) = run.requests.full_reprocessings
    assert (full.line, full.reason) == (4, "lack of cache data, likely due to SWA or hybrid/recurrent memory")
    assert "full-reprocessing" in codes(run)


@pytest.mark.parametrize(
    "error",
    [
        "Context size has been exceeded.",
        "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
        "the request exceeds the available context size. try increasing the context size or enable context shift",
    ],
)
def test_context_errors_are_counted(error: str) -> None:
    run = served(f"srv    send_error: task id = 7, error: {error}")
    assert run.requests is not None
    assert run.requests.context_exceeded == 1
    assert "context-exceeded" in codes(run)


def test_truncated_releases_are_counted() -> None:
    run = served(
        "slot      release: id  0 | task 1 | stop processing: n_tokens = 4096, truncated = 1",
        "slot      release: id  0 | task 2 | stop processing: n_past = 100, truncated = 0",
    )
    assert run.requests is not None
    assert (run.requests.truncated, run.requests.max_slot_tokens) == (1, 4096)
    assert "truncated" in codes(run)


TAKEOVER = (
    "slot      release: id  0 | task 1 | stop processing: n_tokens = 9000, truncated = 0",
    "slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, sim_best = 0.200 (> 0.1 thold)",
    "{}",
    "slot launch_slot_: id  0 | task 5 | processing task, is_child = 0",
    "slot update_slots: id  0 | task 5 | new prompt, n_ctx_slot = 16384, n_keep = 0, task.n_tokens = 4000",
    "slot update_slots: id  0 | task 5 | n_tokens = 900, memory_seq_rm [900, end)",
)


def test_a_slot_taken_from_another_prompt_is_reported_with_the_loss() -> None:
    run = served(*(line.format("srv  get_availabl: updating prompt cache") for line in TAKEOVER))
    (finding,) = [finding for finding in run.findings if finding.code == "slot-taken"]
    assert "8,100 cached tokens were lost" in finding.message
    assert "task 5, which took slot 0 from task 1" in finding.message
    assert finding.line == 8


def test_a_prompt_saved_before_its_slot_is_taken_is_not_lost() -> None:
    saved = "srv   prompt_save:  - saving prompt with length 9000, total state size = 67.7 MiB"
    assert "slot-taken" not in codes(served(*(line.format(saved) for line in TAKEOVER)))


def test_text_generation_of_the_first_slot_server_is_counted() -> None:
    requests = requests_of(
        'INFO [      launch_slot_with_task] slot is processing task | tid="1" timestamp=1 id_slot=0 id_task=3',
        "INFO [           print_timings] prompt eval time     =     616.01 ms /  1198 tokens (    0.51 ms per token,  "
        '1944.76 tokens per second) | tid="1" id_slot=0 id_task=3',
        'INFO [            update_slots] slot released | tid="1" id_slot=0 id_task=3 n_ctx=8192 n_past=1365 '
        "n_system_tokens=0 n_cache_tokens=1365 truncated=false",
    )
    assert (requests.count, requests.prompt_tokens_computed, requests.max_slot_tokens) == (1, 1198, 1365)
