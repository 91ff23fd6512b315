"""Coalesce the writes of one event loop iteration: head, body and end of a response leave in one system call."""

from __future__ import annotations

import asyncio
from typing import Any

#: Larger amounts are passed on at once: only the transport's own buffer makes a writer pause.
MAX_COALESCED = 64 * 1024


class CoalescingTransport:
    """A transport for uvicorn's protocols that delegates to another one."""

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
        if self._size > MAX_COALESCED:
            self.flush()

    def close(self) -> None:
        """Close after sending what was written."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts, self._size = [], 0
        self._transport.abort()

    def flush(self) -> None:
        """Send now, for callers that know that nothing more belongs to this piece."""
        parts, self._parts, self._size = self._parts, [], 0
        if parts:
            self._transport.write(b"".join(parts))
