"""Backends by image: one for each image that tasks name, a few of them kept for the next task."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.contracts import SandboxBackend
from warmcell.lifetime.threads import in_thread

_MOST_IDLE = 4


class ImageBackends:
    """Tasks without an image use the caller's backend. The others run on this host, at most `at_once` at a time."""

    def __init__(self, usual: SandboxBackend, at_once: int) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._usual = usual
        self._made: OrderedDict[str, ProcessBackend] = OrderedDict()
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def use(self, image: str | None) -> AsyncIterator[SandboxBackend]:
        if image is None:
            yield self._usual
            return
        async with self._places:
            if image not in self._made:
                self._made[image] = ProcessBackend(image=image, user="root")  # as containers run it
            self._made.move_to_end(image)
            self._users[image] = self._users.get(image, 0) + 1
            try:
                yield self._made[image]
            finally:
                self._users[image] -= 1
                await self._close_idle()

    async def _close_idle(self) -> None:
        idle = [image for image in self._made if not self._users[image]]
        for image in idle[: max(0, len(idle) - _MOST_IDLE)]:
            await in_thread(self._made.pop(image).close)

    async def aclose(self) -> None:
        while self._made:
            await in_thread(self._made.popitem()[1].close)
