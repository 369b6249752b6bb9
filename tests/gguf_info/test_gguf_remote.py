"""Models on a web server: a real one on loopback, which can send ranges, redirect, refuse and misbehave."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf
import pytest
from gguf_info import GGUFError, read_summary, summary_document, verify
from gguf_info.cli import main


class Server(ThreadingHTTPServer):
    """Serves a folder; how it misbehaves is the first part of a path: /whole/FILE, /cut/FILE, ..."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.sent_bytes = 0
        self.requests: list[str] = []
        self.is_over = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves early is what some tests are about."""

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        self.server.requests.append(self.path)

    def do_GET(self) -> None:
        how, _, name = self.path.partition("?")[0].lstrip("/").partition("/")
        path = self.server.folder / name
        if how == "moved":
            self.send_response(302)
            self.send_header("Location", f"/ranges/{name}")
            self.end_headers()
            return
        if how == "to-a-file":
            self.send_response(302)
            self.send_header("Location", f"file://{path}")
            self.end_headers()
            return
        if how == "silent":
            self.server.is_over.wait(10)
            return
        if how == "circle":
            self.send_response(302)
            self.send_header("Location", self.path)
            self.end_headers()
            return
        status = {"locked": 403, "broken": 503}.get(how, 200 if path.is_file() else 404)
        if status != 200:
            self.send_error(status)
            return
        self.send_file(how, path.read_bytes())

    def send_file(self, how: str, data: bytes) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        assert match is not None
        if how in ("whole", "endless", "short"):
            self.send_whole(how, data)
            return
        first, last = int(match[1]), min(int(match[2]), len(data) - 1)
        part = data[first : last + 1]
        self.send_response(206)
        size = len(data) + (len(self.server.requests) if how == "changing" else 0)
        shift = 1 if how == "elsewhere" else 0
        self.send_header("Content-Range", f"bytes {first + shift}-{last + shift}/{size}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.server.sent_bytes += len(part)
        self.wfile.write(part[: len(part) // 2] if how == "cut" else part)
        if how == "cut":
            self.close_connection = True

    def send_whole(self, how: str, data: bytes) -> None:
        """As a server does that knows no ranges; it notices a client that leaves only when it goes on writing."""
        self.send_response(200)
        if how != "endless":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for start in range(0, len(data) // (2 if how == "short" else 1), 1 << 16):
            self.wfile.write(data[start : start + (1 << 16)])
            self.server.sent_bytes += 1 << 16
        self.close_connection = True


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "served"
    folder.mkdir()
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.is_over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def served_model(server: Server, gpt_oss: Path) -> Path:
    """gpt-oss's header, followed by some megabytes that nobody should ask for."""
    path = server.folder / "model.gguf"
    with gpt_oss.open("rb") as stream:
        path.write_bytes(stream.read(4_000_000))
    return path


LONG_TOKENS = [f"token-{number:07}" for number in range(150_000)]


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "long.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(LONG_TOKENS)
    writer.add_chat_template("after the tokens")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture
def long_model(server: Server, long_file: Path) -> list[str]:
    """long.gguf, whose header is several megabytes; returns its tokens."""
    shutil.copy(long_file, server.folder / "long.gguf")
    return LONG_TOKENS


def without_place(document: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if name != "file"}


@pytest.mark.parametrize("how", ["ranges", "moved", "whole"])
def test_a_url_says_what_the_file_says(server: Server, served_model: Path, how: str) -> None:
    remote, local = read_summary(server.url(f"{how}/model.gguf")), read_summary(served_model)
    assert without_place(summary_document(remote)) == without_place(summary_document(local))
    assert remote.file.size_bytes == local.file.size_bytes
    assert remote.file.path == server.url(f"{how}/model.gguf")


def test_no_more_than_the_header_is_asked_for(server: Server, served_model: Path) -> None:
    summary = read_summary(server.url("ranges/model.gguf"))
    assert summary.file.header_bytes < server.sent_bytes < summary.file.header_bytes + (1 << 20)


def test_a_header_of_several_ranges_is_read_whole(server: Server, long_model: list[str]) -> None:
    summary = read_summary(server.url("ranges/long.gguf"))
    assert len(server.requests) > 1
    assert summary.chat_template() == "after the tokens"
    assert list(summary.headers[0].read_array("tokenizer.ggml.tokens")) == long_model


def test_a_server_without_ranges_is_read_from_the_start_and_left(server: Server, long_model: list[str]) -> None:
    data_bytes = 64 << 20
    path = server.folder / "long.gguf"
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size + data_bytes)
    summary = read_summary(server.url("whole/long.gguf"))
    assert summary.chat_template() == "after the tokens"
    # An array that is read later is asked for from the start again.
    assert list(summary.headers[0].read_array("tokenizer.ggml.tokens")) == long_model
    assert len(server.requests) == 2
    # What the network had taken before the client left is sent in vain.
    assert server.sent_bytes < 2 * (summary.file.header_bytes + data_bytes // 2)


def test_parts_of_a_split_model_are_found_beside_the_one_that_is_named(server: Server, tiny_model: Path) -> None:
    (server.folder / "m-00001-of-00003.gguf").write_bytes(tiny_model.read_bytes())
    summary = read_summary(server.url("ranges/m-00001-of-00003.gguf?download=true"))
    assert [path.rpartition("/")[2] for path in summary.file.missing_shards] == [
        "m-00002-of-00003.gguf?download=true",
        "m-00003-of-00003.gguf?download=true",
    ]
    assert "part-missing" in {fault.code for fault in verify(summary)}


FAULTS = {
    "endless/model.gguf": ("a server that answers range requests", "HTTP 200", "download the file"),
    "short/long.gguf": ("1048576 bytes", "bytes", "try again"),
    "ranges/nothing.gguf": ("a GGUF file", "HTTP 404", "check the URL"),
    "locked/model.gguf": ("a GGUF file", "HTTP 403", "needs a login"),
    "cut/model.gguf": ("", "", ""),
    "elsewhere/model.gguf": ("bytes 0 to 1048575", "bytes 1 to", "try again, or download"),
    "to-a-file/model.gguf": ("a GGUF file", "HTTP 302", "check the URL"),
    "circle/model.gguf": ("a GGUF file", "HTTP 302", "check the URL"),
    "broken/model.gguf": ("a GGUF file", "HTTP 503", "try again later"),
}


@pytest.mark.parametrize("path", FAULTS)
def test_a_server_that_misbehaves_is_an_error_that_names_the_url(
    server: Server, served_model: Path, long_model: list[str], capsys: pytest.CaptureFixture[str], path: str
) -> None:
    expected, found, hint = FAULTS[path]
    with pytest.raises(GGUFError) as caught:
        read_summary(server.url(path))
    assert caught.value.path == server.url(path)
    assert expected in caught.value.expected
    assert found in caught.value.found
    assert hint in caught.value.hint
    assert main([server.url(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_that_changes_between_ranges_is_an_error(server: Server, long_model: list[str]) -> None:
    with pytest.raises(GGUFError, match="expected the same file as before, found one that has changed"):
        read_summary(server.url("changing/long.gguf"))


def test_a_server_that_stays_silent_is_given_up(
    server: Server, served_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gguf_info.remote.TIMEOUT_S", 0.2)
    with pytest.raises(GGUFError, match="expected an answer of the server, found timed out") as caught:
        read_summary(server.url("silent/model.gguf"))
    assert (caught.value.path, caught.value.hint) == (
        server.url("silent/model.gguf"),
        "check the URL and the network",
    )


def test_nobody_answering_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://127.0.0.1:9/model.gguf"]) == 2
    assert "http://127.0.0.1:9/model.gguf: expected an answer of the server" in capsys.readouterr().err


def test_the_estimate_takes_a_url(server: Server, served_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", server.url("ranges/model.gguf"), "--ctx-size", "8192", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_cache"]["total_bytes"] > 0
