"""What each client connection is doing, in memory that the front and its workers share.

An entry outlives the worker that wrote it, so the front knows how to answer the clients of a worker that was killed.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from enum import IntEnum
from typing import NamedTuple

#: The number of the route, the phase, and the time of the change.
_ENTRY = struct.Struct("<HBxd")
NO_ROUTE = 0xFFFF


class Phase(IntEnum):
    """How far the request on a connection is."""

    IDLE = 0
    #: No byte of the response was sent.
    REQUEST = 1
    #: In a chunked body of server-sent events, or of Connect messages.
    EVENTS = 2
    CONNECT = 3
    #: In another response, or a WebSocket: nothing can be added to it.
    OTHER = 4


class ConnectionState(NamedTuple):
    """`since` is monotonic time, which all processes share."""

    route: int
    phase: Phase
    since: float


class ConnectionStates:
    """One entry per slot. Written without system calls, and without locks: each slot has one writer at a time."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)

    def set(self, slot: int, phase: Phase, route: int = NO_ROUTE) -> None:
        _ENTRY.pack_into(self._memory, slot * _ENTRY.size, route, phase, time.monotonic())

    def get(self, slot: int) -> ConnectionState:
        route, phase, since = _ENTRY.unpack_from(self._memory, slot * _ENTRY.size)
        return ConnectionState(route, Phase(phase), since)

    def close(self) -> None:
        self._memory.close()


def make_states_file(slots: int) -> int:
    """A descriptor of memory for `slots` connections, all idle."""
    descriptor = os.memfd_create("warmcell-connections", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, slots * _ENTRY.size)
    return descriptor
