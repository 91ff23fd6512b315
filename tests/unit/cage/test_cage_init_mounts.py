"""The mount namespace in which inits are cloned has none of the host's mounts."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest
from tests.helpers import PATIENCE, open_descriptors

from warmcell.cage.failure import CageError
from warmcell.cage.linux.namespaces import HomeNamespace
from warmcell.cage.manager import sleeping_inits

_SCRIPT = """
import json, os
from warmcell.cage.linux.namespaces import HomeNamespace
from warmcell.cage.manager.sleeping_inits import InitMounts

def points():
    return [line.split()[4] for line in open("/proc/self/mountinfo")]

before = points()
mounts = InitMounts(HomeNamespace("mnt"))
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


def test_mounts_that_cannot_be_made_leave_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that has hardly any descriptors left tries again for each cell."""

    def fail(self: HomeNamespace) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    home = HomeNamespace("mnt")
    for name in ("enter_new", "return_home"):
        monkeypatch.setattr(HomeNamespace, name, lambda self: None)
    monkeypatch.setattr(HomeNamespace, "open_current", fail)
    monkeypatch.setattr(sleeping_inits, "_lay_out_mounts", lambda: None)
    before = open_descriptors()
    with pytest.raises(CageError, match="make mounts of init"):
        sleeping_inits.InitMounts(home)
    assert open_descriptors() <= before
    os.close(home._descriptor)
