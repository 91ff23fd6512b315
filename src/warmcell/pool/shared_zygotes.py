"""The zygotes of this program. Backends that need the same kind share them; they end with the last backend.

Guests are copies of their zygote's memory, so it must hold nothing that is private to one guest. Environment, code and
input go with the job to the guest, and the sources of host paths stay with the manager. If a plan contains the caller's
own path names, the manager forks a twin of the zygote, which serves one backend only.
"""

from __future__ import annotations

import os
import threading
import time
from functools import cache
from itertools import count
from weakref import WeakValueDictionary

from warmcell.core.errors import BackendUnavailable, SandboxError
from warmcell.core.light import suppress
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.ownership import Lock, own
from warmcell.lifetime.run import Run
from warmcell.pool.supply import IDLE_SECONDS
from warmcell.pool.zygote import START_SECONDS, ZygoteKey, ZygoteProcess

_CELLS_PER_ZYGOTE = 10_000
#: How many runs in progress one manager serves, and how many processors it keeps busy.
_RUNS_PER_MANAGER, _PROCESSORS_PER_MANAGER = 4, 4
#: How long a zygote that was seen alive is not checked again.
_ALIVE_SECONDS = 0.05
#: A zygote inherits these from the thread that starts it: root directory and namespaces.
_INHERITED = ("/", "/proc/thread-self/ns/mnt", "/proc/thread-self/ns/net", "/proc/thread-self/ns/user")


class _Member:
    """One zygote with its manager, and how many cells it has made."""

    __slots__ = ("_seen_alive", "cells", "zygote")

    def __init__(self, zygote: ZygoteProcess) -> None:
        self.zygote, self.cells = zygote, 0
        self._seen_alive = 0.0

    def is_usable(self) -> bool:
        """Checks with the kernel at most every `_ALIVE_SECONDS`: the check takes a lock that all forks and exits on the
        host take. A cell ordered from a zygote that has died since is ordered again from another.
        """
        if self.cells >= _CELLS_PER_ZYGOTE or self.zygote.is_lost:
            return False
        now = time.monotonic()
        if now - self._seen_alive > _ALIVE_SECONDS:
            if not self.zygote.is_alive():
                return False
            self._seen_alive = now
        return True


class ZygoteShare:
    """The zygotes of one kind. Thread-safe.

    Each has its own manager, which serves a few processors. There is one zygote, or several while many runs are in
    progress on a large machine. Zygotes that died or made `_CELLS_PER_ZYGOTE` cells are replaced.
    """

    def __init__(self, key: ZygoteKey, prefix: tuple[str, ...]) -> None:
        self.key = key
        self._prefix = prefix
        self._lock = Lock()
        #: Held while the first zygote or a replacement is started.
        self._starting = FairSemaphore(1)
        self._members: tuple[_Member, ...] = ()
        self._turns = count()
        self._is_growing = False
        self._last_crowded = 0.0
        self._retired: list[ZygoteProcess] = []
        self._is_closed = False
        #: How many pools use it.
        self.users = 0

    def zygote(self, run: Run, cancelled: int = -1, demand: int = 1) -> ZygoteProcess:
        """A living zygote for one cell. If there is none, one thread starts one and the others wait.

        `demand`: how many runs are in progress.
        """
        member = self._pick()
        if member is None:
            self._starting.acquire(run, 2 * START_SECONDS)
            try:
                member = self._pick() or self._add(ZygoteProcess(self.key, self._prefix, cancelled))
            finally:
                self._starting.release()
        member.cells += 1
        self._grow_for(demand)
        return member.zygote

    def _pick(self) -> _Member | None:
        """The next usable zygote, round robin."""
        members = self._members
        turn = next(self._turns)
        for offset in range(len(members)):
            member = members[(turn + offset) % len(members)]
            if member.is_usable():
                return member
        return None

    def _add(self, zygote: ZygoteProcess) -> _Member:
        with self._lock:
            if not self._is_closed:
                unusable = [member.zygote for member in self._members if not member.is_usable()]
                for each in unusable:
                    each.retire()
                self._retired += unusable
                member = _Member(zygote)
                kept = (member for member in self._members if member.zygote not in unusable)
                self._members = (*kept, member)
                return member
        zygote.close()  # all users left while it started
        raise BackendUnavailable("the backend was closed", hint="create a new one")

    def _grow_for(self, demand: int) -> None:
        has = len(self._members)
        if demand <= (has - 1) * _RUNS_PER_MANAGER:
            return
        self._last_crowded = time.monotonic()
        if self._is_growing or has >= min(most_managers(), -(-demand // _RUNS_PER_MANAGER)):
            return
        with self._lock:
            if self._is_growing or self._is_closed:
                return
            self._is_growing = True
        try:
            start_daemon(self._grow, name="warmcell-manager")
        except SandboxError:  # no thread: the existing zygotes are enough
            self._is_growing = False

    def _grow(self) -> None:
        try:
            with suppress(SandboxError, OSError):  # the existing zygotes are enough
                self._add(ZygoteProcess(self.key, self._prefix))
        finally:
            self._is_growing = False

    def end_twin(self, number: int) -> None:
        """Called when a pool that ordered cells from a twin leaves this share."""
        for zygote in [*(member.zygote for member in self._members), *self._retired]:
            zygote.end_twin(number)

    @property
    def pids(self) -> list[int]:
        return [member.zygote.pid for member in self._members if member.zygote.is_alive()]

    def forget_ended(self) -> None:
        """Retires a surplus zygote, and forgets retired ones that have exited."""
        if self._has_surplus():
            with self._lock:
                if self._has_surplus():  # else another thread has retired it
                    *kept, surplus = self._members
                    self._members = tuple(kept)
                    surplus.zygote.retire()
                    self._retired.append(surplus.zygote)
                    self._last_crowded = time.monotonic()
        if self._retired:
            with self._lock:
                self._retired = [zygote for zygote in self._retired if not zygote.has_ended()]

    def _has_surplus(self) -> bool:
        return len(self._members) > 1 and time.monotonic() - self._last_crowded > IDLE_SECONDS

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            zygotes = [*(member.zygote for member in self._members), *self._retired]
            self._members, self._retired = (), []
        for zygote in zygotes:
            zygote.close()


@cache
def most_managers() -> int:
    """How many managers of one kind are worth having: one per `_PROCESSORS_PER_MANAGER` processors."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, processors // _PROCESSORS_PER_MANAGER)


class SharedZygotes:
    """Shares by kind, held by weak references, so that backends that are never closed do not leak them.

    A fork starts with none.
    """

    def __init__(self) -> None:
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._shares: WeakValueDictionary[object, ZygoteShare] = WeakValueDictionary()

    def join(self, key: ZygoteKey, prefix: tuple[str, ...]) -> ZygoteShare:
        """The share for a key; the caller calls `leave` once. Backends of the same user, root and namespaces share."""
        full_key = (key, prefix, _fingerprint_program(key.interpreter)) if key.may_be_shared else object()
        with self._lock:
            share = self._shares.get(full_key)
            if share is None:
                share = self._shares[full_key] = ZygoteShare(key, prefix)
            share.users += 1
            return share

    def leave(self, share: ZygoteShare) -> bool:
        """Returns whether that was the last user. The share is then closed."""
        with self._lock:
            share.users -= 1
            if share.users:
                return False
            for full_key in [full_key for full_key, known in self._shares.items() if known is share]:
                del self._shares[full_key]
        share.close()
        return True


def _fingerprint_program(interpreter: str) -> tuple[object, ...]:
    """What a zygote inherits from this program. If any of it changes, the program needs another zygote."""
    identities = []
    for path in (*_INHERITED, interpreter):
        try:
            status = os.stat(path)
            identities.append((status.st_dev, status.st_ino))
        except OSError:  # without /proc there is nothing to compare
            identities.append((0, 0))
    return os.getresuid(), os.getresgid(), tuple(os.getgroups()), tuple(identities)


shared_zygotes = SharedZygotes()
