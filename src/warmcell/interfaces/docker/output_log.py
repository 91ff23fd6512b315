"""OutputLog: what a container printed, with times, for `logs`. Bounded; the oldest goes first."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from warmcell.core.timestamps import rfc3339

#: What is kept for each container.
MAX_LOG_BYTES = 4 << 20
_STREAM_NUMBERS = {"stdin": 0, "stdout": 1, "stderr": 2}
#: The memory that a short entry takes besides its text.
_OVERHEAD = 200


def frame(stream: str, data: bytes) -> bytes:
    """One piece of output as in Docker's multiplexed stream."""
    return struct.pack(">BxxxL", _STREAM_NUMBERS[stream], len(data)) + data


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line, or the beginning of one that is not complete."""

    time: float
    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What a client wants to see. `tail` -1: everything."""

    stdout: bool
    stderr: bool
    tail: int = -1
    since: float = 0.0
    until: float = 0.0
    has_timestamps: bool = False
    is_followed: bool = False

    def accepts(self, entry: LogEntry) -> bool:
        is_wanted = self.stdout if entry.stream == "stdout" else self.stderr
        return is_wanted and entry.time >= self.since and (not self.until or entry.time <= self.until)

    def render(self, entry: LogEntry) -> bytes:
        return rfc3339(entry.time).encode() + b" " + entry.data if self.has_timestamps else entry.data


class OutputLog:
    def __init__(self) -> None:
        self._bytes = 0
        self._entries: deque[LogEntry] = deque()
        #: The number of entries that were dropped from the front.
        self._dropped = 0
        self._changed = asyncio.Event()
        self._is_open = False

    def open(self) -> None:
        """The container starts: followers wait for more."""
        self._is_open = True

    def close(self) -> None:
        """The container has ended."""
        self._is_open = False
        self._wake()

    def add(self, stream: str, data: bytes) -> None:
        now = time.time()
        for line in data.splitlines(keepends=True):
            self._entries.append(LogEntry(now, stream, line))
            self._bytes += len(line) + _OVERHEAD
        while self._bytes > MAX_LOG_BYTES and len(self._entries) > 1:
            self._bytes -= len(self._entries.popleft().data) + _OVERHEAD
            self._dropped += 1
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def read(self, query: LogQuery) -> AsyncIterator[tuple[str, bytes]]:
        """The entries that the query accepts, as stream and text. With `is_followed` until the container ends."""
        kept = [entry for entry in self._entries if query.accepts(entry)]
        position = self._dropped + len(self._entries)
        for entry in kept if query.tail < 0 else kept[len(kept) - min(query.tail, len(kept)) :]:
            yield entry.stream, query.render(entry)
        while query.is_followed:
            changed, is_open = self._changed, self._is_open
            # By number, not by iterator: entries come and go while a reader waits.
            while position < self._dropped + len(self._entries):
                position = max(position, self._dropped)
                entry = self._entries[position - self._dropped]
                position += 1
                if query.accepts(entry):
                    yield entry.stream, query.render(entry)
            if not is_open:
                return
            await changed.wait()
