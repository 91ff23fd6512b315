"""WaitingInput: what a client sent to a program that has not read it yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.websockets import MAX_MESSAGE


class WaitingInput:
    """In order, and bounded. `deliver` writes it; `on_refused` is called with what could not be written."""

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
        on_refused: Callable[[InvalidRequest], Awaitable[None]],
    ) -> None:
        self._write, self._close, self._on_refused = write, close, on_refused
        self._waiting = bytearray()
        self._is_ending = self._is_busy = False
        self._changed = asyncio.Condition()

    async def add(self, data: bytes) -> None:
        """Waits while more than the size of a message is unread: the client has to wait, too."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < MAX_MESSAGE and not self._is_ending)
            self._waiting += data
            self._changed.notify_all()

    async def end(self) -> None:
        """Closes the program's input after what waits."""
        async with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    async def deliver(self) -> None:
        """Runs until it is cancelled."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._waiting or self._is_ending)
                data, self._is_busy = bytes(self._waiting), True
                self._waiting.clear()
                self._changed.notify_all()
            try:
                await (self._write(data) if data else self._close())
            except InvalidRequest as error:  # it is closed
                await self._on_refused(error)
            async with self._changed:
                self._is_ending &= bool(data)
                self._is_busy = False
                self._changed.notify_all()

    async def drain(self) -> None:
        """Returns when everything was delivered."""
        async with self._changed:
            await self._changed.wait_for(lambda: not (self._waiting or self._is_ending or self._is_busy))
