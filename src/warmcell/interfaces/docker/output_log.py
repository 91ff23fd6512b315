"""OutputLog: what a container printed, with times, for `logs`. `copy_streams`: the raw streams of `attach` and `exec`.
EventLog: what happened to containers and images, for `docker events`. Logs are bounded; the oldest entries go first.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from warmcell.core.errors import SandboxError
from warmcell.core.output_events import OutputEvent
from warmcell.core.timestamps import rfc3339
from warmcell.interfaces.docker.messages import RawStream, memory_of
from warmcell.lifetime.threads import cancel_and_wait
from warmcell.sandbox.local.process import LocalProcess

#: Bounds of the output that is kept for each container.
MAX_LOG_BYTES = 4 << 20
_STREAM_NUMBERS = {"stdin": 0, "stdout": 1, "stderr": 2}
#: The memory that a short entry takes besides its text.
_OVERHEAD = 200
#: The beginning of a line waits for its end up to this size, as in Docker.
_MAX_PARTIAL = 16 << 10
#: How many lines are read before other requests get a turn.
_LINES_PER_TURN = 100
#: How long a program may take to read the last input of a client that disconnected.
_LAST_INPUT_SECONDS = 5.0
MULTIPLEXED, RAW = "application/vnd.docker.multiplexed-stream", "application/vnd.docker.raw-stream"
#: Bounds of the events that are kept for clients that ask for past ones, or read slowly.
_MAX_EVENTS, _MAX_BYTES = 1000, 4 << 20


class LogEntry(NamedTuple):
    """A line, or a part of a long one."""

    time: float
    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which entries a client wants. `tail` -1: all."""

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


class Changing:
    """Wakes waiters at every change: they wait for `_changed`, which is then replaced."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class OutputLog(Changing):
    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0
        self._entries: deque[LogEntry] = deque()
        #: The number of entries that were dropped from the front.
        self._dropped = 0
        #: By stream: the beginning of a line.
        self._partial: dict[str, bytes] = {}
        self._is_open = False

    def open(self) -> None:
        """Note that the container starts: followers wait for output."""
        self._is_open = True

    def close(self) -> None:
        """Note that the container has ended: followers end."""
        while self._partial:
            self._append(*self._partial.popitem())
        self._is_open = False
        self._wake()

    def add(self, stream: str, data: bytes) -> None:
        *lines, rest = (self._partial.pop(stream, b"") + data).split(b"\n")
        for line in lines[-MAX_LOG_BYTES // _OVERHEAD :]:  # more are not kept
            self._append(stream, line + b"\n")
        if len(rest) >= _MAX_PARTIAL:
            self._append(stream, rest)
        elif rest:
            self._partial[stream] = rest
        self._wake()

    def _append(self, stream: str, line: bytes) -> None:
        self._entries.append(LogEntry(time.time(), stream, line))
        self._bytes += len(line) + _OVERHEAD
        while self._bytes > MAX_LOG_BYTES and len(self._entries) > 1:
            self._bytes -= len(self._entries.popleft().data) + _OVERHEAD
            self._dropped += 1

    async def read(self, query: LogQuery) -> AsyncIterator[tuple[str, bytes]]:
        """Yield stream and text of the entries that the query accepts; with `is_followed`, until the container ends."""
        kept = [entry for entry in self._entries if query.accepts(entry)]
        position = self._dropped + len(self._entries)
        for number, entry in enumerate(kept if query.tail < 0 else kept[len(kept) - min(query.tail, len(kept)) :], 1):
            if number % _LINES_PER_TURN == 0:
                await asyncio.sleep(0)
            yield entry.stream, query.render(entry)
        while query.is_followed:
            changed, is_open = self._changed, self._is_open
            # By number, not by iterator: entries come and go while a reader waits.
            while position < self._dropped + len(self._entries):
                position = max(position, self._dropped)
                entry = self._entries[position - self._dropped]
                position += 1
                if position % _LINES_PER_TURN == 0:
                    await asyncio.sleep(0)
                if query.accepts(entry):
                    yield entry.stream, query.render(entry)
            if not is_open:
                return
            await changed.wait()


def content_type(has_tty: bool) -> str:
    return RAW if has_tty else MULTIPLEXED


def encode(stream: str, data: bytes, has_tty: bool) -> bytes:
    """Encode output for Docker's multiplexed stream. A terminal has one stream, so it needs no frames."""
    return data if has_tty else struct.pack(">BxxxL", _STREAM_NUMBERS[stream], len(data)) + data


async def copy_streams(
    raw: RawStream,
    output: AsyncIterator[OutputEvent],
    process: LocalProcess,
    *,
    has_tty: bool,
    is_input: bool,
    closes_input: bool,
) -> None:
    """Copy output and input until the output ends or the client disconnects. The program continues in either case."""

    async def send() -> None:
        async for event in output:
            await raw.write(encode(event.stream, event.data, has_tty))

    feeding = asyncio.ensure_future(_feed(raw, process, is_input, closes_input))
    sending = asyncio.ensure_future(send())
    # While the program does not read its input, `_feed` does not notice that the client disconnected.
    watching = asyncio.ensure_future(raw.wait_for_hangup())
    tasks = {feeding, sending, watching}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await asyncio.wait({feeding}, timeout=_LAST_INPUT_SECONDS)
    finally:
        await cancel_and_wait(*tasks)


async def _feed(raw: RawStream, process: LocalProcess, is_input: bool, closes_input: bool) -> None:
    """Pass input to the program; return when the client disconnects. One that has sent all its input may still read."""
    while data := await raw.read():
        if is_input:
            try:
                await process.write(data)
            except SandboxError:
                is_input = False  # the program no longer reads
    if is_input and closes_input:
        await process.close_stdin()
    await raw.wait_for_hangup()


class EventLog(Changing):
    def __init__(self) -> None:
        super().__init__()
        self._events: deque[dict[str, Any]] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        #: The number of all events so far.
        self._count = 0
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
        """End all followers."""
        self._is_closed = True
        self._wake()

    async def follow(self, since: float, until: float) -> AsyncIterator[dict[str, Any]]:
        """Yield events from `since` (0: from now) until `until` (0: without end). A slow reader loses the oldest."""
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
