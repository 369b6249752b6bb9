"""The client's calls, against a fake server over real HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from llama_launch import Client, Profile, ServerRefused, ServerUnreachable, load_profile, start_server


@pytest.fixture
def client(fake_server: Callable[[str], Path], profile: Profile, tmp_path: Path) -> Iterator[Client]:
    fake_server("well")
    with start_server(profile, run_dir=tmp_path / "run", backend="external") as server:
        yield server.client


def test_each_call_is_typed(client: Client) -> None:
    assert client.is_healthy()
    assert [(slot.id, slot.n_ctx, slot.is_processing) for slot in client.slots()][:2] == [
        (0, 32768, False),
        (1, 32768, True),
    ]
    assert (client.props().n_slots, client.props().n_ctx_slot) == (4, 32768)
    assert client.erase(2).n_erased == 17
    assert client.tokenize("hello there") == (1, 2)
    assert client.metrics() == {"llamacpp:requests_processing": 2.0}
    saved, restored = client.save(0, "chat.bin"), client.restore(1, "chat.bin")
    assert (saved.id_slot, saved.filename, saved.n_tokens, saved.n_bytes) == (0, "chat.bin", 5, 99)
    assert (restored.id_slot, restored.n_tokens) == (1, 5)


def test_a_server_without_a_slot_folder_is_told_by_name(
    fake_server: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    fake_server("well")
    profile = load_profile("smollm2-135m", {"model": str(model), "slot_save": "off"})
    with (
        start_server(profile, run_dir=tmp_path / "run", backend="external") as server,
        pytest.raises(ServerRefused, match=r"answered 501: .*does not support slots action") as caught,
    ):
        server.client.erase(0)
    assert caught.value.status == 501
    assert caught.value.hint == "start the server with --slot-save-path"


def test_nobody_at_the_address_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ServerUnreachable, match=rf"127\.0\.0\.1:{port}/slots: nothing answers"):
        Client(f"http://127.0.0.1:{port}").slots()


def test_a_server_that_never_answers_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        with pytest.raises(ServerUnreachable, match="no answer in time"):
            Client(f"http://127.0.0.1:{port}", timeout_s=0.2).slots()


ODD_ANSWERS: list[tuple[str, bytes, Callable[[Client], object]]] = [
    ("/slots", b'[{"id": "one"}]', lambda client: client.slots()),
    ("/slots", b'[{"id": 0, "n_ctx": "many"}]', lambda client: client.slots()),
    ("/slots", b'{"slots": []}', lambda client: client.slots()),
    ("/props", b'{"total_slots": [4]}', lambda client: client.props()),
    ("/props", b"<html>", lambda client: client.props()),
    ("/slots/0", b'{"n_erased": "all"}', lambda client: client.erase(0)),
    ("/tokenize", b'{"tokens": ["a"]}', lambda client: client.tokenize("a")),
    ("/tokenize", b'{"tokens": 5}', lambda client: client.tokenize("a")),
    ("/metrics", b"up and running", lambda client: client.metrics()),
]


@pytest.mark.parametrize(("path", "answer", "call"), ODD_ANSWERS)
def test_an_answer_of_another_form_is_refused_by_name(
    path: str, answer: bytes, call: Callable[[Client], object]
) -> None:
    class Odd(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            self.do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with pytest.raises(ServerRefused, match=path):
                call(Client(f"http://127.0.0.1:{server.server_address[1]}"))
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("url", ["nonsense", "gopher://x", "http://", ""])
def test_an_address_that_is_none_is_told_so(url: str) -> None:
    with pytest.raises(ServerUnreachable, match="is no address of a server"):
        Client(url).slots()


def test_a_key_that_no_header_can_hold_is_told_without_showing_it() -> None:
    with pytest.raises(ServerUnreachable, match="API key holds characters") as caught:
        Client("http://127.0.0.1:9", api_key="s€cret").slots()
    assert "cret" not in str(caught.value)
