"""How many processes a pid namespace has had: the kernel tells only who is in it."""

from __future__ import annotations

import os

from ..linux import call_list
from ..linux.call_list import CallList
from ..linux.namespaces import CLONE_NEWPID
from ..linux.syscalls import call

_own = -1


def next_pid(process: int) -> int:
    """The number that the next process in that process's namespace gets; 0 where it cannot be found out.

    By asking one, without memory of its own, what it is called.
    """
    global _own
    if not call_list.can_spawn():
        return 0
    if _own < 0:
        _own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    calls = CallList()
    number = calls.call("getpid")
    calls.call("exit", 0)
    prepared = calls.prepare(())
    try:
        call("setns", process, CLONE_NEWPID)
    except OSError:  # it has just ended
        return 0
    try:
        asked = call_list.spawn(0, prepared)
    except OSError:
        return 0
    finally:
        call("setns", _own, CLONE_NEWPID)
    os.waitpid(asked.pid, 0)
    os.close(asked.pidfd)
    return prepared.result(number)
