"""Zygotes of this program: backends that need the same one share it, and it ends with the last of them.

A zygote is told what guests look like, never what they are for: environment, code and input come with the job, to the
guest alone, and where a host path comes from stays with the manager. Names that guests see of it are in the zygote's
memory, and guests are copies of that; so one that is told a name of a caller's is its backend's alone.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakValueDictionary

from warmcell.core.errors import BackendUnavailable
from warmcell.lifetime.fair_queue import FairQueue
from warmcell.lifetime.ownership import Lock, own
from warmcell.lifetime.run import Run
from warmcell.pool.zygote import START_SECONDS, ZygoteKey, ZygoteProcess

_RUNS_PER_ZYGOTE = 10_000
#: What a process has of the program that starts it: a root, and namespaces.
_SURROUNDINGS = ("/", "/proc/thread-self/ns/mnt", "/proc/thread-self/ns/net", "/proc/thread-self/ns/user")


class ZygoteShare:
    """One zygote at a time, replaced when it is dead or used up. Safe from many threads."""

    def __init__(self, key: ZygoteKey, prefix: tuple[str, ...]) -> None:
        self.key = key
        self._prefix = prefix
        self._lock = Lock()
        self._turns = FairQueue(1)
        self._current: ZygoteProcess | None = None
        self._retired: list[ZygoteProcess] = []
        self._runs = 0
        self._is_closed = False
        #: How many will leave.
        self.users = 0

    def zygote(self, run: Run, cancelled: int) -> ZygoteProcess:
        """The living one, or a new one, for one cell. Whoever needs the same waits while it starts, and nobody else."""
        self._turns.enter(run, 2 * START_SECONDS)
        try:
            current = self._current
            if current is not None and self._runs < _RUNS_PER_ZYGOTE and current.is_alive():
                self._runs += 1
                return current
            return self._replaced_by(ZygoteProcess(self.key, self._prefix, cancelled))
        finally:
            self._turns.leave()

    def _replaced_by(self, zygote: ZygoteProcess) -> ZygoteProcess:
        with self._lock:
            if not self._is_closed:
                if self._current is not None:
                    self._current.retire()
                    self._retired.append(self._current)
                self._current, self._runs = zygote, 1
                return zygote
        zygote.close()  # everybody left while it started, and nobody else would end it
        raise BackendUnavailable("the backend was closed", hint="create a new one")

    @property
    def pid(self) -> int:
        """0 where none lives now."""
        current = self._current
        return current.pid if current is not None and current.is_alive() else 0

    def forget_ended(self) -> None:
        """Of those that were replaced: each ends with the last of its runs."""
        if self._retired:
            with self._lock:
                self._retired = [zygote for zygote in self._retired if not zygote.has_ended()]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            zygotes = [*self._retired] if self._current is None else [self._current, *self._retired]
            self._current, self._retired = None, []
        for zygote in zygotes:
            zygote.close()


class SharedZygotes:
    """Who uses which. Known weakly: those of backends that nobody closed go with them. In a fork there are none."""

    def __init__(self) -> None:
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._shares: WeakValueDictionary[object, ZygoteShare] = WeakValueDictionary()

    def join(self, key: ZygoteKey, prefix: tuple[str, ...]) -> ZygoteShare:
        """To be left once. Shared, where it may be, by whoever asks as the same user and from the same surroundings."""
        place = (key, prefix, _standing(key.interpreter)) if key.may_be_shared else object()
        with self._lock:
            share = self._shares.get(place)
            if share is None:
                share = self._shares[place] = ZygoteShare(key, prefix)
            share.users += 1
            return share

    def leave(self, share: ZygoteShare) -> bool:
        """Whether that was the last one; then all of it has ended."""
        with self._lock:
            share.users -= 1
            if share.users:
                return False
            for place in [place for place, known in self._shares.items() if known is share]:
                del self._shares[place]
        share.close()
        return True


def _standing(interpreter: str) -> tuple[object, ...]:
    """What a zygote has of the program that started it. A program may change all of it, and then wants another one."""
    identities = []
    for path in (*_SURROUNDINGS, interpreter):
        try:
            status = os.stat(path)
            identities.append((status.st_dev, status.st_ino))
        except OSError:  # no /proc, say: then there is nothing to tell two of them apart by
            identities.append((0, 0))
    return os.getresuid(), os.getresgid(), tuple(os.getgroups()), tuple(identities)


shared_zygotes = SharedZygotes()
