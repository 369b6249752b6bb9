"""Printed sizes agree with each other: cells with bytes, and sums with the server's own table at its exit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from vram_report import read_log

FOLDER = Path(__file__).parents[2] / "fixtures" / "logs"
BYTES_PER_VALUE = {"f16": 2, "q8_0": 34 / 32}
UNIFORM = (
    "xllamacpp-2026.10.11549.p1",
    "xllamacpp-2026.10.11549.p4_divided",
    "xllamacpp-2026.10.11549.p4_swafull",
    "xllamacpp-2026.10.11549.p4_unified_q8kv",
    "xllamacpp-2026.10.11549.smollm_p1",
    "xllamacpp-2026.5.9294.p4_unified",
    "xllamacpp-0.2.6.p4_unified",
    "llama-server-b10068.p16_unified_q8kv_lv4",
    "llama-server-b10068.gptoss_c131072_q8_lv4",
    "llama-server-b10068.rpc2_ts31_lv4",
    "rpc-2workers-llama70b-b6209",
)
EXITS = (
    "llama-server-b10068.p16_unified_q8kv_lv4",
    "llama-server-b10068.rpc2_ts31_lv4",
    "llama-server-b10068.slotsave_metrics_lv4",
    "llama-server-b10068.debug_lv5",
)
HOST_ROW = re.compile(r"\|   - (?:Host|CPU_REPACK) +\| +(\d+) =")


@pytest.mark.parametrize("name", UNIFORM)
def test_streams_cells_and_layers_give_the_printed_cache(name: str) -> None:
    (run,) = read_log(FOLDER / f"{name}.log").runs
    model, cache = run.model, run.kv_cache
    heads = model.n_head_kv
    assert isinstance(heads, int)
    # a server that prints no head dimensions has embedding / heads
    width = model.n_embd_head_k or (model.n_embd or 0) // int(str(model.n_head))
    assert cache.parts
    for part in cache.parts:
        values = heads * width * (part.streams or 0) * (part.cells or 0) * (part.layers or 0)
        expected = values * 2 * BYTES_PER_VALUE[cache.type_k or ""] / 2**20
        assert part.mib == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("name", EXITS)
def test_buffers_sum_to_the_table_printed_at_exit(name: str) -> None:
    path = FOLDER / f"{name}.log"
    (run,) = read_log(path).runs
    at_exit = path.read_text().split("cleaning up before exit")[1]
    host = sum(map(int, HOST_ROW.findall(at_exit)))
    # the table floors each row, and leaves the output buffer out
    summed = sum(b.mib for b in run.buffers if b.device == "CPU" and b.kind != "output")
    assert host <= summed < host + 4
    for device in run.devices:
        if device.name != "CPU":
            own = sum(b.mib for b in run.buffers if b.device == device.name)
            assert device.used_basis == "measured"
            assert device.used_mib == pytest.approx(own, abs=2)
