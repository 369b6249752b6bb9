from __future__ import annotations

import os
from pathlib import Path

import pytest
from opencode_harness.errors import WorkspaceError
from opencode_harness.workspace import (
    FileChange,
    FileState,
    changed_files,
    create_layout,
    lay_files,
    snapshot_text_files,
)


def test_the_xdg_folders_and_home_are_siblings_of_the_workspace(tmp_path: Path) -> None:
    layout = create_layout(tmp_path / "trial")
    assert sorted(path.name for path in (tmp_path / "trial").iterdir()) == [
        ".home",
        ".tmp",
        ".xdg_cache",
        ".xdg_config",
        ".xdg_data",
        ".xdg_state",
        "artefacts",
        "outside",
        "workspace",
    ]
    assert list(layout.workspace.iterdir()) == []
    assert layout.xdg == {
        "XDG_CONFIG_HOME": layout.root / ".xdg_config",
        "XDG_STATE_HOME": layout.root / ".xdg_state",
        "XDG_CACHE_HOME": layout.root / ".xdg_cache",
        "XDG_DATA_HOME": layout.root / ".xdg_data",
    }


def test_what_opencode_keeps_is_not_part_of_the_snapshot(tmp_path: Path) -> None:
    layout = create_layout(tmp_path / "trial")
    lay_files(layout.workspace, {"a.txt": "a\n"})
    for folder in (*layout.xdg.values(), layout.home):
        (folder / "node_modules").mkdir()
        (folder / "node_modules" / "cache.js").write_text("x")
    layout.config_file.write_text("{}")
    assert snapshot_text_files(layout.workspace) == {"a.txt": "a\n"}


def test_a_used_folder_is_refused_so_that_no_earlier_session_is_found(tmp_path: Path) -> None:
    create_layout(tmp_path / "trial")
    with pytest.raises(WorkspaceError, match="not empty"):
        create_layout(tmp_path / "trial")


def test_a_folder_inside_a_git_repository_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with pytest.raises(WorkspaceError, match="inside the git repository") as caught:
        create_layout(tmp_path / "deep" / "trial")
    assert "--run-dir" in caught.value.hint


# OpenCode 1.18.33 looks for them in every folder above one that is in no repository: rules, settings, plugins, skills.
@pytest.mark.parametrize(
    "name",
    [
        "AGENTS.md",
        "CLAUDE.md",
        "opencode.json",
        "opencode.jsonc",
        ".opencode/plugin/x.js",
        ".claude/skills/x/SKILL.md",
        ".agents/skills/x/SKILL.md",
    ],
)
def test_a_folder_below_opencodes_own_files_is_refused_with_the_one_in_the_way(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(WorkspaceError, match=r"below .* which OpenCode would read") as caught:
        create_layout(tmp_path / "link" / "deep" / "trial")
    assert str(tmp_path / Path(name).parts[0]) in str(caught.value)
    assert not (tmp_path / "deep").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match=r"cannot make .*trial"):
        create_layout(tmp_path / "file" / "trial")


@pytest.mark.parametrize("name", ["../escape.txt", "a/../../escape.txt", "/etc/escape.txt"])
def test_a_file_is_never_laid_outside_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(WorkspaceError, match="not a path inside"):
        lay_files(tmp_path / "workspace", {name: "x"})
    assert not list(tmp_path.rglob("escape.txt"))


def test_a_symbolic_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(WorkspaceError, match="not a path inside"):
        lay_files(folder, {"link/escape.txt": "x"})


def test_line_ends_and_unicode_are_written_and_read_as_given(tmp_path: Path) -> None:
    files = {"crlf.txt": "one\r\ntwo\r\n", "sub/ünïcode.txt": "naïve ☕\n", "no-newline": "end"}
    lay_files(tmp_path, files)
    assert (tmp_path / "crlf.txt").read_bytes() == b"one\r\ntwo\r\n"
    assert snapshot_text_files(tmp_path) == files


def test_the_snapshot_leaves_out_binaries_links_and_git(tmp_path: Path) -> None:
    lay_files(tmp_path, {"kept.txt": "kept"})
    (tmp_path / "binary").write_bytes(b"\0\1\2")
    (tmp_path / "latin1").write_bytes("é".encode("latin-1"))
    (tmp_path / "link").symlink_to(tmp_path / "kept.txt")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref")
    os.mkfifo(tmp_path / "pipe")
    assert snapshot_text_files(tmp_path) == {"kept.txt": "kept"}


def test_changes_tell_what_appeared_vanished_and_changed() -> None:
    one, two = FileState("text", "1"), FileState("text", "2")
    before = {"same": one, "changed": one, "gone": one}
    after = {"same": one, "changed": two, "new": one}
    changes = changed_files(before, after)
    assert changes == (FileChange("changed", one, two), FileChange("gone", one, None), FileChange("new", None, one))
    assert [change.kind for change in changes] == ["changed", "vanished", "appeared"]
