"""Calls to the model server.

They use `http.client`: a call must be cut off from another thread while it waits for the answer's first byte (a long
prompt takes minutes), for which the socket has to be at hand before there is a response.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from opencode_harness.errors import ProxyError

__all__ = ["OWN_HEADERS", "Upstream", "UpstreamCall"]

# Headers that describe one connection (RFC 9110, 7.6.1), or that the proxy states itself.
OWN_HEADERS = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "accept-encoding",  # an answer must come uncompressed to be read on the side
        "expect",
    }
)


class Upstream:
    """Where requests go.

    Args:
        url: The server's address; a trailing `/v1` is ignored.
        api_key: Sent as bearer key in place of the client's, or None.
        connect_timeout_s: For reaching the server.
        read_timeout_s: Its longest silence.

    Raises:
        ProxyError: The address is not an HTTP address.
    """

    def __init__(self, url: str, api_key: str | None, connect_timeout_s: float, read_timeout_s: float) -> None:
        parts = _split_url(url)
        self._connection_class = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.api_key = api_key
        self.connect_timeout_s = connect_timeout_s
        self.read_timeout_s = read_timeout_s

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> UpstreamCall:
        """A call that has yet to be sent."""
        connection = self._connection_class(self._host, self._port, timeout=self.connect_timeout_s)
        sent = {name: value for name, value in headers.items() if name.lower() not in OWN_HEADERS}
        if self.api_key is not None:
            sent = {name: value for name, value in sent.items() if name.lower() != "authorization"}
            sent["Authorization"] = f"Bearer {self.api_key}"
        sent |= {"Accept-Encoding": "identity", "Connection": "close"}
        return UpstreamCall(connection, self.read_timeout_s, method, self._prefix + path, sent, body)


def _split_url(url: str) -> SplitResult:
    hint = "write it like http://127.0.0.1:8080"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or 1) > 0
    except ValueError as error:
        raise ProxyError(f"upstream {url!r}: {error}", hint=hint) from error
    if not valid:
        raise ProxyError(f"upstream {url!r} is not an HTTP address", hint=hint)
    return parts


@dataclass
class UpstreamCall:
    """One request to the upstream, which any thread can cut off at any time."""

    connection: http.client.HTTPConnection
    read_timeout_s: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    aborted: bool = False
    _socket: socket.socket | None = None

    def send(self) -> http.client.HTTPResponse:
        """Send the request and wait for the answer's head.

        Raises:
            OSError: The upstream cannot be reached, hangs up or stays silent; or the call was aborted.
            http.client.HTTPException: What it answers is not HTTP.
        """
        self.connect()
        self.connection.request(self.method, self.path, body=self.body, headers=dict(self.headers))
        return self.connection.getresponse()

    def connect(self) -> None:
        """Reach the server.

        Raises:
            OSError: It cannot be reached, or the call was aborted.
        """
        self.connection.connect()
        self._socket = self.connection.sock
        self._socket.settimeout(self.read_timeout_s)
        if self.aborted:
            raise ConnectionAbortedError("aborted before the request was sent")

    @property
    def connected(self) -> bool:
        """Whether the server was reached."""
        return self._socket is not None

    def abort(self) -> None:
        """Cut the call off, from any thread."""
        self.aborted = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
