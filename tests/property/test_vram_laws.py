"""Laws of reading logs: how a log is wrapped, cut and mixed never changes what it says, nor invents anything."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vram_report import Run, VRAMReportError, parse, read_stream, report_document

FOLDER = Path(__file__).parents[2] / "fixtures" / "logs"
LOGS = {path.stem: path.read_bytes() for path in sorted(FOLDER.glob("*.log"))}
SMALL = sorted(name for name, raw in LOGS.items() if len(raw) < 20_000)
COMPLETE = (
    "xllamacpp-2026.10.11549.p4_divided",
    "xllamacpp-0.1.14.p1",
    "xllamacpp-0.2.6.p4_unified",
    "llama-server-b10068.rpc2_ts31_lv4",
    "cuda-1660ti-qwen3-ngl0-b5285",
    "metal-gemma4-iswa-mmproj",
    "ik-2xT4-rowsplit-qwen3-32b",
)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
unhurried = settings(deadline=None)  # a whole log is parsed at each example, on machines of any speed
names = st.sampled_from(SMALL)
complete_names = st.sampled_from(COMPLETE)


def lines_of(name: str) -> list[str]:
    return LOGS[name].decode("utf-8", "replace").splitlines(keepends=True)


def observed(runs: list[Run]) -> list[object]:
    """What runs say, without where it stands."""
    found: list[object] = []
    for run in runs:
        document = dataclasses.asdict(run)
        for key in ("first_line", "last_line"):
            del document[key]
        found.append(without_lines(document))
    return found


def without_lines(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_lines(item) for key, item in value.items() if key != "line"}
    if isinstance(value, list):
        return [without_lines(item) for item in value]
    return value


@unhurried
@given(complete_names, st.integers(0, 20_000))
def test_a_log_cut_at_any_byte_never_invents_a_number(name: str, cut: int) -> None:
    (whole,) = parse(lines_of(name))
    sizes = {(b.kind, b.buffer, b.role, b.part): b.mib for b in whole.buffers}
    try:
        runs = read_stream(io.BytesIO(LOGS[name][:cut])).runs
    except VRAMReportError:
        return
    for run in runs:
        for field in dataclasses.fields(run.model):
            value = getattr(run.model, field.name)
            assert value is None or field.name == "path" or value == getattr(whole.model, field.name)
        for field in dataclasses.fields(run.context):
            value = getattr(run.context, field.name)
            assert value is None or field.name == "flash_attn" or value == getattr(whole.context, field.name)
        for buffer in run.buffers:
            key = (buffer.kind, buffer.buffer, buffer.role, buffer.part)
            unsplit = (buffer.kind, buffer.buffer, buffer.role, "non-swa")
            assert buffer.mib <= sizes.get(key, sizes.get(unsplit, -1.0))


@unhurried
@given(complete_names, st.data())
def test_a_cut_start_or_end_keeps_every_buffer_of_the_lines_left(name: str, data: st.DataObject) -> None:
    lines = lines_of(name)
    first = data.draw(st.integers(0, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    left = "".join(lines[first:last])
    for run in parse(lines[first:last]):
        for buffer in run.buffers:
            assert f"{buffer.buffer} " in left or f"{buffer.buffer}\n" in left


PREFIXES = {
    "docker": "2026-05-04T03:02:01.123456789Z ",
    "kubernetes": "2026-05-04T03:02:01.123456789Z stderr F ",
    "compose": "llama-1  | ",
    "journald": "May 04 03:02:01 host llama-server[1234]: ",
    "router child": "[60123] ",
    "bindings": "[llama Info]: ",
    "compose behind docker": "llama-1  | 2026-05-04T03:02:01.123456789Z ",
}


@pytest.mark.parametrize("wrapper", PREFIXES)
@unhurried
@given(name=complete_names)
def test_a_prefix_changes_nothing(wrapper: str, name: str) -> None:
    lines = lines_of(name)
    assert observed(parse(PREFIXES[wrapper] + line for line in lines)) == observed(parse(lines))


@unhurried
@given(complete_names, st.sampled_from(["\x1b[0m", "\x1b[32m", "\x1b[1;31m"]))
def test_colour_changes_nothing(name: str, colour: str) -> None:
    lines = lines_of(name)
    coloured = (f"{colour}{line.rstrip()}\x1b[0m\n" for line in lines)
    assert observed(parse(coloured)) == observed(parse(line.rstrip() + "\n" for line in lines))


@unhurried
@given(complete_names)
def test_json_lines_change_nothing(name: str) -> None:
    lines = [line for line in lines_of(name) if line.strip()]
    wrapped = (json.dumps({"log": line, "stream": "stderr"}) + "\n" for line in lines)
    assert observed(parse(wrapped)) == observed(parse(lines))


@unhurried
@given(names, st.sampled_from(["crlf", "utf-16", "utf-16-le", "gzip", "nul"]))
def test_encoding_changes_nothing(name: str, how: str) -> None:
    raw = LOGS[name]
    text = raw.decode("utf-8", "replace")
    encoded = {
        "crlf": text.replace("\n", "\r\n").encode(),
        "utf-16": text.encode("utf-16"),
        "utf-16-le": text.encode("utf-16-le"),
        "gzip": gzip.compress(text.encode()),
        "nul": text.replace("\n", "\0\n").encode(),
    }[how]
    plain = read_stream(io.BytesIO(text.encode())).runs
    assert observed(read_stream(io.BytesIO(encoded)).runs) == observed(plain)


@unhurried
@given(names, st.binary(max_size=200), st.integers(0, 20_000))
def test_bytes_thrown_in_never_raise(name: str, noise: bytes, where: int) -> None:
    raw = LOGS[name]
    with contextlib.suppress(VRAMReportError):
        read_stream(io.BytesIO(raw[:where] + noise + raw[where:]))


@unhurried
@given(names, st.lists(st.integers(0, 400), max_size=5))
def test_lost_line_ends_never_raise_nor_invent_a_buffer(name: str, joined: list[int]) -> None:
    lines = lines_of(name)
    glued = [line.rstrip("\r\n") if number in joined else line for number, line in enumerate(lines)]
    runs = parse("".join(glued).splitlines(keepends=True))
    sizes = {b.mib for run in parse(lines) for b in run.buffers}
    printed = {float(text) for text in NUMBER.findall("".join(lines))}
    # Where a lost line end hides which of two caches a line is about, they are one.
    folded = {round(one + other, 2) for one in sizes for other in sizes}
    for run in runs:
        for buffer in run.buffers:
            assert buffer.mib in sizes | printed | folded


@unhurried
@given(complete_names, st.integers(2, 3))
def test_a_repeated_log_is_as_many_equal_runs(name: str, times: int) -> None:
    lines = lines_of(name)
    once = observed(parse(lines))
    assert observed(parse(lines * times)) == once * times


REQUEST_LINES = st.sampled_from(
    [
        "slot update_slots: id  3 | task 0 | prompt processing progress, n_tokens = 682, batch.n_tokens = 682\n",
        "srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200\n",
        "slot update_slots: id  3 | task 0 | created context checkpoint 1 of 32 (pos_min = 1, size = 62.813 MiB)\n",
        "srv        update:  - cache state: 0 prompts, 0.000 MiB (limits: 8192.000 MiB, 32768 tokens, 1 est)\n",
    ]
)


@unhurried
@given(complete_names, st.lists(st.tuples(st.integers(0, 400), REQUEST_LINES), max_size=8))
def test_request_lines_in_between_change_nothing(name: str, extra: list[tuple[int, str]]) -> None:
    lines = lines_of(name)
    mixed = list(lines)
    for where, line in extra:
        mixed.insert(min(where, len(mixed)), line)
    assert observed(parse(mixed)) == observed(parse(lines))


# What servers of several builds print while they serve.
SERVING = (
    "{at}slot get_availabl: id  {slot} | task -1 | selected slot by LCP similarity, sim_best = 0.912 (> 0.100 thold)\n",
    "{at}slot get_availabl: id  {slot} | task -1 | selected slot by LRU, t_last = 14\n",
    "{at}srv  get_availabl: updating prompt cache\n",
    "{at}srv   prompt_save:  - saving prompt with length {n}, total state size = 16.000 MiB\n",
    "{at}slot prompt_clear: id  {slot} | task -1 | clearing prompt with {n} tokens\n",
    "{at}slot launch_slot_: id  {slot} | task {task} | processing task, is_child = 0\n",
    "{at}slot   operator(): id  {slot} | task {task} | new prompt, n_ctx_slot = 96, n_keep = 0, task.n_tokens = {n}\n",
    "slot update_slots: id  {slot} | task {task} | new prompt, n_ctx_slot = 4096, n_keep = 0, n_prompt_tokens = {n}\n",
    "{at}slot   operator(): id  {slot} | task {task} | cached n_tokens = {n}, memory_seq_rm [{n}, end)\n",
    "slot update_slots: id  {slot} | task {task} | kv cache rm [{n}, end)\n",
    "{at}slot update_slots: id  {slot} | task {task} | prompt processing done, n_tokens = {n}, batch.n_tokens = 1\n",
    "{at}slot update_slots: id  {slot} | task {task} | forcing full prompt re-processing due to lack of cache data "
    "(likely due to SWA or hybrid/recurrent memory, see the pull request)\n",
    "{at}slot print_timing: id  {slot} | task {task} | prompt eval time =    1243.38 ms /   {n} tokens (  177.63 ms)\n",
    "{at}slot print_timing: id  {slot} | task {task} |        eval time =      97.49 ms /     8 tokens (   12.19 ms)\n",
    "slot print_timing: id  {slot} | task {task} | \nprompt eval time =     243.38 ms /   {n} tokens (  7.63 ms)\n"
    "       eval time =      97.49 ms /     8 tokens (   12.19 ms)\n      total time =    1340.88 ms /    15 tokens\n",
    "{at}slot      release: id  {slot} | task {task} | stop processing: n_tokens = {n}, truncated = 0\n",
    "slot      release: id  {slot} | task {task} | stop processing: n_past = {n}, truncated = 1\n",
    "{at}srv  update_slots: all slots are idle\n",
    "{at}srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200\n",
)
# What may stand between.
OTHERS = (
    "srv    send_error: task id = {task}, error: Context size has been exceeded.\n",
    "\x1b[32mslot      release: id  {slot} | task {task} | stop processing: n_tokens = {n}, truncated = 1\x1b[0m\n",
    "slot launch_slot_: id  {slot} | task {task} | processing task\r\n",
    "[60001] slot launch_slot_: id  {slot} | task {task} | processing task\n",
    "what a user's own program printed\n",
)


# One request of a server that serves one at a time, a line each; the marked ones are not always there.
USUAL = (
    "{at}slot get_availabl: id  {slot} | task -1 | selected slot by LRU, t_last = 14",
    "?{at}srv  get_availabl: updating prompt cache",
    "?{at}srv   prompt_save:  - saving prompt with length {n}, total state size = 16.000 MiB",
    "?{at}srv        update:  - cache state: 1 prompts, 16.000 MiB (limits: 8192.000 MiB, 32768 tokens, 1 est)",
    "?{at}slot launch_slot_: id  {slot} | task -1 | sampler chain: logits -> dist",
    "{at}slot launch_slot_: id  {slot} | task {task} | processing task, is_child = 0",
    "?{at}slot process_sing: id  3 | task -1 | saving idle slot to prompt cache",
    "?{at}slot prompt_clear: id  3 | task -1 | clearing prompt with {cleared} tokens",
    "{at}slot   operator(): id  {slot} | task {task} | new prompt, n_ctx_slot = 96, n_keep = 0, task.n_tokens = {n}",
    "{at}slot   operator(): id  {slot} | task {task} | cached n_tokens = {kept}, memory_seq_rm [{kept}, end)",
    "?{at}slot   operator(): id  {slot} | task {task} | cached n_tokens = {n}, memory_seq_rm [{n}, end)",
    "?{at}slot update_slots: id  {slot} | task {task} | prompt processing done, n_tokens = {n}, batch.n_tokens = 1",
    "?{at}slot create_check: id  {slot} | task {task} | created context checkpoint 1 of 32 (pos_min = 1)",
    "{at}slot print_timing: id  {slot} | task {task} | prompt eval time =  {n}.38 ms /  {n} tokens (  177.63 ms)",
    "{at}slot print_timing: id  {slot} | task {task} |        eval time =      97.49 ms /     8 tokens (   12.19 ms)",
    "?{at}slot print_timing: id  {slot} | task {task} |       total time =     340.88 ms /    15 tokens",
    "?{at}slot print_timing: id  {slot} | task {task} |    graphs reused =          7",
    "{at}slot      release: id  {slot} | task {task} | stop processing: n_tokens = {n}, truncated = {truncated}",
    "?{at}srv  update_slots: all slots are idle",
    "?{at}srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200",
)


@st.composite
def usual_requests(draw: st.DrawFn) -> str:
    """Requests one behind the other, in which a line may be lost, joined with the next one, or another task's."""
    lines = []
    for task in draw(st.lists(st.integers(0, 9), min_size=1, max_size=8)):
        values = {
            "at": draw(st.sampled_from(["12.05.522.363 I ", "12.05.522.363 I ", ""])),
            "slot": draw(st.integers(0, 1)),
            "task": task,
            "n": draw(st.sampled_from([0, 7, 900, 4000])),
            "kept": draw(st.sampled_from([0, 5, 900])),
            "cleared": draw(st.sampled_from([0, 0, 900])),
            "truncated": draw(st.sampled_from([0, 0, 0, 1])),
        }
        for template in USUAL:
            if not template.startswith("?") or draw(st.booleans()):
                lines.append(template.removeprefix("?").format(**values) + "\n")
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(lines) - 1))
        damage = draw(st.sampled_from(["lost", "joined", "foreign task", "odd letter", "carriage return"]))
        lines[at] = {
            "lost": "",
            "joined": lines[at].rstrip("\n"),
            "foreign task": lines[at].replace("| task ", "| task 1"),
            "odd letter": lines[at].replace(" I ", " I\u00e4 ").replace("\n", " \u00fc\n"),
            "carriage return": lines[at].replace("\n", "\r\n"),
        }[damage]
    return "".join(lines)


def filled_in(templates: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda line, at, slot, task, n: line.format(at=at, slot=slot, task=task, n=n),
        st.sampled_from(templates),
        st.sampled_from(["", "12.05.522.363 I "]),
        st.integers(0, 3),
        st.integers(0, 5),
        st.integers(0, 4096),
    )


serving_texts = st.lists(
    st.one_of(
        st.lists(filled_in(SERVING), max_size=20).map(lambda lines: "".join(lines * 3)),
        st.lists(filled_in(SERVING), max_size=60).map("".join),
        usual_requests(),
        filled_in(OTHERS),
    ),
    max_size=4,
).map("".join)


@unhurried
@given(st.sampled_from(["", *COMPLETE]), serving_texts, st.booleans())
def test_requests_are_read_alike_line_by_line_and_in_blocks(name: str, serving: str, cut: bool) -> None:
    text = "".join(lines_of(name) if name else []) + serving
    text = text[:-9] if cut else text
    line_by_line = parse(io.StringIO(text, newline="\n"))
    try:
        in_blocks = read_stream(io.BytesIO(text.encode())).runs
    except VRAMReportError:
        in_blocks = []
    assert in_blocks == line_by_line


@settings(deadline=None, max_examples=20)
@given(st.lists(usual_requests(), min_size=1, max_size=3).map("".join), st.integers(0, 4000), st.data())
def test_requests_at_the_border_of_blocks_are_read_alike(requests: str, moved: int, data: st.DataObject) -> None:
    """Texts longer than a few blocks, so that a block ends at any place of a request."""
    text = "x" * moved + "\n" + requests * (600_000 // len(requests) + 1)
    text = text[: len(text) - data.draw(st.integers(0, 200))]
    assert read_stream(io.BytesIO(text.encode())).runs == parse(io.StringIO(text, newline="\n"))


@unhurried
@given(complete_names, complete_names, st.integers(0, 2**32))
def test_interleaved_router_children_are_read_like_each_alone(one: str, other: str, seed: int) -> None:
    queues = [[f"[6000{index}] {line}" for line in lines_of(name)] for index, name in enumerate((one, other))]
    mixed: list[str] = []
    order = random.Random(seed)
    while any(queues):
        queue = queues[order.randrange(2)]
        if queue:
            mixed.append(queue.pop(0))
    alone = [*observed(parse(lines_of(one))), *observed(parse(lines_of(other)))]
    found = observed(parse(mixed))
    assert sorted(map(repr, found)) == sorted(map(repr, alone))


@unhurried
@given(names)
def test_sums_equal_their_parts(name: str) -> None:
    for run in parse(lines_of(name)):
        for device in run.devices:
            own = [b for b in run.buffers if b.device == device.name]
            if own and device.used_basis == "summed":
                assert device.used_mib == pytest.approx(sum(b.mib for b in own), abs=0.01)
            for kind in ("weights", "kv", "recurrent", "compute", "output", "other"):
                value = getattr(device, f"{kind}_mib")
                if own and value is not None:
                    assert value == pytest.approx(sum(b.mib for b in own if b.kind == kind), abs=0.01)


@unhurried
@given(names)
def test_document_is_json_and_reads_back(name: str) -> None:
    document = report_document(read_stream(io.BytesIO(LOGS[name])))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
