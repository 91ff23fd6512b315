"""inotify(7), which Python's `os` lacks."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO = 0x002, 0x004, 0x040, 0x080
CREATE, DELETE, DELETE_SELF = 0x100, 0x200, 0x400
OVERFLOW, IGNORED, IS_DIRECTORY = 0x4000, 0x8000, 0x4000_0000
#: Watch only directories; no events for files that are already unlinked.
_ONLY_DIRECTORIES, _NOT_UNLINKED = 0x0100_0000, 0x0400_0000
_WANTED = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF

_HEAD = struct.Struct("iIII")
_BUFFER = 1 << 16


class Record(NamedTuple):
    """One kernel record: the watch, the event mask, and the name in the watched directory."""

    watch: int
    mask: int
    name: str
    #: The offset of its end in the data.
    end: int


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def most_instances() -> int:
    """How many instances the kernel allows this user, over all its processes."""
    return int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())


def create() -> int:
    """Create a non-blocking inotify descriptor; the caller owns it."""
    return _check_result(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def add(descriptor: int, directory: int) -> int:
    """Watch an open directory, by descriptor and not by name; return the watch."""
    path = f"/proc/self/fd/{directory}".encode()
    return _check_result(_libc().inotify_add_watch(descriptor, path, _WANTED | _ONLY_DIRECTORIES | _NOT_UNLINKED))


def remove(descriptor: int, watch: int) -> None:
    """Remove a watch. It is not an error if the kernel has already removed it."""
    _libc().inotify_rm_watch(descriptor, watch)


def read(descriptor: int) -> bytes:
    """Read pending records. Raises `BlockingIOError` if there are none."""
    return os.read(descriptor, _BUFFER)


def unread_bytes(descriptor: int) -> int:
    """The number of bytes that can be read."""
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


def records(data: bytes) -> Iterator[Record]:
    offset = 0
    while offset < len(data):
        watch, mask, _, length = _HEAD.unpack_from(data, offset)
        begin = offset + _HEAD.size
        offset = begin + length
        yield Record(watch, mask, os.fsdecode(data[begin:offset].split(b"\0", 1)[0]), offset)


def _check_result(answer: int) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer
