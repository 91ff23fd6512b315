"""One thread that listens to all descriptors of one live cage, so that nothing waits for a caller to come back."""

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
from warmcell.lifetime.ownership import own

READ, WRITE = select.POLLIN, select.POLLOUT


class Loop:
    """`watch` and `forget` are for the loop's own thread; `call` brings others' wishes there. In a fork it is over."""

    def __init__(self, name: str) -> None:
        self._owned = Descriptors()
        self._wake = self._owned.opened(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._poll = select.poll()
        self._poll.register(self._wake, READ)
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._asked: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._is_over = False
        # Reentrant: collecting garbage may bring its own wishes in the middle of one.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        own(self)

    def start(self) -> None:
        self._thread.start()

    def abandon(self) -> None:
        # In a fork there is no such thread.
        self._lock = threading.RLock()
        self._is_over = True

    @property
    def is_over(self) -> bool:
        return self._is_over

    def call(self, wish: Callable[[], None]) -> bool:
        """Has it done by the loop, soon. Whether there is still a loop to do it."""
        with self._lock:
            if self._is_over:
                return False
            self._asked.append(wish)
            if len(self._asked) == 1:  # else whoever came before has woken it, and it goes on until none is left
                os.eventfd_write(self._wake, 1)
            return True

    def call_later(self, seconds: float, wish: Callable[[], None]) -> None:
        """In the loop's own thread."""
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), wish))

    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def watch(self, descriptor: int, events: int, callback: Callable[[], None]) -> None:
        self._callbacks[descriptor] = callback
        self._poll.register(descriptor, events)

    def forget(self, descriptor: int) -> None:
        if self._callbacks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def end(self) -> None:
        """By the loop's own thread: this turn is the last."""
        with self._lock:
            self._is_over = True

    def join(self) -> None:
        """Until the thread is gone; from any other thread."""
        if self._thread.ident is not None and not self.is_own_thread():
            self._thread.join()

    def _serve(self) -> None:
        while not self._is_over:
            for descriptor, _ in self._poll.poll(self._pause_ms()):
                callback = self._callbacks.get(descriptor)
                if callback is not None:
                    callback()
            self._do_what_was_asked()
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
        self._do_what_was_asked()  # nobody who was told yes may wait for ever
        self._owned.close()

    def _pause_ms(self) -> int | None:
        # Whole milliseconds, rounded up: rounding down would spin.
        return int(max(0.0, self._later[0][0] - time.monotonic()) * 1000) + 1 if self._later else None

    def _do_what_was_asked(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return
        while self._asked:
            self._asked.popleft()()
