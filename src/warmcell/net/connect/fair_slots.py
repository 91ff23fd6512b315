"""Places of which all guests of this program together get only so many: connections, and lookups of names.

Guests open connections as they like, and the descriptors are the host program's own. So there is one total for the
program, taken from its own limit, and a guest gets a place only while more places are free than it already has: one
guest alone gets half of them, two at a time a third each. Two places it gets whatever the others hold: the number of
runs is bounded elsewhere, and each costs more than that by itself.
"""

from __future__ import annotations

import threading
from functools import cache

from warmcell.lifetime.ownership import own

DESCRIPTORS_EACH = 2
#: Of the program's descriptors, one in so many may be a guest's connection.
_SHARE = 4
_FEWEST, _MOST = 8, 1024
_ALWAYS = 2


class FairSlots:
    """A number of places. Thread-safe; a fork begins with all of them free, because what took them is not its own."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self.taken = 0

    def take(self, held: int) -> bool:
        """A place for somebody who holds so many already, or False."""
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
    """The one total of connections, by the limit on open files that held when it was first needed."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return FairSlots(_MOST)
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = _MOST if soft == resource.RLIM_INFINITY else soft // _SHARE // DESCRIPTORS_EACH
    return FairSlots(min(max(usable, _FEWEST), _MOST))
