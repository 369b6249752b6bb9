"""Fixtures of the tests that start real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from system.processes import HarnessRun, harness_runs


@pytest.fixture
def start_harness(tmp_path: Path) -> Iterator[Callable[..., HarnessRun]]:
    """Starts `opencode-harness run ARGUMENTS`; whatever is left of it is killed afterwards."""
    with harness_runs(tmp_path) as start:
        yield start
