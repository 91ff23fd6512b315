"""Run: one run as its caller holds it: since when it waits, and whether it was given up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from warmcell.lifetime.descriptors import Descriptors


class RunCancelled(Exception):
    """The caller gave the run up. Raised by `check` in the run's own thread, never seen by a caller."""


class Run:
    """Made by `Runs` for the thread that carries the run out; `cancel` is for any other thread, at any moment.

    Whoever carries it out says, for every stretch of it, what would end that stretch (`on_cancel`, `descriptor`), and
    looks between them (`check`). What has ended is never ended again: a cancellation that comes late finds nothing.
    """

    def __init__(self) -> None:
        #: When the caller asked, by the monotonic clock.
        self.asked = time.monotonic()
        self.is_cancelled = False
        self._lock = threading.Lock()
        self._ends: list[Callable[[], object]] = []

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled = True
            for end in self._ends:
                end()

    def check(self) -> None:
        if self.is_cancelled:
            raise RunCancelled

    def on_cancel(self, end: Callable[[], object]) -> _Ending:
        """While inside, cancelling calls `end`, at once if it came before. When this is left, `end` is not running and
        will not run: what it ends may be used for something else. It must be quick and must not call us back.
        """
        return _Ending(self, end)

    def add_end(self, end: Callable[[], object]) -> None:
        """What entering `on_cancel` does, for who keeps books of its own."""
        with self._lock:
            self._ends.append(end)
            if self.is_cancelled:
                end()

    def remove_end(self, end: Callable[[], object]) -> None:
        with self._lock:
            self._ends.remove(end)

    def descriptor(self) -> _Descriptor:
        """`on_cancel` for who waits with poll: a descriptor that is readable once the run was cancelled (Linux)."""
        return _Descriptor(self)


class _Ending:
    """`with run.on_cancel(...)`: a generator's context manager would take three times as long, in every cell."""

    __slots__ = ("_end", "_run")

    def __init__(self, run: Run, end: Callable[[], object]) -> None:
        self._run, self._end = run, end

    def __enter__(self) -> None:
        self._run.add_end(self._end)

    def __exit__(self, *_: object) -> None:
        self._run.remove_end(self._end)


class _Descriptor:
    """`with run.descriptor() as cancelled`, for the same reason."""

    __slots__ = ("_eventfd", "_owned", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._owned = Descriptors()
        self._eventfd = -1

    def __enter__(self) -> int:
        self._eventfd = self._owned.opened(_new_eventfd)
        try:
            self._run.add_end(self._tell)
        except BaseException:
            self._owned.close()
            raise
        return self._eventfd

    def __exit__(self, *_: object) -> None:
        try:
            self._run.remove_end(self._tell)
        finally:
            self._owned.close()

    def _tell(self) -> None:
        os.eventfd_write(self._eventfd, 1)


def _new_eventfd() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
