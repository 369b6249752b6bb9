"""HTTP by requests: sessions, retries and timeouts, and its errors as this package's own.

Imported when the first call is made: the library takes a tenth of a second to load, which a start has better use for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from llama_launch.errors import ServerUnreachable

__all__ = ["Answer", "Transport", "lines_of"]

_RETRIES = Retry(
    total=2,
    read=False,  # told as what it is, not as too many tries
    other=0,
    backoff_factor=0.2,
    status_forcelist=(503,),
    allowed_methods=("GET",),
    respect_retry_after_header=False,
    raise_on_status=False,
)
Answer = requests.Response


class Transport:
    """Sends to one server.

    Args:
        base_url: Its address, without `/v1`.
        api_key: Sent as a bearer token.
        timeout_s: How long one call may take to connect and between bytes.
    """

    def __init__(self, base_url: str, api_key: str | None, timeout_s: float) -> None:
        self._base_url, self._timeout_s = base_url, timeout_s
        self._session = requests.Session()
        self._session.mount(base_url, HTTPAdapter(max_retries=_RETRIES))
        self._session.mount(f"{base_url}/health", HTTPAdapter(max_retries=0))  # loading is an answer there
        # The user's proxies and .netrc have no say in calls to a server on this machine.
        self._session.trust_env = False
        if api_key:
            self._session.headers["Authorization"] = f"Bearer {api_key}"

    def send(self, method: str, path: str, body: dict[str, Any] | None, *, stream: bool) -> Answer:
        """Send a request; an answer of any status is an answer.

        Raises:
            ServerUnreachable: Nothing answers, not in time, or the address is none.
        """
        url = self._base_url + path
        try:
            return self._session.request(method, url, json=body, timeout=self._timeout_s, stream=stream)
        except (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema, requests.exceptions.InvalidSchema):
            hint = "an address is such as http://127.0.0.1:8080"
            raise ServerUnreachable(f"{self._base_url!r} is no address of a server", hint=hint) from None
        except UnicodeError as error:
            raise ServerUnreachable(f"{url}: the API key holds characters that no header can", hint="") from error
        except requests.RequestException as error:
            reason = "no answer in time" if isinstance(error, requests.Timeout) else "nothing answers"
            raise ServerUnreachable(
                f"{url}: {reason}", hint="is the server running at this address? `llama-launch serve` prints it"
            ) from error


def lines_of(answer: Answer) -> Iterator[bytes]:
    """The lines of an answer as they come.

    Raises:
        ServerUnreachable: It breaks off.
    """
    try:
        yield from answer.iter_lines()
    except requests.RequestException as error:
        raise ServerUnreachable(f"{answer.url}: the answer broke off", hint="see the server's log") from error
