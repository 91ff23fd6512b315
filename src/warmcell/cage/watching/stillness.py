"""Whether anybody in a tree of processes has run since it was last looked at. To ask costs a tenth of a look, and most
of the time that a cage stays, nobody has.
"""

from __future__ import annotations

import os
import time

from ..linux import kernel_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional

#: Asleep, stopped, and ended: whoever leaves one of these states is given a turn, which is counted.
_RESTING = frozenset("STtZ")


class Stillness:
    """Of one tree. What nobody who runs has changed is as it was; only what a socket holds may grow without them."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._turns: Optional[Dict[str, int]] = None
        #: Since when, at the latest, nobody has run.
        self.began = 0.0

    def is_kept(self, pids: List[int]) -> bool:
        """Since the last time that this was asked. Whoever is told no looks, and asks again before the next look."""
        now = time.monotonic()
        before, self._turns = self._turns, self._turns_of(pids)
        is_kept = self._turns is not None and self._turns == before
        if not is_kept:
            self.began = now
        return is_kept

    def _turns_of(self, pids: List[int]) -> Optional[Dict[str, int]]:
        """How often each thread was given a processor; None where one has it now, or where it cannot be known."""
        try:
            if not pids or self._has_sockets(pids[0]):
                return None
            turns = {base: _turns(base) for pid in pids for base in self._threads(pid)}
        except (OSError, ValueError, IndexError):  # it has just ended, or the kernel keeps no such account
            return None
        return turns if all(turns.values()) else None

    def _has_sockets(self, pid: int) -> bool:
        first = kernel_files.read_short(f"{self._proc}/{pid}/net/sockstat").split("\n", 1)[0]
        return first != "sockets: used 0"

    def _threads(self, pid: int) -> Iterator[str]:
        base = f"{self._proc}/{pid}"
        fields = _fields(base)
        if fields[17] != "1":
            for thread in os.listdir(f"{base}/task"):
                yield f"{base}/task/{thread}"
        else:
            yield base


def _turns(base: str) -> int:
    """0: it has a processor, or waits for one. The state comes last: who runs afterwards is given another turn."""
    turns = int(kernel_files.read_short(f"{base}/schedstat").split()[2])
    return turns if _fields(base)[0] in _RESTING else 0


def _fields(base: str) -> List[str]:
    """From the state on."""
    return kernel_files.read_short(f"{base}/stat").rpartition(")")[2].split()
