"""How many connections the proxies of this program hold, all together: each of them costs it two descriptors.

Guests open connections as they like, and the descriptors are the host program's own. So there is one total for the
program, taken from its own limit, and a guest gets a place only while more places are free than it already has: one
guest alone gets half of them, two at a time a third each, and the next one that comes still finds some.
"""

from __future__ import annotations

import threading
from functools import cache

from warmcell.lifetime.ownership import own

DESCRIPTORS_EACH = 2
#: Of the program's descriptors, one in so many may be a guest's connection.
_SHARE = 4
_FEWEST, _MOST = 8, 1024


class ConnectionSlots:
    """A number of places. Thread-safe; a fork begins with all of them free, because the connections are not its own."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    def take(self, held: int) -> bool:
        """A place for somebody who holds so many already, or False."""
        with self._lock:
            if held >= self.most - self._taken:
                return False
            self._taken += 1
            return True

    def give_back(self) -> None:
        with self._lock:
            self._taken = max(0, self._taken - 1)


@cache
def slots_of_this_program() -> ConnectionSlots:
    """The one total, by the limit on open files that held when it was first needed."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return ConnectionSlots(_MOST)
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = _MOST if soft == resource.RLIM_INFINITY else soft // _SHARE // DESCRIPTORS_EACH
    return ConnectionSlots(min(max(usable, _FEWEST), _MOST))
