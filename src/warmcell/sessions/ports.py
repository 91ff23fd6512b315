"""Exposed ports: connections to a port on the host's loopback are relayed into the live cage.

Only bytes enter the cage: the guest holds one end of a local socket pair, never the connection itself, which it could
reconnect elsewhere.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from warmcell.lifetime.descriptors import Descriptors, host_failure, is_shortage
from warmcell.lifetime.ownership import own
from warmcell.sessions.loop import READ, WRITE, Loop
from warmcell.sessions.web_guard import REFUSAL, is_allowed

LOOPBACK = "127.0.0.1"
#: Further connections wait to be accepted.
MOST_CONNECTIONS = 512
_CHUNK = 1 << 18
#: A read of at least `_LARGE` bytes is repeated, up to `_MOST_PIECES` times, before other sockets get their turn.
_LARGE, _MOST_PIECES = 1 << 16, 8
#: The kernel caps it (net.core.somaxconn). Connections beyond it are retried by the client's kernel, then reset.
_BACKLOG = 1 << 16
_PAUSE_SECONDS = 0.1
#: While all places are taken, a connection without a byte in either direction gives up its place after this time.
_SILENT_SECONDS = 10.0
#: How long a connection waits while descriptors are short, here or in the guest.
_SHORTAGE_SECONDS = 10.0
_SHORT = (errno.EMFILE, errno.ENFILE)

#: Returns our end of a new connection into the guest and the agent's answer; None if there is no guest.
Connect = Callable[[], tuple[socket.socket, Future[dict[str, Any]]] | None]


class PortListener:
    """Listens in its own thread until `close`. In a fork it is closed."""

    def __init__(self, connect: Connect, port: int, most: int = MOST_CONNECTIONS) -> None:
        self._connect, self._most = connect, most
        #: Shared buffer for reads. Data that the target does not accept at once is kept in its lane.
        self._scratch = memoryview(bytearray(_CHUNK))
        self._links: set[_Link] = set()
        self._owned = Descriptors()
        with self._owned:
            try:
                self._listener = _listening(self._owned, port)
            except OSError as error:
                raise host_failure(error, f"listen on port {port} of {LOOPBACK}") from None
            self.port: int = self._listener.getsockname()[1]
            self._loop = Loop("warmcell-port")
        self._is_closed = False
        self._is_paused = True
        self._next_look = 0.0
        self._loop.call(self._update)
        with self._owned:  # closes the listener if the thread cannot be started
            self._loop.start()
        own(self)

    def close(self) -> None:
        """Closes all connections and waits for the thread. May be called twice."""
        self._loop.call(self._end)
        self._loop.join()

    def abandon(self) -> None:
        """In a fork: its own sockets are closed already."""
        self._is_closed = True
        for link in self._links:
            link.close_sockets()

    # ---- in the loop's thread ----

    def _update(self) -> None:
        """Starts or stops accepting, by the number of connections."""
        has_room = len(self._links) < self._most and not self._is_closed
        if has_room and self._is_paused:
            self._loop.watch(self._listener.fileno(), READ, self._accept)
        elif not has_room and not self._is_paused:
            self._loop.forget(self._listener.fileno())
            self._loop.call(self._close_silent)
        self._is_paused = not has_room

    def _close_silent(self) -> None:
        """Frees places while there is none, so that silent connections do not shut others out."""
        if not self._is_paused or self._is_closed or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _PAUSE_SECONDS
        latest = time.monotonic() - _SILENT_SECONDS
        for link in [link for link in self._links if link.is_silent and link.began <= latest]:
            link.close()
        self._loop.call_later(_PAUSE_SECONDS, self._close_silent)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if is_shortage(error):  # poll would report it again at once
                self._pause()
            return
        self._links.add(_Link(self._loop, client, self._connect, self._forget, self._scratch))
        self._update()

    def _pause(self) -> None:
        self._loop.forget(self._listener.fileno())
        self._is_paused = True
        self._loop.call_later(_PAUSE_SECONDS, self._update)

    def _forget(self, link: _Link) -> None:
        self._links.discard(link)
        self._update()

    def _end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._update()
        for link in tuple(self._links):
            link.close()
        self._owned.close()
        self._loop.end()


def _listening(owned: Descriptors, port: int) -> socket.socket:
    kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    made = owned.open(lambda: socket.socket(socket.AF_INET, kind).detach())
    listener = owned.take_socket(made, socket.socket)
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((LOOPBACK, port))
    listener.listen(_BACKLOG)
    return listener


class _Link:
    """One connection and its counterpart in the guest."""

    def __init__(
        self,
        loop: Loop,
        client: socket.socket,
        connect: Connect,
        on_closed: Callable[[_Link], None],
        scratch: memoryview,
    ) -> None:
        self._loop, self._on_closed, self._scratch = loop, on_closed, scratch
        self._client = client
        self._guest: socket.socket | None = None
        self._lanes: list[_Lane] = []
        self._ends: list[socket.socket] = []
        #: The registered poll events of each end.
        self._watched = [0, 0]
        self._is_closed = False
        client.setblocking(False)
        with suppress(OSError):  # it may be gone already
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connect, self.began = connect, time.monotonic()
        self._until = self.began + _SHORTAGE_SECONDS
        self._begin()

    def _begin(self) -> None:
        if self._is_closed:
            return
        try:
            connected = self._connect()
        except OSError as error:
            self._try_again_or_refuse(is_shortage(error))
            return
        if connected is None:
            self._loop.call(self._refuse)
            return
        self._guest, answer = connected
        self._guest.setblocking(False)
        answer.add_done_callback(self._when_answered)

    def _try_again_or_refuse(self, is_short: bool) -> None:
        """During a short shortage of descriptors connections wait and are not reset."""
        if self._guest is not None:
            self._guest.close()
            self._guest = None
        if is_short and time.monotonic() < self._until:
            self._loop.call_later(_PAUSE_SECONDS, self._begin)
        else:
            self._loop.call(self._refuse)

    def _when_answered(self, answer: Future[dict[str, Any]]) -> None:
        """Called in the thread of the cage."""
        if not self._loop.call(lambda: self._on_answer(answer)):
            self.close_sockets()

    def _on_answer(self, answer: Future[dict[str, Any]]) -> None:
        if self._is_closed or self._guest is None:
            return
        if answer.exception() is not None or "error" in answer.result():
            is_short = answer.exception() is None and answer.result().get("errno") in _SHORT
            self._try_again_or_refuse(is_short)
            return
        inward = _Lane(self._client, self._guest, self._scratch, is_guarded=True)
        self._lanes = [inward, _Lane(self._guest, self._client, self._scratch)]
        self._ends = [self._client, self._guest]
        self._watch()

    @property
    def is_silent(self) -> bool:
        """No byte has passed in either direction; the beginning of a request that waits for its end has not."""
        return bool(self._lanes) and not any(lane.has_passed for lane in self._lanes)

    def _turn(self, end: socket.socket) -> None:
        """Moves data for the end that is ready."""
        for lane in self._lanes:
            lane.move(end)
        if any(lane.is_refused for lane in self._lanes):
            self._turn_away()
        elif all(lane.is_over for lane in self._lanes):
            self.close()
        else:
            self._watch()

    def _watch(self) -> None:
        """Updates the poll events. Unregisters an end without events: poll would report a hang-up repeatedly."""
        for place, end in enumerate(self._ends):
            events = 0
            for lane in self._lanes:
                events |= READ if lane.source is end and lane.wants_more else 0
                events |= WRITE if lane.target is end and lane.has_to_pass_on else 0
            if events == self._watched[place]:
                continue
            self._watched[place] = events
            if events:
                self._loop.watch(end.fileno(), events, partial(self._turn, end))
            else:
                self._loop.forget(end.fileno())

    def _turn_away(self) -> None:
        with suppress(OSError):
            self._client.send(REFUSAL.encode())
            self._client.shutdown(socket.SHUT_WR)
        self.close()

    def _refuse(self) -> None:
        """Resets the connection, as a port without a listener does; closing would look like an empty response."""
        with suppress(OSError):
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        if self._is_closed:
            return
        for end in (self._client, self._guest):
            if end is not None and end.fileno() >= 0:
                self._loop.forget(end.fileno())
        self.close_sockets()
        self._on_closed(self)

    def close_sockets(self) -> None:
        self._is_closed = True
        self._client.close()
        if self._guest is not None:
            self._guest.close()


class _Lane:
    """One direction. The end of the source is passed on to the target; the other direction stays open."""

    def __init__(
        self, source: socket.socket, target: socket.socket, scratch: memoryview, *, is_guarded: bool = False
    ) -> None:
        self.source, self.target, self._scratch = source, target, scratch
        self._waiting = bytearray()
        #: Until its first bytes have been checked by `web_guard`.
        self._is_guarded = is_guarded
        self._seen = 0
        self._is_open = True
        self.is_refused = False
        self.is_over = False
        self.has_passed = False

    @property
    def wants_more(self) -> bool:
        """False while data waits for the target, which holds the source back."""
        return self._is_open and not self.is_over and (self._is_guarded or not self._waiting)

    @property
    def has_to_pass_on(self) -> bool:
        return bool(self._waiting) and not self._is_guarded and not self.is_over

    def move(self, ready: socket.socket) -> None:
        if ready is self.source:
            # Bounded, so that other connections get their turn.
            for _ in range(_MOST_PIECES):
                if not self.wants_more or not self._fill():
                    break
            if self._is_guarded and self._waiting:
                self._look()
            self.has_passed = self.has_passed or not self._is_guarded
        if self.has_to_pass_on:
            self._drain()
        if not self._is_open and not self.has_to_pass_on and not self.is_over:
            self.is_over = True
            with suppress(OSError):  # the connection is gone
                self.target.shutdown(socket.SHUT_WR)

    def _fill(self) -> bool:
        """Reads once. True if the read was large, so that more data may be available."""
        try:
            count = self.source.recv_into(self._scratch)
        except BlockingIOError:
            return False
        except OSError:  # reset
            count = 0
        self._is_open = bool(count)
        passed = 0 if self._waiting or self._is_guarded else self._write_now(self._scratch[:count])
        if passed < count:
            self._waiting += self._scratch[passed:count]
        return count >= _LARGE and not self._is_guarded

    def _write_now(self, data: memoryview) -> int:
        try:
            return self.target.send(data, socket.MSG_NOSIGNAL)
        except OSError:  # reported again by the next attempt
            return 0

    def _look(self) -> None:
        verdict = is_allowed(self._waiting, self._seen)
        self._seen = len(self._waiting)
        self.is_refused = verdict is False or (verdict is None and not self._is_open)
        self._is_guarded = verdict is not True  # refused data is never passed on

    def _drain(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self.target.send(self._waiting, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            return
        except OSError:
            self._waiting.clear()
            self._is_open = False
