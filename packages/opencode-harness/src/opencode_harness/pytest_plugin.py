"""The pytest plugin: scenario files as items of their own, and a clean KV cache before every test.

Nothing happens unless a server is named (`--oc-server`, or `oc_server` in the ini file): then YAML files named
`*.scenario.yaml`, lying below a folder called `scenarios`, or given as arguments are collected, one item a file.
pytest loads this module in every run of every project that has it installed, so whatever is heavy is imported where
it is used.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from opencode_harness.errors import HarnessError, ScenarioError

if TYPE_CHECKING:
    from llama_launch import Client

    from opencode_harness.isolation import ModelLimits
    from opencode_harness.scenario import Scenario

__all__ = ["ScenarioFile", "ScenarioItem", "ServerUnderTest", "TrialFailed", "run_scenarios"]

_OUTPUT_TOKENS = 2_048
_PROGRESS_EVERY_S = 5
# 0 ok, 1 a scenario failed, 2 bad input, 3 the environment's fault.
_EXIT_STATUS: Mapping[pytest.ExitCode, int] = {
    pytest.ExitCode.OK: 0,
    pytest.ExitCode.TESTS_FAILED: 1,
    pytest.ExitCode.INTERNAL_ERROR: 3,
    pytest.ExitCode.USAGE_ERROR: 2,
    pytest.ExitCode.NO_TESTS_COLLECTED: 2,
}
_RESULT = pytest.StashKey[Any]()


@dataclass(frozen=True)
class ServerUnderTest:
    """The server that tests run against.

    Attributes:
        url: Its address without `/v1`.
        client: Typed HTTP calls to it.
        n_ctx_slot: Tokens that one slot may hold, or None when the server does not say.
        api_key: What it asks for, or None.
    """

    url: str
    client: Client
    n_ctx_slot: int | None
    api_key: str | None = field(default=None, repr=False)

    @property
    def limits(self) -> ModelLimits:
        """What OpenCode is told: the slot's real context, so that it never sends more than fits."""
        from opencode_harness.isolation import ModelLimits

        context_tokens = self.n_ctx_slot or 32_768
        return ModelLimits(context_tokens, min(_OUTPUT_TOKENS, context_tokens // 4))


class TrialFailed(Exception):
    """A trial that did not pass; the message names file and line of each fault."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options `--oc-server` and `--oc-opencode`, each also an ini value."""
    group = parser.getgroup("opencode-harness", "tests of OpenCode against a llama.cpp server")
    options = {
        "oc_server": "address of a running llama-server, such as http://127.0.0.1:8080",
        "oc_api_key_file": "file whose first line is the key that the server asks for",
        "oc_opencode": "the OpenCode executable; node_modules here or above, then PATH, by default",
    }
    for name, text in options.items():
        group.addoption(f"--{name.replace('_', '-')}", dest=name, metavar="VALUE", help=text)
        parser.addini(name, text, default="")


def _option(config: pytest.Config, name: str) -> str:
    return str(config.getoption(name) or config.getini(name) or "")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ScenarioFile | None:
    """Collect scenario files when a server is named."""
    if file_path.suffix not in {".yaml", ".yml"} or not _option(parent.config, "oc_server"):
        return None
    named = parent.session.isinitpath(file_path) or file_path.name.endswith((".scenario.yaml", ".scenario.yml"))
    root = parent.config.rootpath
    # Where the project itself lies says nothing: only folders of the project count.
    folders = file_path.relative_to(root).parent.parts if file_path.is_relative_to(root) else file_path.parent.parts
    if not named and "scenarios" not in folders:
        return None
    file: ScenarioFile = ScenarioFile.from_parent(parent, path=file_path)
    return file


class ScenarioFile(pytest.File):
    """A YAML file with one scenario."""

    def collect(self) -> Iterable[pytest.Item]:
        """The file's one item."""
        from opencode_harness.scenario import load_scenario

        scenario = load_scenario(_relative(self.path))
        item: ScenarioItem = ScenarioItem.from_parent(self, name=scenario.name, callobj=_trial_function(scenario))
        item.extra_keyword_matches.update(scenario.tags)
        yield item

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A faulty file is told by place and remedy, without a traceback."""
        if isinstance(excinfo.value, ScenarioError):
            return _with_hint(excinfo.value)
        return super().repr_failure(excinfo)


class ScenarioItem(pytest.Function):
    """One scenario as a test."""

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the scenario is, and what it is called."""
        return self.path, 0, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Failures of a trial are told by scenario file and line, without a traceback."""
        if isinstance(excinfo.value, TrialFailed):
            return str(excinfo.value)
        if isinstance(excinfo.value, HarnessError):
            return _with_hint(excinfo.value)
        return super().repr_failure(excinfo)


def _relative(path: Path) -> Path:
    """`path` as a person would type it here."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def _with_hint(error: HarnessError) -> str:
    return f"{error}\n{error.hint}" if error.hint else str(error)


def _trial_function(scenario: Scenario) -> Any:
    from opencode_harness.outcomes import Outcome
    from opencode_harness.trial import TrialSpec, run_trial

    def trial(request: pytest.FixtureRequest, tmp_path: Path, oc_server: ServerUnderTest, oc_opencode: Path) -> None:
        spec = TrialSpec(scenario, tmp_path, oc_opencode, oc_server.url, oc_server.limits, oc_server.api_key)
        with _progress(request.config):
            result = run_trial(spec)
        request.node.stash[_RESULT] = result
        if result.outcome is Outcome.SKIP:
            pytest.skip(result.problems[0].message)
        if result.outcome is not Outcome.PASS:
            raise TrialFailed(result.explain(scenario))

    return trial


@contextlib.contextmanager
def _progress(config: pytest.Config) -> Generator[None, None, None]:
    """Write the seconds that have passed, every few, behind the scenario's name where output is not captured."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.getoption("capture") != "no":
        yield
        return
    ended = threading.Event()

    def tell() -> None:
        waited_s = 0
        while not ended.wait(_PROGRESS_EVERY_S):
            waited_s += _PROGRESS_EVERY_S
            reporter.write(f"{waited_s} s … ", flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the trial's figures to its report."""
    report = yield
    result = item.stash.get(_RESULT, None)
    if result is not None and report.when == "call":
        noun = "request" if result.requests == 1 else "requests"
        report.user_properties += [
            ("outcome", result.outcome.value),
            ("summary", f"{result.duration_s:.1f} s, {result.requests} {noun}"),
            ("artefacts", str(result.artefacts)),
        ]
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """A scenario's line says how long it took and how many requests it made."""
    figures = dict(report.user_properties) if isinstance(report, pytest.TestReport) else {}
    if "summary" not in figures or report.when != "call":
        return None
    word = str(figures["outcome"]).upper()
    letter = "." if report.passed else "s" if report.skipped else "F"
    return report.outcome, letter, f"{word} ({figures['summary']})"


@pytest.fixture(scope="session")
def oc_server(request: pytest.FixtureRequest) -> ServerUnderTest:
    """The server named by `--oc-server`; the test is skipped when none is."""
    from llama_launch import Client, LlamaLaunchError, read_api_keys

    url = _option(request.config, "oc_server")
    if not url:
        pytest.skip("no server: give --oc-server URL")
    key_file = _option(request.config, "oc_api_key_file")
    api_key = read_api_keys(Path(key_file))[0] if key_file else None
    client = Client(url, api_key)
    try:
        n_ctx_slot = client.props().n_ctx_slot
    except LlamaLaunchError:
        n_ctx_slot = None
    return ServerUnderTest(url.rstrip("/"), client, n_ctx_slot, api_key)


@pytest.fixture(scope="session")
def oc_opencode(request: pytest.FixtureRequest) -> Path:
    """The OpenCode executable."""
    from opencode_harness.opencode import find_opencode

    return find_opencode(_option(request.config, "oc_opencode") or None)


@pytest.fixture(autouse=True)
def flush_llama_kv_cache(request: pytest.FixtureRequest) -> None:
    """Erase every slot of the server before each test; a failure is a warning, never an error."""
    if not _option(request.config, "oc_server"):
        return
    from opencode_harness.slots import flush_slots

    server: ServerUnderTest = request.getfixturevalue("oc_server")
    flush = flush_slots(server.client)
    if flush.problem is not None:
        warnings.warn(pytest.PytestWarning(flush.problem), stacklevel=1)


def run_scenarios(
    scenarios: Sequence[Path],
    *,
    run_dir: Path,
    server_url: str,
    opencode: Path,
    api_key_file: Path | None = None,
    more: Sequence[str] = (),
) -> int:
    """Run scenario files with pytest in this process; the pytest configuration of the current folder has no say.

    Args:
        scenarios: Scenario files.
        run_dir: Receives the trials' folders, below `trials/`.
        server_url: The server's address without `/v1`.
        opencode: The executable.
        api_key_file: File whose first line is the key that the server asks for.
        more: Further arguments for pytest.

    Returns:
        0 all passed, 1 a scenario failed, 2 bad input or none selected, 3 pytest itself failed.
    """
    configuration = run_dir / "pytest.ini"
    configuration.write_text("[pytest]\n", encoding="utf-8")
    arguments = [
        *(str(path) for path in scenarios),
        "--verbose",
        "--no-header",
        # Scenarios print nothing, and their progress is to be seen.
        "--capture=no",
        # Scenarios hold no assert statements; without this pytest warns that the harness is imported already.
        "--assert=plain",
        f"--config-file={configuration}",
        f"--rootdir={_root_of(scenarios)}",
        f"--basetemp={run_dir / 'trials'}",
        "-pno:cacheprovider",
        f"--oc-server={server_url}",
        f"--oc-opencode={opencode}",
        *([f"--oc-api-key-file={api_key_file}"] if api_key_file else []),
        *more,
    ]
    code = pytest.ExitCode(pytest.main(arguments))
    if code is pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return _EXIT_STATUS[code]


def _root_of(scenarios: Sequence[Path]) -> Path:
    """The folder that scenario names are shown relative to: this one, or the deepest that holds them all."""
    absolute = [path.absolute() for path in scenarios]
    if all(path.is_relative_to(Path.cwd()) for path in absolute):
        return Path.cwd()
    return Path(os.path.commonpath([path.parent for path in absolute]))
