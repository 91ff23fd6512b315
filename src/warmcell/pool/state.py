"""How many cells to keep for each kind of run: grows with demand, shrinks with idleness. Pure module.

Every method changes the numbers and returns what the caller must now do; nothing here makes or destroys anything.
"""

from __future__ import annotations

from collections.abc import Hashable

from warmcell.core.records import dataclass, field

IDLE_SECONDS = 30.0


@dataclass(slots=True)
class Shelf:
    """The cells of one kind: how many wait, how many are being made, how many are wanted."""

    ready: int = 0
    making: int = 0
    target: int = 0
    last_used: float = 0.0


@dataclass(slots=True)
class PoolState:
    """`largest` bounds one shelf, `total` all of them together, `smallest` is what an idle shelf keeps.

    Where `total` is too little for all, they are dealt one by one to the kinds that were used last.
    """

    smallest: int
    largest: int
    total: int
    shelves: dict[Hashable, Shelf] = field(default_factory=dict)

    def lease(self, key: Hashable, now: float) -> bool:
        """Whether a waiting cell is to be used; if not, the caller makes one for itself. A miss raises the target."""
        shelf = self.shelves.pop(key, None) or Shelf(target=min(self.smallest, self.largest))
        self.shelves[key] = shelf  # the last of them is the one used last
        shelf.last_used = now
        if shelf.ready:
            shelf.ready -= 1
            return True
        shelf.target = min(self.largest, max(shelf.target * 2, 1))
        return False

    def wanted(self) -> list[Hashable]:
        """Kinds to make one cell of now, most recently used first. Each is counted as being made."""
        room = self.total - sum(shelf.ready + shelf.making for shelf in self.shelves.values())
        keys: list[Hashable] = []
        for key, share in self._shares().items():
            shelf = self.shelves[key]
            missing = share - shelf.ready - shelf.making
            for _ in range(max(0, min(missing, room))):
                shelf.making += 1
                room -= 1
                keys.append(key)
        return keys

    def _shares(self) -> dict[Hashable, int]:
        """How many of `total` each kind may have, most recently used first."""
        shares = dict.fromkeys(reversed(self.shelves), 0)
        left = self.total
        while left and (hungry := [key for key in shares if shares[key] < self.shelves[key].target]):
            for key in hungry[:left]:
                shares[key] += 1
            left -= len(hungry[:left])
        return shares

    def made(self, key: Hashable) -> bool:
        """One that was being made is ready. False: it is no longer wanted and must be destroyed."""
        shelf = self.shelves.get(key)
        if shelf is None or shelf.making == 0:
            return False
        shelf.making -= 1
        shelf.ready += 1
        return True

    def failed(self, key: Hashable) -> None:
        """One that was being made could not be: stop wanting more until somebody asks again."""
        shelf = self.shelves.get(key)
        if shelf is not None and shelf.making:
            shelf.making -= 1
            shelf.target = min(shelf.target, shelf.ready)

    def surplus(self, now: float) -> list[Hashable]:
        """Kinds of which one waiting cell is to be destroyed; each is already taken off its shelf."""
        for shelf in self.shelves.values():
            idle = now - shelf.last_used
            if idle > IDLE_SECONDS:
                shelf.target = min(shelf.target, self.smallest)
            if idle > 10 * IDLE_SECONDS:
                shelf.target = 0
        keys: list[Hashable] = []
        for key, share in self._shares().items():
            shelf = self.shelves[key]
            while shelf.ready > share:
                shelf.ready -= 1
                keys.append(key)
            if not (share or shelf.ready or shelf.making):
                del self.shelves[key]
        return keys

    def clear(self) -> None:
        self.shelves.clear()
