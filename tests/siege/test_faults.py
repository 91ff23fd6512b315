"""Our own side runs out of descriptors and memory, or loses a process, at every step of a cell's life (S2-27).

The steps are not listed here: a run that works is written down call by call, in every process of ours, and then each
line fails once, in one of the ways in which it can. `python -m tests.siege.faults SCENE` does it for every call and
every way.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.conftest import ROOT

from warmcell import Sandbox
from warmcell.core.errors import SandboxError

pytestmark = pytest.mark.needs("linux", "user namespaces")

#: Killing a guest that has its job looks like the guest's own doing: the result says what happened.
_KILLED = "result: 137 9 "


def _report(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.siege.faults", *arguments, "--each-place-once"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _is_well(end: dict[str, Any]) -> bool:
    is_told = end["told"] == "ran" or end["told"].startswith("host: ")
    was_killed = "KILL" in end["fault"]["kind"] and end["told"].startswith(_KILLED)
    return (is_told or was_killed) and end["again"] == "ran" and "left" not in end


@pytest.mark.attack("S2-27")
@pytest.mark.parametrize(
    ("arguments", "least", "roles"),
    [
        (["warm"], 60, {"supervisor", "manager", "guest"}),  # a zygote's part in it is a list of calls
        (["warm", "--plain", "--roles=init,guest,zygote"], 40, {"init", "guest", "zygote"}),
        (["landlock", "--roles=supervisor,keeper"], 30, {"supervisor", "keeper"}),
        (["cold", "--new-places-only"], 40, {"supervisor", "manager", "zygote"}),
    ],
    ids=["next cell", "call by call", "without namespaces", "first cell"],
)
def test_each_step_fails_as_ours_and_leaves_nothing(arguments: list[str], least: int, roles: set[str]) -> None:
    ends = _report(*arguments)
    failed = [end for end in ends if end["failed"]]
    assert len(failed) >= least and {end["fault"]["role"] for end in failed} >= roles
    assert [end for end in ends if not _is_well(end)] == []


def test_a_sandbox_that_gets_no_directory_says_whose_fault_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(SandboxError, match="No space left on device") as caught, Sandbox():
        pass
    assert caught.value.fault == "host"
