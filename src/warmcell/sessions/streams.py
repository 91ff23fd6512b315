"""A live program's streams, in the loop of its cage: output is taken as it comes, input is fed as it is taken."""

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
from warmcell.sessions.rings import Ring

_CHUNK = 1 << 16
#: How much may wait for a follower before no more is taken from the program, which then waits too.
_MOST_WAITING = 1 << 20


class Follower:
    """Somebody who hears output as it comes. `on_ready` is called, by the loop, when there is something to `take`."""

    def __init__(self, on_ready: Callable[[], None], on_room: Callable[[], object]) -> None:
        self._on_ready, self._on_room = on_ready, on_room
        #: By stream: how many bytes had gone by before the first that it hears.
        self.starts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._waiting: deque[OutputEvent] = deque()
        self._bytes = 0
        self._is_last = False

    @property
    def is_full(self) -> bool:
        return self._bytes >= _MOST_WAITING

    @property
    def was_let_go(self) -> bool:
        """It hears no more; what it has can still be taken."""
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
        """What has come since, and whether that was all there will be."""
        is_last = self._is_last  # looked at first: what is added before it is set is taken below
        with self._lock:
            events, was_full = list(self._waiting), self.is_full
            self._waiting.clear()
            self._bytes = 0
        if was_full:
            self._on_room()
        return events, is_last


class Output:
    """One stream of output: kept in its ring, and passed on to whoever follows."""

    def __init__(self, loop: Loop, name: str, descriptor: int, owned: Descriptors, ring: Ring) -> None:
        self._loop, self._descriptor, self._owned = loop, descriptor, owned
        self.name, self.ring = name, ring
        self.followers: list[Follower] = []
        self._is_open = True

    def listen(self) -> None:
        """As long as nobody who follows has too much to take."""
        if not self._is_open:
            return
        if any(follower.is_full for follower in self.followers):
            self._loop.forget(self._descriptor)
        else:
            self._loop.watch(self._descriptor, READ, self._hear)

    def take_all(self) -> None:
        """What is there by now; what others go on writing has no end."""
        most = self.ring.total + _MOST_WAITING
        while self._is_open and self.ring.total < most and self._read():
            pass

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.forget(self._descriptor)
            self._owned.close_only(self._descriptor)

    def _hear(self) -> None:
        self._read()
        self.listen()

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self.ring.add(data)
        for follower in self.followers:
            follower.add(OutputEvent(self.name, data))  # type: ignore[arg-type]
        return True


class InputClosed(Exception):
    """The program reads no more, or its input was closed."""


class Input:
    """What a program reads. A write is done when the program's pipe has all of it."""

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
        """From any thread: the program reads what was written, then the end."""

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
