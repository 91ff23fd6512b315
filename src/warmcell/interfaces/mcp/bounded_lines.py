"""Messages from stdin, one a line, none larger than the door takes: a line without an end must not fill our memory."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio.to_thread

#: Requests name themselves early: clients write these keys in any order, and a file's content after them.
_ID = re.compile(rb'"id"\s*:\s*(?:"([^"\\]{1,200})"|([0-9]{1,15}))\s*[,}]')
_HEAD = 4096

#: Gets the id of a request that was too large, as far as it can be told.
OnTooLarge = Callable[[str | int | None], Awaitable[None]]


class BoundedLines:
    """In the place of stdin, whose descriptor then leads nowhere: no program that we start can read our messages."""

    def __init__(self, most: int, descriptor: int = 0) -> None:
        self._most = most
        wire = os.dup(descriptor)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(nothing, descriptor)
        os.close(nothing)
        # Never closed: a thread may wait for a line until the process ends.
        self._stream = os.fdopen(wire, "rb", closefd=False)
        self.on_too_large: OnTooLarge | None = None

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await anyio.to_thread.run_sync(self._next):
            if len(line) <= self._most:
                yield line.decode("utf-8", "replace")
            elif self.on_too_large is not None:
                await self.on_too_large(_id_in(line[:_HEAD]))

    def _next(self) -> bytes:
        """A line; of one that is too long the beginning, and the rest is passed over."""
        line = part = self._stream.readline(self._most + 1)
        while len(line) > self._most and part and not part.endswith(b"\n"):
            part = self._stream.readline(1 << 16)
        return line


def _id_in(head: bytes) -> str | int | None:
    found = _ID.search(head)
    if found is None:
        return None
    return found[1].decode("utf-8", "replace") if found[1] is not None else int(found[2])
