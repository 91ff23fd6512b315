"""Who guests are on the host."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

#: For one manager, when it is root's. Pids have 22 bits, and the ids of the last manager end below 1 << 31.
IDS_OF_A_MANAGER = 64


class HostIds:
    """For root, each cell has an id of its own: what the kernel counts per user, it counts for that cell.

    An ordinary user has but one to give, and so have more cells than there are ids: who is last shares the least used.
    """

    def __init__(self, first: int) -> None:
        self._ids = range(first, first + (IDS_OF_A_MANAGER if first else 1))
        self._used = dict.fromkeys(self._ids, 0)
        self._by_process: Dict[int, int] = {}

    def next(self) -> int:
        """The lowest of those that the fewest have: what was made for an id is often there already."""
        return min(self._ids, key=self._used.__getitem__)

    def take(self, host_id: int, init: int) -> None:
        self._used[host_id] += 1
        self._by_process[init] = host_id

    def give_back(self, process: int) -> None:
        """Nobody of that cell is left, if it was an init's."""
        host_id = self._by_process.pop(process, None)
        if host_id is not None:
            self._used[host_id] -= 1
