"""CellInterrupts: requests of any thread to interrupt a session's cell, and the descriptor that wakes its exchange."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from warmcell.lifetime.descriptors import Descriptors


class CellInterrupts:
    """A request is for the running cell; if none runs, for the next one, if its caller waits for it already."""

    def __init__(self, owned: Descriptors) -> None:
        self._lock = threading.Lock()
        self._runs_cell = self._is_wanted = self._is_woken = False
        #: Readable when the exchange in progress should look.
        self.descriptor = owned.open(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def abandon(self) -> None:
        """In a fork of the program."""
        self._lock = threading.Lock()
        self._runs_cell = self._is_wanted = False

    def request(self, is_awaited: bool) -> bool:
        """False if there is no cell to interrupt."""
        with self._lock:
            self._is_wanted = self._runs_cell or is_awaited
            if self._runs_cell:
                self.wake()
            return self._is_wanted

    def forget(self) -> None:
        """The cell that was awaited will not start."""
        with self._lock:
            self._is_wanted &= self._runs_cell

    def begin(self, is_cell: bool) -> None:
        """An exchange begins: a cell, or another request, which is never interrupted."""
        with self._lock:
            self._runs_cell = is_cell
            if self._is_woken:  # by a wake-up for the previous exchange
                self._read()
            if is_cell and self._is_wanted:
                self.wake()

    def end(self) -> None:
        with self._lock:
            self._is_wanted &= not self._runs_cell
            self._runs_cell = False

    def wake(self) -> None:
        self._is_woken = True
        os.eventfd_write(self.descriptor, 1)

    def take(self) -> bool:
        """Whether the running cell should be interrupted, asked after a wake-up."""
        self._read()
        return self._runs_cell and self._is_wanted

    def _read(self) -> None:
        self._is_woken = False
        with suppress(BlockingIOError):  # the previous exchange read it while it was woken again
            os.eventfd_read(self.descriptor)
