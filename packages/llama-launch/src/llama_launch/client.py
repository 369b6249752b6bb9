"""Typed HTTP calls to a llama-server.

Field names are the server's own (tools/server/README.md of llama.cpp); what an older or newer server does not send is
None. Calls that only ask are tried again after a refused connection and while the model loads; calls that change or
compute something never are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_launch.chat import ChatAnswer, StreamedAnswer, whole_answer
from llama_launch.errors import ProfileError, ServerRefused
from llama_launch.small_file import read_small_file

if TYPE_CHECKING:
    from llama_launch.transport import Answer, Transport

__all__ = ["Client", "Erased", "Props", "Saved", "Slot", "read_api_keys"]

_SHOWN_CHARS = 300


@dataclass(frozen=True)
class Slot:
    """One slot of the server, from /slots.

    Attributes:
        id: Its number.
        n_ctx: Tokens that it may hold.
        is_processing: Whether it works on a request now.
        n_prompt_tokens: Tokens in its cache; None where the server does not say.
        raw: The server's whole answer for this slot.
    """

    id: int
    n_ctx: int | None
    is_processing: bool
    n_prompt_tokens: int | None
    raw: dict[str, Any]


@dataclass(frozen=True)
class Props:
    """What the server says about itself, from /props.

    Attributes:
        n_slots: Number of slots.
        n_ctx_slot: Tokens that one slot may hold.
        model_path: The model file.
        is_sleeping: Whether it has unloaded the model until the next request (--sleep-idle-seconds); None where the
            server does not say.
        raw: The server's whole answer.
    """

    n_slots: int | None
    n_ctx_slot: int | None
    model_path: str | None
    is_sleeping: bool | None
    raw: dict[str, Any]


@dataclass(frozen=True)
class Erased:
    """What erasing a slot did: tokens removed from its cache."""

    id_slot: int
    n_erased: int


@dataclass(frozen=True)
class Saved:
    """What saving or restoring a slot did.

    Attributes:
        id_slot: Which slot.
        filename: The file below the server's --slot-save-path.
        n_tokens: Tokens written or read.
        n_bytes: Size of the file.
    """

    id_slot: int
    filename: str
    n_tokens: int
    n_bytes: int


def read_api_keys(path: Path) -> list[str]:
    """The keys in a file for --api-key-file: one a line; lines that start with `#` and empty ones are left out.

    Raises:
        ProfileError: The file cannot be read, or holds no key.
    """
    try:
        lines = [line.strip() for line in read_small_file(path).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(
            f"{path}: {getattr(error, 'strerror', 'not UTF-8')}",
            hint="api_key_file names a text file with one key a line",
        ) from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ProfileError(f"{path}: no API key in it", hint="write one key a line")
    return keys


class Client:
    """Calls one server.

    Args:
        base_url: Address without `/v1`, such as `http://127.0.0.1:8080`.
        api_key: Sent as a bearer token; never shown in an error.
        timeout_s: How long one call may take to connect and between bytes.
    """

    def __init__(self, base_url: str, api_key: str | None = None, timeout_s: float = 10.0) -> None:
        self.base_url = base_url.rstrip("/")
        self.has_key = bool(api_key)
        self._api_key, self._timeout_s = api_key, timeout_s

    @functools.cached_property
    def _transport(self) -> Transport:
        from llama_launch.transport import Transport

        return Transport(self.base_url, self._api_key, self._timeout_s)

    def is_healthy(self) -> bool:
        """Whether /health says that the model is loaded; False while it loads.

        Raises:
            ServerUnreachable: Nothing answers.
        """
        return self._send("GET", "/health").status_code == 200

    def props(self) -> Props:
        """What the server says about itself.

        Raises:
            ServerUnreachable: Nothing answers.
            ServerRefused: The server answers with an error.
        """
        raw = self._mapping("GET", "/props")
        settings = raw.get("default_generation_settings")
        n_ctx = self._whole_or_none("/props", settings, "n_ctx") if isinstance(settings, dict) else None
        path, is_sleeping = raw.get("model_path"), raw.get("is_sleeping")
        return Props(
            self._whole_or_none("/props", raw, "total_slots"),
            n_ctx,
            path if isinstance(path, str) else None,
            is_sleeping if isinstance(is_sleeping, bool) else None,
            raw,
        )

    def slots(self) -> tuple[Slot, ...]:
        """All slots.

        Raises:
            ServerUnreachable: Nothing answers.
            ServerRefused: The server answers with an error, as when /slots is switched off.
        """
        found = self._json("GET", "/slots")
        if not isinstance(found, list):
            raise self._odd("/slots", "a list", found)
        return tuple(
            Slot(
                self._whole("/slots", raw, "id"),
                self._whole_or_none("/slots", raw, "n_ctx"),
                bool(raw.get("is_processing")),
                self._whole_or_none("/slots", raw, "n_prompt_tokens"),
                raw,
            )
            for raw in found
            if isinstance(raw, dict) and "id" in raw
        )

    def erase(self, id_slot: int) -> Erased:
        """Empty the KV cache of one slot; needs the server's --slot-save-path.

        Raises:
            ServerUnreachable: Nothing answers.
            ServerRefused: The server answers with an error.
        """
        path = f"/slots/{id_slot}?action=erase&id_slot={id_slot}"
        return Erased(id_slot, self._whole(path, self._mapping("POST", path, {}), "n_erased"))

    def save(self, id_slot: int, filename: str) -> Saved:
        """Write a slot's cache to a file below the server's --slot-save-path.

        Raises:
            ServerUnreachable: Nothing answers.
            ServerRefused: The server answers with an error.
        """
        path = f"/slots/{id_slot}?action=save"
        raw = self._mapping("POST", path, {"filename": filename})
        return Saved(id_slot, filename, self._whole(path, raw, "n_saved"), self._whole(path, raw, "n_written"))

    def restore(self, id_slot: int, filename: str) -> Saved:
        """Fill a slot's cache from a file that `save` wrote.

        Raises:
            ServerUnreachable: Nothing answers.
            ServerRefused: The server answers with an error, as when there is no such file.
        """
        path = f"/slots/{id_slot}?action=restore"
        raw = self._mapping("POST", path, {"filename": filename})
        return Saved(id_slot, filename, self._whole(path, raw, "n_restored"), self._whole(path, raw, "n_read"))

    def tokenize(self, text: str) -> tuple[int, ...]:
        """The text as the model's token numbers, without special tokens added.

        Raises:
            ServerUnreachable: Nothing answers.
            ServerRefused: The server answers with an error.
        """
        raw = self._mapping("POST", "/tokenize", {"content": text})
        tokens = raw.get("tokens", [])
        if not isinstance(tokens, list) or not all(_is_whole(token) for token in tokens):
            raise self._odd("/tokenize", "a list of token numbers", tokens)
        return tuple(tokens)

    def chat(self, body: Mapping[str, Any]) -> ChatAnswer:
        """One chat completion; with `stream` in the body its pieces are put together.

        Raises:
            ServerUnreachable: Nothing answers, or the answer breaks off.
            ServerRefused: The server answers with an error, also in the middle of a stream.
        """
        path = "/v1/chat/completions"
        answer = self._checked("POST", path, dict(body), stream=bool(body.get("stream")))
        with answer:
            if not body.get("stream"):
                return whole_answer(self._decoded(path, answer))
            pieces = StreamedAnswer()
            from llama_launch.transport import lines_of

            try:
                for line in lines_of(answer):
                    pieces.take(line)
            except ValueError as error:
                raise self._odd(path, "a stream of JSON pieces", str(error)) from error
        if pieces.error:
            text = _shortened(pieces.error)
            raise ServerRefused(f"{self.base_url}{path}: in the middle of its answer: {text}", status=200, body=text)
        return pieces.answer()

    def metrics(self) -> dict[str, float]:
        """The counters of /metrics by name; needs the server's --metrics.

        Raises:
            ServerUnreachable: Nothing answers.
            ServerRefused: The server answers with an error.
        """
        lines = self._checked("GET", "/metrics").text.splitlines()
        pairs = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
        try:
            return {name: float(value) for name, _, value in pairs}
        except ValueError as error:
            raise self._odd("/metrics", "a number behind each name", str(error)) from error

    def _whole(self, path: str, raw: dict[str, Any], key: str) -> int:
        """A number of an answer; 0 where the server leaves it out."""
        value = self._whole_or_none(path, raw, key)
        return 0 if value is None else value

    def _whole_or_none(self, path: str, raw: dict[str, Any], key: str) -> int | None:
        value = raw.get(key)
        if value is not None and not _is_whole(value):
            raise self._odd(path, f"a number under {key!r}", value)
        return value

    def _odd(self, path: str, expected: str, found: object) -> ServerRefused:
        body = _shortened(str(found))
        return ServerRefused(f"{self.base_url}{path}: expected {expected}, found {body}", status=200, body=body)

    def _mapping(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        found = self._json(method, path, body)
        if not isinstance(found, dict):
            raise self._odd(path, "an object", found)
        return found

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._decoded(path, self._checked(method, path, body))

    def _decoded(self, path: str, answer: Answer) -> Any:
        try:
            return answer.json()
        except ValueError as error:
            text = _shortened(answer.text)
            raise ServerRefused(f"{self.base_url}{path}: not JSON: {text}", status=200, body=text) from error

    def _checked(self, method: str, path: str, body: dict[str, Any] | None = None, *, stream: bool = False) -> Answer:
        answer = self._send(method, path, body, stream=stream)
        if not answer.ok:
            raise ServerRefused(
                f"{self.base_url}{path} answered {answer.status_code}: {_shortened(answer.text)}",
                status=answer.status_code,
                body=_shortened(answer.text),
                hint=_hint(answer.status_code, path),
            )
        return answer

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None, *, stream: bool = False) -> Answer:
        return self._transport.send(method, path, body, stream=stream)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# What a refusal most likely means: status, part of the path, and what to do.
_HINTS = (
    (401, "", "the server asks for an API key"),
    (501, "action=", "start the server with --slot-save-path"),
    (501, "/metrics", "start the server with --metrics"),
    (501, "/slots", "start the server with --slots"),
)


def _hint(status: int, path: str) -> str:
    return next((hint for code, part, hint in _HINTS if code == status and part in path), "")


def _shortened(text: str) -> str:
    """Text of the server for an error message: one line, control characters visible, not too long."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text.strip())
    return shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "…"
