"""Every fixture log against the values that a person read from it.

A fixture is NAME.log and NAME.json in fixtures/logs; a null in the JSON is "not read", an `absent` path must be
null in the report because the log does not say it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vram_report import read_log, report_document

FOLDER = Path(__file__).parents[2] / "fixtures" / "logs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
KINDS = {"weights_mib_by_buffer": "weights", "kv_mib_by_buffer": "kv", "compute_mib_by_buffer": "compute"}
MODEL_NAMES = {"arch": "architecture", "params": "parameters"}
OUTCOMES = {"ok": ("ready", "incomplete"), "oom": ("out-of-memory",), "error": ("failed",)}
SCALE = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def expected_facts(truth: dict[str, Any], run: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(what, expected, found) for every value that the fixture states."""
    yield from device_facts(truth, run)
    for key, expected in truth["model"].items():
        found = run["model"][MODEL_NAMES.get(key, key)]
        if key == "params" and expected is not None:
            expected, found = printed_parameters(expected), found
        yield f"model.{key}", expected, found
    for key in ("n_ctx", "n_slots", "n_ctx_slot", "kv_unified", "flash_attn"):
        yield key, truth.get(key), run["context"][key]
    for key in ("type_k", "type_v"):
        yield key, truth.get(key), run["kv_cache"][key]
    if truth.get("capped"):
        yield "capped", True, run["context"]["capped"]
    for key, expected in truth.get("failure", {}).items():
        yield f"failure.{key}", expected, run["failure"][key]
    if not truth.get("table"):
        yield from buffer_facts(truth, run)


def device_facts(truth: dict[str, Any], run: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    devices = {device["name"]: device for device in run["devices"]}
    for device in truth["devices"]:
        name = device["name"].split(" (")[0]
        for key in ("total_mib", "free_mib"):
            yield f"{name}.{key}", device[key], devices[name][key]
    for name, expected in truth.get("device_weights", {}).items():
        yield f"{name}.weights_mib", expected, devices[name]["weights_mib"]
    for name, expected in truth.get("device_used", {}).items():
        yield f"{name}.used_mib", expected, devices[name]["used_mib"]
    if truth.get("table"):
        for key, kind in KINDS.items():
            for name, expected in truth[key].items():
                yield f"{name}.{kind}_mib", expected, devices[name][f"{kind}_mib"]


def buffer_facts(truth: dict[str, Any], run: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key, kind in KINDS.items():
        for name, expected in (truth[key] or {}).items():
            yield f"{kind} {name}", expected, buffer_sum(run, kind, name)
    output = [buffer["mib"] for buffer in run["buffers"] if buffer["kind"] == "output"]
    yield "output", truth["output_mib"], sum(output) if output else None
    if truth["kv_total_mib"] is not None:
        recurrent = sum(buffer["mib"] for buffer in run["buffers"] if buffer["kind"] == "recurrent")
        total = run["kv_cache"]["total_mib"]
        with_recurrent = abs(total + recurrent - truth["kv_total_mib"]) <= 0.011
        yield "kv total", truth["kv_total_mib"], total + recurrent if with_recurrent else total


def buffer_sum(run: dict[str, Any], kind: str, name: str) -> float | None:
    """The MiB of the buffers that `clip CUDA0`, `CUDA0 RS` or `CUDA0 (SWA)` name."""
    role = "mmproj" if name.startswith("clip ") else "model"
    name = name.removeprefix("clip ")
    if name.endswith(" RS"):
        kind, name = "recurrent", name.removesuffix(" RS")
    part = re.search(r" \((non-SWA|SWA)\)$", name)
    name = name[: part.start()] if part else name
    found = [
        buffer["mib"]
        for buffer in run["buffers"]
        if (buffer["kind"], buffer["buffer"], buffer["role"]) == (kind, name, role)
        and (part is None or buffer["part"] == part[1].lower())
    ]
    return sum(found) if found else None


def printed_parameters(text: str) -> float:
    match = re.fullmatch(r"([\d.]+) ?([KMBT]?)", text)
    assert match, text
    return float(match[1]) * SCALE[match[2]]


def agrees(expected: Any, found: Any) -> bool:
    if expected is None:
        return True
    if isinstance(expected, str) and isinstance(found, str):
        return found.lower().startswith(expected.lower())
    if isinstance(expected, bool) or not isinstance(expected, (int, float)):
        return bool(expected == found)
    return isinstance(found, (int, float)) and abs(expected - found) <= max(0.011, 1e-9 * abs(expected))


def lookup(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[key]
    return document


def load(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    truth = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    document = json.loads(json.dumps(report_document(read_log(FOLDER / f"{name}.log"))))
    return truth, document["runs"][truth.get("run", -1)]


@pytest.mark.parametrize("name", NAMES)
def test_fixture_log_reads_as_a_person_read_it(name: str) -> None:
    truth, run = load(name)
    wrong = [fact for fact in expected_facts(truth, run) if not agrees(*fact[1:])]
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_fixture_log_outcome_is_the_recorded_one(name: str) -> None:
    truth, run = load(name)
    if truth["outcome"] is not None:
        assert run["outcome"] in OUTCOMES[truth["outcome"]]


@pytest.mark.parametrize("name", [name for name in NAMES if "absent" in (FOLDER / f"{name}.json").read_text("utf-8")])
def test_fixture_log_is_silent_report_says_null(name: str) -> None:
    truth, run = load(name)
    assert {path: lookup(run, path) for path in truth["absent"]} == dict.fromkeys(truth["absent"])


@pytest.mark.parametrize("name", NAMES)
def test_fixture_log_expected_findings_are_reported(name: str) -> None:
    truth, run = load(name)
    codes = {finding["code"] for finding in run["findings"]}
    assert set(truth.get("findings", ())) <= codes


def test_every_log_has_expected_values_and_provenance() -> None:
    logs = {path.stem for path in FOLDER.glob("*.log")}
    listed = set(re.findall(r"^\| `([^`]+)` \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert logs == set(NAMES) == listed
