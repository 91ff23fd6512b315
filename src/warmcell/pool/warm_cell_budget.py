"""How many warm cells the whole program may keep: they wait for runs that may never come, and use its descriptors."""

from __future__ import annotations

import time
from weakref import WeakSet

from warmcell.lifetime.ownership import Lock
from warmcell.pool.state import IDLE_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object  # for type checkers only

_SHARE_OF_DESCRIPTORS = 4  # 1/n of the descriptors
_MOST = 256


class WarmCellHolder(Protocol):
    """A pool, as far as its warm cells go."""

    #: The time of its last lease.
    last_used: float
    descriptors_of_a_cell: int

    def ready_count(self) -> int: ...

    def shed(self) -> bool: ...


class WarmCellBudget:
    """One for the program. Safe from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pools: WeakSet[WarmCellHolder] = WeakSet()

    def enter(self, pool: WarmCellHolder) -> None:
        with self._lock:
            self._pools.add(pool)

    def has_place_for(self, asking: WarmCellHolder) -> bool:
        """Whether one more of its cells may stay warm. If the budget is used up, an idle pool makes room.

        A pool in use does not: with more pools than places, every run would end what the next one needs.
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
    """The budget, from the current limit on descriptors."""
    import resource  # needed only by programs that keep warm cells

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return _MOST
    return min(_MOST, allowed // (_SHARE_OF_DESCRIPTORS * descriptors_of_a_cell))


warm_cell_budget = WarmCellBudget()
