"""A model's chat template, rendered offline: what a request becomes, and which rules the template makes.

The rule: a template is a program from a file, so it runs in jinja2's immutable sandbox with bounds on what it may
produce, and everything that it says is data. What llama.cpp gives to a template is given here (its common/chat.cpp and
minja): `messages`, `tools`, `add_generation_prompt`, `bos_token`, `eos_token`, `raise_exception`, `strftime_now`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gguf_info.errors import GGUFError
from gguf_info.model import Summary

__all__ = ["ChatTemplate", "Check", "Rendering", "TemplateReport", "inspect_template", "load_template"]

_LONGEST_PROMPT_CHARS = 8 << 20
_LONGEST_PRODUCT = 1 << 20
_TOOL_USE = "tokenizer.chat_template.tool_use"
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "Looks a thing up.",
        "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
    },
}
_SYSTEM = {"role": "system", "content": "SYSTEM-TEXT"}
_USER = {"role": "user", "content": "USER-TEXT"}
_ASSISTANT = {"role": "assistant", "content": "ASSISTANT-TEXT"}
_LATER_SYSTEM = {"role": "system", "content": "LATER-SYSTEM-TEXT"}


def _call(call_id: str) -> dict[str, Any]:
    function = {"name": "probe_tool", "arguments": {"thing": "ARGUMENT-TEXT"}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": "probe_tool", "content": "RESULT-TEXT"}


_NINE = "abcDEF123"
_LONG = "call_00_0123456789abcdef"


@dataclass(frozen=True)
class _Probe:
    """A request that tries one rule: it passes when every one of `shown` is in the prompt."""

    rule: str
    messages: tuple[Mapping[str, Any], ...]
    shown: tuple[str, ...]
    with_tools: bool = False


_PROBES = (
    _Probe("a user's message", (_USER,), ("USER-TEXT",)),
    _Probe("a system message first", (_SYSTEM, _USER), ("SYSTEM-TEXT", "USER-TEXT")),
    _Probe(
        "a system message later",
        (_SYSTEM, _USER, _ASSISTANT, _LATER_SYSTEM, _USER),
        ("LATER-SYSTEM-TEXT",),
    ),
    _Probe("two user messages in a row", (_USER, {"role": "user", "content": "SECOND-TEXT"}), ("SECOND-TEXT",)),
    _Probe("an assistant's message first", (_ASSISTANT, _USER), ("ASSISTANT-TEXT",)),
    _Probe("tools are rendered", (_USER,), ("probe_tool",), with_tools=True),
    _Probe(
        "tool calls and results",
        (_USER, _call(_NINE), _result(_NINE)),
        ("probe_tool", "ARGUMENT-TEXT", "RESULT-TEXT"),
        with_tools=True,
    ),
    _Probe(
        "tool-call ids of any form",
        (_USER, _call(_LONG), _result(_LONG)),
        ("RESULT-TEXT",),
        with_tools=True,
    ),
)


@dataclass(frozen=True)
class Check:
    """How the template takes one kind of request.

    Attributes:
        rule: What was tried.
        outcome: `yes`; `left out` (it renders, and the text is not in the prompt); `refused`.
        message: The template's own words when it refuses, or an empty string.
    """

    rule: str
    outcome: str
    message: str = ""


@dataclass(frozen=True)
class Rendering:
    """A request through the template.

    Attributes:
        prompt: The text, or None when the template refuses the request.
        failed_message: Index of the first message with which it refuses, None when it does not or refuses it all.
        error: The template's words, or an empty string.
    """

    prompt: str | None
    failed_message: int | None = None
    error: str = ""


@dataclass(frozen=True)
class TemplateReport:
    """What a template does with the usual kinds of requests."""

    checks: tuple[Check, ...]

    @property
    def renders_tools(self) -> bool:
        """Whether a request's tools reach the model."""
        return any(check.rule == "tools are rendered" and check.outcome == "yes" for check in self.checks)


class ChatTemplate:
    """A compiled template.

    Args:
        source: Its text.
        path: The model's file, for messages.
        bos_token: Text of the first token of a prompt.
        eos_token: Text of the last token of an answer.
        for_tools: The template that takes requests with tools, where the model has another one for them.

    Raises:
        GGUFError: It is no jinja2 template, or jinja2 is not installed.
    """

    def __init__(
        self,
        source: str,
        path: str,
        bos_token: str = "",
        eos_token: str = "",
        for_tools: ChatTemplate | None = None,
    ) -> None:
        self._path = path
        self._for_tools = for_tools
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            import jinja2
        except ImportError as error:
            hint = "pip install 'gguf-info[template]'"
            raise GGUFError(path, None, expected="jinja2 to render a template", found="none", hint=hint) from error
        self._template_error = jinja2.TemplateError
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            found = f"line {error.lineno}: {error.message}"
            raise GGUFError(path, None, expected="a chat template in jinja2's language", found=found) from error
        except RecursionError as error:
            raise GGUFError(path, None, expected="a chat template", found="one that is nested too deeply") from error

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> Rendering:
        """Render a request; a refusal names the first message with which it happens.

        Args:
            messages: OpenAI chat messages; text parts are joined, and arguments of tool calls may be JSON text.
            tools: OpenAI tool definitions.
        """
        if tools and self._for_tools is not None:
            return self._for_tools.render(messages, tools)
        prepared = [_prepared(message) for message in messages]
        prompt, error = self._try(prepared, tools)
        if prompt is not None:
            return Rendering(prompt)
        for count in range(1, len(prepared) + 1):
            part, part_error = self._try(prepared[:count], tools)
            if part is None and part_error == error:
                return Rendering(None, count - 1, error)
        return Rendering(None, None, error)

    def _try(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[str | None, str]:
        values: dict[str, Any] = {"messages": list(messages), "add_generation_prompt": True, **self._tokens}
        if tools:
            values["tools"] = list(tools)
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(values):
                length += len(part)
                if length > _LONGEST_PROMPT_CHARS:
                    return None, f"the prompt is longer than {_LONGEST_PROMPT_CHARS} characters"
                parts.append(part)
        except self._template_error as error:
            return None, str(error.message or type(error).__name__)
        except MemoryError:
            return None, "it takes too much memory"
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            return None, f"{type(error).__name__}: {error}"
        return "".join(parts), ""


def load_template(summary: Summary) -> ChatTemplate:
    """The chat template of a model, and its template for tools where it has one (`tokenizer.chat_template.tool_use`).

    Raises:
        GGUFError: The model has none, it is no template, or jinja2 is not installed.
    """
    source = summary.chat_template()
    if source is None:
        path, hint = summary.file.path, "base models and projectors have none"
        raise GGUFError(path, None, expected="a chat template (tokenizer.chat_template)", found="none", hint=hint)
    path, tokens = summary.file.path, (_token(summary, "bos"), _token(summary, "eos"))
    other = summary.metadata.get(_TOOL_USE)
    for_tools = ChatTemplate(other, path, *tokens) if isinstance(other, str) else None
    return ChatTemplate(source, path, *tokens, for_tools)


def inspect_template(template: ChatTemplate) -> TemplateReport:
    """Try the usual kinds of requests."""
    return TemplateReport(tuple(_checked(template, probe) for probe in _PROBES))


def _checked(template: ChatTemplate, probe: _Probe) -> Check:
    rendering = template.render(probe.messages, [_TOOL] if probe.with_tools else [])
    if rendering.prompt is None:
        return Check(probe.rule, "refused", rendering.error)
    missing = [text for text in probe.shown if text not in rendering.prompt]
    return Check(probe.rule, "left out" if missing else "yes")


def _token(summary: Summary, name: str) -> str:
    number = summary.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if not isinstance(number, int) or "tokenizer.ggml.tokens" not in summary.metadata:
        return ""
    for index, token in enumerate(summary.headers[0].read_array("tokenizer.ggml.tokens")):
        if index == number:
            return str(token)
    return ""


def _prepared(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: text as one string, arguments as objects."""
    prepared = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text", "") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        prepared["content"] = "\n".join(texts)
    elif content is None:
        prepared["content"] = ""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        prepared["tool_calls"] = [_prepared_call(call) for call in calls]
    return prepared


def _prepared_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _environment() -> Any:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Bounded(ImmutableSandboxedEnvironment):
        """Refuses products that would fill the memory."""

        intercepted_binops = frozenset(["*", "**"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**" and (abs(left) > 1000 or abs(right) > 100):
                raise jinja2.TemplateRuntimeError("a power that is too large")
            for text, times in ((left, right), (right, left)):
                if isinstance(text, (str, list, tuple)) and len(text) * int(times) > _LONGEST_PRODUCT:
                    raise jinja2.TemplateRuntimeError("a repetition that is too long")
            return super().call_binop(context, operator, left, right)

    environment = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _raise(message: object) -> None:
    import jinja2

    raise jinja2.TemplateRuntimeError(str(message))


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
