"""OpenCode's configuration for a running server: limits that are the server's own.

OpenCode compacts a conversation once it has as many tokens as `limit.context` less what it reserves for an answer
(`limit.output`, at most 32,000), as opencode-ai 1.18.33 does it.
Limits above the server's make it overflow first; an output limit near the context makes it compact after every step.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_launch.client import Client
from llama_launch.errors import ProfileError, ServerRefused
from llama_launch.small_file import read_small_file

__all__ = [
    "DEFAULT_PROVIDER",
    "OpenCodeLimits",
    "ServedModel",
    "check_config",
    "merged_config",
    "provider_block",
    "served_model",
    "write_config",
]

DEFAULT_PROVIDER = "llama-server"
_MOST_RESERVED = 32_000
_DEFAULT_OUTPUT = 8_192


@dataclass(frozen=True)
class OpenCodeLimits:
    """What OpenCode is told.

    Attributes:
        context: `limit.context`, tokens of a conversation.
        output: `limit.output`, tokens of one answer.
    """

    context: int
    output: int

    @property
    def compacts_at(self) -> int:
        """Tokens at which OpenCode compacts the conversation."""
        return max(0, self.context - (min(self.output, _MOST_RESERVED) or _MOST_RESERVED))


@dataclass(frozen=True)
class ServedModel:
    """What a running server serves.

    Attributes:
        url: Its address, without `/v1`.
        model_id: What requests call the model.
        n_ctx_slot: Tokens that one slot can hold.
        n_slots: How many slots there are.
        needs_key: Whether it asks for an API key.
    """

    url: str
    model_id: str
    n_ctx_slot: int
    n_slots: int | None
    needs_key: bool

    def limits(self, context: int | None = None, output: int | None = None) -> OpenCodeLimits:
        """The limits for OpenCode: the slot's own context, unless less is wanted, and a quarter of it for an answer.

        Raises:
            ProfileError: More is wanted than the server has.
        """
        context = self.n_ctx_slot if context is None else context
        output = min(_DEFAULT_OUTPUT, context // 4) if output is None else output
        if context > self.n_ctx_slot:
            raise ProfileError(
                f"a slot of the server holds {self.n_ctx_slot} tokens, not {context}",
                hint=f"--context {self.n_ctx_slot}, or start the server with more",
            )
        if output >= context:
            raise ProfileError(
                f"{output} tokens for an answer leave nothing of {context}", hint=f"--output {context // 4}"
            )
        return OpenCodeLimits(context, output)


def served_model(client: Client, *, needs_key: bool) -> ServedModel:
    """Ask a running server.

    Raises:
        ServerUnreachable: Nothing answers.
        ServerRefused: It answers with an error, or does not tell its context.
    """
    props = client.props()
    if props.n_ctx_slot is None:
        raise ServerRefused(
            f"{client.base_url}/props does not tell the context of a slot",
            status=200,
            body="",
            hint="is it llama.cpp's?",
        )
    alias = props.raw.get("model_alias")
    named = alias if isinstance(alias, str) and alias else props.model_path or "model"
    # Without --alias the server calls its model by the file's path.
    name = Path(named).stem if named.endswith(".gguf") else named
    return ServedModel(client.base_url, name, props.n_ctx_slot, props.n_slots, needs_key)


def provider_block(served: ServedModel, limits: OpenCodeLimits) -> dict[str, Any]:
    """The provider's entry. A key is never in it: OpenCode takes it from $LLAMA_API_KEY."""
    return {
        "npm": "@ai-sdk/openai-compatible",
        "name": DEFAULT_PROVIDER,
        "options": {
            "baseURL": f"{served.url}/v1",
            "apiKey": "{env:LLAMA_API_KEY}" if served.needs_key else "none",
        },
        "models": {
            served.model_id: {
                "name": served.model_id,
                "tool_call": True,
                "limit": {"context": limits.context, "output": limits.output},
            }
        },
    }


def merged_config(place: str, text: str, provider: str, block: Mapping[str, Any]) -> str:
    """The text of a configuration with that provider's entry in it; all else has the values that it had.

    Args:
        place: What messages call the configuration.
        text: What is in it; empty for none.
        provider: The provider's id.
        block: Its entry. Other models and options of the same provider stay.

    Raises:
        ProfileError: It is no JSON object, or has comments, which would be lost.
    """
    document: dict[str, Any] = _parsed(place, text) if text.strip() else {"$schema": "https://opencode.ai/config.json"}
    providers = document.setdefault("provider", {})
    if not isinstance(providers, dict):
        raise ProfileError(f"{place}: provider is not an object", hint="correct it, or take it out")
    providers[provider] = _merged(providers.get(provider), block)
    (model_id,) = block["models"]
    document.setdefault("model", f"{provider}/{model_id}")
    indent = re.search(r"\n([ \t]+)\S", text)
    return json.dumps(document, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n"


def _merged(old: object, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _parsed(place: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(
            f"{place}: not JSON: {error}",
            hint="comments would be lost: without --write the entry is printed, to be pasted by hand",
        ) from error
    if not isinstance(document, dict):
        raise ProfileError(f"{place}: not a JSON object", hint="name OpenCode's opencode.json")
    return document


def write_config(path: Path, provider: str, block: Mapping[str, Any]) -> bool:
    """Merge the provider's entry into a file, whole or not at all; returns whether that changed it.

    Raises:
        ProfileError: The file cannot be read or written, or is not what OpenCode's configuration is.
    """
    target = path.resolve()  # a link to a file of somebody's dotfiles stays a link
    try:
        old = read_small_file(target) if target.exists() else ""
        new = merged_config(str(path), old, provider, block)
        if old.strip() and json.loads(old) == json.loads(new):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as stream:
                stream.write(new)
            Path(temporary).chmod(target.stat().st_mode & 0o7777 if target.exists() else 0o644)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not UTF-8 at byte {error.start}", hint="name OpenCode's opencode.json") from error
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}", hint="name a file that can be written") from error
    return True


def check_config(path: Path, served: ServedModel) -> list[str]:
    """What in a configuration does not agree with the running server; empty when it does.

    Every provider is looked at whose address is the server's.

    Raises:
        ProfileError: The file cannot be read, or is not what OpenCode's configuration is.
    """
    try:
        document = _parsed(str(path), read_small_file(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(
            f"{path}: {getattr(error, 'strerror', 'not UTF-8')}", hint="name OpenCode's opencode.json"
        ) from error
    providers = document.get("provider")
    entries = providers.items() if isinstance(providers, dict) else ()
    ours = [(name, entry) for name, entry in entries if _address(entry) == served.url]
    if not ours:
        addresses = ", ".join(address for _, entry in entries if (address := _address(entry)))
        return [f"no provider has the address {served.url}/v1" + (f", only {addresses}" if addresses else "")]
    return [fault for name, entry in ours for fault in _faults(f"provider.{name}", entry, served)]


def _address(entry: object) -> str:
    options = entry.get("options") if isinstance(entry, dict) else None
    address = options.get("baseURL") if isinstance(options, dict) else None
    return address.rstrip("/").removesuffix("/v1") if isinstance(address, str) else ""


def _faults(place: str, entry: Mapping[str, Any], served: ServedModel) -> list[str]:
    models = entry.get("models")
    if not isinstance(models, dict) or not models:
        return [f"{place}.models: no model"]
    return [fault for name, model in models.items() for fault in _model_faults(f"{place}.models.{name}", model, served)]


def _model_faults(place: str, model: object, served: ServedModel) -> list[str]:
    limit = model.get("limit") if isinstance(model, dict) else None
    context, output = (limit.get("context"), limit.get("output")) if isinstance(limit, dict) else (None, None)
    if not isinstance(context, int) or not isinstance(output, int):
        return [f"{place}.limit: context and output are not both given: OpenCode does not know when to compact"]
    found = []
    if context > served.n_ctx_slot:
        found.append(
            f"{place}.limit.context: {context}, but a slot holds {served.n_ctx_slot}: conversations overflow before "
            "OpenCode compacts them"
        )
    if context < served.n_ctx_slot:
        found.append(f"{place}.limit.context: {context}, but a slot holds {served.n_ctx_slot}: the rest is never used")
    if output >= context or OpenCodeLimits(context, output).compacts_at * 2 <= context:
        found.append(
            f"{place}.limit.output: {output} of {context}: OpenCode compacts at "
            f"{OpenCodeLimits(context, output).compacts_at} tokens already"
        )
    return found
