"""How many mappings processes have, and shared anonymous memory, which need not be resident in any of them."""

from __future__ import annotations

import bisect
import time

from ..linux.shared_resources import SMALL_SHARED_MEMORY
from .patience import Patience, Spent, next_look_after
from .patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Sequence

#: What the kernel keeps for one touched mapping.
_MAPPING = 400
_MOST_LENGTHS = 4096
#: A process may be delayed so long between its request and the mapping.
_NOTED_SECONDS = 0.25
_SHARED_MEMORY = Pattern(rb"^(\w+)-(\w+) \S+ (\w+) (\S+ \d+) +/dev/zero \(deleted\)$")


class Mappings:
    """Looks rarely enough to cost at most a tenth of the time. In between, the last look counts.

    Shared anonymous memory lives for as long as any page of it is mapped anywhere, and its size shows nowhere: touched
    pages stay when they are unmapped (MADV_DONTNEED, munmap of all but one). So every living segment counts whole.
    Which of the requested lengths is still alive is unknown; the longest are taken to be. A segment that was seen
    mapped counts at least as much as was mapped: a request that was noted long before its mapping may be forgotten.
    """

    def __init__(self) -> None:
        self._lengths: List[int] = []
        self._noted = 0.0
        #: Living segments, with as much of each as was ever seen mapped.
        self._sizes: Dict[bytes, int] = {}
        self._count = 0
        self._next_look = 0.0

    def note_shared_memory(self, length: int) -> None:
        """Shared anonymous memory of this length is about to be mapped."""
        bisect.insort(self._lengths, length)
        del self._lengths[:-_MOST_LENGTHS]
        self._noted = time.monotonic()
        self._next_look = 0.0

    def memory(self, proc: str, pids: Sequence[int], patience: Patience) -> int:
        """Bytes of shared anonymous memory, and of what the kernel keeps for all mappings."""
        if time.monotonic() >= self._next_look:
            spent = Spent()
            self._look(proc, pids, patience)
            self._next_look = next_look_after(spent)
        return self._shared_memory() + self._count * _MAPPING

    def _shared_memory(self) -> int:
        sizes = sorted(self._sizes.values(), reverse=True)
        lengths = self._lengths[: -len(sizes) - 1 : -1] + [SMALL_SHARED_MEMORY] * len(sizes)
        return sum(map(max, sizes, lengths))

    def _look(self, proc: str, pids: Sequence[int], patience: Patience) -> None:
        count = 0
        sizes: Dict[bytes, int] = {}
        for pid in pids:
            for lines in patience.read(f"{proc}/{pid}/maps"):
                count += lines.count(b"\n")
                if b"/dev/zero" in lines:
                    self._note_sizes(sizes, lines)
        if not sizes and not self._sizes and time.monotonic() - self._noted > _NOTED_SECONDS:
            self._lengths.clear()
        self._count, self._sizes = count, sizes

    def _note_sizes(self, sizes: Dict[bytes, int], lines: bytes) -> None:
        for start, end, offset, segment in _SHARED_MEMORY.findall(lines):
            size = int(offset, 16) + int(end, 16) - int(start, 16)
            sizes[segment] = max(size, sizes.get(segment, 0), self._sizes.get(segment, 0))
