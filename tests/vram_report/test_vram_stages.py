"""How far a start has come, by recorded logs of each generation that are read line by line as they grow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from vram_report import READY_REGEX, error_line, is_port_taken, start_stage

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"

# Read by hand: the first line that shows each stage.
STAGES = {
    "cuda-json-slots-2024-01": {
        "making the context": "llama_new_context_with_model: n_ctx",
        "ready": "all slots are idle",
    },
    "ik-deepseek-v3-mla-q8-1gpu": {
        "loading": "llama_model_loader: ",
        "making the context": "llama_new_context_with_model: n_ctx ",
        "ready": "HTTP server listening",
    },
    "xllamacpp-0.1.14.p1": {
        "loading": "load_model: loading model",
        "making the context": "llama_context: constructing llama_context",
        "warming up": "warming up the model",
        "ready": "starting the main loop",
    },
    "cuda-t4-gemma4-moe-iswa-2slots": {
        "loading": "load_model: loading model",
        "fitting": "fitting params to device memory",
        "making the context": "llama_context: constructing llama_context",
        "warming up": "warming up the model",
        "ready": "server is listening on http",
    },
    "xllamacpp-2026.10.11549.gemma-3-270m.p2_mmproj": {
        "loading": "load_model: loading model",
        "fitting": "fitting params to device memory",
        "making the context": "llama_context: constructing llama_context",
        "warming up": "warming up the model",
        "ready": "listening on http",
        "ended": "cleaning up before exit",
    },
    "llama-server-b10068.err_port_busy": {"failed": "couldn't bind HTTP server socket"},
    "llama-server-b10068.err_unknown_flag": {"failed": "error: invalid argument"},
    "llama-server-b10068.err_oom_kv_lv4": {
        "loading": "load_model: loading model",
        "making the context": "llama_context: constructing llama_context",
        "failed": "insufficient memory (attempted",
    },
    "xllamacpp-0.1.0.p1": {"loading": "load_model: loading model", "failed": "error loading model: "},
    "rocm-apertus70b-oom": {"failed": "cudaMalloc failed: out of memory"},
    "vulkan-oom-buffer-limit-segv": {"failed": "Requested buffer size exceeds device"},
}


def lines_of(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_bytes().decode("utf-8", "replace").splitlines(keepends=True)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_begins_at_the_first_line_that_shows_it(name: str) -> None:
    lines = lines_of(name)
    seen: dict[str, str] = {}
    for count, line in enumerate(lines, start=1):
        seen.setdefault(start_stage(lines[:count]), line)
    assert list(seen)[-1] == list(STAGES[name])[-1]
    seen.pop("starting", None)
    assert list(seen) == list(STAGES[name])
    for stage, text in STAGES[name].items():
        if stage != "making the context" or "fitting" not in STAGES[name]:
            assert text in seen[stage], stage


def test_trial_loads_are_fitting_whatever_they_print() -> None:
    lines = lines_of("llama-server-b10068.debug_lv5")
    first = next(index for index, line in enumerate(lines) if "fitting params to device memory" in line)
    last = next(index for index, line in enumerate(lines) if "successfully fit params" in line)
    trials = [line for line in lines[first:last] if "llama_model_loader: loaded meta data" in line]
    assert trials
    assert {start_stage(lines[:count]) for count in range(first + 1, last + 1, 20)} == {"fitting"}
    assert start_stage(lines[: last + 1]) == "loading"


def test_a_retry_after_a_failed_allocation_goes_on() -> None:
    lines = lines_of("cuda-m3-retry-no-pipeline-prefix")
    retry = next(index for index, line in enumerate(lines) if "retrying without pipeline" in line)
    assert start_stage(lines[:retry]) == "failed"
    assert start_stage(lines[: retry + 1]) != "failed"


def test_a_restart_begins_again() -> None:
    lines = lines_of("xllamacpp-0.1.14.p1")
    assert start_stage(lines) == "ready"
    assert start_stage([*lines, "build: 5129 (526739b8) with cc (GCC) 10.2.1 for x86_64-redhat-linux\n"]) == "starting"


def test_nothing_is_starting() -> None:
    assert start_stage([]) == "starting"
    assert start_stage(["what another program printed\n"]) == "starting"


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_the_ready_expression_finds_what_the_stage_says(path: Path) -> None:
    lines = lines_of(path.stem)
    watched = next((count for count, line in enumerate(lines, start=1) if re.search(READY_REGEX, line)), len(lines))
    # Builds of 2024 listen before they load; what they print next, "all slots are idle", is cut off some logs.
    listens_early = any("HTTP server listening" in line for line in lines)
    says = re.search(READY_REGEX, lines[watched - 1]) is not None
    assert (start_stage(lines[:watched]) == "ready") == (says or listens_early)


@pytest.mark.parametrize(
    "line",
    [
        "0.00.031.819 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8099\n",
        "start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8099\n",
        "couldn't bind to server socket: hostname=127.0.0.1 port=8080\n",
        "llama-1  | start: couldn't bind HTTP server socket, hostname: 0.0.0.0, port: 8080\n",
    ],
)
def test_each_wording_of_a_taken_port_is_known(line: str) -> None:
    assert is_port_taken([line])
    assert start_stage([line]) == "failed"


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_no_other_log_says_that_the_port_is_taken(path: Path) -> None:
    assert is_port_taken(lines_of(path.stem)) == path.stem.endswith("err_port_busy")


# Read by hand: the last line that tells of an error, without the one that says that the server exits.
ERRORS = {
    "llama-server-b10068.err_port_busy": "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8099",
    "llama-server-b10068.err_unknown_flag": "error: invalid argument: --no-such-flag",
    "llama-server-b10068.err_missing_model": "failed to load model, '/nonexistent.gguf'",
    "llama-server-b10068.err_oom_kv_lv4": "failed to create context with model 'models/gemma-3-270m-q4_k_m.gguf'",
    "rocm-apertus70b-oom": "failed to load model, 'models/large/Apertus-70B-Instruct-2509-IQ4_XS.gguf'",
    "vulkan-oom-buffer-limit-segv": "Segmentation fault (core dumped)",
    "ik-2x3090-qwen3-235b-oom": "Aborted",
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("wrapper", ["", "\x1b[31m", "2026-05-04T03:02:01.123456789Z stderr F ", "[60123] "])
def test_the_last_error_line_is_found_behind_any_wrapper(name: str, wrapper: str) -> None:
    found = error_line(wrapper + line for line in lines_of(name))
    assert found is not None
    assert found.endswith(ERRORS[name])
    assert "\x1b" not in found


@pytest.mark.parametrize("path", sorted(LOGS.glob("xllamacpp-2026.*.log")), ids=lambda path: path.stem)
def test_a_clean_start_has_no_error_line(path: Path) -> None:
    assert error_line(lines_of(path.stem)) is None
