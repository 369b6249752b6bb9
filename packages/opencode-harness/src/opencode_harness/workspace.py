"""The folders of one trial, and what its workspace holds.

Everything that a trial writes lies below one folder, the test's `tmp_path`:

    tmp_path/
      workspace/        what the agent works on; OpenCode starts here, or in the scenario's project_dir below it
      outside/          files that the agent must ask for (external_directory)
      opencode.json     OpenCode's configuration, outside the workspace so that its snapshot is the agent's work alone
      .home/            HOME
      .xdg_config/      XDG_CONFIG_HOME
      .xdg_state/       XDG_STATE_HOME
      .xdg_cache/       XDG_CACHE_HOME
      .xdg_data/        XDG_DATA_HOME   (sessions: fresh for each trial, so that no earlier one is found)
      .tmp/             TMPDIR
      artefacts/        screens, recording, stdout, stderr, proxy journal, OpenCode's log, result.json

The XDG folders are siblings of the workspace: below it, OpenCode's caches would be part of its snapshot; at their
defaults they hold the sessions of earlier runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opencode_harness.errors import WorkspaceError

__all__ = ["FileChange", "TrialLayout", "changed_files", "create_layout", "lay_files", "snapshot_text_files"]

_LARGEST_TEXT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class TrialLayout:
    """Paths of one trial; see the module's drawing."""

    root: Path

    @property
    def workspace(self) -> Path:
        """The folder that the agent works on."""
        return self.root / "workspace"

    @property
    def outside(self) -> Path:
        """The folder beside the workspace."""
        return self.root / "outside"

    @property
    def config_file(self) -> Path:
        """OpenCode's configuration."""
        return self.root / "opencode.json"

    @property
    def home(self) -> Path:
        """HOME of the trial."""
        return self.root / ".home"

    @property
    def artefacts(self) -> Path:
        """What the trial leaves for a person to read."""
        return self.root / "artefacts"

    @property
    def tmp(self) -> Path:
        """TMPDIR of the trial."""
        return self.root / ".tmp"

    @property
    def xdg(self) -> dict[str, Path]:
        """The four XDG folders by environment variable."""
        return {f"XDG_{name.upper()}_HOME": self.root / f".xdg_{name}" for name in ("config", "state", "cache", "data")}

    @property
    def opencode_log(self) -> Path:
        """Where OpenCode writes its log."""
        return self.xdg["XDG_DATA_HOME"] / "opencode" / "log" / "opencode.log"

    def folders(self) -> tuple[Path, ...]:
        """Every folder that must exist before OpenCode starts."""
        own = (self.workspace, self.outside, self.home, self.tmp, self.artefacts)
        return (*own, *self.xdg.values())


def create_layout(root: Path) -> TrialLayout:
    """Make the folders of a trial below `root`, which must be new or empty.

    Raises:
        WorkspaceError: `root` holds something already, cannot be written, or lies inside a git repository (OpenCode
            would take that repository for the project, and its rules and history for the trial's).
    """
    layout = TrialLayout(root.resolve())
    repository = _enclosing_repository(layout.root)
    if repository is not None:
        raise WorkspaceError(
            f"{layout.root} lies inside the git repository {repository}",
            hint="choose a run folder outside of any repository: --run-dir (or pytest's --basetemp)",
        )
    try:
        layout.root.mkdir(parents=True, exist_ok=True)
        if any(layout.root.iterdir()):
            raise WorkspaceError(f"{layout.root} is not empty", hint="each trial needs a folder of its own")
        for folder in layout.folders():
            folder.mkdir()
    except OSError as error:
        raise WorkspaceError(f"cannot make {error.filename}: {error.strerror}") from error
    return layout


def _enclosing_repository(folder: Path) -> Path | None:
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)


def lay_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files, by relative path, below `folder`; line ends are written as given.

    Raises:
        WorkspaceError: A path leaves the folder, or cannot be written.
    """
    root = folder.resolve()
    for name, text in files.items():
        path = (root / name).resolve()
        if root not in path.parents:
            raise WorkspaceError(f"{name!r} is not a path inside {folder}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8"))
        except OSError as error:
            raise WorkspaceError(f"cannot write {path}: {error.strerror}") from error


def snapshot_text_files(folder: Path) -> dict[str, str]:
    """Text of every UTF-8 file below `folder`, by path relative to it, with / as separator.

    Binary files (not UTF-8, or holding NUL), files above 4 MiB, `.git` and what symbolic links point to are left
    out.
    """
    return {
        path.relative_to(folder).as_posix(): text
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and ".git" not in path.relative_to(folder).parts
        if (text := _text_of(path)) is not None
    }


def paths_below(folder: Path) -> frozenset[str]:
    """Every path below `folder`, links and folders included, relative to it, with / as separator."""
    return frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def _text_of(path: Path) -> str | None:
    try:
        if path.stat().st_size > _LARGEST_TEXT_BYTES:
            return None
        raw = path.read_bytes()
        return None if b"\0" in raw else raw.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


@dataclass(frozen=True)
class FileChange:
    """A difference between two snapshots.

    Attributes:
        path: Relative path.
        before: Text before, or None when the file is new.
        after: Text after, or None when the file is gone.
    """

    path: str
    before: str | None
    after: str | None

    @property
    def kind(self) -> str:
        """`appeared`, `vanished` or `changed`."""
        if self.before is None:
            return "appeared"
        return "vanished" if self.after is None else "changed"


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[FileChange, ...]:
    """What differs between two snapshots, by path."""
    return tuple(
        FileChange(path, before.get(path), after.get(path))
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    )
