"""asyncio without sockets: an event loop with timers, callbacks and tasks."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.unix_events
import time
from collections.abc import Callable
from typing import Any


class Sleeper:
    """Replaces the selector: only time can pass."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:  # no timer and nothing that could wake us: the program hangs, as it would anywhere
            while True:
                time.sleep(1)
        if timeout > 0:
            time.sleep(timeout)
        return []

    def close(self) -> None:
        pass


class SandboxEventLoop(asyncio.base_events.BaseEventLoop):
    def __init__(self, _selector: object = None) -> None:
        super().__init__()
        self._selector = Sleeper()

    def _process_events(self, _events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, _executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Without threads the call is made at once. `asyncio.to_thread` uses this too."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:
            future.set_exception(error)
        return future

    async def shutdown_default_executor(self, _timeout: float | None = None) -> None:
        pass


def install() -> None:
    asyncio.unix_events._UnixDefaultEventLoopPolicy._loop_factory = SandboxEventLoop  # type: ignore[attr-defined,assignment]
    for module in (asyncio, asyncio.unix_events):
        for name in ("SelectorEventLoop", "EventLoop", "_UnixSelectorEventLoop"):
            if hasattr(module, name):
                setattr(module, name, SandboxEventLoop)
