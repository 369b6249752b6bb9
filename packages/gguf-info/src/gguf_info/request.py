"""A chat request against a model's template: whether it is taken, where it fails, and how many tokens it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gguf_info.chat_template import Check, Rendering, inspect_template, load_template
from gguf_info.errors import GGUFError
from gguf_info.model import Summary
from gguf_info.vocabulary import token_counter

__all__ = ["ChatRequest", "TemplateAnswer", "parse_request", "template_answer", "template_document"]


@dataclass(frozen=True)
class ChatRequest:
    """The parts of an OpenAI chat request that a template sees."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class TemplateAnswer:
    """What a template does.

    Attributes:
        checks: How it takes the usual kinds of requests.
        renders_tools: Whether tools reach the model.
        rendering: The request through the template, None when no request was given.
        refusal: Which message it refuses and why, or an empty string.
        n_tokens: Tokens of the prompt; None when they cannot be counted exactly, or there is no prompt.
        n_tool_tokens: How many of them are there for the tools.
    """

    checks: tuple[Check, ...]
    renders_tools: bool
    rendering: Rendering | None = None
    refusal: str = ""
    n_tokens: int | None = None
    n_tool_tokens: int | None = None

    @property
    def verdict(self) -> str:
        """In one line."""
        if self.refusal:
            return "refuses the request"
        tools = "tools are rendered" if self.renders_tools else "tools are not rendered"
        return tools if self.rendering is None else f"takes the request; {tools}"


def parse_request(text: str, path: str) -> ChatRequest:
    """A request's JSON: an object with `messages` and perhaps `tools`, or the list of messages alone.

    Raises:
        GGUFError: It is something else.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GGUFError(path, None, expected="JSON", found=str(error), hint="check --messages") from error
    if isinstance(document, list):
        document = {"messages": document}
    messages = document.get("messages") if isinstance(document, Mapping) else None
    tools = (document.get("tools") or []) if isinstance(document, Mapping) else []
    for name, value in (("messages", messages), ("tools", tools)):
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            hint = 'such as {"messages": [{"role": "user", "content": "Hello"}]}'
            raise GGUFError(path, None, expected=f"a list of objects under {name!r}", found="none", hint=hint)
    return ChatRequest(tuple(messages or ()), tuple(tools))


def template_answer(summary: Summary, request: ChatRequest | None = None) -> TemplateAnswer:
    """Try the model's template on the usual kinds of requests, and on one of your own.

    Raises:
        GGUFError: The model has no template, it is no template, or jinja2 is not installed.
    """
    template = load_template(summary)
    report = inspect_template(template)
    if request is None:
        return TemplateAnswer(report.checks, report.renders_tools)
    rendering = template.render(request.messages, request.tools)
    if rendering.prompt is None:
        return TemplateAnswer(report.checks, report.renders_tools, rendering, _refusal(request, rendering))
    count = token_counter(summary)
    n_tokens = count(rendering.prompt) if count else None
    without = template.render(request.messages).prompt if request.tools else rendering.prompt
    n_tool_tokens = None
    if count and n_tokens is not None and without is not None:
        n_tool_tokens = n_tokens - count(without)
    return TemplateAnswer(report.checks, report.renders_tools, rendering, "", n_tokens, n_tool_tokens)


def _refusal(request: ChatRequest, rendering: Rendering) -> str:
    index = rendering.failed_message
    place = "the request" if index is None else f"messages[{index}] (role {request.messages[index].get('role')})"
    return f"{place}: {rendering.error}"


def template_document(summary: Summary, answer: TemplateAnswer) -> dict[str, Any]:
    """The document that `gguf-info template --format json` prints."""
    request = None
    if answer.rendering is not None:
        request = {
            "prompt": answer.rendering.prompt,
            "failed_message": answer.rendering.failed_message,
            "error": answer.rendering.error or None,
            "n_tokens": answer.n_tokens,
            "n_tool_tokens": answer.n_tool_tokens,
        }
    return {
        "schema_version": 1,
        "path": summary.file.path,
        "renders_tools": answer.renders_tools,
        "checks": [asdict(check) for check in answer.checks],
        "request": request,
    }
