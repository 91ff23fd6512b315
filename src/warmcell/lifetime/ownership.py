"""Ownership by this process: abandoned in forks, closed at exit. The only fork and exit hooks of the package."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from itertools import count
from weakref import WeakValueDictionary

from warmcell.core.light import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol, TypeVar
else:
    Protocol = object  # for type checkers only


class Owned(Protocol):
    """Something that only the process that created it may use or end: descriptors, children, threads, held locks."""

    def abandon(self) -> None:
        """Called in a fork, where only the forking thread exists.

        Closes the copies of descriptors, creates fresh locks, and forgets the rest without ending it. The object then
        owns nothing: it is like a new one, or closed.
        """
        ...


class ClosedAtExit(Owned, Protocol):
    """Something that outlives its runs."""

    def close(self) -> None:
        """Called at exit, latest first; may have been called before."""
        ...


if TYPE_CHECKING:
    O = TypeVar("O", bound=Owned)  # noqa: E741
    C = TypeVar("C", bound=ClosedAtExit)
_numbers = count()
_owned: WeakValueDictionary[int, Owned] = WeakValueDictionary()
_closed_at_exit: WeakValueDictionary[int, ClosedAtExit] = WeakValueDictionary()

#: Held during forks, and while descriptors are opened and registered with their owner. A fork between the two would
#: keep its copies open, and a guest would wait for an end of file that never comes. Reentrant, because a signal handler
#: may fork.
fork_lock = threading.RLock()


def own(thing: O) -> O:
    """Registers `thing`, weakly, as owned by this process: forks abandon it."""
    _owned[next(_numbers)] = thing
    return thing


def own_until_exit(thing: C) -> C:
    """`own`, and close it at exit. Closing must not need anything that was created later."""
    own(thing)
    _closed_at_exit[next(_numbers)] = thing
    return thing


class Lock:
    """A lock that is free in a fork even if another thread held it. What it guards must be consistent at any moment."""

    def __init__(self) -> None:
        own(self)
        self.abandon()

    def abandon(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _newest_first(things: WeakValueDictionary[int, O]) -> Iterator[O]:
    return reversed(list(things.values()))


def _abandon_all() -> None:
    fork_lock.release()
    for thing in _newest_first(_owned):
        with suppress(OSError):  # if other code has closed one descriptor, the others must still be closed
            thing.abandon()


def _close_all() -> None:
    for thing in _newest_first(_closed_at_exit):
        with suppress(Exception):  # such as for want of a thread: from Python 3.12 on none can be started at exit
            thing.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=fork_lock.acquire, after_in_parent=fork_lock.release, after_in_child=_abandon_all)
