"""OutputChannel: passes output from the thread of a run to an event loop, in bounded memory."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

from warmcell.lifetime.descriptors import Descriptors

StreamName = TypeVar("StreamName", bound=str)
MOST_BYTES = 256 * 1024
#: Memory overhead of a piece, counted because a guest may write single bytes.
_PIECE_BYTES = 256


class OutputChannel(Generic[StreamName]):
    """A `Listener` for the run; the reader calls `next` on the event loop that created it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._lock = threading.Lock()
        self._pieces: deque[tuple[StreamName, bytes]] = deque()
        self._size = 0
        self._has_ended = False
        self._owned = Descriptors()
        self._room = -1

    def deliver(self, stream: StreamName, data: bytes) -> None:
        with self._lock:
            is_first = not self._pieces
            self._pieces.append((stream, data))
            self._size += len(data) + _PIECE_BYTES
        if is_first:
            with suppress(RuntimeError):  # the loop was closed, and its readers with it
                self._loop.call_soon_threadsafe(self._changed.set)

    def wait_target(self) -> tuple[int, int] | None:
        with self._lock:
            if self._size <= MOST_BYTES:
                return None
            if self._room < 0:  # created late: most readers keep up
                self._room = self._owned.open(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            return self._room, select.POLLIN

    def catch_up(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._room)

    async def next(self) -> tuple[StreamName, bytes] | None:
        """The next piece. None when the run has ended and everything was read."""
        while not self._pieces:
            if self._has_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        with self._lock:
            piece = self._pieces.popleft()
            was_behind = self._size > MOST_BYTES
            self._size -= len(piece[1]) + _PIECE_BYTES
            if was_behind and self._size <= MOST_BYTES and self._room >= 0:
                os.eventfd_write(self._room, 1)
        return piece

    def end(self) -> None:
        """Called on the loop when the run has ended and nothing more is delivered."""
        self._has_ended = True
        self._changed.set()

    def close(self) -> None:
        """Called when the run has ended without a reader."""
        self._owned.close()
        self._room = -1
