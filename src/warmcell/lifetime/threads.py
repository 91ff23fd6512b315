"""The bridge from event loops to blocking work: reused threads, and waits that a cancellation does not cut short."""

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
    from concurrent.futures import Future

T = TypeVar("T")
_IDLE_SECONDS = 10.0


async def in_thread(
    work: Callable[[], T], on_cancel: Callable[[], object] | None = None, discard: Callable[[T], object] | None = None
) -> T:
    """Runs blocking work in a thread and returns, raises or is cancelled only after that work has ended.

    The work uses descriptors and processes that the caller could otherwise close while they are in use. A cancelled
    caller therefore waits, however often it is cancelled; `on_cancel` should make the work end soon. `discard` is
    called in a thread with the result that a cancelled caller does not get.
    """
    import asyncio

    loop = running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    worker_threads.start(lambda: _delivery(loop, outcome, lambda: context.run(work)))
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        await wait_until_done(outcome)
        if outcome.exception() is None and discard is not None:
            with suppress(Exception):  # what cannot be discarded must not turn the cancellation into an error
                await in_thread(lambda: discard(outcome.result()))
        raise


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancels the tasks and waits for their end. A cancellation of the caller is raised only then."""
    for task in tasks:
        task.cancel()
    interrupted = await wait_until_done(*tasks)
    if interrupted is not None:
        raise interrupted


async def wait_until_done(*futures: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Waits for the end of all, however often the caller is cancelled meanwhile. Returns its last cancellation."""
    import asyncio

    interrupted: asyncio.CancelledError | None = None
    while pending := [future for future in futures if not future.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            interrupted = error
    for future in futures:
        if not future.cancelled():
            future.exception()  # mark it as retrieved, or asyncio logs that it never was
    return interrupted


def running_loop() -> asyncio.AbstractEventLoop:
    """The running asyncio event loop. Raises an error that says what to do if there is none."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidRequest(
            "no asyncio event loop is running here, and other kinds are not supported",
            hint="under trio, call the blocking form in a thread: `await trio.to_thread.run_sync("
            "backend.execute_blocking, request)`, or `Sandbox` in place of `AsyncSandbox`",
        ) from None


def _delivery(loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[T], work: Callable[[], T]) -> Callable[[], None]:
    """Does the work and returns the function that reports its outcome to the loop."""
    settle: Callable[[Any], None]
    try:
        value: Any = work()
        settle = outcome.set_result
    except StopIteration as error:  # a future refuses it before Python 3.12, and its waiters would wait for ever
        value, settle = RuntimeError("the work raised StopIteration"), outcome.set_exception
        value.__cause__ = error
    except BaseException as error:
        value, settle = error, outcome.set_exception

    def report() -> None:
        with suppress(RuntimeError):  # the loop was closed, and its waiters with it
            loop.call_soon_threadsafe(settle, value)

    return report


class WorkerThreads:
    """Reused daemon threads, as many as there is concurrent work, which `FairSemaphore` bounds.

    Not `concurrent.futures`: the interpreter joins its threads at exit, before we can end their runs.
    """

    def __init__(self) -> None:
        self.abandon()
        own(self)

    def abandon(self) -> None:
        """A fork starts without threads."""
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], Callable[[], None]]] = SimpleQueue()
        self._idle = 0  # idle threads without work assigned

    def start(self, work: Callable[[], Callable[[], None]]) -> None:
        """Does the work in a thread. `work` returns a function that reports its end, called when the thread is already
        idle: a caller that then starts more work reuses it.
        """
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                start_daemon(self._serve)
            self._work.put(work)

    def _serve(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                continue  # every idle thread has work
            report = work()
            del work  # do not keep results alive
            with self._lock:
                self._idle += 1
            report()
            del report


worker_threads = WorkerThreads()


async def wait_for_future(future: Future[Any], seconds: float) -> None:
    """Waits for the future or the timeout. Cancelling the wait does not cancel the future, which others wait for."""
    loop = running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    def report(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the event loop was closed, and nothing waits any more
            loop.call_soon_threadsafe(wake)

    patience = loop.call_later(seconds, wake)
    future.add_done_callback(report)
    try:
        await waiting
    finally:
        patience.cancel()
