"""Black-box tests of the real OpenCode terminal against a local llama.cpp server.

`load_scenario` reads a scenario, `run_trial` runs it once. In pytest the plugin collects scenario files by itself;
`assert_matches_all`, `assert_not_matches_any` and `snapshot_text_files` serve tests written in Python.
"""

from opencode_harness.checks import CheckFailure, assert_matches_all, assert_not_matches_any
from opencode_harness.errors import (
    HarnessError,
    OpenCodeInstallError,
    OpenCodeNotFound,
    ScenarioError,
    WorkspaceError,
)
from opencode_harness.isolation import ModelLimits
from opencode_harness.opencode import find_opencode, install_opencode
from opencode_harness.outcomes import Outcome
from opencode_harness.scenario import Scenario, load_scenario, scenario_schema
from opencode_harness.slots import SlotFlush, flush_slots
from opencode_harness.trial import TrialResult, TrialSpec, run_trial
from opencode_harness.tui import run_opencode_tui
from opencode_harness.verdict import Problem
from opencode_harness.workspace import snapshot_text_files

__all__ = [
    "CheckFailure",
    "HarnessError",
    "ModelLimits",
    "OpenCodeInstallError",
    "OpenCodeNotFound",
    "Outcome",
    "Problem",
    "Scenario",
    "ScenarioError",
    "SlotFlush",
    "TrialResult",
    "TrialSpec",
    "WorkspaceError",
    "assert_matches_all",
    "assert_not_matches_any",
    "find_opencode",
    "flush_slots",
    "install_opencode",
    "load_scenario",
    "run_opencode_tui",
    "run_trial",
    "scenario_schema",
    "snapshot_text_files",
]
