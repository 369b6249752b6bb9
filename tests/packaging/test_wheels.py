"""Each wheel, alone in an empty environment: it installs, imports, and its command runs.

WHEELS names the folder with the built wheels (the nox session `packaging` builds them). A wheel that needs a sibling
finds it there and nowhere else.
"""

from __future__ import annotations

import email
import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("gguf-info", "vram-report", "llama-launch", "opencode-harness")
SIBLINGS = {
    "gguf-info": (),
    "vram-report": (),
    "llama-launch": ("gguf-info", "vram-report"),
    "opencode-harness": ("gguf-info", "vram-report", "llama-launch"),
}

if "WHEELS" not in os.environ:
    pytest.skip("WHEELS names no folder; `nox -s packaging` builds the wheels", allow_module_level=True)
WHEELS = Path(os.environ["WHEELS"])


def wheel_of(package: str) -> Path:
    (wheel,) = WHEELS.glob(f"{package.replace('-', '_')}-*.whl")
    return wheel


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module", params=PACKAGES)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    package = str(request.param)
    folder = tmp_path_factory.mktemp(package)
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    siblings = folder / "siblings"
    siblings.mkdir()
    for name in SIBLINGS[package]:
        (siblings / wheel_of(name).name).symlink_to(wheel_of(name))
    done = run(python, "-m", "pip", "install", f"--find-links={siblings}", wheel_of(package), cwd=folder)
    assert done.returncode == 0, done.stderr
    return package, folder / "env" / "bin"


def test_the_wheel_brings_only_the_siblings_that_it_declares(installed: tuple[str, Path], tmp_path: Path) -> None:
    package, programs = installed
    listed = run(programs / "python", "-m", "pip", "list", "--format=freeze", cwd=tmp_path).stdout
    found = {line.split("==")[0].replace("_", "-") for line in listed.splitlines()} & set(PACKAGES)
    assert found == {package, *SIBLINGS[package]}


def test_the_command_says_its_version_and_helps_with_examples(installed: tuple[str, Path], tmp_path: Path) -> None:
    package, programs = installed
    metadata = email.message_from_string(
        zipfile.ZipFile(wheel_of(package))
        .read(f"{wheel_of(package).name.rsplit('-', 3)[0]}.dist-info/METADATA")
        .decode()
    )
    version = run(programs / package, "--version", cwd=tmp_path)
    assert (version.returncode, version.stdout.strip()) == (0, f"{package} {metadata['Version']}")
    helped = run(programs / package, "--help", cwd=tmp_path)
    assert helped.returncode == 0
    assert "examples:" in helped.stdout.lower()


def test_the_package_runs_as_a_module(installed: tuple[str, Path], tmp_path: Path) -> None:
    package, programs = installed
    module = package.replace("-", "_")
    assert run(programs / "python", "-m", module, "--version", cwd=tmp_path).returncode == 0


def test_bad_usage_ends_with_2_and_no_traceback(installed: tuple[str, Path], tmp_path: Path) -> None:
    package, programs = installed
    done = run(programs / package, "--no-such-option", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_holds_its_typing_marker_licence_and_no_tests(package: str) -> None:
    names = zipfile.ZipFile(wheel_of(package)).namelist()
    module = package.replace("-", "_")
    assert f"{module}/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests")]
