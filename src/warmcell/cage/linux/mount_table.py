"""Which mounts another process has, looked up at the expected mount points.

Reading `mountinfo` keeps every other process of the machine from mounting while the kernel writes the text. Asking for
each place needs no such lock. The list of all mounts, as numbers, needs it for microseconds, after which all that wait
for it have gone to sleep; so it is read once a second. If the mounts at these places are all that are listed, the
places say everything that `mountinfo` would.
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
#: How often the mounts at the places are compared with the list of all.
SECONDS_BETWEEN_LISTS = 1.0
_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC, _STATX_MNT_ID_UNIQUE = 0x1000, 0x4000, 0x4000
_NS_GET_MNTNS_ID = 0x8008B705
#: struct mnt_id_req: its size, and from where to list; the namespace goes into its last word.
_REQUEST, _WORD_OF_NAMESPACE = struct.pack("=IIQQQ", 32, 0, 2**64 - 1, 0, 0), 3
_REQUEST_WORDS = len(_REQUEST) // 8
#: In words of eight bytes: what is known of a place, a statx and then a statfs; where these have the mount's number,
#: and the flags.
_STATX_WORDS, _PLACE_WORDS = 32, 48
_NUMBER, _KIND, _FLAGS, _ST_RDONLY = 18, _STATX_WORDS, _STATX_WORDS + 10, 1
#: File systems that answer by themselves: tmpfs, ramfs, proc, devpts, ext, xfs, btrfs, f2fs, zfs, overlayfs, squashfs,
#: erofs. Others ask a server or a program, which may never answer.
_LOCAL_KINDS = {
    *(0x01021994, 0x858458F6, 0x9FA0, 0x1CD1, 0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1),
    *(0x794C7630, 0x73717368, 0xE0F5E1E2),
}
_ENOENT = 2


class MountTable:
    """Can be read for any number of processes whose places are on the same file systems. Needs Linux 6.11."""

    def __init__(self, places: Iterable[str]) -> None:
        self._places = tuple(places)
        most = len(self._places) + 1  # one more is a mount at none of them
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
        """Each place, and whether it is writable there. None if one of them is not a mount of its own, or, once a
        second, if these are not exactly the mounts of the process.
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
    """With a descriptor of the path as the word that it is given."""
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        calls.values[0] = descriptor
        calls.run()
    finally:
        os.close(descriptor)
