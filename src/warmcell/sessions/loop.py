"""An event loop in its own thread, for all descriptors of one live cage."""

from __future__ import annotations

import heapq
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count

from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.host_program import thread_failure
from warmcell.lifetime.ownership import own

READ, WRITE = select.POLLIN, select.POLLOUT


class Loop:
    """Call `watch` and `forget` in the loop's thread only, and `call` from any other. In a fork it is over."""

    def __init__(self, name: str) -> None:
        self._owned = Descriptors()
        self._wake = self._owned.open(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._poll = select.poll()
        self._poll.register(self._wake, READ)
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._asked: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._is_over = False
        # Reentrant: a garbage collection inside `call` may call it again.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        own(self)

    def start(self) -> None:
        """Raises a typed error if its thread cannot be started. The loop is then over."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self.end()
            self._owned.close()
            raise thread_failure(error) from None

    def abandon(self) -> None:
        # A fork does not have this thread.
        self._lock = threading.RLock()
        self._is_over = True

    @property
    def is_over(self) -> bool:
        return self._is_over

    def call(self, work: Callable[[], None]) -> bool:
        """Schedules the call in the loop's thread. False if the loop has ended."""
        with self._lock:
            if self._is_over:
                return False
            self._asked.append(work)
            if len(self._asked) == 1:  # otherwise the loop is awake and handles all of them
                os.eventfd_write(self._wake, 1)
            return True

    def call_later(self, seconds: float, work: Callable[[], None]) -> None:
        """In the loop's own thread."""
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), work))

    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def watch(self, descriptor: int, events: int, callback: Callable[[], None]) -> None:
        self._callbacks[descriptor] = callback
        self._poll.register(descriptor, events)

    def forget(self, descriptor: int) -> None:
        if self._callbacks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def end(self) -> None:
        """Ends the loop after this turn. In the loop's thread."""
        with self._lock:
            self._is_over = True

    def join(self) -> None:
        """Waits for the end of the thread. From any other thread."""
        if self._thread.ident is not None and not self.is_own_thread():
            self._thread.join()

    def _serve(self) -> None:
        while not self._is_over:
            # A timer runs only after a look at the descriptors that began when it was due: what arrived while this
            # thread had no processor, such as the end of a program, comes before its timeout.
            looked = time.monotonic()
            for descriptor, _ in self._poll.poll(self._pause_ms(looked)):
                callback = self._callbacks.get(descriptor)
                if callback is not None:
                    callback()
            self._run_pending_calls()
            while self._later and self._later[0][0] <= looked:
                heapq.heappop(self._later)[2]()
        self._run_pending_calls()  # accepted calls must not wait for ever
        self._owned.close()

    def _pause_ms(self, now: float) -> int | None:
        if not self._later:
            return None
        left = self._later[0][0] - now
        # Whole milliseconds, rounded up: rounding down would spin.
        return int(left * 1000) + 1 if left > 0 else 0

    def _run_pending_calls(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return
        while self._asked:
            self._asked.popleft()()
