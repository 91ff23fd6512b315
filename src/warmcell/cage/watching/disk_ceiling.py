"""The ceiling on what a guest writes to directories of the host: when to walk through them, and what counts."""

from __future__ import annotations

import time

from .disk import DiskUse, Walk, WrittenBytes, disk_use, filesystem_use
from .patience import Spent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Sequence

#: Bytes per second that a guest might write between two looks, and how many names.
_FASTEST_WRITING, _MANY_NAMES = 2e9, 4096
_FASTEST_LOOK, _SLOWEST_WALK, _WALK_AT_A_TIME = 0.005, 0.25, 0.02


class DiskCeiling:
    """Call `look` as often as it says. It is cheap unless there is much to see."""

    def __init__(
        self,
        most: int,
        paths: Sequence[str],
        overlays: Sequence[str] = (),
        totals: Sequence[str] = (),
        devices: Sequence[int] = (),
    ) -> None:
        self._most = most
        self._paths = paths
        self._overlays = overlays
        #: Those of the paths of which everything counts, and more devices on which their files seem to be.
        self._totals, self._devices = totals, devices
        self._at_start = self._last = DiskUse()
        self._written = WrittenBytes()
        #: How much more may be written, as of the last complete walk.
        self._room = most
        self._walk: Optional[Walk] = None
        self._walked = 0.0  # seconds that this walk has taken so far
        self._walk_began = self._seen = 0.0
        self._next_walk = self._next_urgent_walk = 0.0
        self.is_measured = self.is_over = False

    def measure(self, seconds: float) -> bool:
        """Before the guest's code starts: what is there already does not count. False if time ran out."""
        self._walk = self._walk or self._new_walk()
        if self._walk.advance(seconds):
            self._at_start = self._last = self._walk.result("/proc", [])
            self._count_totals()
            self._walk, self.is_measured = None, True
        return self.is_measured

    def _new_walk(self) -> Walk:
        return Walk(self._paths, self._overlays, self._devices)

    def _count_totals(self) -> None:
        """What earlier guests left there counts. One that finds it full may still remove files."""
        if self._totals:
            kept = disk_use(self._totals, "/proc", [])
            start = self._at_start
            self._at_start = start._replace(held=start.held - kept.held, entries=start.entries - kept.entries)
            self._most = max(self._most, kept.held, kept.entries << 12)
            self._room = self._most - kept.held

    def look(self, proc: str, pids: List[int], hides: bool) -> float:
        """Returns how long it is safe not to look. `hides`: there are files that no process shows."""
        now = filesystem_use(self._paths)
        written = max(0, now.filesystem - self._last.filesystem)
        new_names = now.filesystem_entries - self._last.filesystem_entries
        if self._walk is None and self._is_due(written > self._room / 2 or new_names > _MANY_NAMES):
            self._walk, self._walk_began = self._new_walk(), time.monotonic()
        if self._walk is None:
            return self.pause(written)
        spent = Spent()
        found = self._walk.result(proc, pids, hides) if self._walk.advance(_WALK_AT_A_TIME) else None
        self._walked += spent.seconds()
        if found is not None:
            self._judge(found._replace(written=self._written.look(proc, pids)))
        return _FASTEST_LOOK

    def has_seen_all_since(self, moment: float) -> bool:
        """Whether a walk that began later is complete."""
        return self._walk is None and self._seen > moment

    def pause(self, written: int = 0) -> float:
        """How long it is safe not to look if so much was written since the last complete walk."""
        return max((self._room - written) / _FASTEST_WRITING, _FASTEST_LOOK)

    def _is_due(self, is_urgent: bool) -> bool:
        """Other users may have filled the file system: then there is only one more walk."""
        now = time.monotonic()
        return now >= self._next_walk or (is_urgent and now >= self._next_urgent_walk)

    def _judge(self, found: DiskUse) -> None:
        growth = found.growth_since(self._at_start)
        self.is_over = self.is_over or growth.is_over(self._most)
        self._last, self._walk, self._room = found, None, self._most - growth.held
        self._seen = self._walk_began
        # A large tree takes a tenth of the time, and a third when it seems to grow fast.
        ended = time.monotonic()
        self._next_walk = ended + max(_SLOWEST_WALK, 10 * self._walked)
        self._next_urgent_walk = ended + 2 * self._walked
        self._walked = 0.0

    def is_over_at_end(self) -> bool:
        """When no process is left to write."""
        if self._walk is not None:
            self._walk.close()
        if not self.is_measured:  # it never started
            return False
        found = disk_use(self._paths, "/proc", [])._replace(written=self._last.written)
        return found.growth_since(self._at_start).is_over(self._most)
