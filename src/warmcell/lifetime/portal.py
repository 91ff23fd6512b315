"""The way from blocking code into async code: one event loop in one background thread per process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from warmcell.core.errors import InvalidRequest
from warmcell.lifetime import host_program
from warmcell.lifetime.ownership import own

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """Runs coroutines on its own loop and waits for them. Any number of threads may call at the same time.

    The thread starts with the first call. A fork has no such thread, so its first call starts one.
    """

    def __init__(self) -> None:
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The coroutine's result. When the wait is interrupted (Ctrl-C), it is cancelled and cleaned up first."""
        host_program.check()
        loop = self._started()
        if threading.current_thread() is self._thread:
            raise InvalidRequest("a blocking call was made from the portal's own loop", hint="use AsyncSandbox there")
        finished = threading.Event()

        async def guarded() -> T:
            try:
                return await function(*args, **kwargs)
            finally:
                finished.set()

        future = asyncio.run_coroutine_threadsafe(guarded(), loop)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                finished.wait()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name="warmcell", daemon=True)
                self._thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()


portal = Portal()
