"""Run: when a run was requested and whether it was cancelled."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from warmcell.lifetime.descriptors import Descriptors


class RunCancelled(Exception):
    """The caller cancelled the run. Raised by `check` in the run's own thread; callers never see it."""


class Run:
    """Created by `Runs` for the thread that carries out the run. Other threads may call `cancel` at any time.

    For each stretch of the run that thread registers what ends it (`on_cancel`, `descriptor`), and calls `check` in
    between. A late cancellation never affects the next stretch.
    """

    def __init__(self) -> None:
        #: On the monotonic clock.
        self.requested_at = time.monotonic()
        self.is_cancelled = False
        self._lock = threading.Lock()
        self._hooks: list[Callable[[], object]] = []

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled = True
            for end in self._hooks:
                end()

    def check(self) -> None:
        if self.is_cancelled:
            raise RunCancelled

    def on_cancel(self, end: Callable[[], object]) -> _CancelHook:
        """Within the block, cancelling calls `end`, at once if the run was cancelled before. After the block `end` is
        not running and will not run, so its target may be reused. It must be quick and must not use the run.
        """
        return _CancelHook(self, end)

    def add_cancel_hook(self, end: Callable[[], object]) -> None:
        """What entering `on_cancel` does, for callers without a `with` block."""
        with self._lock:
            self._hooks.append(end)
            if self.is_cancelled:
                end()

    def remove_cancel_hook(self, end: Callable[[], object]) -> None:
        with self._lock:
            self._hooks.remove(end)

    def descriptor(self) -> _CancelDescriptor:
        """`on_cancel` for poll: a descriptor that becomes readable when the run is cancelled (Linux)."""
        return _CancelDescriptor(self)


class _CancelHook:
    """`with run.on_cancel(...)`. A class, because `contextmanager` takes three times as long."""

    __slots__ = ("_end", "_run")

    def __init__(self, run: Run, end: Callable[[], object]) -> None:
        self._run, self._end = run, end

    def __enter__(self) -> None:
        self._run.add_cancel_hook(self._end)

    def __exit__(self, *_: object) -> None:
        self._run.remove_cancel_hook(self._end)


class _CancelDescriptor:
    """`with run.descriptor() as cancelled`."""

    __slots__ = ("_eventfd", "_owned", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._owned = Descriptors()
        self._eventfd = -1

    def __enter__(self) -> int:
        self._eventfd = self._owned.open(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        try:
            self._run.add_cancel_hook(self._notify)
        except BaseException:
            self._owned.close()
            raise
        return self._eventfd

    def __exit__(self, *_: object) -> None:
        try:
            self._run.remove_cancel_hook(self._notify)
        finally:
            self._owned.close()

    def _notify(self) -> None:
        os.eventfd_write(self._eventfd, 1)
