"""Run: a run as its caller holds it: when it was requested, and whether it was cancelled."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from warmcell.lifetime.descriptors import Descriptors


class RunCancelled(Exception):
    """The caller cancelled the run. Raised by `check` in the run's own thread; callers never see it."""


class Run:
    """Created by `Runs` for the thread that carries the run out; `cancel` is for other threads, at any moment.

    That thread registers, for every stretch of the run, what would end it (`on_cancel`, `descriptor`), and calls
    `check` in between. A late cancellation never hits what comes next.
    """

    def __init__(self) -> None:
        #: When the caller requested it, by the monotonic clock.
        self.requested_at = time.monotonic()
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

    def on_cancel(self, end: Callable[[], object]) -> _CancelHook:
        """While inside, cancelling calls `end`, at once if the run was cancelled before. After the `with`, `end` is not
        running and will not run, so its target may be reused. It must be quick and must not call back.
        """
        return _CancelHook(self, end)

    def add_end(self, end: Callable[[], object]) -> None:
        """What entering `on_cancel` does, for callers that do their own bookkeeping."""
        with self._lock:
            self._ends.append(end)
            if self.is_cancelled:
                end()

    def remove_end(self, end: Callable[[], object]) -> None:
        with self._lock:
            self._ends.remove(end)

    def descriptor(self) -> _CancelDescriptor:
        """`on_cancel` for poll: a descriptor that becomes readable when the run is cancelled (Linux)."""
        return _CancelDescriptor(self)


class _CancelHook:
    """`with run.on_cancel(...)`: a generator-based context manager would take three times as long."""

    __slots__ = ("_end", "_run")

    def __init__(self, run: Run, end: Callable[[], object]) -> None:
        self._run, self._end = run, end

    def __enter__(self) -> None:
        self._run.add_end(self._end)

    def __exit__(self, *_: object) -> None:
        self._run.remove_end(self._end)


class _CancelDescriptor:
    """`with run.descriptor() as cancelled`, for the same reason."""

    __slots__ = ("_eventfd", "_owned", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._owned = Descriptors()
        self._eventfd = -1

    def __enter__(self) -> int:
        self._eventfd = self._owned.open(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        try:
            self._run.add_end(self._notify)
        except BaseException:
            self._owned.close()
            raise
        return self._eventfd

    def __exit__(self, *_: object) -> None:
        try:
            self._run.remove_end(self._notify)
        finally:
            self._owned.close()

    def _notify(self) -> None:
        os.eventfd_write(self._eventfd, 1)
