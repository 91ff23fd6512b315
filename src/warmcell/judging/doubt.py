"""Which outcomes the load of the host may have caused; such cases run again, one at a time."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from warmcell.core import events
from warmcell.core.errors import ExecutionTimeout
from warmcell.core.output_events import Outcome
from warmcell.core.types import MAX_TIMEOUT, MIB, ExecRequest
from warmcell.lifetime.fair_semaphore import FairSemaphore

#: What a program that computes all the time gets of a processor that it has for itself.
_OWN_SHARE = 0.9
#: A program that uses less of its elapsed time sleeps or waits. What starts and ends processes uses more.
_ASLEEP_SHARE = 0.01
#: One case at a time, whatever thread or event loop judges.
_gate = FairSemaphore(1)


def run_alone() -> AbstractAsyncContextManager[None]:
    """Wait until no other case runs alone. The tenants of a server take turns: one may have thousands of such cases."""
    return _gate.slot(events.annotation("tenant") or "", 1, MAX_TIMEOUT)


def is_doubtful(outcome: Outcome, request: ExecRequest, *, is_owed: bool = False) -> bool:
    """Whether the same case, run alone, might end differently.

    It ran out of elapsed time without having computed for as long, and it did not just sleep: others may have run
    instead. Or its peak of resident memory is over the limit, but that peak includes pages that may not be its own.
    `is_owed`: another program, which others may have delayed, had not read its question: it did not just sleep.
    """
    error = outcome.error
    if error is None:
        limits = request.limits
        limit = request.memory_limit_mb or (limits.memory_mb if limits is not None else None)
        peak = outcome.result.usage.peak_memory_bytes if outcome.result is not None else 0
        return limit is not None and peak > limit * MIB
    return isinstance(error, ExecutionTimeout) and is_doubtful_timeout(error, is_owed=is_owed)


def is_doubtful_timeout(error: ExecutionTimeout, *, is_owed: bool = False) -> bool:
    """Whether others may have run instead, so that the program did not have its time.

    Processes that have ended, and calls that wait for the kernel's own locks, do not show how long they were delayed.
    """
    if error.clock != "wall" or error.phase != "run":
        return False
    if error.result is None:
        return True
    usage = error.result.usage
    # Its deadline was not moved for time on a run queue, and it hardly computed: it waited for something of its own.
    is_asleep = usage.wall_time < error.timeout / _OWN_SHARE and usage.cpu_time < _ASLEEP_SHARE * error.timeout
    return (is_owed or not is_asleep) and usage.cpu_time < _OWN_SHARE * error.timeout
