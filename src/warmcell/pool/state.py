"""How many cells to keep for each kind of run: grows with demand, shrinks with idleness. Pure module.

Every method changes the numbers and returns what the caller must now do; nothing here makes or destroys anything.
"""

from __future__ import annotations

from collections.abc import Hashable

from warmcell.core.records import dataclass, field

IDLE_SECONDS = 30.0


@dataclass(slots=True)
class KindDemand:
    """The cells of one kind: how many are ready, being made, and wanted."""

    ready: int = 0
    making: int = 0
    target: int = 0
    last_used: float = 0.0


@dataclass(slots=True)
class PoolState:
    """`largest` bounds one kind, `total` all kinds together; an idle kind keeps `smallest`.

    If `total` is too small for all, cells are dealt one by one to the most recently used kinds.
    """

    smallest: int
    largest: int
    total: int
    demands: dict[Hashable, KindDemand] = field(default_factory=dict)

    def lease(self, key: Hashable, now: float) -> bool:
        """Whether to use a warm cell; if not, the caller makes one. A miss raises the target."""
        demand = self.demands.pop(key, None) or KindDemand(target=min(self.smallest, self.largest))
        self.demands[key] = demand  # most recently used last
        demand.last_used = now
        if demand.ready:
            demand.ready -= 1
            return True
        demand.target = min(self.largest, max(demand.target * 2, 1))
        return False

    def start_making(self) -> list[Hashable]:
        """Kinds to make one cell of now, most recently used first. Each is counted as being made."""
        room = self.total - sum(demand.ready + demand.making for demand in self.demands.values())
        keys: list[Hashable] = []
        for key, share in self._shares().items():
            demand = self.demands[key]
            missing = share - demand.ready - demand.making
            for _ in range(max(0, min(missing, room))):
                demand.making += 1
                room -= 1
                keys.append(key)
        return keys

    def _shares(self) -> dict[Hashable, int]:
        """How many of `total` each kind may have, most recently used first."""
        shares = dict.fromkeys(reversed(self.demands), 0)
        left = self.total
        while left and (hungry := [key for key in shares if shares[key] < self.demands[key].target]):
            for key in hungry[:left]:
                shares[key] += 1
            left -= len(hungry[:left])
        return shares

    def finish_making(self, key: Hashable) -> bool:
        """A cell is ready. False: the demand for it has ended, and it must be destroyed."""
        demand = self.demands.get(key)
        if demand is None or demand.making == 0:
            return False
        demand.making -= 1
        demand.ready += 1
        return True

    def abort_making(self, key: Hashable) -> None:
        """A cell could not be made: make no more until the next lease."""
        demand = self.demands.get(key)
        if demand is not None and demand.making:
            demand.making -= 1
            demand.target = min(demand.target, demand.ready)

    def surplus(self, now: float) -> list[Hashable]:
        """Kinds of which to destroy one warm cell each; they are already discounted."""
        for demand in self.demands.values():
            idle = now - demand.last_used
            if idle > IDLE_SECONDS:
                demand.target = min(demand.target, self.smallest)
            if idle > 10 * IDLE_SECONDS:
                demand.target = 0
        keys: list[Hashable] = []
        for key, share in self._shares().items():
            demand = self.demands[key]
            while demand.ready > share:
                demand.ready -= 1
                keys.append(key)
            if not (share or demand.ready or demand.making):
                del self.demands[key]
        return keys

    def clear(self) -> None:
        self.demands.clear()
