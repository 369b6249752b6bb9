"""The client's calls, against a fake server over real HTTP."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
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
