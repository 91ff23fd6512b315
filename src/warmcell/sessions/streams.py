"""The streams of a live process, in the loop of its cage, and the output that is kept."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress

from warmcell.core.output_events import OutputEvent
from warmcell.lifetime.descriptors import Descriptors
from warmcell.sessions.loop import READ, WRITE, Loop


class Ring:
    """The last `size` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept = bytearray()
        #: The number of bytes so far.
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self._kept += data
        if len(self._kept) > 2 * self._size:  # seldom, because it copies what is kept
            del self._kept[: -self._size]

    @property
    def content(self) -> bytes:
        return bytes(self._kept[-self._size :])

    @property
    def size(self) -> int:
        """Bytes of memory in use."""
        return len(self._kept)

    @property
    def is_truncated(self) -> bool:
        return self.total > len(self.content)

    def drop(self) -> None:
        """Frees what is kept, which makes it truncated."""
        self._kept = bytearray()


class Beginning(Ring):
    """The first `size` bytes, as results of runs have them."""

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self._kept += data[: max(0, self._size - len(self._kept))]

    @property
    def content(self) -> bytes:
        return bytes(self._kept)


_CHUNK = 1 << 16
#: How many bytes may wait for a follower before reading stops, which blocks the program.
_MOST_WAITING = 1 << 20
#: How many more the last output of a killed program may be: more than the agent and the pipe hold of a terminal's.
_MOST_LAST = 4 << 20
#: How many pieces may wait: each takes a hundred bytes of memory and its reader some microseconds, however short it is.
_MOST_PIECES = 1 << 12
#: From so many followers on, reading pauses after each piece, so that small pieces become larger ones: passing a piece
#: on takes time for each follower, which the other threads of this process need.
_MANY_FOLLOWERS, _PAUSE_PER_FOLLOWER = 16, 20e-6


class Follower:
    """A reader of live output. The loop calls `on_ready` when there is something to `take`."""

    def __init__(self, on_ready: Callable[[], None], on_room: Callable[[], object]) -> None:
        self._on_ready, self._on_room = on_ready, on_room
        #: By stream: the position of the first byte that it gets.
        self.starts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._waiting: deque[OutputEvent] = deque()
        self._bytes = 0
        self._is_last = False

    @property
    def is_full(self) -> bool:
        return self._bytes >= _MOST_WAITING or len(self._waiting) >= _MOST_PIECES

    @property
    def has_room_for_last(self) -> bool:
        return self._bytes < _MOST_WAITING + _MOST_LAST and len(self._waiting) < 2 * _MOST_PIECES

    @property
    def was_let_go(self) -> bool:
        """Nothing more will arrive; what it has can still be taken."""
        return self._is_last

    def add(self, event: OutputEvent) -> None:
        with self._lock:
            self._waiting.append(event)
            self._bytes += len(event.data)
        self._on_ready()

    def finish(self) -> None:
        self._is_last = True
        self._on_ready()

    def take(self) -> tuple[list[OutputEvent], bool]:
        """New events, and whether there will be no more."""
        is_last = self._is_last  # read first: events that were added before it was set are taken below
        with self._lock:
            events, was_full = list(self._waiting), self.is_full
            self._waiting.clear()
            self._bytes = 0
        if was_full:
            self._on_room()
        return events, is_last


class Output:
    """One output stream: kept in a ring and passed to followers."""

    def __init__(self, loop: Loop, name: str, descriptor: int, owned: Descriptors, ring: Ring) -> None:
        self._loop, self._descriptor, self._owned = loop, descriptor, owned
        self.name, self.ring = name, ring
        self.followers: list[Follower] = []
        self._is_open = True
        self._is_taking_last = False
        self._on_read: Callable[[], None] | None = None

    def listen(self) -> None:
        """Watches the pipe while no follower is full."""
        if not self._is_open:
            return
        if all(self._has_room(follower) for follower in self.followers):
            self._loop.watch(self._descriptor, READ, self._read_once)
        else:
            self._loop.forget(self._descriptor)

    def take_last(self, *, is_listening: bool = True) -> None:
        """Reads on although a follower is full: what is left of the output of an ended program is bounded.

        The agent reports the exit of a program with a terminal only after the pipe has taken all of its output.
        """
        self._is_taking_last = True
        if is_listening:
            self.listen()

    def _has_room(self, follower: Follower) -> bool:
        return follower.has_room_for_last if self._is_taking_last else not follower.is_full

    def note_reads(self, on_read: Callable[[], None]) -> None:
        """Calls `on_read` after each read from now on."""
        if self._is_open:
            self._on_read = on_read

    def take_all(self) -> None:
        """Reads what the pipe holds now; other processes may keep writing."""
        most = self.ring.total + _MOST_WAITING
        while self._is_open and self.ring.total < most and self._read():
            pass

    def close(self) -> None:
        if self._is_open:
            self._is_open, self._on_read = False, None
            self._loop.forget(self._descriptor)
            self._owned.close_only(self._descriptor)

    def _read_once(self) -> None:
        self._read()
        count = len(self.followers)
        if count < _MANY_FOLLOWERS:
            self.listen()
        else:
            self._loop.forget(self._descriptor)
            self._loop.call_later(count * _PAUSE_PER_FOLLOWER, self.listen)

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self.ring.add(data)
        if self._on_read is not None:
            self._on_read()
        event = OutputEvent(self.name, data)  # type: ignore[arg-type]
        for follower in self.followers:
            follower.add(event)
        return True


class InputClosed(Exception):
    """The program has ended, or its input was closed."""


class Input:
    """The input of a program. A write is complete when the pipe has all of it."""

    def __init__(self, loop: Loop, descriptor: int, owned: Descriptors) -> None:
        self._loop, self._descriptor, self._owned = loop, descriptor, owned
        self._waiting: deque[tuple[memoryview, Future[None]]] = deque()
        self._is_open = descriptor >= 0
        self._is_ending = False

    def write(self, data: bytes) -> Future[None]:
        """From any thread."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()

        def begin() -> None:
            if not self._is_open or self._is_ending:
                done.set_exception(InputClosed())
                return
            self._waiting.append((memoryview(data), done))
            self._feed()

        if not self._loop.call(begin):
            done.set_exception(InputClosed())
        return done

    def end(self) -> None:
        """From any thread: closes the input after all pending writes."""

        def finish() -> None:
            self._is_ending = True
            self._feed()

        self._loop.call(finish)

    def close(self) -> None:
        """In the loop's thread."""
        if self._is_open:
            self._is_open = False
            self._loop.forget(self._descriptor)
            self._owned.close_only(self._descriptor)
        self._fail(self._waiting)
        self._waiting.clear()

    @staticmethod
    def _fail(writes: Iterable[tuple[memoryview, Future[None]]]) -> None:
        for _, done in writes:
            done.set_exception(InputClosed())

    def _feed(self) -> None:
        if not self._is_open:
            return
        try:
            while self._waiting:
                data, done = self._waiting[0]
                data = data[os.write(self._descriptor, data) :] if data else data
                if data:
                    self._waiting[0] = (data, done)
                    continue
                self._waiting.popleft()
                done.set_result(None)
        except BlockingIOError:
            self._loop.watch(self._descriptor, WRITE, self._feed)
            return
        except OSError:
            self.close()
            return
        with suppress(KeyError):
            self._loop.forget(self._descriptor)
        if self._is_ending:
            self.close()
