"""Limits of an egress proxy: connections, bytes and time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType

from warmcell.core.errors import FetchFailed
from warmcell.core.types import MIB


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits per connection (seconds, bytes in each direction) and on the number of connections.

    Only TLS is accepted on `tls_ports` and only HTTP on `http_ports`; tunnels to other allowed ports are opaque.
    """

    connections: int = 128
    max_bytes: int = 2048 * MIB
    head_seconds: float = 10.0
    idle_seconds: float = 120.0
    total_seconds: float = 1800.0
    tls_ports: frozenset[int] = frozenset({443})
    http_ports: frozenset[int] = frozenset({80})


class ByteMeter:
    """Counts the bytes of one direction; raises `FetchFailed` over the limit."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._max_bytes = max_bytes

    def add(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise FetchFailed(f"the connection carried more than {self._max_bytes} bytes", reason="too_large")


class ActivityTimer:
    """An idle timeout that `touch` extends, up to a total. Raises `TimeoutError`."""

    def __init__(self, idle_seconds: float, total_seconds: float) -> None:
        self._idle = idle_seconds
        self._total = total_seconds
        self._end = 0.0
        self._moved_at = 0.0
        self._timeout: asyncio.Timeout | None = None

    async def __aenter__(self) -> ActivityTimer:
        now = asyncio.get_running_loop().time()
        self._end = now + self._total
        self._moved_at = now
        self._timeout = asyncio.timeout_at(min(now + self._idle, self._end))
        await self._timeout.__aenter__()
        return self

    def touch(self) -> None:
        assert self._timeout is not None
        now = asyncio.get_running_loop().time()
        # Rescheduling is not free, and a busy tunnel touches thousands of times a second.
        if now - self._moved_at < self._idle / 16 or self._timeout.expired():
            return
        self._moved_at = now
        self._timeout.reschedule(min(now + self._idle, self._end))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timeout is not None
        await self._timeout.__aexit__(kind, error, trace)
