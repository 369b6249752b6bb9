"""GGUF files on a web server, read by range requests: the header's bytes and no others.

The rule: a URL behaves as a file that can be read at any place. Redirects are followed once, and later ranges go to
where they led; a file that changes between two ranges is an error, and so is a server that sends whole files only.

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
_NO_RANGES = "a server that answers range requests"
_HINTS = {401: "the file needs a login: download it", 403: "the file needs a login: download it", 404: "check the URL"}


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
        GGUFError: It is not there, the server does not answer or cannot send ranges.
    """
    remote = _RemoteFile(url)
    with closing(remote):
        yield cast(BinaryIO, remote), remote.size_bytes


class _RemoteFile(io.RawIOBase):
    """Reads at any place by range requests, keeping the last chunk."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._named = self._url = url
        self._opener = _opener()
        self._etag: str | None = None
        self._position = 0
        self._chunk_offset, self._chunk = 0, b""
        self.size_bytes = -1
        self._fetch(0, CHUNK_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

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
        last = offset + n_bytes - 1
        headers = {"Range": f"bytes={offset}-{last}", "Accept-Encoding": "identity", "User-Agent": "gguf-info"}
        try:
            request = urllib.request.Request(self._url, headers=headers)
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                self._take(response, offset, n_bytes)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                raise self._error("a GGUF file", "an empty file", error) from error
            raise self._error("a GGUF file", f"HTTP {error.code} {error.reason}", error) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise self._error("an answer of the server", str(reason) or type(error).__name__, error) from error

    def _take(self, response: http.client.HTTPResponse, offset: int, n_bytes: int) -> None:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status != 206 or match is None:
            raise self._error(_NO_RANGES, f"HTTP {response.status} without ranges", hint="download the file")
        first, last, size_bytes = (int(number) for number in match.groups())
        etag = response.headers.get("ETag")
        if self.size_bytes >= 0 and (size_bytes, etag) != (self.size_bytes, self._etag):
            raise self._error("the same file as before", "one that has changed", hint="try again")
        if first != offset or last - first + 1 > n_bytes:
            raise self._error(f"bytes {offset} to {offset + n_bytes - 1}", f"bytes {first} to {last}")
        data = response.read(last - first + 1)
        if len(data) != last - first + 1:
            raise self._error(f"{last - first + 1} bytes", f"{len(data)} bytes", hint="try again")
        # The address that redirects led to: signed, for a while, and not worth asking for again.
        self._url = response.url
        self.size_bytes, self._etag = size_bytes, etag
        self._chunk_offset, self._chunk = offset, data

    def _error(self, expected: str, found: str, cause: Exception | None = None, hint: str = "") -> GGUFError:
        code = cause.code if isinstance(cause, urllib.error.HTTPError) else None
        return GGUFError(self._named, None, expected=expected, found=found, hint=hint or _HINTS.get(code or 0, ""))


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
