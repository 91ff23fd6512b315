"""The mount namespace in which inits are cloned has none of the host's mounts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.helpers import PATIENCE

_SCRIPT = """
import json, os
from warmcell.cage.manager.sleeping_inits import InitMounts

def points():
    return [line.split()[4] for line in open("/proc/self/mountinfo")]

before = points()
mounts = InitMounts()
seen = [before, points()]
for _ in range(2):
    with mounts:
        seen.append(points())
        files = sorted(os.listdir("/"))
    seen.append(points())
print(json.dumps([seen, files]))
"""


@pytest.mark.needs("user namespaces")
def test_inits_start_with_an_empty_root_and_proc() -> None:
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", _SCRIPT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert not ended.stderr
    (before, after, first, between, second, last), files = json.loads(ended.stdout)
    assert first == second == ["/", "/proc"]
    assert files == ["proc", "tmp"]
    assert before == after == between == last
