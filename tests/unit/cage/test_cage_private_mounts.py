"""What the host mounts below an allowed path later does not appear in a cage that is already built."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import PATIENCE

_SCRIPT = """
import json, os, sys
from warmcell.cage.linux.mounts import attach_tree, detached_tree, mount
from warmcell.cage.plan import Bind

MS_SHARED = 1 << 20
allowed, shown = sys.argv[1:]
mount("none", allowed, "tmpfs", 0)
mount("none", allowed, None, MS_SHARED)
for name in ("early", "late"):
    os.mkdir(f"{allowed}/{name}")
mount("none", f"{allowed}/early", "tmpfs", 0)
attach_tree(detached_tree(Bind(allowed, shown), lambda owner: None), shown)
mount("none", f"{allowed}/late", "tmpfs", 0)
points = [line.split()[4] for line in open("/proc/self/mountinfo")]
print(json.dumps([point[len(shown):] for point in points if point.startswith(shown)]))
"""


@pytest.mark.needs("user namespaces")
def test_later_mounts_of_the_host_stay_out(tmp_path: Path) -> None:
    """They would come without nosuid and nodev, and writable below a path that is allowed read-only."""
    places = [tmp_path / "allowed", tmp_path / "shown"]
    for place in places:
        place.mkdir()
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", _SCRIPT, *map(str, places)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert not ended.stderr
    assert json.loads(ended.stdout) == ["", "/early"]
