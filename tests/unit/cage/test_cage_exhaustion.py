"""Making a cell where something runs out: each single step fails once, is told by name, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

import warmcell.cage
from warmcell.cage.plan import Bind, LaunchPlan, encode

pytestmark = pytest.mark.needs("linux", "user namespaces")

#: Runs as a zygote would. For each number it forks a copy of itself, in which the step of that number fails.
_SCRIPT = """
import ctypes, errno, json, os, resource, signal, socket, sys, time
from types import ModuleType
package = ModuleType("cage")
package.__path__ = [sys.argv[1]]
sys.modules["cage"] = package
from cage.linux import syscalls
from cage.linux.syscalls import PR_SET_CHILD_SUBREAPER, prctl
from cage.wire import receive_packet
from cage.zygote.cells import CellMaker, Newborn

plan, sleeps, is_warm, what = sys.argv[2], sys.argv[3] == "sleeper", sys.argv[4] == "warm", sys.argv[5]
me, steps, failing, is_making = os.getpid(), 0, -1, False

def fails():
    global steps
    steps += is_making
    return is_making and os.getpid() == me and steps - 1 == failing

def failing_like(function, error):
    def wrapper(*args, **options):
        if fails():
            raise OSError(error, os.strerror(error))
        return function(*args, **options)
    return wrapper

class Libc:
    def __init__(self, libc): self._libc = libc
    def syscall(self, number, *args):
        # Where the way back fails there is no way on: the zygote ends, which the last test looks at.
        if fails():
            ctypes.set_errno(errno.ENOMEM)
            return -1
        return self._libc.syscall(number, *args)

def inject():
    for name in ("pipe2", "fork", "open", "makedirs", "symlink", "write"):
        setattr(os, name, failing_like(getattr(os, name), errno.ENOMEM))
    socket.socketpair = failing_like(socket.socketpair, errno.ENOMEM)
    sendmsg = socket.socket.sendmsg
    socket.socket.sendmsg = failing_like(sendmsg, errno.ENOMEM)
    syscalls._libc = Libc(syscalls._libc)

def descriptors():
    return sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]

def everybody_ended():
    for _ in range(500):
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        except ChildProcessError:
            return True
    return False

def attempt(limit=None):
    job, their_job = socket.socketpair()
    status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = [their_job.detach(), their_status.detach(), *(os.open("/dev/null", os.O_RDWR) for _ in range(3))]
    global steps, is_making
    steps = 0
    if limit is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors()) + 1 + limit, hard))
    is_making = True
    made = maker.make({"plan": plan, "sleeps": sleeps, "execs": True}, given)
    is_making = False
    if isinstance(made, Newborn):
        os._exit(0)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if made is not None:
        made._init.end()
        made.close()
    said = []
    while True:
        message, received = receive_packet(status)
        for descriptor in received: os.close(descriptor)
        if not message: break
        said.append(message)
    job.close(); status.close()
    return [message["failed"] for message in said if "failed" in message]

def one(number):
    global failing
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if what == "memory":
        inject()
        failing = number
        told = attempt()
        reached = steps > number
        failing = -1
    else:
        told = attempt(limit=number)
        reached = bool(told)
    ended = everybody_ended()
    again = attempt()
    ended = ended and everybody_ended()
    print(json.dumps({"number": number, "reached": reached, "told": told, "again": again, "ended": ended,
                      "descriptors": descriptors()}), flush=True)
    return reached

prctl(PR_SET_CHILD_SUBREAPER, 1)
maker = CellMaker(True, lambda pid: None)
if is_warm:
    assert attempt() == [] and everybody_ended()
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for number in [-1, *range(400)]:  # the first is one in which nothing fails
    pid = os.fork()
    if pid == 0:
        me = os.getpid()
        os._exit(0 if one(1000 if number < 0 else number) else 3)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, 3):
        print(json.dumps({"number": number, "died": code}), flush=True)
    if number >= 0 and code == 3:
        break
"""

_PLAN = LaunchPlan(
    binds=(Bind("/usr", "/usr"), Bind("/etc/passwd", "/etc/shown"), Bind("/dev/null", "/dev/null", device=True)),
    symlinks=(("/bin", "usr/bin"),),
    files=(("/etc/hostname", "sandbox\n"),),
    scratch_bytes=1 << 20,
    scratch_inodes=100,
    scratch_dirs=(("/tmp", 0o1777),),
)
_ASTRAY = 70


@cache
def _ends(kind: str, state: str, what: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-I", "-S", "-c", _SCRIPT, warmcell.cage.__path__[0], encode(_PLAN), kind, state, what]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    return [json.loads(line) for line in said.stdout.splitlines()]


@pytest.mark.attack("S2-27")
@pytest.mark.parametrize("what", ["memory", "descriptors"])
@pytest.mark.parametrize("state", ["cold", "warm"])
@pytest.mark.parametrize("kind", ["keeper", "sleeper"])
def test_a_step_that_fails_is_told_and_leaves_nothing(kind: str, state: str, what: str) -> None:
    untroubled, *ends = _ends(kind, state, what)
    assert untroubled["told"] == untroubled["again"] == [] and untroubled["ended"]
    failed = [end for end in ends if "died" not in end and end["reached"]]
    assert len(failed) >= (6 if what == "descriptors" else 12)
    for end in failed:
        ((step, errno, item),) = end["told"]
        assert step and item and errno == {"memory": 12, "descriptors": 24}[what], end
        assert end["ended"], f"a process is left: {end}"
        assert end["again"] == [], f"the next cell fails too: {end}"
        assert end["descriptors"] == untroubled["descriptors"], end


def test_a_zygote_that_cannot_find_back_ends() -> None:
    """It would make the next cells among a guest's processes, or from the wrong mounts."""
    died = [end["died"] for end in _ends("sleeper", "cold", "memory") if "died" in end]
    assert died and set(died) == {_ASTRAY}
    assert [end for end in _ends("keeper", "cold", "memory") if "died" in end] == []
