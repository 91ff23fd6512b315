"""inotify(7), which Python's `os` does not have: watches on open directories, and the kernel's records as data."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO = 0x002, 0x004, 0x040, 0x080
CREATE, DELETE, DELETE_SELF = 0x100, 0x200, 0x400
OVERFLOW, IGNORED, IS_DIRECTORY = 0x4000, 0x8000, 0x4000_0000
#: Only of directories; nothing more of files that have no name any more.
_ONLY_DIRECTORIES, _NOT_UNLINKED = 0x0100_0000, 0x0400_0000
_WANTED = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF

_HEAD = struct.Struct("iIII")
_BUFFER = 1 << 16


class Record(NamedTuple):
    """What the kernel tells: the number of the watch, what happened, and the name in that directory."""

    watch: int
    mask: int
    name: str
    #: Where it ends among the bytes that were read together.
    end: int


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def opened() -> int:
    """A new descriptor that does not block; the caller owns it."""
    return _checked(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def add(descriptor: int, directory: int) -> int:
    """Watches an open directory: that one, whatever its name leads to by now. The number of the watch."""
    path = f"/proc/self/fd/{directory}".encode()
    return _checked(_libc().inotify_add_watch(descriptor, path, _WANTED | _ONLY_DIRECTORIES | _NOT_UNLINKED))


def remove(descriptor: int, watch: int) -> None:
    """Nothing happens where the kernel has removed it already."""
    _libc().inotify_rm_watch(descriptor, watch)


def read(descriptor: int) -> bytes:
    """What has come, so much at once; `BlockingIOError` where nothing has."""
    return os.read(descriptor, _BUFFER)


def waiting(descriptor: int) -> int:
    """Bytes that have come and were not read."""
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


def records(data: bytes) -> Iterator[Record]:
    offset = 0
    while offset < len(data):
        watch, mask, _, length = _HEAD.unpack_from(data, offset)
        begin = offset + _HEAD.size
        offset = begin + length
        yield Record(watch, mask, os.fsdecode(data[begin:offset].split(b"\0", 1)[0]), offset)


def _checked(answer: int) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer
