"""The user ids of guests on the host."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

#: Per manager of root. Pids have 22 bits, so the ids of the last manager are below 1 << 31.
IDS_OF_A_MANAGER = 64


class HostIds:
    """For root, each cell has an id of its own, so that what the kernel counts per user is counted per cell.

    An ordinary user has only one id. With more cells than ids, the least used id is shared.
    """

    def __init__(self, first: int) -> None:
        self._ids = range(first, first + (IDS_OF_A_MANAGER if first else 1))
        self._used = dict.fromkeys(self._ids, 0)
        self._by_process: Dict[int, int] = {}

    def next(self) -> int:
        """The lowest of the least used ids: id maps that were made for it can be used again."""
        return min(self._ids, key=self._used.__getitem__)

    def take(self, host_id: int, init: int) -> None:
        self._used[host_id] += 1
        self._by_process[init] = host_id

    def give_back(self, process: int) -> None:
        """After the process was reaped. Does nothing unless it was an init."""
        host_id = self._by_process.pop(process, None)
        if host_id is not None:
            self._used[host_id] -= 1
