"""How many processes a pid namespace has had. The kernel only shows those that are in it."""

from __future__ import annotations

import os

from ..linux import call_list
from ..linux.call_list import CallList
from ..linux.namespaces import HomeNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_home: Optional[HomeNamespace] = None


def next_pid(process: int) -> int:
    """The pid that the next process in that process's namespace gets; 0 where it cannot be found out.

    By starting one there, without memory of its own, that calls getpid().
    """
    global _home
    if not call_list.can_spawn():
        return 0
    _home = _home or HomeNamespace("pid")
    calls = CallList()
    number = calls.call("getpid")
    calls.call("exit", 0)
    prepared = calls.prepare(())
    try:
        _home.enter(process)
    except OSError:  # it has just exited
        return 0
    try:
        asked = call_list.spawn(0, prepared)
    except OSError:
        return 0
    finally:
        _home.return_home()
    os.waitpid(asked.pid, 0)
    os.close(asked.pidfd)
    return prepared.result(number)
