"""How much of its time a guest used, and how long it waited for a processor. Loaded when a deadline has passed."""

from __future__ import annotations

import os
from collections.abc import Iterable

from warmcell.cage.linux import kernel_files
from warmcell.cage.linux.processes import descendants, must_be_expected
from warmcell.cage.watching.usage import cpu_times
from warmcell.core.records import dataclass

#: A guest that had a processor for so much of its time was not starved.
_OWN_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class GuestTime:
    """Of a tree of processes, in seconds."""

    #: On a processor, all processes together.
    cpu: float
    #: On a run queue, of the thread that waited longest; and for us to read its output or write its input.
    delay: float

    def remaining_time(self, elapsed: float, timeout: float) -> float:
        """The part of its timeout that the guest was kept from using. 0 if it computed or slept through it.

        A guest whose threads delay each other has used the processor time that they took from each other.
        """
        had = elapsed - min(self.delay, elapsed)
        return 0.0 if max(self.cpu, had) >= _OWN_SHARE * timeout else timeout - had

    def check_deadline(self, elapsed: float, timeout: float, longest: float) -> tuple[str, float]:
        """Why the run ends after `elapsed` seconds, or "" and for how long it goes on; "starved" after `longest`.

        A guest that had a part of its time has not timed out: the rest might have been enough for it.
        """
        unused = self.remaining_time(elapsed, timeout)
        if unused <= 0.0:
            return "timeout", 0.0
        return ("", min(unused, longest - elapsed)) if elapsed < longest else ("starved", 0.0)


def guest_time(roots: Iterable[int], held_up: float = 0.0) -> GuestTime:
    """Of the processes below and including these, which waited for us for `held_up` seconds.

    Processes that have ended count only if their parent waited for them.
    """
    pids = {pid for root in roots if root > 0 for pid in (root, *descendants(root))}
    cpu = sum(time.own + time.waited for time in cpu_times("/proc", pids).values())
    return GuestTime(cpu, held_up + max((_run_queue_delay(pid) for pid in pids), default=0.0))


def _run_queue_delay(pid: int) -> float:
    """0 if the kernel has no schedstat."""
    longest = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            longest = max(longest, int(kernel_files.read_short(f"/proc/{pid}/task/{thread}/schedstat").split()[1]))
    except OSError as error:
        must_be_expected(error)
    except (IndexError, ValueError):
        return 0.0
    return longest / 1e9
