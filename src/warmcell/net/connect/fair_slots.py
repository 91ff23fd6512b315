"""Slots that all guests of this program share: connections and name lookups.

Guest connections use the host program's descriptors, so there is one total per program, derived from RLIMIT_NOFILE. A
guest gets another slot only while more slots are free than it holds: a single guest gets half of them, two guests a
third each. Two slots are always granted; the number of runs is bounded elsewhere.
"""

from __future__ import annotations

import threading
from functools import cache

from warmcell.lifetime.ownership import own

DESCRIPTORS_EACH = 2
#: Guest connections may use 1/_SHARE of the program's descriptors.
_SHARE = 4
_FEWEST, _MOST = 8, 1024
_ALWAYS = 2


class FairSlots:
    """A fixed number of slots. Thread-safe. A forked child starts with all slots free."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self.taken = 0

    def take(self, held: int) -> bool:
        """Take a slot for a guest that holds `held` slots; False if it has used its share."""
        with self._lock:
            if held >= _ALWAYS and held >= self.most - self.taken:
                return False
            self.taken += 1
            return True

    def give_back(self) -> None:
        with self._lock:
            self.taken = max(0, self.taken - 1)


@cache
def connection_slots() -> FairSlots:
    """The program's connection slots, sized by RLIMIT_NOFILE at first use."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return FairSlots(_MOST)
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = _MOST if soft == resource.RLIM_INFINITY else soft // _SHARE // DESCRIPTORS_EACH
    return FairSlots(min(max(usable, _FEWEST), _MOST))
