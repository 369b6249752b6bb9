"""Scenario files and cassettes are data from somebody else: each is taken, or refused in words with its place."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from opencode_harness.cassette import CassetteError, CassetteMismatch, Tape
from opencode_harness.errors import ScenarioError
from opencode_harness.scenario import find_faults, load_scenario

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "scenarios").rglob("*.yaml"))
# What a value of a scenario may be replaced by: each means something to YAML, to a schema, or to a part of the code.
ODD_VALUES = st.sampled_from(
    [
        "!!int abc",
        "!!float abc",
        "!!bool maybe",
        "!!null x",
        "!!binary x",
        "!!python/object:os.system x",
        "!!set {a}",
        "9" * 5000,
        "0x" + "f" * 5000,
        "1:2:3",
        ".inf",
        "-.nan",
        "1e999",
        "~",
        "[]",
        "{}",
        "{a: {b: {c: d}}}",
        "[[[[x]]]]",
        "? {a: b}\n  : c",
        "? [a]\n  : c",
        "<<: *x",
        "&a x",
        "2026-12-07",
        '"\\ud800"',
        '"\\0"',
        '"\\x1b[31m"',
        "'(?P<'",
        "'(a+)+$'",
        "'[\\\\'",
        "-1",
        "1e-320",
        "true",
        "../../x",
        "/etc/passwd",
    ]
)
RECORDED = [
    {"cassette": 1, "scenario": "fruit", "provenance": {"opencode": "1.18.33"}},
    {"frame": "f", "system": [{"role": "system", "content": "You help."}], "tools": []},
    {
        "lane": "main",
        "frame": "f",
        "kept": 0,
        "messages": [{"role": "user", "content": "Hi"}],
        "status": 200,
        "content_type": "text/event-stream",
        "events": [[0.0, {"choices": [{"index": 0, "delta": {"content": "{trial}"}}]}], [0.1, "data: [DONE]"]],
    },
]
REQUEST = {"messages": [{"role": "system", "content": "You help."}, {"role": "user", "content": "Hi"}]}


@contextmanager
def file_of(data: bytes, name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield path


def refusal_of(action: Callable[[], object], *kinds: type[Exception]) -> str | None:
    """What a refusal of one of these kinds says; None when there is none."""
    try:
        action()
    except kinds as error:
        return str(error)
    return None


def assert_taken_or_refused(data: bytes) -> None:
    with file_of(data, "hostile.yaml") as path:
        refusal = refusal_of(lambda: load_scenario(path), ScenarioError)
        assert refusal is None or refusal.startswith(str(path))
        assert bool(find_faults(path)) == (refusal is not None)


@settings(deadline=None)
@given(data=st.binary(max_size=400))
def test_any_bytes_are_a_scenario_or_are_refused_with_the_file(data: bytes) -> None:
    assert_taken_or_refused(data)


@settings(deadline=None, max_examples=300)
@given(path=st.sampled_from(SCENARIOS), value=ODD_VALUES, draw=st.data())
def test_a_scenario_with_an_odd_value_is_taken_or_refused_with_the_file(
    path: Path, value: str, draw: st.DataObject
) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    with_value = [index for index, line in enumerate(lines) if ":" in line]
    index = draw.draw(st.sampled_from(with_value))
    lines[index] = f"{lines[index].partition(':')[0]}: {value}"
    assert_taken_or_refused("\n".join(lines).encode("utf-8", "surrogatepass"))


@settings(deadline=None, max_examples=200)
@given(path=st.sampled_from(SCENARIOS), draw=st.data())
def test_a_scenario_with_spoilt_bytes_is_taken_or_refused_with_the_file(path: Path, draw: st.DataObject) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    assert_taken_or_refused(bytes(data))


def assert_played_or_refused(data: bytes) -> None:
    with file_of(data, "hostile.cassette.jsonl") as path:

        def play() -> bytes:
            tape = Tape(path, path.parent)
            return b"".join(tape.pieces(tape.next_for("main", REQUEST)))

        assert str(path) in (refusal_of(play, CassetteError, CassetteMismatch) or str(path))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_cassette_or_are_refused_with_the_file(data: bytes) -> None:
    assert_played_or_refused(data)


@settings(deadline=None, max_examples=300)
@given(value=json_values, draw=st.data())
def test_a_cassette_with_an_odd_value_is_played_or_refused_with_the_file(value: object, draw: st.DataObject) -> None:
    lines = json.loads(json.dumps(RECORDED))
    line = draw.draw(st.sampled_from(lines))
    line[draw.draw(st.sampled_from(sorted(line)))] = value
    assert_played_or_refused("\n".join(map(json.dumps, lines)).encode())


@settings(deadline=None)
@given(value=json_values)
def test_an_odd_event_is_played_or_refused_with_the_file(value: object) -> None:
    lines = json.loads(json.dumps(RECORDED))
    lines[2]["events"].insert(0, [0.0, value])
    assert_played_or_refused("\n".join(map(json.dumps, lines)).encode())


@settings(deadline=None, max_examples=200)
@given(draw=st.data())
def test_a_cassette_with_spoilt_bytes_is_played_or_refused_with_the_file(draw: st.DataObject) -> None:
    data = bytearray("\n".join(map(json.dumps, RECORDED)).encode())
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    assert_played_or_refused(bytes(data))
