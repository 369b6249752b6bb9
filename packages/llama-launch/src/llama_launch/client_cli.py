"""`llama-launch client-config` and `probe`: what an agent needs to know of a running server."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from llama_launch.client_config import (
    DEFAULT_PROVIDER,
    OpenCodeLimits,
    ServedModel,
    check_config,
    provider_block,
    served_model,
    write_config,
)
from llama_launch.probe import PROBES, ProbeResult, hints, run_probe, wilson_interval
from llama_launch.running_server import add_server_arguments, chosen_client
from llama_launch.serve_cli import say
from llama_launch.state import find_runs
from llama_launch.tables import boxed

__all__ = ["add"]

_CONFIG_EXAMPLES = """\
examples:
  llama-launch client-config opencode                            print the provider's entry
  llama-launch client-config opencode --write opencode.json      merge it into a file; all else stays
  llama-launch client-config opencode --context 32768 --write ~/.config/opencode/opencode.json
  llama-launch client-config opencode --check opencode.json      exit status 1 when it does not agree
"""
_PROBE_EXAMPLES = """\
examples:
  llama-launch probe
  llama-launch probe --repeat 20        rates, with their 95 % intervals
  llama-launch probe --format json

Exit status 1: an answer was not what a coding agent needs.
"""
_CALL_S = 300.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands' arguments."""
    config = commands.add_parser(
        "client-config",
        help="a client's configuration for the running server, or whether one agrees with it",
        epilog=_CONFIG_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    config.add_argument("client", choices=("opencode",), help="whose configuration")
    what = config.add_mutually_exclusive_group()
    what.add_argument("--write", type=Path, metavar="PATH", help="merge it into this file")
    what.add_argument("--check", type=Path, metavar="PATH", help="compare this file with the server")
    config.add_argument("--provider", default=DEFAULT_PROVIDER, metavar="ID", help="the provider's id (%(default)s)")
    config.add_argument("--context", type=int, metavar="N", help="limit.context; the slot's own by default")
    config.add_argument("--output", type=int, metavar="N", help="limit.output; a quarter of it, at most 8192")
    add_server_arguments(config)
    config.set_defaults(command=_config)
    probe = commands.add_parser(
        "probe",
        help="can this server call tools?",
        epilog=_PROBE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    probe.add_argument("--repeat", type=_positive, default=1, metavar="N", help="ask each question N times")
    probe.add_argument("--format", choices=("table", "json"), default="table")
    add_server_arguments(probe)
    probe.set_defaults(command=_probe)


def _positive(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def _config(options: argparse.Namespace) -> int:
    client = chosen_client(options)
    served = served_model(client, needs_key=client.has_key)
    if options.check is not None:
        faults = check_config(options.check, served)
        for fault in faults:
            say(f"{options.check}: {fault}")
        if not faults:
            say(f"{options.check} agrees with {served.url}: {served.n_ctx_slot} tokens a slot")
        return 1 if faults else 0
    limits = served.limits(options.context, options.output)
    block = provider_block(served, limits)
    if options.write is None:
        print(json.dumps({"provider": {options.provider: block}}, indent=2))
        return 0
    changed = write_config(options.write, options.provider, block)
    say(f"{options.write}: {'written' if changed else 'as it was'}; model {options.provider}/{served.model_id}")
    say(f"OpenCode compacts a conversation at {limits.compacts_at} of {limits.context} tokens")
    _warn_of_shared_pool(served, limits)
    return 0


def _warn_of_shared_pool(served: ServedModel, limits: OpenCodeLimits) -> None:
    """Slots that share a pool cannot all be full; only the run's record tells how large the pool is."""
    record = next((record for record in find_runs() if record.is_alive and record.url == served.url), None)
    if record is None or not record.profile.get("kv_unified"):
        return
    n_slots, pool = record.profile["n_slots"], record.profile["n_slots"] * record.profile["n_ctx_slot"]
    if n_slots * limits.context > pool:
        say(
            f"note: {n_slots} slots share {pool} tokens; where all of them work at once, --context {pool // n_slots} "
            "keeps one conversation from ending the others"
        )


def _probe(options: argparse.Namespace) -> int:
    client = chosen_client(options, timeout_s=_CALL_S)
    props = client.props()
    results = [run_probe(client, probe, options.repeat) for probe in PROBES]
    advice = hints(results, props)
    if options.format == "json":
        documents = [{**dataclasses.asdict(result), **_rate(result)} for result in results]
        print(json.dumps({"schema_version": 1, "url": client.base_url, "probes": documents, "hints": advice}, indent=2))
    else:
        print(boxed(("question", "good", "seen", "answer"), [_row(result) for result in results], max_width=60))
        for hint in advice:
            say(f"hint: {hint}")
    return 1 if any(result.n_good < result.n_judged for result in results) else 0


def _rate(result: ProbeResult) -> dict[str, object]:
    low, high = wilson_interval(result.n_good, result.n_judged)
    return {"n_good": result.n_good, "n_judged": result.n_judged, "low": round(low, 4), "high": round(high, 4)}


def _row(result: ProbeResult) -> list[object]:
    kinds = ", ".join(dict.fromkeys(verdict.kind for verdict in result.verdicts))
    shown = next((verdict for verdict in result.verdicts if verdict.is_good is False), result.verdicts[0])
    good = f"{result.n_good} of {result.n_judged}"
    if result.n_judged > 1:
        low, high = wilson_interval(result.n_good, result.n_judged)
        good += f" ({low:.0%} to {high:.0%})"
    return [result.probe, good, kinds, shown.detail or None]
