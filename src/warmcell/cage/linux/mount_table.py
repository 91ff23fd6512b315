"""Reads the mounts of another process by looking at the expected mount points.

While `mountinfo` is read, no other process of the machine can mount. Looking at each place takes no such lock. Listing
all mounts by number takes it for microseconds, but processes that wait for it have to sleep; so that is done once a
second. If the mounts at the places are exactly the listed ones, they say everything that `mountinfo` would.
"""

from __future__ import annotations

import os
import struct
import time

from ..failure import CageError
from . import fast_ctypes, mounts
from .call_list import CallList, PreparedCalls, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, Optional

_GIVEN = Value(0)
#: How often the mounts at the places are compared with the list of all mounts.
SECONDS_BETWEEN_LISTS = 1.0
_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC, _STATX_MNT_ID_UNIQUE = 0x1000, 0x4000, 0x4000
_NS_GET_MNTNS_ID = 0x8008B705
#: struct mnt_id_req: its size, and the mount to start from; the namespace is stored in its last word.
_REQUEST, _WORD_OF_NAMESPACE = struct.pack("=IIQQQ", 32, 0, 2**64 - 1, 0, 0), 3
_REQUEST_WORDS = len(_REQUEST) // 8
#: In words of eight bytes: the record of a place is a statx and then a statfs; offsets of the mount's number, the kind
#: of file system and the flags in it.
_STATX_WORDS, _PLACE_WORDS = 32, 48
_NUMBER, _KIND, _FLAGS, _ST_RDONLY = 18, _STATX_WORDS, _STATX_WORDS + 10, 1
#: Local file systems: tmpfs, ramfs, proc, devpts, ext, xfs, btrfs, f2fs, zfs, overlayfs, squashfs, erofs. Others depend
#: on a server or a program, which may never answer.
_LOCAL_KINDS = {
    *(0x01021994, 0x858458F6, 0x9FA0, 0x1CD1, 0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1),
    *(0x794C7630, 0x73717368, 0xE0F5E1E2),
}
_ENOENT = 2


class MountTable:
    """For any number of processes with the same mount points. Requires Linux 6.11."""

    def __init__(self, places: Iterable[str]) -> None:
        self._places = tuple(places)
        most = len(self._places) + 1  # one more, to notice mounts at other places
        memory = bytearray(8 * (_REQUEST_WORDS + most + _PLACE_WORDS * len(self._places)))
        memory[: len(_REQUEST)] = _REQUEST
        self._words = memoryview(memory).cast("Q")
        self._first = _REQUEST_WORDS + most
        start = fast_ctypes.addressof(fast_ctypes.c_char.from_buffer(memory))
        listing = CallList(1)
        listing.begin_step("verify", "mounts")
        listing.call("ioctl", _GIVEN, _NS_GET_MNTNS_ID, start + 8 * _WORD_OF_NAMESPACE)
        self._count = listing.call("listmount", start, start + len(_REQUEST), most, 0)
        self._listing = listing.prepare([-1])
        self._next_list = 0.0
        calls = CallList(1)
        calls.begin_step("verify", "mounts")
        for index, place in enumerate(self._places):
            found = start + 8 * (self._first + index * _PLACE_WORDS)
            file = mounts.open_below(calls, _GIVEN, place)
            calls.call("statx", file, b"", _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC, _STATX_MNT_ID_UNIQUE, found)
            calls.call("fstatfs", file, found + 8 * _STATX_WORDS)
            calls.call("close", file)
        self._calls = calls.prepare([-1])
        #: False where the kernel cannot tell, or a file system might not answer.
        self.is_usable = True

    def read(self, pid: int) -> Optional[Dict[str, bool]]:
        """Each place, and whether its mount is writable. None if one is not a mount point, or, once a second, if the
        process has other mounts as well.
        """
        if not self.is_usable:
            return None
        now = time.monotonic()
        try:
            _run_on(self._calls, f"/proc/{pid}/root", os.O_PATH)
            is_listed = now >= self._next_list
            if is_listed:
                _run_on(self._listing, f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        except CageError as failure:
            self.is_usable = failure.errno == _ENOENT  # a place is missing
            return None
        numbers, kinds, flags = (
            self._words[self._first + word :: _PLACE_WORDS].tolist() for word in (_NUMBER, _KIND, _FLAGS)
        )
        self.is_usable = _LOCAL_KINDS.issuperset(kinds)
        if is_listed:
            listed = self._words[_REQUEST_WORDS : _REQUEST_WORDS + self._listing.result(self._count)].tolist()
            if sorted(numbers) != sorted(listed):
                return None
            self._next_list = now + SECONDS_BETWEEN_LISTS
        elif len(set(numbers)) != len(numbers):  # a place on the mount of another
            return None
        return {place: not flag & _ST_RDONLY for place, flag in zip(self._places, flags)}  # noqa: B905  # Python 3.9


def _run_on(calls: PreparedCalls, path: str, flags: int) -> None:
    """Run a list whose argument is a descriptor of the path."""
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        calls.values[0] = descriptor
        calls.run()
    finally:
        os.close(descriptor)
