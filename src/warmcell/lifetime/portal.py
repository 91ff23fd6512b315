"""Calls async code from blocking code, on one event loop in one background thread per process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.lifetime import host_program
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.ownership import own
from warmcell.lifetime.threads import wait_until_done

P = ParamSpec("P")
T = TypeVar("T")
#: Ends what a coroutine has made.
Discard = Callable[[T], Coroutine[Any, Any, object]]


class CallbackQueue:
    """Callbacks of a coroutine, called in the thread that waits for it. They may block and may call the portal."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def wrap(self, function: Callable[P, object]) -> Callable[P, Coroutine[Any, Any, None]]:
        """A coroutine function that has `function` called and waits for it. If it is cancelled, it does not wait:
        `function` may itself be waiting for the cancellation.
        """

        async def call(*args: P.args, **kwargs: P.kwargs) -> None:
            loop, is_done = asyncio.get_running_loop(), asyncio.Event()

            def call_function() -> None:
                function(*args, **kwargs)
                loop.call_soon_threadsafe(is_done.set)

            self._calls.put(call_function)
            await is_done.wait()

        return call

    def run(self) -> None:
        """Calls the callbacks until `end`."""
        while (call := self._calls.get()) is not None:
            call()

    def end(self, _: object) -> None:
        self._calls.put(None)


class Portal:
    """Runs coroutines on its own loop and waits for them. Thread-safe. Its thread starts with the first call."""

    def __init__(self) -> None:
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The coroutine's result. If the wait is interrupted (Ctrl-C), the coroutine is cancelled and ends first."""
        return self._call(None, None, function, *args, **kwargs)

    def make(
        self,
        discard: Discard[T],
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """`call` of what makes something. `discard` gets it if the caller is interrupted as it is made."""
        return self._call(None, discard, function, *args, **kwargs)

    def call_with_callbacks(
        self,
        callbacks: CallbackQueue | None,
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """`call`, while this thread runs the callbacks and raises their exceptions."""
        return self._call(callbacks, None, function, *args, **kwargs)

    def _call(
        self,
        callbacks: CallbackQueue | None,
        discard: Discard[T] | None,
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        host_program.check()
        loop = self._get_loop()
        if threading.current_thread() is self._thread:
            raise InvalidRequest("a blocking call was made on Warmcell's own event loop", hint="use AsyncSandbox there")
        outcome, cancel = self._begin(loop, lambda: function(*args, **kwargs))
        try:
            if callbacks is not None:
                outcome.add_done_callback(callbacks.end)
                callbacks.run()
            return outcome.result()
        except BaseException:
            if not outcome.done() or outcome.exception() is None:
                cancel()
                wait([self._begin(loop, lambda: _end(outcome, discard))[0]])
            raise

    async def call_async(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """`call` from another event loop, which it does not block. If it is cancelled, the coroutine ends first."""
        return await self.make_async(None, function, *args, **kwargs)

    async def make_async(
        self,
        discard: Discard[T] | None,
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """`make` from another event loop."""
        host_program.check()
        loop = self._get_loop()
        if loop is asyncio.get_running_loop():
            return await function(*args, **kwargs)
        outcome, cancel = self._begin(loop, lambda: function(*args, **kwargs))
        done = asyncio.wrap_future(outcome)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            cancel()
            ended = self._begin(loop, lambda: _end(outcome, discard))[0]
            await wait_until_done(done, asyncio.wrap_future(ended))
            raise

    def start(self, function: Callable[[], Coroutine[Any, Any, T]]) -> tuple[Future[T], Callable[[], object]]:
        """Starts a coroutine. Returns the future of its result and a function that cancels it. The future is done when
        the coroutine has ended.
        """
        host_program.check()
        return self._begin(self._get_loop(), function)

    def post(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Starts a coroutine and does not wait. May be called from destructors."""
        loop = self._loop
        if loop is not None:
            self._begin(loop, function)

    @staticmethod
    def _begin(
        loop: asyncio.AbstractEventLoop, function: Callable[[], Coroutine[Any, Any, T]]
    ) -> tuple[Future[T], Callable[[], object]]:
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        async def call() -> T:
            return await function()

        def begin() -> None:
            tasks.append(loop.create_task(call()))
            tasks[0].add_done_callback(partial(_settle, outcome))

        loop.call_soon_threadsafe(begin)
        return outcome, lambda: loop.call_soon_threadsafe(lambda: tasks[0].cancel())

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                host_program.check_sockets()
                loop = asyncio.new_event_loop()
                try:
                    self._thread = start_daemon(self._serve, loop)
                except SandboxError:
                    loop.close()
                    raise
                self._loop = loop
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            # A coroutine that raises one of these stops the loop. Its caller gets the error; the others need the loop.
            with suppress(KeyboardInterrupt, SystemExit):
                loop.run_forever()


def _settle(outcome: Future[T], task: asyncio.Task[T]) -> None:
    """Copies the task's outcome. A done callback also runs for a task that was cancelled before its first step."""
    if task.cancelled():
        outcome.set_exception(CancelledError())
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


async def _end(outcome: Future[T], discard: Discard[T] | None) -> None:
    """Waits for a coroutine whose caller does not want its result any more."""
    done = asyncio.wrap_future(outcome)
    await asyncio.wait([done])
    if not done.cancelled() and done.exception() is None and discard is not None:
        await discard(done.result())


portal = Portal()
