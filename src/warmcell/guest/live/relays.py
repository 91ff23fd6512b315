"""Carrying bytes between two descriptors, each way by itself: terminals and their pipes, ports and their sockets."""

import os
import socket
from functools import partial

from .loop import READ, WRITE

#: Of what a terminal showed when its program ended.
_MOST_WAITING = 1 << 20
#: What is under way from one descriptor to the other; what the other does not take at once is kept with its lane.
_SCRATCH = memoryview(bytearray(1 << 18))
#: Who gives so much may have more by now; after so many pieces it is another's turn.
_LARGE, _MOST_PIECES = 1 << 16, 8


class Lane:
    """One way. `at_end` is called once: when all that came was passed on, or when nobody takes it any more."""

    def __init__(self, source, target, at_end):
        self.source, self.target, self.at_end = source, target, at_end
        self.waiting = bytearray()
        #: Whether the source still gives; whether the target still takes.
        self.is_open = True
        self.is_over = False

    @property
    def wants_to_read(self):
        return self.is_open and not self.is_over and not self.waiting

    def fill(self):
        """How much came."""
        try:
            count = os.readv(self.source, [_SCRATCH])
        except BlockingIOError:
            return 0
        except OSError:  # a terminal without programs, a connection that was reset
            count = 0
        self.is_open = bool(count)
        passed = 0 if self.waiting else self._passed_at_once(_SCRATCH[:count])
        if passed < count:
            self.waiting += _SCRATCH[passed:count]
        return count

    def carry(self):
        for _ in range(_MOST_PIECES):
            if not self.wants_to_read or self.fill() < _LARGE:
                break

    def _passed_at_once(self, data):
        try:
            return os.write(self.target, data)
        except OSError:  # told again when it is tried again
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
        """What the source has by now, though not without end."""
        while self.is_open and len(self.waiting) < _MOST_WAITING and self.fill():
            pass

    def settle(self):
        """Says once that there is no more to carry."""
        if not self.is_open and not self.waiting and not self.is_over:
            self.is_over = True
            self.at_end()


class Relay:
    """Lanes over a few descriptors, which it closes when all of them have ended."""

    def __init__(self, loop, lanes, on_closed):
        self._loop, self._lanes, self._on_closed = loop, lanes, on_closed
        self._descriptors = sorted({lane.source for lane in lanes} | {lane.target for lane in lanes})
        #: What the loop listens for, at each of them.
        self._watched = {}
        for descriptor in self._descriptors:
            os.set_blocking(descriptor, False)
        self._update()

    def turn(self, ready=None):
        """One of them is ready: for what comes from it, or for what waits to go there. Any, where it is not said."""
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
    """Both directions; the end of one is told to the other, and the way back stays open."""
    first, second = one.detach(), other.detach()

    def finish_writing(descriptor):
        copy = socket.socket(fileno=os.dup(descriptor))
        try:
            copy.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is gone as a whole
        copy.close()

    lanes = [
        Lane(first, second, lambda: finish_writing(second)),
        Lane(second, first, lambda: finish_writing(first)),
    ]
    return Relay(loop, lanes, on_closed)
