"""File locks: the kernel allows any number of locked ranges and charges them to no account."""

from __future__ import annotations

import os
import time

from .patience import Patience, Spent, next_look_after
from .patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Tuple

_LOCK = 256
#: Up to so many on the whole host are not looked at.
_FREE = 4096
_OWNER_AND_DEVICE = Pattern(rb" (-?\d+) ([0-9a-f]+:[0-9a-f]+):\d+ ")


class Locks:
    """Those of the pids that `is_ours` accepts, and all on `device`: some locks have no owner."""

    def __init__(self, is_ours: Callable[[int, List[int]], bool], device: int = 0) -> None:
        self._is_ours = is_ours
        self._device = b"%02x:%02x" % (os.major(device), os.minor(device)) if device else b""
        self._memory = 0
        self._next_look = 0.0

    def memory(self, pids: List[int], patience: Patience) -> int:
        if time.monotonic() >= self._next_look:
            spent = Spent()
            self._memory = self._look(pids, patience)
            self._next_look = next_look_after(spent)
        return self._memory

    def _look(self, pids: List[int], patience: Patience) -> int:
        found: Dict[Tuple[bytes, bytes], int] = {}
        for lines in patience.read("/proc/locks"):
            for lock in _OWNER_AND_DEVICE.findall(lines):
                found[lock] = found.get(lock, 0) + 1
        if sum(found.values()) <= _FREE:
            return 0
        owners = {pid for pid, _ in found}
        ours = {pid for pid in owners if int(pid) > 0 and self._is_ours(int(pid), pids)}
        return _LOCK * sum(number for (pid, where), number in found.items() if pid in ours or where == self._device)
