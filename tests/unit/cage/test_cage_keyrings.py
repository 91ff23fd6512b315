"""Guests have no keyrings in the class without a list of allowed system calls: bubblewrap's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell.cage.guest_entry import recipe
from warmcell.cage.linux.syscall_numbers import NUMBERS
from warmcell.core.errors import EnforcerUnavailable
from warmcell.enforcers.bubblewrap import BubblewrapEnforcer

ROOT = Path(__file__).resolve().parents[3]
#: Its own process: it leaves the session keyring of the tests, and puts a canary into the new one.
HOST = """
import sys
from warmcell import ExecRequest, ProcessBackend
from warmcell.cage.linux.syscalls import call

call("keyctl", 1, b"named")
call("add_key", b"user", b"canary", b"CANARY", 6, -3)
with ProcessBackend(enforcer="bubblewrap") as backend:
    for _ in range(2):
        result = backend.execute_blocking(ExecRequest("python", sys.argv[1], 60))
        print(result.stdout, result.stderr)
try:
    call("keyctl", 10, -3, b"user", b"left by a guest", 0)
    print("a key of the guest's is left")
except OSError:
    pass
"""
GUEST = """
import ctypes
libc = ctypes.CDLL(None)
for name in (b"canary", b"left by a guest"):
    print(libc.syscall(REQUEST_KEY, b"user", name, None, 0), end=" ")
print(libc.syscall(ADD_KEY, b"user", b"left by a guest", b"x", 1, -3))
for line in open("/proc/keys"):
    libc.syscall(KEYCTL, 8, int(line.split()[0], 16), -3)
print(libc.syscall(KEYCTL, 10, -3, b"user", b"canary", 0))
"""


@pytest.mark.needs("linux")
@pytest.mark.needs("user namespaces")
@pytest.mark.attack("LK-05")
def test_keys_of_the_host_and_of_other_guests_are_out_of_reach() -> None:
    try:
        BubblewrapEnforcer().probe()
    except EnforcerUnavailable as error:
        require(False, str(error))
    if not recipe.has_keyrings():
        pytest.skip("no guest has keyrings here: the kernel has none, or a filter around us refuses them")
    numbers = [NUMBERS[name] for name in ("request_key", "add_key", "keyctl")]
    guest = f"REQUEST_KEY, ADD_KEY, KEYCTL = {numbers}{GUEST}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", HOST, guest]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (ran.stdout.split(), ran.stderr) == (["-1"] * 8, "")
