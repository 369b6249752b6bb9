"""What a person does here: `invoke --list`. CI runs noxfile.py instead.

A task's body calls a package's command in the current environment; the logic is in the packages.
"""

from __future__ import annotations

import shlex

from invoke.context import Context
from invoke.tasks import task

EMBEDDED_EXTRA = "packages/llama-launch[embedded]"


@task(help={"editable": "install this checkout, so that changes take effect at once"})
def setup(context: Context, editable: bool = True) -> None:
    """Install the four packages, the embedded server and OpenCode into the current environment."""
    flag = "-e " if editable else ""
    paths = ("packages/gguf-info", "packages/vram-report", EMBEDDED_EXTRA, "packages/opencode-harness")
    context.run("python -m pip install " + " ".join(f"{flag}'{path}'" for path in paths), pty=True)
    context.run("opencode-harness install .", pty=True)


@task(
    iterable=["set"],
    help={
        "profile": "llama-launch profile: a name or a TOML file",
        "backend": "auto, embedded or external",
        "set": "KEY=VALUE over the profile, such as model=PATH; may repeat",
        "port": "port to listen on; the profile's by default",
    },
)
def serve(
    context: Context, set: list[str], profile: str = "smollm2-135m", backend: str = "auto", port: str = ""
) -> None:
    """Start a llama.cpp server in the foreground; Ctrl-C stops it."""
    over = [word for pair in set for word in ("--set", pair)] + (["--port", port] if port else [])
    context.run(shlex.join(["llama-launch", "serve", profile, "--backend", backend, *over]), pty=True)


@task(
    help={
        "scenarios": "a scenario file or a folder of them",
        "server": "address of a running llama-server; none: start one",
        "profile": "llama-launch profile of the server that is started",
        "backend": "auto, embedded or external",
        "keyword": "run only scenarios whose name matches (pytest's -k)",
    }
)
def test(
    context: Context,
    scenarios: str = "scenarios",
    server: str = "",
    profile: str = "smollm2-135m",
    backend: str = "auto",
    keyword: str = "",
) -> None:
    """Run scenarios with the real OpenCode against a llama.cpp server."""
    which = ["--server", server] if server else ["--profile", profile, "--backend", backend]
    only = ["--", "-k", keyword] if keyword else []
    context.run(shlex.join(["opencode-harness", "run", scenarios, *which, *only]), pty=True)


@task(help={"log": "a llama-server start-up log", "format": "table or json"})
def report(context: Context, log: str, format: str = "table") -> None:
    """Explain what the VRAM of a llama-server went to, from its log."""
    context.run(shlex.join(["vram-report", "--format", format, log]), pty=True)
