"""The cage on Debian's 6.1 kernel: control groups version 2 for real, and a Landlock that knows less.

Every check runs inside the emulated machine (`guest/checks.py`); here each is asked for by name, so that one that did
not run is as red as one that failed.
"""

from __future__ import annotations

import pytest
from tests.qemu.guest.plan import AFTERWARDS, PLAN
from tests.qemu.machine import Report

# The first test boots the machine.
pytestmark = [pytest.mark.needs("linux"), pytest.mark.xdist_group("qemu"), pytest.mark.timeout(1800, method="signal")]
CHECKS = [(setting.name, name) for setting, checks in PLAN for name in (*checks, AFTERWARDS)]


@pytest.mark.parametrize(("setting", "name"), CHECKS)
def test_check(report: Report, setting: str, name: str) -> None:
    record = report.checks.get((setting, name))
    assert record is not None, f"did not run; the console ends with:\n{report.console[-4000:]}"
    assert record["passed"], record["detail"]


def test_machine_finished(report: Report) -> None:
    assert report.facts.get("finished"), report.console[-4000:]


def test_kernel_is_what_this_job_is_for(report: Report) -> None:
    """Should Debian's kernel move on, another older one has to be found for this job."""
    assert report.facts["landlock_abi"] < 6
    assert {"memory", "pids", "cpu"} <= set(report.facts["controllers"])
