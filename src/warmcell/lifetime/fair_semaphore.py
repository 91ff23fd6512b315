"""FairSemaphore: slots for threads and event loops, granted first come, first served; tenants take turns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from warmcell.core.errors import BackendBusy
from warmcell.core.light import on_error, suppress
from warmcell.lifetime.ownership import own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from warmcell.lifetime.run import Run


class TooManyWaiting(BackendBusy):
    """The tenant's queue is full. Other tenants may still be served."""


class _Waiter:
    """`wake` is called once, from any thread, when the waiter has been given a slot."""

    __slots__ = ("has_slot", "tenant", "wake")

    def __init__(self, tenant: str, wake: Callable[[], object]) -> None:
        self.tenant, self.wake = tenant, wake
        self.has_slot = False


class FairSemaphore:
    """Each acquire is followed by a release. A forked child starts with all slots free.

    Each tenant has a queue, and the queues take turns, so that ten thousand requests of one tenant delay a request of
    another by one run only. A tenant never holds more slots than its share. At most `max_waiting` wait, and at most
    half of them for one tenant.
    """

    def __init__(self, slots: int, max_waiting: int | None = None) -> None:
        self._slots, self._max_waiting = slots, max_waiting
        self._is_closed = False
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._free = self._slots
        self._held: dict[str, int] = {}
        self._shares: dict[str, int] = {}
        self._queues: dict[str, deque[_Waiter]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, tuple(self._queues.values())))

    @property
    def is_idle(self) -> bool:
        return self._free == self._slots and not self._queues

    def acquire(self, run: Run, timeout: float) -> None:
        """Blocks until the caller has a slot. Raises `BackendBusy` after `timeout` seconds, or `RunCancelled`."""
        with self._lock:
            if self._free and not self._queues:
                self._free -= 1
                return
        awake = threading.Event()
        waiter = self._enqueue("", awake.set)
        with on_error(lambda: self._give_up(waiter)):
            with run.on_cancel(awake.set):
                awake.wait(timeout)
            run.check()
        if not self._leave_queue(waiter):
            raise self._busy(timeout)

    async def acquire_async(self, timeout: float, tenant: str = "", share: int | None = None) -> None:
        """The same for a task; cancelling it ends the wait."""
        if self.try_acquire(tenant, share):
            return
        import asyncio

        from warmcell.lifetime.threads import running_loop

        loop = running_loop()
        awake = loop.create_future()
        waiter = self._enqueue(tenant, lambda: loop.call_soon_threadsafe(awake.set_result, None))
        with on_error(lambda: self._give_up(waiter)):
            await asyncio.wait([awake], timeout=timeout)  # not wait_for, which before 3.12 could swallow a cancel
        if not self._leave_queue(waiter):
            raise self._busy(timeout)

    def try_acquire(self, tenant: str = "", share: int | None = None) -> bool:
        """Takes a slot if one is free for the tenant and its queue is empty."""
        if share is not None:
            self._shares[tenant] = share
        with self._lock:
            return self._admit(tenant)

    def slot(self, tenant: str, share: int, timeout: float) -> _Slot:
        """`async with`: a slot for one of `tenant`'s runs."""
        return _Slot(self, tenant, share, timeout)

    def resize(self, slots: int) -> None:
        """Changes the number of slots. If it decreases, surplus slots disappear as they are released."""
        with self._lock:
            self._free += slots - self._slots
            self._slots = slots
        while True:
            with self._lock:
                waiter = self._next_waiter()
            if waiter is None:
                return
            self._wake(waiter)

    def release(self, tenant: str = "") -> None:
        with self._lock:
            self._free = min(self._free + 1, self._slots)  # a fork may release what its parent acquired
            if tenant in self._held:
                self._held[tenant] -= 1
                if not self._held[tenant]:
                    del self._held[tenant]
            waiter = self._next_waiter() if self._queues else None
        if waiter is not None:
            self._wake(waiter)

    def close(self) -> None:
        """Ends all waits with `BackendBusy`, now and from now on. Slots in use stay with their owners."""
        with self._lock:
            self._is_closed = True
            waiters = [waiter for queue in self._queues.values() for waiter in queue]
            self._queues.clear()
        for waiter in waiters:
            with suppress(RuntimeError):  # its event loop was closed while it waited
                waiter.wake()

    def _wake(self, waiter: _Waiter) -> None:
        try:
            waiter.wake()
        except RuntimeError:  # its event loop was closed while it waited: the slot goes to the next
            self.release(waiter.tenant)

    def _admit(self, tenant: str) -> bool:
        """`try_acquire`, with the lock held."""
        if tenant in self._queues or not self._is_free_for(tenant):
            return False
        self._take(tenant)
        return True

    def _is_free_for(self, tenant: str) -> bool:
        return self._free > 0 and (tenant not in self._shares or self._held.get(tenant, 0) < self._shares[tenant])

    def _take(self, tenant: str) -> None:
        self._free -= 1
        if tenant in self._shares:
            self._held[tenant] = self._held.get(tenant, 0) + 1

    def _enqueue(self, tenant: str, wake: Callable[[], object]) -> _Waiter:
        waiter = _Waiter(tenant, wake)
        with self._lock:
            if not self._admit(tenant):
                self._check_room(tenant)
                self._queues.setdefault(tenant, deque()).append(waiter)
                return waiter
            waiter.has_slot = True
        wake()
        return waiter

    def _check_room(self, tenant: str) -> None:
        if self._is_closed:
            raise self._busy(0)
        if self._max_waiting is None:
            return
        if self.waiting >= self._max_waiting:
            raise self._busy(0)
        if len(self._queues.get(tenant, ())) >= max(1, self._max_waiting // 2):
            raise TooManyWaiting(0, hint="send fewer requests at a time")

    def _next_waiter(self) -> _Waiter | None:
        """Gives a free slot to the first queue that may have one, and moves that queue to the end."""
        tenant = next(filter(self._is_free_for, self._queues), None)
        if tenant is None:
            return None
        queue = self._queues.pop(tenant)
        waiter = queue.popleft()
        if queue:
            self._queues[tenant] = queue
        self._take(tenant)
        waiter.has_slot = True
        return waiter

    def _leave_queue(self, waiter: _Waiter) -> bool:
        """Ends a wait. Returns whether the waiter has been given a slot meanwhile."""
        with self._lock:
            queue = self._queues.get(waiter.tenant)
            if not waiter.has_slot and queue is not None and waiter in queue:
                queue.remove(waiter)
                if not queue:
                    del self._queues[waiter.tenant]
            return waiter.has_slot

    def _give_up(self, waiter: _Waiter) -> None:
        if self._leave_queue(waiter):
            self.release(waiter.tenant)

    def _busy(self, waited: float) -> BackendBusy:
        return BackendBusy(waited) if self._max_waiting is None else BackendBusy(waited, hint="try again later")


class _Slot:
    def __init__(self, semaphore: FairSemaphore, tenant: str, share: int, timeout: float) -> None:
        self._semaphore, self._tenant, self._share, self._timeout = semaphore, tenant, share, timeout

    async def __aenter__(self) -> None:
        await self._semaphore.acquire_async(self._timeout, self._tenant, self._share)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._semaphore.release(self._tenant)
