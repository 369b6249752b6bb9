"""OpenCode's configuration for a running server: written without loss, and compared with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_launch.cli import main
from llama_launch.client_config import OpenCodeLimits, merged_config
from scripted_server import Scripted, scripted_server

Capture = pytest.CaptureFixture[str]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
BLOCK = {"models": {"m": {"limit": {"context": 8192, "output": 2048}}}, "options": {"baseURL": "http://x/v1"}}


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted_server() as scripted:
        scripted.answer(
            "/props",
            {
                "total_slots": 4,
                "default_generation_settings": {"n_ctx": 131072},
                "model_path": "/models/gpt-oss-20b-mxfp4.gguf",
                "model_alias": "/models/gpt-oss-20b-mxfp4.gguf",
            },
        )
        yield scripted


def config(server: Scripted, *words: str) -> int:
    return main(["client-config", "opencode", "--url", server.url, *words])


def test_the_entry_has_the_servers_own_context(server: Scripted, capsys: Capture) -> None:
    assert config(server) == 0
    (entry,) = json.loads(capsys.readouterr().out)["provider"].values()
    assert entry["options"] == {"baseURL": f"{server.url}/v1", "apiKey": "none"}
    assert entry["models"]["gpt-oss-20b-mxfp4"]["limit"] == {"context": 131072, "output": 8192}


def test_writing_keeps_the_rest_and_says_when_opencode_compacts(
    server: Scripted, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "opencode.json"
    old = {
        "theme": "nord",
        "model": "other/x",
        "provider": {"other": {"name": "ü", "models": {}}},
        "keybinds": {"a": "b"},
    }
    path.write_text(json.dumps(old, indent=4, ensure_ascii=False))
    path.chmod(0o640)
    assert config(server, "--write", str(path)) == 0
    assert "compacts a conversation at 122880 of 131072 tokens" in capsys.readouterr().out
    new = json.loads(path.read_text())
    assert new["provider"].pop("llama-server")["models"]["gpt-oss-20b-mxfp4"]["tool_call"] is True
    assert new == old
    assert list(new) == list(old)
    assert '\n    "theme"' in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    assert config(server, "--write", str(path)) == 0
    assert "as it was" in capsys.readouterr().out
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_a_new_file_makes_the_model_the_one_that_is_used(server: Scripted, tmp_path: Path) -> None:
    path = tmp_path / "new" / "opencode.json"
    assert config(server, "--write", str(path), "--context", "32768", "--output", "4096") == 0
    document = json.loads(path.read_text())
    assert document["model"] == "llama-server/gpt-oss-20b-mxfp4"
    assert document["provider"]["llama-server"]["models"]["gpt-oss-20b-mxfp4"]["limit"] == {
        "context": 32768,
        "output": 4096,
    }


def test_a_link_stays_a_link(server: Scripted, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "opencode.json").symlink_to(tmp_path / "dotfiles" / "opencode.json")
    assert config(server, "--write", str(tmp_path / "opencode.json")) == 0
    assert (tmp_path / "opencode.json").is_symlink()
    assert "llama-server" in (tmp_path / "dotfiles" / "opencode.json").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("// mine\n{}", "comments would be lost"),
        ("[]", "not a JSON object"),
        ('{"provider": 3}', "provider is not an object"),
    ],
)
def test_what_would_be_lost_is_not_written(
    server: Scripted, tmp_path: Path, capsys: Capture, text: str, message: str
) -> None:
    path = tmp_path / "opencode.jsonc"
    path.write_text(text)
    assert config(server, "--write", str(path)) == 2
    assert message in capsys.readouterr().err
    assert path.read_text() == text


def test_a_key_is_never_written(
    server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret-7")
    path = tmp_path / "opencode.json"
    assert config(server, "--write", str(path)) == 0
    assert server.keys[-1] == "Bearer secret-7"
    assert "secret-7" not in path.read_text() + capsys.readouterr().out
    assert "{env:LLAMA_API_KEY}" in path.read_text()


@pytest.mark.parametrize(
    ("context", "output", "fault"),
    [
        (131072, 8192, None),
        (200000, 8192, "limit.context: 200000, but a slot holds 131072: conversations overflow"),
        (32768, 2048, "limit.context: 32768, but a slot holds 131072: the rest is never used"),
        (131072, 131072, "OpenCode compacts at 99072 tokens already"),
        (None, 8192, "OpenCode does not know when to compact"),
    ],
)
def test_a_file_is_compared_with_the_server(
    server: Scripted, tmp_path: Path, capsys: Capture, context: int | None, output: int, fault: str | None
) -> None:
    path = tmp_path / "opencode.json"
    assert config(server, "--write", str(path)) == 0
    document = json.loads(path.read_text())
    limit = document["provider"]["llama-server"]["models"]["gpt-oss-20b-mxfp4"]["limit"]
    limit.update(context=context, output=output)
    path.write_text(json.dumps(document))
    capsys.readouterr()
    status = config(server, "--check", str(path))
    shown = capsys.readouterr().out
    assert (status, "agrees with" in shown) == ((0, True) if fault is None else (1, False))
    assert fault is None or fault in shown


def test_a_file_for_another_server_is_told(server: Scripted, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "opencode.json"
    path.write_text('{"provider": {"x": {"options": {"baseURL": "http://127.0.0.1:1/v1"}}}}')
    assert config(server, "--check", str(path)) == 1
    assert f"no provider has the address {server.url}/v1, only http://127.0.0.1:1" in capsys.readouterr().out


def test_more_than_the_server_has_is_refused(server: Scripted, capsys: Capture) -> None:
    assert config(server, "--context", "131073") == 2
    assert "hint: --context 131072" in capsys.readouterr().err
    assert config(server, "--context", "4096", "--output", "4096") == 2
    assert "leave nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("context", "output", "compacts_at"),
    [(131072, 8192, 122880), (131072, 64000, 99072), (131072, 0, 99072), (4096, 8192, 0)],
)
def test_compaction_is_where_opencode_puts_it(context: int, output: int, compacts_at: int) -> None:
    """In opencode-ai 1.18.33: the context less min(output, 32000), which is 32000 where no output limit is given."""
    assert OpenCodeLimits(context, output).compacts_at == compacts_at


@given(document=st.dictionaries(st.text(), JSON, max_size=5), others=st.dictionaries(st.text(), JSON, max_size=3))
def test_merging_changes_nothing_else(document: dict[str, object], others: dict[str, object]) -> None:
    document = {**document, "model": "kept", "provider": others}
    merged = json.loads(merged_config("x", json.dumps(document), "ours", BLOCK))
    assert {**merged, "provider": {**merged["provider"], "ours": None}} == {
        **document,
        "provider": {**others, "ours": None},
    }
    again = merged_config("x", json.dumps(merged), "ours", BLOCK)
    assert json.loads(again) == merged
