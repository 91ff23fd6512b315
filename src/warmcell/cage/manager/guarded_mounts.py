"""Notices when the host replaces what a cage shows read-only in a writable directory, such as git's configuration.

If a file is replaced or removed, the kernel removes the mounts on it from all other mount namespaces, also from a
running cage, whose guest could then write the new file. So the cage has to end.
"""

from __future__ import annotations

import os
import struct

from ..failure import step
from ..linux.descriptors import closing_fd
from ..linux.mounts import open_without_links
from ..linux.syscalls import call
from ..plan import is_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Sequence, Set, Tuple

    from ..plan import Bind

    #: Watches with the names that matter in their directories.
    Watched = List[Tuple[int, bytes]]

_MOVED_FROM, _MOVED_TO, _DELETE, _OVERFLOW = 0x40, 0x80, 0x200, 0x4000
_ONLY_DIRECTORIES = 0x0100_0000
_RECORD = struct.Struct("=iIII")
_MOST_BYTES = 1 << 16


def find_guarded(binds: Sequence[Bind]) -> Dict[str, Set[Tuple[str, str]]]:
    """The read-only mount points in the caller's writable directories, each with the host's directories and names that
    lead to it. Pure.
    """
    found: Dict[str, Set[Tuple[str, str]]] = {}
    for bind in binds:
        for wide in () if bind.writable else binds:
            if wide.as_owner and wide.writable and not wide.given and is_below(bind.target, wide.target):
                place, names = wide.source, bind.target[len(wide.target) :].strip("/").split("/")
                for name in names:
                    found.setdefault(bind.target, set()).add((place, name))
                    place = f"{place}/{name}"
    return found


class GuardedMounts:
    """One inotify descriptor for all cells of a manager, made with the first that needs it; -1 until then."""

    def __init__(self) -> None:
        self.descriptor = -1
        #: The names that matter in each watched directory, once for each cell.
        self._names: Dict[int, List[bytes]] = {}

    def watch(self, guarded: Dict[str, Set[Tuple[str, str]]]) -> Watched:
        """Watch the mount points of one cell. Call it before its trees are opened, and `forget` when it has ended."""
        watched: Watched = []
        try:
            with step("watch protected paths"):
                if guarded and self.descriptor < 0:
                    self.descriptor = call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
                for directory, name in sorted(set().union(*guarded.values())):
                    watched.append((self._add(directory), os.fsencode(name)))
                    self._names.setdefault(watched[-1][0], []).append(watched[-1][1])
        except BaseException:
            self.forget(watched)
            raise
        return watched

    def _add(self, directory: str) -> int:
        mask = _MOVED_FROM | _MOVED_TO | _DELETE | _ONLY_DIRECTORIES
        with closing_fd(open_without_links(directory, os.O_DIRECTORY)) as opened:
            return call("inotify_add_watch", self.descriptor, b"/proc/self/fd/%d" % opened, mask)

    def forget(self, watched: Watched) -> None:
        for number, name in watched:
            self._names[number].remove(name)
            if not self._names[number]:
                del self._names[number]
                try:
                    call("inotify_rm_watch", self.descriptor, number)
                except OSError:
                    pass  # the directory was removed, and its watch with it

    def has_changes(self) -> bool:
        """Read some records: whether one says that a mount may be gone, or that records were lost."""
        try:
            data = os.read(self.descriptor, _MOST_BYTES)
        except BlockingIOError:
            return False
        offset, found = 0, False
        while offset < len(data):
            number, mask, _, length = _RECORD.unpack_from(data, offset)
            offset += _RECORD.size + length
            name = data[offset - length : offset].rstrip(b"\0")
            found = found or bool(mask & _OVERFLOW) or name in self._names.get(number, ())
        return found
