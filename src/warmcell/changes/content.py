"""Compares and copies files without reading or filling holes; and system calls that `os` lacks."""

from __future__ import annotations

import errno
import hashlib
import os
import struct

from warmcell.cage.linux import fast_ctypes
from warmcell.cage.linux.syscalls import call
from warmcell.core.types import MIB
from warmcell.workspace.copy import copy_ranges, data_ranges
from warmcell.workspace.names import Parts

_NO_REPLACE, _EXCHANGE = 1, 2
_AT_SYMLINK_NOFOLLOW, _STATX_BTIME, _STATX_BYTES = 0x100, 0x800, 256
_MASK, _BTIME = struct.Struct("=I"), struct.Struct("=qI")
_BTIME_AT = 80
#: Errors of file systems that do not support the flags of renameat2.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def birth_time(dir_fd: int, name: str) -> int:
    """The file's creation time in nanoseconds; 0 if the file system does not record it."""
    answer = fast_ctypes.create_string_buffer(bytes(_STATX_BYTES))
    try:
        call("statx", dir_fd, os.fsencode(name), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, answer)
    except OSError:
        return 0
    if not _MASK.unpack_from(answer.raw)[0] & _STATX_BTIME:
        return 0
    seconds, rest = _BTIME.unpack_from(answer.raw, _BTIME_AT)
    return int(seconds) * 10**9 + int(rest)


def exchange(from_fd: int, name: str, to_fd: int, other: str) -> bool:
    """Swap two names atomically. False if the file system does not support it."""
    return _rename(from_fd, name, to_fd, other, _EXCHANGE)


def rename_to_free_name(from_fd: int, name: str, to_fd: int, other: str) -> None:
    """Rename without replacing: `FileExistsError` if the new name exists."""
    if not _rename(from_fd, name, to_fd, other, _NO_REPLACE):
        try:
            os.stat(other, dir_fd=to_fd, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, other, src_dir_fd=from_fd, dst_dir_fd=to_fd)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), other)


def _rename(from_fd: int, name: str, to_fd: int, other: str, flags: int) -> bool:
    try:
        call("renameat2", from_fd, os.fsencode(name), to_fd, os.fsencode(other), flags)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise OSError(error.errno, os.strerror(error.errno or 0), name) from None
    return True


def sync_filesystem(fd: int) -> None:
    """Sync the whole file system of `fd`: faster than syncing each of many files."""
    call("syncfs", fd)


#: Larger files have no digest; they are compared by size and times.
MOST_DIGESTED = 64 * MIB
_NO_LIMIT = 1 << 62


def is_same(one: int, other: int) -> bool:
    """Whether two open files have the same content."""
    if os.fstat(one).st_size != os.fstat(other).st_size:
        return False
    parts: Parts = ()
    ranges = [*data_ranges(one, parts, _NO_LIMIT), *data_ranges(other, parts, _NO_LIMIT)]
    return all(_is_same_range(one, other, start, end) for start, end in ranges)


def _is_same_range(one: int, other: int, start: int, end: int) -> bool:
    while start < end:
        size = min(end - start, MIB)
        chunk = os.pread(one, size, start)
        if chunk != os.pread(other, size, start) or not chunk:
            return False
        start += len(chunk)
    return True


def digest(fd: int) -> str:
    """A hash of the whole content; "" if the file is too large."""
    if os.fstat(fd).st_size > MOST_DIGESTED:
        return ""
    found, at = hashlib.blake2b(digest_size=32), 0
    while chunk := os.pread(fd, MIB, at):
        found.update(chunk)
        at += len(chunk)
    return found.hexdigest()


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def read_all(fd: int, most: int) -> bytes | None:
    """The whole content; None if it is longer than `most` bytes."""
    data = b""
    while chunk := os.pread(fd, MIB, len(data)):
        data += chunk
        if len(data) > most:
            return None
    return data


def copy(source: int, target: int) -> None:
    """Copy into an empty file, keeping holes. Ranges are read once: a guest that keeps writing cannot prolong it."""
    size = os.fstat(source).st_size
    copy_ranges(source, target, data_ranges(source, (), _NO_LIMIT))
    os.ftruncate(target, size)
