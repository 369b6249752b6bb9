"""Recording: a scenario that a server answers is run once, and what the server said becomes its cassette."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf_info
from llama_launch import Client, LlamaLaunchError

from opencode_harness.cassette import CassetteError
from opencode_harness.isolation import DEFAULT_LIMITS, ModelLimits, limits_within, version_in_isolation
from opencode_harness.outcomes import Outcome
from opencode_harness.scenario import Scenario
from opencode_harness.slots import flush_slots
from opencode_harness.trial import TrialSpec, run_trial

__all__ = ["RecordingSpec", "check_recordable", "provenance", "record_scenarios"]

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class RecordingSpec:
    """What to record, and with what.

    Attributes:
        scenarios: The scenarios; those with turns have nothing to record.
        url: The server's address without `/v1`.
        api_key: What it asks for, or None.
        opencode: The executable.
        argv: The server's command line where it is known.
        run_dir: Receives the trials' folders.
    """

    scenarios: Sequence[Scenario]
    url: str
    api_key: str | None
    opencode: Path
    argv: Sequence[str]
    run_dir: Path


def check_recordable(scenarios: Sequence[Scenario]) -> None:
    """Make sure that something can be recorded, before anything is started.

    Raises:
        CassetteError: A cassette is there already, or all turns are written by hand.
    """
    wanted = [scenario for scenario in scenarios if scenario.turns is None]
    if not wanted:
        raise CassetteError("all turns are written by hand", hint="leave out `turns:` where the server is to answer")
    for scenario in wanted:
        if scenario.cassette.exists():
            raise CassetteError(f"{scenario.cassette} is there already", hint="delete it to record it again")


def record_scenarios(spec: RecordingSpec, say: Callable[[str], None]) -> list[Outcome]:
    """Record each scenario; a trial that does not pass leaves no cassette.

    Args:
        spec: What to record.
        say: Receives a line for each scenario.

    Returns:
        The outcomes of those that were run.

    Raises:
        CassetteError: A cassette is there already (nothing was run then), or cannot be written.
        HarnessError: A trial could not be carried out.
    """
    check_recordable(spec.scenarios)
    client = Client(spec.url, spec.api_key)
    origin = provenance(client, spec.argv, version_in_isolation(spec.opencode))
    limits = _limits(client)
    outcomes = []
    for number, scenario in enumerate(spec.scenarios):
        if scenario.turns is not None:
            say(f"{scenario.path}: its turns are written by hand, so there is nothing to record")
        else:
            outcomes.append(_record(spec, scenario, number, client, origin, limits, say))
    return outcomes


def _record(
    spec: RecordingSpec,
    scenario: Scenario,
    number: int,
    client: Client,
    origin: dict[str, Any],
    limits: ModelLimits,
    say: Callable[[str], None],
) -> Outcome:
    flush = flush_slots(client)
    if flush.problem is not None:
        say(f"warning: {flush.problem}")
    root = spec.run_dir / "trials" / f"{scenario.name}{number}"
    # A recording claims nothing of the cache: what is recorded is what the model says.
    trial = TrialSpec(scenario, root, spec.opencode, spec.url, limits, spec.api_key, kv_mode="shared", record=origin)
    result = run_trial(trial)
    if result.outcome is Outcome.PASS:
        say(f"{scenario.path}: recorded {scenario.cassette} ({result.requests} requests, {result.duration_s:.1f} s)")
    else:
        say(f"{scenario.path}: {result.outcome.value.upper()}, so nothing is recorded\n{result.explain()}")
    return result.outcome


def _limits(client: Client) -> ModelLimits:
    try:
        return limits_within(client.props().n_ctx_slot)
    except LlamaLaunchError:
        return DEFAULT_LIMITS


def provenance(client: Client, argv: Sequence[str], opencode: str | None) -> dict[str, Any]:
    """Where a recording comes from: OpenCode, the server's build, slots and flags, and the model.

    What is not known is left out. Folders are left out, too: they say nothing about the model, and a cassette is
    published.

    Args:
        client: Calls to the server.
        argv: The server's command line where it is known; it names cache types and other flags.
        opencode: OpenCode's version.
    """
    found: dict[str, Any] = {"opencode": opencode, "flags": [_without_folder(word) for word in argv[1:]]}
    try:
        props = client.props()
    except LlamaLaunchError:
        return _known(found)
    build = props.raw.get("build_info")
    found |= {
        "build": build if isinstance(build, str) else None,
        "slots": props.n_slots,
        "n_ctx_slot": props.n_ctx_slot,
    }
    if props.model_path:
        found["model"] = _known(_model(Path(props.model_path)))
    return _known(found)


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [], {})}


def _without_folder(word: str) -> str:
    return Path(word).name if word.startswith(("/", "~", ".")) else word


def _model(path: Path) -> dict[str, Any]:
    """The model's file name and, where the file is on this machine, its hash, name and quantization types."""
    model: dict[str, Any] = {"file": path.name}
    try:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        model["sha256"] = digest.hexdigest()
        summary = gguf_info.read_summary(path)
    except (OSError, gguf_info.GGUFError):
        return model
    shares = () if summary.tensors is None else summary.tensors.by_type
    facts = {"name": summary.general.name, "quantization": summary.general.file_type}
    return model | facts | {"tensors": {share.type: share.tensors for share in shares}}
