"""Relays bytes between two descriptors, in each direction independently: terminals and pipes, ports and sockets."""

import os
import select
import socket
from functools import partial

#: How many bytes of terminal output are kept when the program has ended.
_MOST_WAITING = 1 << 20
#: Shared buffer for reads. Data that the target does not accept at once is kept in its lane.
_SCRATCH = memoryview(bytearray(1 << 18))
#: A read of at least `_LARGE` bytes is repeated, up to `_MOST_PIECES` times, before other descriptors get their turn.
_LARGE, _MOST_PIECES = 1 << 16, 8
READ, WRITE = select.POLLIN, select.POLLOUT


class Loop:
    """An exception in a callback ends the agent, so callbacks handle the errors of their peers."""

    def __init__(self):
        self._poll = select.poll()
        self._callbacks = {}

    def watch(self, descriptor, events, callback):
        """Calls `callback()` when the descriptor is ready for `events` or hung up; without events, unregisters it."""
        if not events:
            self.forget(descriptor)
            return
        self._callbacks[descriptor] = callback
        self._poll.register(descriptor, events)

    def forget(self, descriptor):
        if self._callbacks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def forget_all(self):
        for descriptor in list(self._callbacks):
            self.forget(descriptor)

    def turn(self):
        """Handles the newest descriptors first: closed connections free theirs before the next request is read."""
        for descriptor, _ in reversed(self._poll.poll()):
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback()


class Lane:
    """One direction. `at_end` is called once: when all data was passed on, or when the target is closed."""

    def __init__(self, source, target, at_end):
        self.source, self.target, self.at_end = source, target, at_end
        self.waiting = bytearray()
        #: `is_open`: the source has not ended. `is_over`: nothing more will be written to the target.
        self.is_open = True
        self.is_over = False

    @property
    def wants_to_read(self):
        return self.is_open and not self.is_over and not self.waiting

    def fill(self):
        """Reads once and passes the data on. Returns the number of bytes read."""
        try:
            count = os.readv(self.source, [_SCRATCH])
        except BlockingIOError:
            return 0
        except OSError:  # a terminal without programs, a connection that was reset
            count = 0
        self.is_open = bool(count)
        passed = 0 if self.waiting else self._write_now(_SCRATCH[:count])
        if passed < count:
            self.waiting += _SCRATCH[passed:count]
        return count

    def carry(self):
        for _ in range(_MOST_PIECES):
            if not self.wants_to_read or self.fill() < _LARGE:
                break

    def _write_now(self, data):
        try:
            return os.write(self.target, data)
        except OSError:  # reported again by the next attempt
            return 0

    def drain(self):
        try:
            while self.waiting:
                del self.waiting[: os.write(self.target, self.waiting)]
        except BlockingIOError:
            return
        except OSError:
            self.waiting.clear()
            self.is_open = False

    def take_all(self):
        """Reads what the source has now, up to a bound."""
        while self.is_open and len(self.waiting) < _MOST_WAITING and self.fill():
            pass

    def settle(self):
        """Calls `at_end` once all data was passed on."""
        if not self.is_open and not self.waiting and not self.is_over:
            self.is_over = True
            self.at_end()


class Relay:
    """Lanes that share descriptors. Closes the descriptors when all lanes have ended."""

    def __init__(self, loop, lanes, on_closed):
        self._loop, self._lanes, self._on_closed = loop, lanes, on_closed
        self._descriptors = sorted({lane.source for lane in lanes} | {lane.target for lane in lanes})
        #: The registered poll events by descriptor.
        self._watched = {}
        for descriptor in self._descriptors:
            os.set_blocking(descriptor, False)
        self._update()

    def turn(self, ready=None):
        """Moves data for the descriptor that is ready, or for all of them if it is None."""
        for lane in self._lanes:
            if ready is None or lane.source == ready:
                lane.carry()
            if lane.waiting:
                lane.drain()
            lane.settle()
        self._update()

    def _update(self):
        if all(lane.is_over for lane in self._lanes):
            self.close()
            return
        for descriptor in self._descriptors:
            events = 0
            for lane in self._lanes:
                events |= READ if descriptor == lane.source and lane.wants_to_read else 0
                events |= WRITE if descriptor == lane.target and lane.waiting else 0
            if self._watched.get(descriptor) != events:
                self._watched[descriptor] = events
                self._loop.watch(descriptor, events, partial(self.turn, descriptor))

    def close(self):
        for descriptor in self._descriptors:
            self._loop.forget(descriptor)
            os.close(descriptor)
        self._descriptors, self._lanes = [], []
        self._on_closed()


def join_sockets(loop, one, other, on_closed):
    """Relays both ways. The end of one direction is passed on; the other stays open."""
    first, second = one.detach(), other.detach()

    def finish_writing(descriptor):
        borrowed = socket.socket(fileno=descriptor)  # no copy: there may be no room for one
        try:
            borrowed.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the connection is gone
        borrowed.detach()

    lanes = [Lane(first, second, lambda: finish_writing(second)), Lane(second, first, lambda: finish_writing(first))]
    return Relay(loop, lanes, on_closed)
