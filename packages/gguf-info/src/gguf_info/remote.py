"""GGUF files on a web server, read by range requests: the header's bytes and no others.

The rule: a URL behaves as a file that can be read at any place. Redirects are followed once, and later requests go to
where they led; a file that changes between two requests is an error. A server that sends whole files only is read from
the start, and left as soon as the header has come.

Format: RFC 9110, section 14 (range requests).
"""

from __future__ import annotations

import http.client
import io
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import BinaryIO, cast

from gguf_info.errors import GGUFError

__all__ = ["opened_url", "url_exists", "url_sibling"]

TIMEOUT_S = 30.0
"""How long the server may stay silent."""

CHUNK_BYTES = 1 << 20
"""The least that is asked for at once: a request costs more than a megabyte."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_NO_SIZE = "a server that answers range requests, or says how long the file is"
_HINTS = {401: "the file needs a login: download it", 403: "the file needs a login: download it"}
_SERVER_FAULT = 500


def url_sibling(url: str, name: str) -> str:
    """The URL of another file in the same folder, with the same query."""
    parts = urllib.parse.urlsplit(url)
    folder, _, _ = parts.path.rpartition("/")
    return urllib.parse.urlunsplit(parts._replace(path=f"{folder}/{urllib.parse.quote(name)}"))


def url_exists(url: str) -> bool:
    """Whether the server has the file.

    Raises:
        GGUFError: It does not say.
    """
    try:
        with opened_url(url):
            return True
    except GGUFError as error:
        if isinstance(error.__cause__, urllib.error.HTTPError) and error.__cause__.code in (404, 410):
            return False
        raise


@contextmanager
def opened_url(url: str) -> Iterator[tuple[BinaryIO, int]]:
    """A file on a web server as a stream that can seek, and its size in bytes.

    Raises:
        GGUFError: It is not there, the server does not answer, or sends neither ranges nor the file's size.
    """
    remote = _RemoteFile(_Requests(url))
    with closing(remote):
        yield cast(BinaryIO, remote), remote.size_bytes


class _Requests:
    """Asks for one file, again and again, and turns whatever goes wrong into an error that names it."""

    def __init__(self, url: str) -> None:
        self._named = self._url = url
        self._opener = _opener()
        self._etag: str | None = None
        self.size_bytes = -1

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turn what the network raises into the package's error."""
        try:
            yield
        except urllib.error.HTTPError as error:
            error.close()
            found = "an empty file" if error.code == 416 else f"HTTP {error.code} {error.reason}"
            raise self.error("a GGUF file", found, error) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise self.error("an answer of the server", str(reason) or type(error).__name__, error) from error

    def ask(self, offset: int, n_bytes: int) -> http.client.HTTPResponse:
        """The answer to a request for a range; it may hold the range, or the whole file."""
        headers = {
            "Range": f"bytes={offset}-{offset + n_bytes - 1}",
            "Accept-Encoding": "identity",
            "User-Agent": "gguf-info",
        }
        with self.faults():
            request = urllib.request.Request(self._url, headers=headers)
            response = cast(http.client.HTTPResponse, self._opener.open(request, timeout=TIMEOUT_S))
        try:
            self._note(response)
        except GGUFError:
            response.close()
            raise
        return response

    def _note(self, response: http.client.HTTPResponse) -> None:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        size = match[3] if match else response.headers.get("Content-Length", "")
        if response.status != (206 if match else 200) or not size.isdigit():
            found = f"HTTP {response.status} without either"
            raise self.error(_NO_SIZE, found, hint="download the file")
        etag = response.headers.get("ETag")
        if self.size_bytes >= 0 and (int(size), etag) != (self.size_bytes, self._etag):
            raise self.error("the same file as before", "one that has changed", hint="try again")
        # The address that redirects led to: signed, for a while, and not worth asking for again.
        self._url = response.url
        self.size_bytes, self._etag = int(size), etag

    def error(self, expected: str, found: str, cause: Exception | None = None, hint: str = "") -> GGUFError:
        """An error that names the URL as it was given."""
        return GGUFError(self._named, None, expected=expected, found=found, hint=hint or _hint(cause))


def _hint(cause: Exception | None) -> str:
    if isinstance(cause, urllib.error.HTTPError):
        return _HINTS.get(cause.code, "try again later" if cause.code >= _SERVER_FAULT else "check the URL")
    return "check the URL and the network" if cause else "try again, or download the file"


class _RemoteFile(io.RawIOBase):
    """Reads at any place by range requests, or else from a stream that starts with the file; keeps the last chunk."""

    def __init__(self, requests: _Requests) -> None:
        super().__init__()
        self._requests = requests
        self._position = 0
        self._chunk_offset, self._chunk = 0, b""
        self._whole: http.client.HTTPResponse | None = None
        self._whole_offset = 0
        self._fetch(0, CHUNK_BYTES)
        self.size_bytes = requests.size_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Leave the server, which may be sending still."""
        if self._whole is not None:
            self._whole.close()
        super().close()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place; the next read may ask the server."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes from here, fewer at the end of the file."""
        end = self.size_bytes if size < 0 else min(self._position + size, self.size_bytes)
        if end <= self._position:
            return b""
        chunk_end = self._chunk_offset + len(self._chunk)
        if not self._chunk_offset <= self._position < chunk_end:
            self._fetch(self._position, max(end - self._position, CHUNK_BYTES))
            chunk_end = self._chunk_offset + len(self._chunk)
        first = self._position - self._chunk_offset
        data = self._chunk[first : first + min(end, chunk_end) - self._position]
        self._position += len(data)
        return data

    def _fetch(self, offset: int, n_bytes: int) -> None:
        """Have the bytes from `offset` on as the chunk."""
        if self._whole is None or offset < self._whole_offset:
            response = self._requests.ask(offset, n_bytes)
            if response.status == 206:
                with closing(response):
                    self._take_range(response, offset, n_bytes)
                return
            if self._whole is not None:
                self._whole.close()
            self._whole, self._whole_offset = response, 0
        self._take_from_whole(self._whole, offset, n_bytes)

    def _take_range(self, response: http.client.HTTPResponse, offset: int, n_bytes: int) -> None:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        first, last = (int(match[1]), int(match[2])) if match else (-1, -1)
        if first != offset or not 0 < last - first + 1 <= n_bytes:
            raise self._requests.error(f"bytes {offset} to {offset + n_bytes - 1}", f"bytes {first} to {last}")
        self._chunk_offset, self._chunk = offset, self._read(response, last - first + 1)

    def _take_from_whole(self, response: http.client.HTTPResponse, offset: int, n_bytes: int) -> None:
        while self._whole_offset < offset:
            self._whole_offset += len(self._read(response, min(offset - self._whole_offset, CHUNK_BYTES)))
        data = self._read(response, min(n_bytes, self._requests.size_bytes - offset))
        self._chunk_offset, self._chunk = offset, data
        self._whole_offset = offset + len(data)

    def _read(self, response: http.client.HTTPResponse, n_bytes: int) -> bytes:
        with self._requests.faults():
            data = response.read(n_bytes)
        if len(data) != n_bytes:
            raise self._requests.error(f"{n_bytes} bytes", f"{len(data)} bytes", hint="try again")
        return data


def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https addresses, and follows redirects to such only."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener
