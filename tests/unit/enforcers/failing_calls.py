"""Calls that fail on purpose."""

from __future__ import annotations

import errno

from warmcell.cage.linux import call_list


def failing(step: str, number: int) -> call_list.CallList:
    """Nothing but a call that fails."""
    calls = call_list.CallList()
    calls.begin_step(step)
    calls.call("close", -1 if number == errno.EBADF else 0)
    return calls
