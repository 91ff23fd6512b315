"""EventLog: what happened to containers and images, for `docker events`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

from warmcell.interfaces.docker.json_fields import memory_of

#: What is kept for clients that ask for the past, or that read slowly.
_MAX_EVENTS, _MAX_BYTES = 1000, 4 << 20


class EventLog:
    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        #: The number of all events so far.
        self._count = 0
        self._changed = asyncio.Event()
        self._is_closed = False

    def add(self, kind: str, action: str, identity: str, attributes: Mapping[str, str]) -> None:
        now = time.time()
        actor = {"ID": identity, "Attributes": dict(attributes)}
        event: dict[str, Any] = {"Type": kind, "Action": action, "Actor": actor, "scope": "local"}
        event |= {"time": int(now), "timeNano": int(now * 1e9), "status": action, "id": identity}
        self._events.append(event)
        self._sizes.append(memory_of(event))
        self._bytes += self._sizes[-1]
        self._count += 1
        while len(self._events) > _MAX_EVENTS or (self._bytes > _MAX_BYTES and len(self._events) > 1):
            self._events.popleft()
            self._bytes -= self._sizes.popleft()
        self._wake()

    def close(self) -> None:
        """Ends all followers."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self, since: float, until: float) -> AsyncIterator[dict[str, Any]]:
        """Events from `since` (0: from now) until `until` (0: without end). A slow reader loses the oldest."""
        position = self._count - len(self._events) if since else self._count
        while True:
            changed = self._changed
            while position < self._count:
                position = max(position, self._count - len(self._events))
                event = self._events[position - self._count]
                position += 1
                if since <= event["timeNano"] / 1e9 and (not until or event["timeNano"] / 1e9 <= until):
                    yield event
            left = until - time.time() if until else None
            if self._is_closed or (left is not None and left <= 0):
                return
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                return
