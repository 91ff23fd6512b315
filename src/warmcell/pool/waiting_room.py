"""How many cells may wait in the whole program: they are for runs that may never come, its descriptors are for all."""

from __future__ import annotations

import time
from weakref import WeakSet

from warmcell.lifetime.ownership import Lock
from warmcell.pool.state import IDLE_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object  # type checkers alone look at these

_SHARE_OF_DESCRIPTORS = 4  # one part in so many
_MOST = 256


class Waiting(Protocol):
    """A pool, as far as its waiting cells go."""

    #: When somebody last asked it for a cell.
    last_used: float
    descriptors_of_a_cell: int

    def ready_count(self) -> int: ...

    def shed(self) -> bool: ...


class WaitingRoom:
    """One for the program. Safe from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pools: WeakSet[Waiting] = WeakSet()

    def enter(self, pool: Waiting) -> None:
        with self._lock:
            self._pools.add(pool)

    def has_place_for(self, asking: Waiting) -> bool:
        """Whether one more of its cells may wait. Where all places are taken, a pool that idles makes room.

        One that is in use does not: with more of them than places, every run would end what the next one needs.
        """
        with self._lock:
            counts = [(pool, pool.ready_count()) for pool in self._pools]
        if sum(count for _, count in counts) < most_waiting(asking.descriptors_of_a_cell):
            return True
        others = [pool for pool, count in counts if count and pool is not asking]
        idlest = min(others, key=lambda pool: pool.last_used, default=None)
        if idlest is None or time.monotonic() - idlest.last_used < IDLE_SECONDS:
            return False
        return idlest.shed()


def most_waiting(descriptors_of_a_cell: int) -> int:
    """By what the program may open now."""
    import resource  # only those need it who keep cells waiting

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return _MOST
    return min(_MOST, allowed // (_SHARE_OF_DESCRIPTORS * descriptors_of_a_cell))


waiting_room = WaitingRoom()
