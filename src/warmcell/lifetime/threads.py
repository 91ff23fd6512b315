"""The one bridge from event loops to blocking work: threads that are reused, waiting that no cancel cuts short."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from warmcell.core.errors import InvalidRequest
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.ownership import own

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_IDLE_SECONDS = 10.0


async def in_thread(
    work: Callable[[], T],
    on_cancel: Callable[[], object] | None = None,
    discard: Callable[[T], object] | None = None,
) -> T:
    """Runs blocking work in a thread and returns, raises or is cancelled only when that work has really ended.

    It holds descriptors and processes: going on while it runs would let them be closed, and their numbers reused,
    under it. So a cancelled caller waits, however often it is cancelled; `on_cancel` makes that short. `discard` ends
    what was made for a caller who was cancelled meanwhile, in a thread too.
    """
    import asyncio

    loop = running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    _threads.start(lambda: _delivery(loop, outcome, lambda: context.run(work)))
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        while not outcome.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([outcome])
        # Looked at, so that asyncio does not complain that nobody did.
        if outcome.exception() is None and discard is not None:
            await in_thread(lambda: discard(outcome.result()))
        raise


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop of who awaits; an error that says what to do where it is none of asyncio's."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidRequest(
            "there is no asyncio event loop here, and no other kind will do",
            hint="under trio, call the blocking form in a thread: `await trio.to_thread.run_sync("
            "backend.execute_blocking, request)`, or `Sandbox` in place of `AsyncSandbox`",
        ) from None


def _delivery(loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[T], work: Callable[[], T]) -> Callable[[], None]:
    """Carries the work out; what is left is to tell the loop."""
    settle: Callable[[Any], None]
    try:
        value: Any = work()
        settle = outcome.set_result
    except BaseException as error:
        value, settle = error, outcome.set_exception

    def tell() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile, and nobody waits any more
            loop.call_soon_threadsafe(settle, value)

    return tell


class _Threads:
    """Daemons, as many as there is work at once: how many that may be is for `FairQueue` to say.

    Not `concurrent.futures`, whose threads the interpreter waits for at exit before anybody can end their runs.
    """

    def __init__(self) -> None:
        self.abandon()
        own(self)

    def abandon(self) -> None:
        """In a fork there are none."""
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], Callable[[], None]]] = SimpleQueue()
        self._idle = 0  # how many wait for work that is not theirs yet

    def start(self, work: Callable[[], Callable[[], None]]) -> None:
        """Work returns how to tell its end: whoever is told, and starts the next, finds this thread idle."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._add()
            self._work.put(work)

    def _add(self) -> None:
        start_daemon(self._serve)

    def _serve(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                continue  # there is work for every thread that waits
            tell = work()
            del work  # it holds results
            with self._lock:
                self._idle += 1
            tell()
            del tell


_threads = _Threads()
