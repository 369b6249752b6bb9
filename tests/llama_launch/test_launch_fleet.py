"""Several servers from one file: all or nothing up, and down again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from llama_launch import ProfileError
from llama_launch.cli import main
from llama_launch.fleet import read_fleet
from llama_launch.preflight import free_port
from llama_launch.state import find_runs

FakeServer = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fleet(fake_server: FakeServer, model: Path, tmp_path: Path) -> Iterator[Path]:
    fake_server("well")
    path = tmp_path / "fleet.toml"
    path.write_text(
        f"""
[servers.big]
model = "{model}"
n_slots = 2
port = {free_port("127.0.0.1")}
root = "{tmp_path}/root"

[servers.small]
profile = "smollm2-135m"
model = "{model}"
root = "{tmp_path}/root"
"""
    )
    yield path
    watchers = [psutil.Process(record.pid) for record in find_runs() if record.is_alive]
    for watcher in watchers:
        watcher.terminate()
    psutil.wait_procs(watchers, timeout=10)


def test_all_servers_come_up_in_one_table_and_go_down(fleet: Path, capsys: Capture) -> None:
    assert main(["up", str(fleet)]) == 0
    shown = capsys.readouterr().out
    assert "big: ready at http://127.0.0.1:" in shown
    table = shown[shown.index("┌") :]
    assert table.count("ready") == 2
    assert main(["up", str(fleet)]) == 0
    assert capsys.readouterr().out.count("runs already") == 2
    assert main(["down", str(fleet)]) == 0
    assert capsys.readouterr().out.splitlines() == ["small is stopped", "big is stopped"]
    assert not [record for record in find_runs() if record.is_alive]


def test_one_that_fails_takes_the_others_back(fleet: Path, tmp_path: Path, capsys: Capture) -> None:
    fleet.write_text(fleet.read_text() + f'\n[servers.broken]\nmodel = "{tmp_path}/none.gguf"\n')
    assert main(["up", str(fleet)]) == 3
    captured = capsys.readouterr()
    assert "big is stopped again" in captured.out
    assert "none.gguf" in captured.err
    assert not [record for record in find_runs() if record.is_alive]


def test_a_dry_run_prints_each_command_line(fleet: Path, capsys: Capture) -> None:
    assert main(["up", str(fleet), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[2]] == ["# big", "# small"]
    assert "--parallel 2" in lines[1]
    assert not find_runs()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "no servers in it", "begin with"),
        ("servers = 3", "no servers in it", "begin with"),
        ("[servers", "not TOML", ""),
        ("\n[servers.a]\nn_slot = 3\n", r":2: servers\.a: unknown key 'n_slot'", "did you mean 'n_slots'?"),
        (
            '[servers.a]\nbackend = "embeded"\n',
            "servers.a: backend: unknown value 'embeded'",
            "did you mean 'embedded'?",
        ),
        ("[servers.a]\non_oom = 3\n", "on_oom: unknown value 3", "one of stop, shrink"),
        ("[servers.a]\nprofile = 3\n", "3 is not the name of a profile", ""),
        ("[servers.a]\nport = 81\n[servers.b]\nport = 81\n", "a and b have port 81", "give each its own"),
    ],
)
def test_a_wrong_file_is_told_by_its_place(tmp_path: Path, text: str, message: str, hint: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message) as caught:
        read_fleet(path)
    assert hint in caught.value.hint


def test_a_file_that_is_not_there_is_told(tmp_path: Path, capsys: Capture) -> None:
    assert main(["up", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err
