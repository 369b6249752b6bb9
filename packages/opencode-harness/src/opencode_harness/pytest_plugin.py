"""The pytest plugin: scenario files as items of their own, and a clean KV cache before every test.

Nothing happens unless a server is named (`--oc-server`, or `oc_server` in the ini file) or said to be none
(`--oc-no-server`): then YAML files named `*.scenario.yaml`, lying below a folder called `scenarios`, or given as
arguments are collected, one item a file and repetition. Under pytest-xdist each worker's trials have slots of their
own.
pytest loads this module in every run of every project that has it installed, so whatever is heavy is imported where
it is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from opencode_harness.errors import HarnessError, ScenarioError

if TYPE_CHECKING:
    from llama_launch import Client

    from opencode_harness.isolation import ModelLimits
    from opencode_harness.scenario import Scenario
    from opencode_harness.trial import TrialResult
    from opencode_harness.verdict import KvMode

__all__ = ["ScenarioFile", "ScenarioItem", "ServerUnderTest", "TrialFailed"]

_PROGRESS_EVERY_S = 5
# What the environment broke is tried once more.
_ATTEMPTS = 2
_ALLOWED_VALUES = {"oc_kv_mode": ("cold", "warm", "shared"), "oc_oracle": ("solution", "nothing")}
_RESULTS = pytest.StashKey[Any]()
_PASSED_OVER = pytest.StashKey[bool]()


@dataclass(frozen=True)
class ServerUnderTest:
    """The server that tests run against.

    Attributes:
        url: Its address without `/v1`.
        client: Typed HTTP calls to it.
        n_ctx_slot: Tokens that one slot may hold, or None when the server does not say.
        n_slots: How many slots it has, or None when it does not say.
        api_key: What it asks for, or None.
    """

    url: str
    client: Client
    n_ctx_slot: int | None
    n_slots: int | None = None
    api_key: str | None = field(default=None, repr=False)

    @property
    def limits(self) -> ModelLimits:
        """What OpenCode is told: the slot's real context, so that it never sends more than fits."""
        from opencode_harness.isolation import limits_within

        return limits_within(self.n_ctx_slot)


class TrialFailed(Exception):
    """A trial that did not pass; the message names file and line of each fault."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, each with a value also an ini value."""
    group = parser.getgroup("opencode-harness", "tests of OpenCode against a llama.cpp server")
    options = {
        "oc_server": "address of a running llama-server, such as http://127.0.0.1:8080",
        "oc_api_key_file": "file whose first line is the key that the server asks for",
        "oc_opencode": "the OpenCode executable; node_modules here or above, then PATH, by default",
        "oc_server_log": "the server's log, which a failure's diagnosis quotes",
        "oc_kv_mode": "cold (the default: an empty KV cache, proved), warm or shared",
        "oc_oracle": "answer with the scenarios' solutions (solution), or with an agent that does nothing (nothing)",
        "oc_repeat": "how often each scenario is run (1)",
    }
    flags = {
        "oc_no_server": "collect scenarios though there is no server: those that need one are skipped",
        "oc_guided": "make the server say the turns of every scenario that can be guided",
        "oc_live": "let the server answer where there is a cassette, too",
    }
    for name, text in options.items():
        group.addoption(f"--{name.replace('_', '-')}", dest=name, metavar="VALUE", help=text)
        parser.addini(name, text, default="")
    for name, text in flags.items():
        group.addoption(f"--{name.replace('_', '-')}", dest=name, action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a value that means nothing, before anything is collected."""
    for name, allowed in _ALLOWED_VALUES.items():
        value = _option(config, name)
        if value and value not in allowed:
            option = f"--{name.replace('_', '-')}"
            raise pytest.UsageError(f"{option} {value!r}: write one of {', '.join(allowed)}")
    _repeats(config)


def _option(config: pytest.Config, name: str) -> str:
    return str(config.getoption(name) or config.getini(name) or "")


def _is_on(config: pytest.Config) -> bool:
    return bool(_option(config, "oc_server") or config.getoption("oc_no_server"))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ScenarioFile | None:
    """Collect scenario files when a server is named."""
    if file_path.suffix not in {".yaml", ".yml"}:
        return None
    named = parent.session.isinitpath(file_path) or file_path.name.endswith((".scenario.yaml", ".scenario.yml"))
    root = parent.config.rootpath
    # Where the project itself lies says nothing: only folders of the project count.
    folders = file_path.relative_to(root).parent.parts if file_path.is_relative_to(root) else file_path.parent.parts
    if not named and "scenarios" not in folders:
        return None
    if not _is_on(parent.config):
        parent.config.stash[_PASSED_OVER] = True
        return None
    file: ScenarioFile = ScenarioFile.from_parent(parent, path=file_path)
    return file


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Say why nothing was collected, where that is so because no server was named."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and config.stash.get(_PASSED_OVER, False):
        hint = "name a server with --oc-server URL, or say --oc-no-server"
        terminalreporter.write_line(f"opencode-harness: scenario files were passed over; {hint}")


class ScenarioFile(pytest.File):
    """A YAML file with one scenario."""

    def collect(self) -> Iterable[pytest.Item]:
        """One item for each repetition."""
        from opencode_harness.scenario import load_scenario

        scenario = load_scenario(_relative(self.path))
        repeats = _repeats(self.config)
        for repeat in range(1, repeats + 1):
            name = scenario.name if repeats == 1 else f"{scenario.name}[{repeat}]"
            item: ScenarioItem = ScenarioItem.from_parent(self, name=name, callobj=_trial_function(scenario))
            item.extra_keyword_matches.update(scenario.tags)
            item.user_properties += [("scenario", scenario.name), ("repeat", str(repeat))]
            yield item

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A faulty file is told by place and remedy, without a traceback."""
        if isinstance(excinfo.value, ScenarioError):
            return _with_hint(excinfo.value)
        return super().repr_failure(excinfo)


def _repeats(config: pytest.Config) -> int:
    text = _option(config, "oc_repeat") or "1"
    if not text.isdecimal() or int(text) < 1:
        raise pytest.UsageError(f"--oc-repeat {text!r}: write a whole number from 1")
    return int(text)


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

    def trial(
        request: pytest.FixtureRequest,
        tmp_path: Path,
        tmp_path_factory: pytest.TempPathFactory,
        oc_server: ServerUnderTest | None,
        oc_opencode: Path,
    ) -> None:
        results: list[TrialResult] = []
        request.node.stash[_RESULTS] = results
        with _progress(request.config):
            for root in _attempt_folders(tmp_path, tmp_path_factory):
                results.append(_attempt(scenario, root, request.config, tmp_path_factory, oc_server, oc_opencode))
                if not results[-1].outcome_policy.retries:
                    break
        if results[-1].outcome is Outcome.SKIP:
            pytest.skip(results[-1].problems[0].message)
        if results[-1].outcome is not Outcome.PASS:
            raise TrialFailed(results[-1].explain())

    return trial


def _attempt_folders(first: Path, factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for each attempt; none is ever used again."""
    yield first
    for number in range(2, _ATTEMPTS + 1):
        yield factory.mktemp(f"{first.name}-attempt-{number}-")


def _attempt(
    scenario: Scenario,
    root: Path,
    config: pytest.Config,
    factory: pytest.TempPathFactory,
    server: ServerUnderTest | None,
    opencode: Path,
) -> TrialResult:
    from opencode_harness.isolation import DEFAULT_LIMITS
    from opencode_harness.trial import TrialSpec, asks_server, run_trial

    log = _option(config, "oc_server_log")
    spec = TrialSpec(
        scenario,
        root,
        opencode,
        None if server is None else server.url,
        DEFAULT_LIMITS if server is None else server.limits,
        None if server is None else server.api_key,
        kv_mode=cast("KvMode", _option(config, "oc_kv_mode") or "cold"),
        guided=config.getoption("oc_guided"),
        live=config.getoption("oc_live"),
        oracle=cast("Any", _option(config, "oc_oracle") or None),
        server_log=Path(log) if log else None,
        n_ctx_slot=None if server is None else server.n_ctx_slot,
    )
    if server is None or not asks_server(spec):
        return run_trial(spec)
    with _slots_of(config, factory, server) as slots:
        if spec.kv_mode == "cold":
            _flush(server, slots)
        return run_trial(dataclasses.replace(spec, slots=slots))


@contextlib.contextmanager
def _slots_of(config: pytest.Config, factory: pytest.TempPathFactory, server: ServerUnderTest) -> Iterator[Any]:
    """The slots that are this worker's own while a trial lasts; none where it has the server to itself."""
    from opencode_harness.slots import leased_slots

    worker = getattr(config, "workerinput", None)
    if worker is None or server.n_slots is None:
        yield ()
        return
    # All workers' temporary folders have one parent.
    number = int(str(worker["workerid"]).removeprefix("gw"))
    with leased_slots(factory.getbasetemp().parent, number, server.n_slots) as slots:
        yield slots


def _flush(server: ServerUnderTest, slots: Sequence[int] = ()) -> None:
    from opencode_harness.slots import flush_slots

    flush = flush_slots(server.client, slots)
    if flush.problem is not None:
        warnings.warn(pytest.PytestWarning(flush.problem), stacklevel=1)


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
    """Attach the attempts' figures to the trial's report."""
    report = yield
    results: list[TrialResult] = item.stash.get(_RESULTS, [])
    if results and report.when == "call":
        last = results[-1]
        noun = "request" if last.requests == 1 else "requests"
        again = f", attempt {len(results)}" if len(results) > 1 else ""
        report.user_properties += [
            ("outcome", last.outcome.value),
            ("summary", f"{last.duration_s:.1f} s, {last.requests} {noun}{again}"),
            *(("artefacts", str(result.artefacts)) for result in results),
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
def oc_server(request: pytest.FixtureRequest) -> ServerUnderTest | None:
    """The server named by `--oc-server`; None with `--oc-no-server`; the test is skipped when neither is given."""
    from llama_launch import Client, LlamaLaunchError, read_api_keys

    url = _option(request.config, "oc_server")
    if not url and request.config.getoption("oc_no_server"):
        return None
    if not url:
        pytest.skip("no server: give --oc-server URL")
    key_file = _option(request.config, "oc_api_key_file")
    api_key = read_api_keys(Path(key_file))[0] if key_file else None
    client = Client(url, api_key)
    n_ctx_slot, n_slots = None, None
    with contextlib.suppress(LlamaLaunchError):
        props = client.props()
        n_ctx_slot, n_slots = props.n_ctx_slot, props.n_slots
    return ServerUnderTest(url.rstrip("/"), client, n_ctx_slot, n_slots, api_key)


@pytest.fixture(scope="session")
def oc_opencode(request: pytest.FixtureRequest) -> Path:
    """The OpenCode executable."""
    from opencode_harness.opencode import find_opencode

    return find_opencode(_option(request.config, "oc_opencode") or None)


@pytest.fixture(autouse=True)
def flush_llama_kv_cache(request: pytest.FixtureRequest) -> None:
    """Erase every slot of the server before each test; a failure is a warning, never an error.

    A scenario does so itself, of the slots that it uses, if it uses the server.
    """
    if not _option(request.config, "oc_server") or isinstance(request.node, ScenarioItem):
        return
    _flush(request.getfixturevalue("oc_server"))
