"""The watcher looks at a cell's System V objects and leaves: they end with the cell."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.helpers import PATIENCE

_SCRIPT = """
import json, os, signal
from warmcell.cage.linux.namespaces import CLONE_NEWIPC, clone
from warmcell.cage.watching.ceilings import Network, _memory_outside_processes
from warmcell.cage.watching.kernel_memory import Locks
from warmcell.cage.watching.patience import Patience

init, pidfd = clone(CLONE_NEWIPC)
if init == 0:
    signal.pause()
scratch = os.open("/tmp", os.O_PATH | os.O_DIRECTORY)
locks, network = Locks(lambda owner, pids: False), Network("/proc/self/net", False)
for _ in range(2):
    _memory_outside_processes(pidfd, scratch, locks, network, [], Patience(1e9, 1e9))
seen = [os.stat(f"/proc/{pid}/ns/ipc").st_ino for pid in ("self", init)]
os.kill(init, signal.SIGKILL)
os.waitpid(init, 0)
print(json.dumps(seen))
"""


@pytest.mark.attack("RX-02")
@pytest.mark.needs("user namespaces")
def test_the_watcher_is_no_member_of_a_cells_ipc_namespace() -> None:
    """Else a guest's shared memory stays on the host until another cell is looked at."""
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", _SCRIPT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert not ended.stderr
    own, of_cell = json.loads(ended.stdout)
    assert own != of_cell


_EMPTY_MESSAGES = """
import ctypes, struct
from warmcell.cage.watching import usage

before = usage.system_v_objects()
libc = ctypes.CDLL(None, use_errno=True)
queue = libc.msgget(0, 0o600)
for _ in range(10_000):
    assert libc.msgsnd(queue, struct.pack("l", 1), ctypes.c_size_t(0), 0o4000) == 0, ctypes.get_errno()
print(usage.system_v_objects() - before)
"""


@pytest.mark.attack("S2-06")
@pytest.mark.claim("WC-RX-2")
@pytest.mark.needs("user namespaces")
def test_empty_messages_take_memory_too() -> None:
    """A namespace may have hundreds of millions of them, without a byte of text."""
    command = ["unshare", "--user", "--map-root-user", "--ipc", sys.executable, "-c", _EMPTY_MESSAGES]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert not ended.stderr
    assert int(ended.stdout) >= 10_000 * 64
