"""Can this server call tools? Asks a running server the questions that a coding agent's work stands on.

Each question has an answer that shows whether the model, its chat template and the server's parser work together. A
model that answers as text what should have been a call is told apart from one that does not try.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_launch.chat import ChatAnswer
from llama_launch.client import Client, Props
from llama_launch.errors import ServerRefused

__all__ = ["PROBES", "Probe", "ProbeResult", "Verdict", "hints", "run_probe", "wilson_interval"]

_Z_95 = 1.959964
_MAX_TOKENS = 256
_SHOWN_CHARS = 120


@dataclass(frozen=True)
class Verdict:
    """What one answer shows.

    Attributes:
        kind: `tool-call`, `text` (a call that came as text), `no-call`, `wrong-arguments`, `answer`, `only-reasoning`,
            `empty`, `reused`, `not-reused`, `unknown` or `refused`.
        is_good: Whether it is what was asked for; None where that cannot be told.
        detail: What was seen.
    """

    kind: str
    is_good: bool | None
    detail: str


@dataclass(frozen=True)
class Probe:
    """A question.

    Attributes:
        name: What reports call it.
        requests: The requests, in order; the last answer is judged.
        judge: Says what that answer shows.
    """

    name: str
    requests: tuple[Mapping[str, Any], ...]
    judge: Callable[[ChatAnswer], Verdict]


@dataclass(frozen=True)
class ProbeResult:
    """A question and what came back, once for each repetition."""

    probe: str
    verdicts: tuple[Verdict, ...]

    @property
    def n_good(self) -> int:
        """How often it was what was asked for."""
        return sum(verdict.is_good is True for verdict in self.verdicts)

    @property
    def n_judged(self) -> int:
        """How often that could be told."""
        return sum(verdict.is_good is not None for verdict in self.verdicts)


def wilson_interval(n_good: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a rate after `n_good` of `n` (Wilson 1927); 0 to 1 where n is 0."""
    if n == 0:
        return 0.0, 1.0
    rate, z = n_good / n, _Z_95
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return (0.0 if n_good == 0 else low), (1.0 if n_good == n else high)


def run_probe(client: Client, probe: Probe, repeat: int = 1) -> ProbeResult:
    """Ask a question as often as `repeat` says, with another seed each time.

    Raises:
        ServerUnreachable: Nothing answers, or an answer breaks off.
    """
    return ProbeResult(probe.name, tuple(_asked(client, probe, seed) for seed in range(1, repeat + 1)))


def _asked(client: Client, probe: Probe, seed: int) -> Verdict:
    answer = None
    try:
        for request in probe.requests:
            answer = client.chat({"max_tokens": _MAX_TOKENS, "seed": seed, **request})
    except ServerRefused as error:
        return Verdict("refused", False, str(error))
    assert answer is not None
    return probe.judge(answer)


def hints(results: Sequence[ProbeResult], props: Props) -> list[str]:
    """What to do about what was seen."""
    kinds = {verdict.kind for result in results for verdict in result.verdicts}
    capabilities = props.raw.get("chat_template_caps")
    has_tools = capabilities.get("supports_tools") if isinstance(capabilities, Mapping) else None
    found = []
    if kinds & {"text", "no-call"} and has_tools is False:
        found.append(
            "the model's chat template has no place for tools (chat_template_caps.supports_tools is false): the model "
            "never sees them; use a model made for tool calls, or another --chat-template-file"
        )
    elif "text" in kinds:
        found.append(
            "calls came back as text: the template and the server's parser do not match; start the server with "
            "--jinja, and take the chat template that belongs to the model"
        )
    elif "no-call" in kinds:
        found.append("the model saw the tools and did not use them: it is too small, or its sampling too wild")
    if "wrong-arguments" in kinds:
        found.append(
            "arguments were not what the tool asks for: a stronger quantization or another model may do better"
        )
    if "only-reasoning" in kinds:
        found.append("an answer held reasoning alone: raise the limit of output tokens, or lower the reasoning effort")
    if "not-reused" in kinds:
        found.append(
            "the second turn was computed anew: give the agents enough slots, and see --section requests of vram-report"
        )
    return found


def _tool(name: str, description: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_READ = _tool("read", "Read a file", {"filePath": {"type": "string", "description": "path of the file"}})
_EDIT = _tool(
    "edit",
    "Change lines of a file",
    {
        "file": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        "lines": {"type": "array", "items": {"type": "integer"}},
    },
)
_SYSTEM = {"role": "system", "content": "You are a coding agent. Use the tools that you have; do not describe them."}


def _ask(text: str, *more: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = (_READ,)) -> dict[str, Any]:
    return {"messages": [_SYSTEM, {"role": "user", "content": text}, *more], "tools": list(tools)}


def _shown(text: str) -> str:
    shown = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "…"


def _calls(name: str, fits: Callable[[Any], bool]) -> Callable[[ChatAnswer], Verdict]:
    """A judge that wants a call of that tool with arguments that fit."""

    def judge(answer: ChatAnswer) -> Verdict:
        if not answer.tool_calls:
            return _without_call(name, answer)
        call = answer.tool_calls[0]
        try:
            is_good = call.name == name and fits(json.loads(call.arguments))
        except ValueError:
            is_good = False
        kind = "tool-call" if is_good else "wrong-arguments"
        return Verdict(kind, is_good, _shown(f"{call.name} {call.arguments}"))

    return judge


def _without_call(name: str, answer: ChatAnswer) -> Verdict:
    if not answer.content.strip():
        kind = "only-reasoning" if answer.reasoning.strip() else "empty"
        return Verdict(kind, False, _shown(answer.reasoning))
    looks_like_call = re.search(rf'<\|?tool_call|<function|"name"\s*:\s*"{name}"|\b{name}\s*\(', answer.content)
    return Verdict("text" if looks_like_call else "no-call", False, _shown(answer.content))


def _answers(answer: ChatAnswer) -> Verdict:
    """A judge that wants an answer in words, or a further call."""
    if answer.tool_calls:
        return Verdict("tool-call", True, _shown(answer.tool_calls[0].name))
    if answer.content.strip():
        return Verdict("answer", True, _shown(answer.content))
    return Verdict("only-reasoning" if answer.reasoning.strip() else "empty", False, _shown(answer.reasoning))


def _reuses(answer: ChatAnswer) -> Verdict:
    """A judge that wants most of the prompt to come from the cache."""
    reused, computed = answer.timings.get("cache_n"), answer.timings.get("prompt_n")
    if not isinstance(reused, int) or not isinstance(computed, int):
        return Verdict("unknown", None, "the server tells no timings")
    is_good = reused > computed
    share = f"{reused} of {reused + computed} tokens of the second turn came from the cache"
    return Verdict("reused" if is_good else "not-reused", is_good, share)


def _has_path(arguments: Any) -> bool:
    return isinstance(arguments, dict) and "notes.txt" in str(arguments.get("filePath", ""))


def _has_lines(arguments: Any) -> bool:
    if not isinstance(arguments, dict):
        return False
    file, lines = arguments.get("file"), arguments.get("lines")
    return isinstance(file, dict) and isinstance(file.get("path"), str) and lines == [3, 5]


_READ_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call-1",
            "type": "function",
            "function": {"name": "read", "arguments": json.dumps({"filePath": "notes.txt"})},
        }
    ],
}
_READ_RESULT = {"role": "tool", "tool_call_id": "call-1", "content": "The fruit of the day is a kiwi."}
_FIRST = _ask("Read the file notes.txt.")
_LONG = "Remember this list: " + ", ".join(f"item {number}" for number in range(1, 61)) + "."

PROBES: tuple[Probe, ...] = (
    Probe("tool call", (_FIRST,), _calls("read", _has_path)),
    Probe("tool call, streamed", ({**_FIRST, "stream": True},), _calls("read", _has_path)),
    Probe("after a tool result", (_ask("Read the file notes.txt. Which fruit?", _READ_CALL, _READ_RESULT),), _answers),
    Probe(
        "nested arguments",
        (_ask("Change lines 3 and 5 of main.py: give the numbers as a list.", tools=(_EDIT,)),),
        _calls("edit", _has_lines),
    ),
    Probe("an answer in words", (_ask("Say hello in one word.", tools=()),), _answers),
    Probe(
        "prefix reused",
        (
            {**_ask(_LONG, tools=()), "max_tokens": 4},
            {
                **_ask(
                    _LONG,
                    {"role": "assistant", "content": "Good."},
                    {"role": "user", "content": "Which is the last?"},
                    tools=(),
                ),
                "max_tokens": 4,
            },
        ),
        _reuses,
    ),
)
"""What is asked, in this order."""
