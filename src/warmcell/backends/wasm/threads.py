"""From asyncio to the blocking supervisor: one thread per run, and cancellation that kills the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from warmcell.backends.wasm.cancellation import Cancellation
from warmcell.core.errors import BackendUnavailable

_MOST_THREADS = 64
T = TypeVar("T")


class RunThreads:
    """Threads are made when first needed; after `close` nothing can be started."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._is_closed = False

    async def run(self, function: Callable[[Cancellation], T]) -> T:
        """Cancelling the awaiting task cancels the run and waits until it is gone."""
        cancellation = Cancellation()
        future = asyncio.get_running_loop().run_in_executor(self._threads(), function, cancellation)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            cancellation.cancel()
            # The run dies at once; waiting for it here keeps the promise that nothing of it is left.
            await asyncio.wait([future])
            future.exception()
            raise

    def close(self) -> None:
        self._is_closed = True
        if self._executor is not None:
            self._executor.shutdown(wait=True)

    def _threads(self) -> ThreadPoolExecutor:
        if self._is_closed:
            raise BackendUnavailable("the WASM backend was closed", hint="make a new one")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="warmcell-wasm")
        return self._executor
