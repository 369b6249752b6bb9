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

import hashlib
import os
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opencode_harness.errors import WorkspaceError

__all__ = [
    "FileChange",
    "FileSpec",
    "FileState",
    "TrialLayout",
    "changed_files",
    "check_place",
    "commit_all",
    "create_layout",
    "lay_files",
    "snapshot_files",
    "snapshot_text_files",
]

_LARGEST_TEXT_BYTES = 4 * 1024 * 1024
_GIT_TIMEOUT_S = 60.0
# What OpenCode 1.18.33 looks for in every folder above one that is in no repository (its Instruction, Config,
# ConfigPaths and Skill services).
_READ_FROM_ABOVE = (
    ".git",
    "AGENTS.md",
    "CLAUDE.md",
    "CONTEXT.md",
    "opencode.json",
    "opencode.jsonc",
    "tui.json",
    "tui.jsonc",
    ".opencode",
    ".claude/skills",
    ".agents/skills",
)


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
        WorkspaceError: `root` holds something already, cannot be written, or lies below a git repository or
            OpenCode's own files (OpenCode would take their rules, plugins and history for the trial's).
    """
    layout = TrialLayout(root.resolve())
    check_place(layout.root)
    try:
        layout.root.mkdir(parents=True, exist_ok=True)
        if any(layout.root.iterdir()):
            raise WorkspaceError(f"{layout.root} is not empty", hint="each trial needs a folder of its own")
        for folder in layout.folders():
            folder.mkdir()
    except OSError as error:
        raise WorkspaceError(f"cannot make {error.filename}: {error.strerror}") from error
    return layout


def check_place(root: Path) -> None:
    """Make sure that OpenCode finds nothing above a folder that is no trial's.

    Raises:
        WorkspaceError: The folder lies below a git repository or OpenCode's own files.
    """
    root = root.resolve()
    for folder in (root, *root.parents):
        found = next((name for name in _READ_FROM_ABOVE if (folder / name).exists()), None)
        if found is not None:
            where = f"inside the git repository {folder}" if found == ".git" else f"below {folder / found}"
            hint = "choose a run folder elsewhere: --run-dir (or pytest's --basetemp)"
            raise WorkspaceError(f"{root} lies {where}, which OpenCode would read", hint=hint)


@dataclass(frozen=True)
class FileSpec:
    """A file to lay into a folder.

    Attributes:
        data: What it holds.
        executable: Whether it may be run.
        link: Target of a symbolic link, relative to the link's folder; the file is then a link and holds nothing.
    """

    data: bytes = b""
    executable: bool = False
    link: str | None = None


def lay_files(folder: Path, files: Mapping[str, FileSpec | str]) -> None:
    """Write files, by relative path, below `folder`; texts become UTF-8 with their line ends as given.

    Raises:
        WorkspaceError: A path or a link leaves the folder, or cannot be written.
    """
    root = folder.resolve()
    specs = {name: FileSpec(file.encode("utf-8")) if isinstance(file, str) else file for name, file in files.items()}
    # Links come last, so that no file is written through one.
    for name, spec in sorted(specs.items(), key=lambda item: item[1].link is not None):
        path = (root / name).resolve()
        if root not in path.parents:
            raise WorkspaceError(f"{name!r} is not a path inside {folder}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _lay(path, spec, root)
        except OSError as error:
            raise WorkspaceError(f"cannot write {path}: {error.strerror}") from error


def _lay(path: Path, spec: FileSpec, root: Path) -> None:
    if spec.link is None:
        path.write_bytes(spec.data)
        if spec.executable:
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        return
    target = Path(os.path.normpath(path.parent / spec.link))
    if root != target and root not in target.parents:
        raise WorkspaceError(f"the link {path.relative_to(root)} -> {spec.link} leads out of {root}")
    path.symlink_to(spec.link)


def commit_all(folder: Path, environment: Mapping[str, str]) -> None:
    """Make `folder` a git repository whose one commit holds what is there.

    Raises:
        WorkspaceError: There is no git, or it failed.
    """
    who = ("-c", "user.name=harness", "-c", "user.email=harness@localhost", "-c", "commit.gpgsign=false")
    commands = (("init", "--quiet"), ("add", "--all"), (*who, "commit", "--quiet", "--allow-empty", "-m", "start"))
    for command in commands:
        try:
            done = subprocess.run(
                ["git", *command],
                cwd=folder,
                env=dict(environment),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_GIT_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except FileNotFoundError as error:
            raise WorkspaceError("there is no git on PATH", hint="install git, or leave out `git: true`") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise WorkspaceError(f"git {command[0]} in {folder} failed: {error}") from error
        if done.returncode != 0:
            raise WorkspaceError(f"git {command[0]} in {folder} failed: {done.stderr.strip() or done.stdout.strip()}")


@dataclass(frozen=True)
class FileState:
    """What stands at a path, as far as it can be compared.

    Attributes:
        kind: `text` (UTF-8 without NUL, up to 4 MiB), `binary`, `link`, or `other` (a pipe, or not readable).
        text: A text file's text.
        sha256: Of a text's or binary file's bytes, in hex.
        target: A link's target as written.
        executable: Whether its owner may run it.
    """

    kind: Literal["text", "binary", "link", "other"]
    text: str | None = None
    sha256: str | None = None
    target: str | None = None
    executable: bool = False


def snapshot_files(folder: Path) -> dict[str, FileState]:
    """Every file below `folder` but those of `.git`, by path relative to it, with / as separator.

    Links are not followed; folders show by their files alone.
    """
    found = {}
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in sorted([*names, *links]):
            path = Path(parent) / name
            found[path.relative_to(folder).as_posix()] = _state_of(path)
    return dict(sorted(found.items()))


def _state_of(path: Path) -> FileState:
    try:
        if path.is_symlink():
            return FileState("link", target=str(path.readlink()))
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return FileState("other")
        executable = bool(status.st_mode & stat.S_IXUSR)
        raw = path.read_bytes()
    except OSError:
        return FileState("other")
    text = _text_of(raw)
    digest = hashlib.sha256(raw).hexdigest()
    return FileState("binary" if text is None else "text", text, digest, executable=executable)


def _text_of(raw: bytes) -> str | None:
    if len(raw) > _LARGEST_TEXT_BYTES or b"\0" in raw:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def snapshot_text_files(folder: Path) -> dict[str, str]:
    """Text of every UTF-8 file below `folder`, by path relative to it, with / as separator.

    Binary files (not UTF-8, or holding NUL), files above 4 MiB, `.git` and what symbolic links point to are left
    out.
    """
    return {path: state.text for path, state in snapshot_files(folder).items() if state.text is not None}


def paths_below(folder: Path) -> frozenset[str]:
    """Every path below `folder`, links and folders included, relative to it, with / as separator."""
    return frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@dataclass(frozen=True)
class FileChange:
    """A difference between two snapshots.

    Attributes:
        path: Relative path.
        before: What stood there, or None when the file is new.
        after: What stands there now, or None when the file is gone.
    """

    path: str
    before: FileState | None
    after: FileState | None

    @property
    def kind(self) -> str:
        """`appeared`, `vanished` or `changed`."""
        if self.before is None:
            return "appeared"
        return "vanished" if self.after is None else "changed"


def changed_files(before: Mapping[str, FileState], after: Mapping[str, FileState]) -> tuple[FileChange, ...]:
    """What differs between two snapshots, by path."""
    return tuple(
        FileChange(path, before.get(path), after.get(path))
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    )
