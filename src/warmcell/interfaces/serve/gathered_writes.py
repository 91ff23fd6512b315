"""What is written to a connection in one turn of the event loop is sent as one piece: head, body and end of an answer.

Sent one by one they take three calls of the kernel, and wake their reader three times.
"""

from __future__ import annotations

import asyncio
from typing import Any

#: What is more than this is sent at once: only what the transport holds itself tells a writer to pause.
MOST_GATHERED = 64 * 1024


class GatheredWrites:
    """A transport for the protocols of uvicorn; all else is done by the one below."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(bytes(data))
        self._size += len(data)
        if self._size > MOST_GATHERED:
            self.flush()

    def close(self) -> None:
        """After what was written."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts, self._size = [], 0
        self._transport.abort()

    def flush(self) -> None:
        """Now: for who knows that no more belongs to it."""
        parts, self._parts, self._size = self._parts, [], 0
        if parts:
            self._transport.write(b"".join(parts))
