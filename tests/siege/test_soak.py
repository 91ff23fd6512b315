"""Short forms of `scripts/soak`, in a process of its own: what is counted is all that this process has."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.conftest import ROOT

pytestmark = pytest.mark.needs("linux", "user namespaces")


def _soak(*arguments: str) -> str:
    command = [sys.executable, "scripts/soak", "--seed=1", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.claim("WC-RX-5")
def test_after_hostile_runs_by_many_callers_everything_is_as_it_was() -> None:
    said = _soak("--runs", "200", "--places", "runs")
    assert "'runs: benign: right': 180" in said and "faults: []" in said
    for end in (
        "fork bomb",
        "daemon",
        "kill init: 0",
        "endless: ExecutionTimeout",
        "memory: MemoryExceeded",
        "deep tree",
    ):
        assert f"'runs: {end}" in said, said


def test_live_cages_sessions_and_doors_give_right_answers_beside_hostile_ones() -> None:
    said = _soak("--runs", "120", "--places", "live,cells,doors", "--callers", "3")
    assert "faults: []" in said
    for place in ("live", "cells", "doors"):
        assert f"'{place}: benign: right': 3" in said, said


@pytest.mark.attack("S2-21")
def test_a_program_that_is_killed_leaves_nothing_once_another_started() -> None:
    assert "faults: []" in _soak("--kill", "6", "--callers", "3")
