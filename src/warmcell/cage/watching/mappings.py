"""What processes have mapped: how many mappings there are, and shared memory that need be resident in none of them."""

from __future__ import annotations

import bisect
import time

from ..linux.shared_with_others import SMALL_SHARED_MEMORY
from .patience import Patience, Spent, next_look_after
from .patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence, Set

#: What the kernel keeps about one mapping, touched.
_MAPPING = 400
_MOST_LENGTHS = 4096
_SHARED_MEMORY = Pattern(rb"^\S+ \S+ \S+ (\S+ \d+) +/dev/zero \(deleted\)$")


class Mappings:
    """Looked at seldom enough to cost at most a tenth of the time; in between, what was last seen counts.

    Shared anonymous memory lives for as long as any page of it is mapped anywhere, and how much of it there is shows
    nowhere: pages that were touched stay when they are unmapped (MADV_DONTNEED, munmap of all but one). So every piece
    that is alive counts whole. Which of the lengths that were asked for is still alive cannot be told; the longest are
    taken to be.
    """

    def __init__(self) -> None:
        self._lengths: List[int] = []
        self._alive = 0
        self._count = 0
        self._next_look = 0.0

    def asked_for(self, length: int) -> None:
        """Shared anonymous memory of this length is about to be mapped."""
        bisect.insort(self._lengths, length)
        del self._lengths[:-_MOST_LENGTHS]
        self._next_look = 0.0

    def held(self, proc: str, pids: Sequence[int], patience: Patience) -> int:
        """Memory in bytes: shared anonymous memory, and the kernel's books of all mappings."""
        if time.monotonic() >= self._next_look:
            spent = Spent()
            self._look(proc, pids, patience)
            self._next_look = next_look_after(spent)
        longest = self._lengths[len(self._lengths) - min(self._alive, len(self._lengths)) :]
        small = self._alive - len(longest)
        return sum(longest) + small * SMALL_SHARED_MEMORY + self._count * _MAPPING

    def _look(self, proc: str, pids: Sequence[int], patience: Patience) -> None:
        count = 0
        alive: Set[bytes] = set()
        for pid in pids:
            for lines in patience.read(f"{proc}/{pid}/maps"):
                count += lines.count(b"\n")
                if b"/dev/zero" in lines:
                    alive.update(_SHARED_MEMORY.findall(lines))
        if not alive and not self._alive:
            self._lengths.clear()
        self._count, self._alive = count, len(alive)
