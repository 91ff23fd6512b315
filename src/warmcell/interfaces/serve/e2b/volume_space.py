"""The space that a volume takes: counted by each request that changes it, and corrected by walks over its files."""

from __future__ import annotations

import time

from warmcell.core.types import MIB
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.root import Quota, Root
from warmcell.workspace.walk import TreeLimits, walk

#: A walk is followed by a pause of so many times its length, in which the account is trusted. A full account ends the
#: pause if one in so many bytes of the quota was charged since the walk.
_PAUSE, _CHARGED = 20, 16
#: How old an account may be, and how many entries requests may add to it.
_MAX_AGE_SECONDS, _MAX_NEW_ENTRIES = 600.0, 1000
#: Sandboxes cannot mount a volume that exceeds the limits of a walk, so requests stop before that.
_LIMITS = TreeLimits(entries=TreeLimits().entries - _MAX_NEW_ENTRIES)


class VolumeSpace:
    """Used by one request at a time, in a thread.

    A walk takes longer the more files there are, so one is made only if the account may be wrong: a sandbox, which
    writes without asking, may have changed the volume; there is no room, and something may have been removed; many
    entries were added, which have a limit of their own; or the account is old.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        #: None before the first walk.
        self._quota: Quota | None = None
        #: Whether sandboxes may have written since the last walk.
        self.is_shared = False
        self._disk_mb = self._new_entries = 0
        self._measured = self._pause_end = 0.0
        #: What the last walk left of the quota, or why it failed.
        self._room = 0
        self._failure: LimitExceeded | None = None

    @property
    def quota(self) -> Quota | None:
        """The quota for a request that removes files."""
        if self._quota is not None:
            self._quota.has_refunds = not self.is_shared
        return self._quota

    def prepare(self, disk_mb: int, added: int, entries: int, *, is_mounted: bool) -> Quota:
        """The quota for a request that adds so many bytes and entries.

        Raises `LimitExceeded` if the volume has too many entries.
        """
        now = time.monotonic()
        if self._failure is not None and now < self._pause_end:
            raise self._failure.with_traceback(None)
        self._new_entries += entries
        quota = self.quota
        if quota is None or disk_mb != self._disk_mb or self._is_doubtful(quota, added, now):
            self._quota, self._disk_mb = None, disk_mb
            self._quota = quota = Quota(disk_mb, "of this token", "remove files", used=self._measure(is_mounted))
            self._room = quota.room
            quota.has_refunds = not self.is_shared
        return quota

    def _is_doubtful(self, quota: Quota, added: int, now: float) -> bool:
        is_full = quota.room < added
        if now < self._pause_end:  # without refunds, files that are replaced again and again fill the account
            return is_full and self._room - quota.room > self._disk_mb * MIB // _CHARGED
        is_old = now > self._measured + _MAX_AGE_SECONDS or self._new_entries > _MAX_NEW_ENTRIES
        return self.is_shared or is_old or is_full

    def note_removal(self) -> None:
        """Note that a request has removed something: there may be room for entries again."""
        self._failure = None

    def _measure(self, is_mounted: bool) -> int:
        started = time.thread_time()  # not by the clock: a busy host would stretch the pause
        self.is_shared = False  # before the walk: a sandbox may be made meanwhile
        self._failure, self._new_entries = None, 0
        try:
            return measure_directory(self._path, _LIMITS)
        except LimitExceeded as error:
            self._failure = error
            raise
        finally:
            self._measured = time.monotonic()
            self._pause_end = self._measured + _PAUSE * (time.thread_time() - started)
            self.is_shared |= is_mounted


class MountedSpace:
    """Measures a volume when a sandbox mounts it. Used by one request at a time, in a thread.

    Sandboxes write without asking, so only a walk gives the size. Its result is reused for a pause, as if all sandboxes
    of that time had been made at one moment: a flood of requests must not walk all the time.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._used, self._pause_end = 0, 0.0
        self._failure: LimitExceeded | None = None

    def measure(self) -> int:
        """Bytes. Raises `LimitExceeded` if there are too many entries to walk over."""
        if time.monotonic() >= self._pause_end:
            started, self._failure = time.thread_time(), None  # not by the clock: a busy host would stretch the pause
            try:
                self._used = measure_directory(self._path)
            except LimitExceeded as error:
                self._failure = error
            self._pause_end = time.monotonic() + _PAUSE * (time.thread_time() - started)
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return self._used

    def note_removal(self) -> None:
        """Note that a request has removed something: the next request measures again."""
        self._pause_end = 0.0


def measure_directory(path: str, limits: TreeLimits | None = None) -> int:
    """Allocated bytes."""
    with Root(path) as root:
        return sum(found.state.st_blocks * 512 for found in walk(root, limits=limits))
