"""How many warm cells the whole program may keep: they wait for runs that may never come, and use its descriptors."""

from __future__ import annotations

import time
from weakref import WeakSet

from warmcell.lifetime.ownership import Lock
from warmcell.pool.supply import IDLE_SECONDS, Supply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHARE_OF_DESCRIPTORS = 4  # 1/n of the descriptors
_MOST = 256


class WarmCellBudget:
    """One for the program. Safe from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pools: WeakSet[Supply[Any, Any]] = WeakSet()

    def enter(self, pool: Supply[Any, Any]) -> None:
        with self._lock:
            self._pools.add(pool)

    def has_place_for(self, asking: Supply[Any, Any], descriptors: int) -> bool:
        """Whether one more of its cells, with so many descriptors, may stay warm. If not, an idle pool makes room.

        A pool in use does not: with more pools than places, every run would end what the next one needs.
        """
        with self._lock:
            counts = {pool: len(pool.ready()) for pool in self._pools}
        if sum(counts.values()) < most_waiting(descriptors):
            return True
        others = [pool for pool, count in counts.items() if count and pool is not asking]
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
