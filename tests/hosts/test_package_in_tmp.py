"""A package below /tmp: namespaces of the manager's in which something else is mounted there must not matter."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.helpers import PATIENCE

import warmcell
from warmcell.cage.linux import call_list

pytestmark = pytest.mark.needs("linux", "user namespaces")

#: Runs twice, so that an init is made ahead, and prints how many pages of machine code a process of ours has.
_PROGRAM = """
import os, sys
from pathlib import Path
from warmcell import ExecRequest, ProcessBackend
from warmcell.cage.linux.processes import children

def is_code(line):
    return " r-xp 00000000 00:00 0" in line and not line.rstrip().endswith("]")

with ProcessBackend() as backend:
    for _ in range(2):
        assert backend.execute_blocking(ExecRequest("python", "print(1)", 60)).stdout == "1\\n"
    (manager,) = children(os.getpid())
    print(sum(map(is_code, Path(f"/proc/{manager}/maps").read_text().splitlines())))
"""


def test_the_manager_has_its_machine_code() -> None:
    if not call_list.can_spawn():
        pytest.skip("memory may not be executed here")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        shutil.copytree(Path(warmcell.__file__).parent, f"{place}/warmcell")
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={"PYTHONPATH": place, "PATH": "/usr/bin:/bin", "TMPDIR": tempfile.gettempdir()},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.stdout == "1\n", done.stderr
