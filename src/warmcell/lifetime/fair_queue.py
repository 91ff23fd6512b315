"""A queue for places of which there are only so many: first come, first served, from threads and event loops alike."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from warmcell.core.errors import BackendBusy
from warmcell.lifetime.ownership import own
from warmcell.lifetime.run import Run


class _Waiting:
    """One who waits. `wake` is called once, from any thread, when a place is theirs."""

    __slots__ = ("is_served", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self.is_served = False


class FairQueue:
    """`most` places. Whoever entered must `leave`; a place that is left goes straight to the one who waits longest.

    Nobody is overtaken: a newcomer takes a free place only when nobody waits for one. In a fork all places are free.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._free = self._most
        self._line: deque[_Waiting] = deque()

    def enter(self, run: Run, timeout: float) -> None:
        """Blocks until a place is the caller's. Raises `BackendBusy` after `timeout` seconds, or `RunCancelled`."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
        awake = threading.Event()
        waiting = self._line_up(awake.set)
        try:
            with run.on_cancel(awake.set):
                awake.wait(timeout)
            run.check()
        except BaseException:
            self._give_up(waiting)
            raise
        if not self._is_served(waiting):
            raise BackendBusy(timeout)

    async def enter_async(self, timeout: float) -> None:
        """The same for an event loop; it is the waiting task that can be cancelled."""
        if self._took_free_place():
            return
        import asyncio

        from warmcell.lifetime.threads import running_loop

        loop = running_loop()
        awake = loop.create_future()
        waiting = self._line_up(lambda: loop.call_soon_threadsafe(awake.set_result, None))
        try:
            await asyncio.wait([awake], timeout=timeout)  # not wait_for, which before 3.12 could swallow a cancel
        except BaseException:
            self._give_up(waiting)
            raise
        if not self._is_served(waiting):
            raise BackendBusy(timeout)

    def leave(self) -> None:
        while True:
            with self._lock:
                if not self._line:
                    self._free = min(self._free + 1, self._most)
                    return
                served = self._line.popleft()
                served.is_served = True
            try:
                served.wake()
                return
            except RuntimeError:  # its event loop was closed with the task still waiting: the place is the next one's
                continue

    def _took_free_place(self) -> bool:
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            return False

    def _line_up(self, wake: Callable[[], object]) -> _Waiting:
        waiting = _Waiting(wake)
        with self._lock:
            if not self._free:
                self._line.append(waiting)
                return waiting
            self._free -= 1
            waiting.is_served = True
        wake()
        return waiting

    def _is_served(self, waiting: _Waiting) -> bool:
        """Whether the place came, be it at the last moment; if not, it never will."""
        with self._lock:
            if not waiting.is_served:
                self._line.remove(waiting)
            return waiting.is_served

    def _give_up(self, waiting: _Waiting) -> None:
        if self._is_served(waiting):
            self.leave()
