"""The ceiling of what a guest writes to directories of the host: when to walk through them, and what to make of it."""

from __future__ import annotations

import time

from .disk import DiskUse, Walk, disk_use, of_filesystems
from .patience import Spent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Sequence

#: Bytes per second that a guest might write, and names, between two looks.
_FASTEST_WRITING, _MANY_NAMES = 2e9, 4096
_FASTEST_LOOK, _SLOWEST_WALK, _WALK_AT_A_TIME = 0.005, 0.25, 0.02


class DiskCeiling:
    """`look` as often as it says; it costs little unless there is much to see."""

    def __init__(self, most: int, paths: Sequence[str]) -> None:
        self._most = most
        self._paths = paths
        self._at_start = self._last = DiskUse()
        #: How much more may be written, as of the last time that all of it was seen.
        self._room = most
        self._walk: Optional[Walk] = None
        self._walked = 0.0  # seconds that it has taken us so far
        self._walk_began = self._seen = 0.0
        self._next_walk = self._next_urgent_walk = 0.0
        self.is_measured = self.is_over = False

    def measure(self, seconds: float) -> bool:
        """Before the guest's code: what is there already is not its own. Whether that is known by then."""
        self._walk = self._walk or Walk(self._paths)
        if self._walk.go_on(seconds):
            self._at_start = self._last = self._walk.result("/proc", [])
            self._walk, self.is_measured = None, True
        return self.is_measured

    def look(self, proc: str, pids: List[int], hides: bool) -> float:
        """Returns how long it is safe not to look. `hides`: there are files that no process shows."""
        now = of_filesystems(self._paths)
        written = max(0, now.filesystem - self._last.filesystem)
        named = now.filesystem_entries - self._last.filesystem_entries
        if self._walk is None and self._is_due(written > self._room / 2 or named > _MANY_NAMES):
            self._walk, self._walk_began = Walk(self._paths), time.monotonic()
        if self._walk is None:
            return self.pause(written)
        spent = Spent()
        found = self._walk.result(proc, pids, hides) if self._walk.go_on(_WALK_AT_A_TIME) else None
        self._walked += spent.seconds()
        if found is not None:
            self._judge(found)
        return _FASTEST_LOOK

    def has_seen_all_since(self, moment: float) -> bool:
        """Whether all of it was looked through from then on."""
        return self._walk is None and self._seen > moment

    def pause(self, written: int = 0) -> float:
        """How long it is safe not to look, where so much was written since all was seen."""
        return max((self._room - written) / _FASTEST_WRITING, _FASTEST_LOOK)

    def _is_due(self, is_urgent: bool) -> bool:
        """How full the file system is may be of others' making: then there is but another walk."""
        now = time.monotonic()
        return now >= self._next_walk or (is_urgent and now >= self._next_urgent_walk)

    def _judge(self, found: DiskUse) -> None:
        grown = found.grown_since(self._at_start)
        self.is_over = self.is_over or grown.is_over(self._most)
        self._last, self._walk, self._room = found, None, self._most - grown.held
        self._seen = self._walk_began
        # A large tree takes a tenth of the time, and a third when it seems to grow fast.
        ended = time.monotonic()
        self._next_walk = ended + max(_SLOWEST_WALK, 10 * self._walked)
        self._next_urgent_walk = ended + 2 * self._walked
        self._walked = 0.0

    def has_grown_at_the_end(self) -> bool:
        """When nobody is left to write."""
        if self._walk is not None:
            self._walk.close()
        if not self.is_measured:  # it never began
            return False
        return disk_use(self._paths, "/proc", []).grown_since(self._at_start).is_over(self._most)
