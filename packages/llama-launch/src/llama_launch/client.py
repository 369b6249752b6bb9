"""Typed HTTP calls to a llama-server.

Field names are the server's own (tools/server/README.md of llama.cpp); what an older or newer server does not send is
None. Nothing is retried: a call tells what happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import requests

from llama_launch.errors import ServerRefused, ServerUnreachable

__all__ = ["Client", "Erased", "Props", "Slot"]

_SHOWN_CHARS = 300


@dataclass(frozen=True)
class Slot:
    """One slot of the server, from /slots.

    Attributes:
        id: Its number.
        n_ctx: Tokens that it may hold.
        is_processing: Whether it works on a request now.
        raw: The server's whole answer for this slot.
    """

    id: int
    n_ctx: int | None
    is_processing: bool
    raw: dict[str, Any]


@dataclass(frozen=True)
class Props:
    """What the server says about itself, from /props.

    Attributes:
        n_slots: Number of slots.
        n_ctx_slot: Tokens that one slot may hold.
        model_path: The model file.
        raw: The server's whole answer.
    """

    n_slots: int | None
    n_ctx_slot: int | None
    model_path: str | None
    raw: dict[str, Any]


@dataclass(frozen=True)
class Erased:
    """What erasing a slot did: tokens removed from its cache."""

    id_slot: int
    n_erased: int


class Client:
    """Calls one server.

    Args:
        base_url: Address without `/v1`, such as `http://127.0.0.1:8080`.
        api_key: Sent as a bearer token; never shown in an error.
        timeout_s: How long one call may take to connect and between bytes.
    """

    def __init__(self, base_url: str, api_key: str | None = None, timeout_s: float = 10.0) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._session = requests.Session()
        # The user's proxies and .netrc have no say in calls to a server on this machine.
        self._session.trust_env = False
        if api_key:
            self._session.headers["Authorization"] = f"Bearer {api_key}"

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
        n_ctx = settings.get("n_ctx") if isinstance(settings, dict) else None
        return Props(raw.get("total_slots"), n_ctx, raw.get("model_path"), raw)

    def slots(self) -> tuple[Slot, ...]:
        """All slots.

        Raises:
            ServerUnreachable: Nothing answers.
            ServerRefused: The server answers with an error, as when /slots is switched off.
        """
        found = self._json("GET", "/slots")
        if not isinstance(found, list):
            raise ServerRefused(f"{self.base_url}/slots: expected a list", status=200, body=_shortened(str(found)))
        return tuple(
            Slot(int(raw["id"]), raw.get("n_ctx"), bool(raw.get("is_processing")), raw)
            for raw in found
            if isinstance(raw, dict) and "id" in raw
        )

    def erase(self, id_slot: int) -> Erased:
        """Empty the KV cache of one slot; needs the server's --slot-save-path.

        Raises:
            ServerUnreachable: Nothing answers.
            ServerRefused: The server answers with an error.
        """
        raw = self._mapping("POST", f"/slots/{id_slot}?action=erase&id_slot={id_slot}", {})
        return Erased(id_slot, int(raw.get("n_erased", 0)))

    def _mapping(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        found = self._json(method, path, body)
        if not isinstance(found, dict):
            raise ServerRefused(f"{self.base_url}{path}: expected an object", status=200, body=_shortened(str(found)))
        return found

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self._send(method, path, body)
        if not answer.ok:
            raise ServerRefused(
                f"{self.base_url}{path} answered {answer.status_code}: {_shortened(answer.text)}",
                status=answer.status_code,
                body=_shortened(answer.text),
                hint="start the server with --slot-save-path" if "action=erase" in path else "",
            )
        try:
            return answer.json()
        except ValueError as error:
            text = _shortened(answer.text)
            raise ServerRefused(f"{self.base_url}{path}: not JSON: {text}", status=200, body=text) from error

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> requests.Response:
        url = self.base_url + path
        try:
            return self._session.request(method, url, json=body, timeout=self._timeout_s)
        except requests.RequestException as error:
            reason = "no answer in time" if isinstance(error, requests.Timeout) else "nothing answers"
            raise ServerUnreachable(f"{url}: {reason}", hint="is the server running?") from error


def _shortened(text: str) -> str:
    """Text of the server for an error message: one line, control characters visible, not too long."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text.strip())
    return shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "…"
