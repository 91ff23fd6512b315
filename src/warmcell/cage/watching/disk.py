"""Measures writable host directories, and how much a guest added to them."""

from __future__ import annotations

import errno
import os
import stat
import time
from math import inf

from ..linux import kernel_files
from ..linux.guest_files import WithoutTimeLimit
from ..linux.processes import expected_errors, must_be_expected
from ..records import NamedTuple
from . import usage
from .patience import Patience, Spent, TooLong
from .patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Generator, Iterable, Iterator, List, Optional, Sequence, Set, Tuple


class DiskUse(NamedTuple):
    """Bytes and names below some paths, and on their file systems."""

    held: int = 0
    entries: int = 0
    filesystem: int = 0
    filesystem_entries: int = 0
    #: Whether all directories could be read; and whether all unlinked files could be found.
    has_all_names: bool = True
    has_all_unlinked: bool = True
    #: An upper bound on what the guest wrote. Any other growth of a file system is due to others.
    written: float = 0.0

    def growth_since(self, start: DiskUse) -> DiskUse:
        """Growth. If not everything can be seen, that of the file system counts, up to what the guest wrote."""
        held, entries = self.held - start.held, self.entries - start.entries
        if not (self.has_all_names and self.has_all_unlinked and start.has_all_names):
            held = max(held, int(min(self.filesystem - start.filesystem, self.written)))
        if start.has_all_names and not self.has_all_names:
            entries = max(entries, self.filesystem_entries - start.filesystem_entries)
        return DiskUse(held, entries)

    def is_over(self, most_bytes: int) -> bool:
        """Whether bytes or names exceed the limit: as many names as a private tmpfs of that size allows."""
        return self.held > most_bytes or self.entries > max(most_bytes >> 12, 16_384)


_SMALLEST_ENTRY = 512
_DEEPEST = 200
_MOST_ENTRIES = 200_000
_AT_A_TIME = 64
_LONGEST_LOOK = (0.1, 1.0)


def filesystem_use(paths: Sequence[str]) -> DiskUse:
    """The use of their whole file systems, including other users' files. Fast."""
    held = entries = 0
    for path in paths:
        with WithoutTimeLimit(), expected_errors:
            status = os.statvfs(path)
            held += (status.f_blocks - status.f_bfree) * status.f_frsize
            entries += status.f_files - status.f_ffree
    return DiskUse(filesystem=held, filesystem_entries=entries)


class Walk:
    """Walks through everything below the paths, in steps, so that the watcher can measure other cells meanwhile."""

    def __init__(self, paths: Sequence[str], overlays: Sequence[str] = (), devices: Sequence[int] = ()) -> None:
        self._paths = paths
        #: Guest paths of overlays that store their files below the paths.
        self._overlays = overlays
        self._devices: Set[int] = set(devices)
        #: Devices in `maps`, where they differ from those.
        self._shown: Set[bytes] = set()
        #: Whether one of the paths is in memory: the kernel counts for no process what is written there by mappings.
        self.is_in_memory = False
        self._held = self._entries = 0
        self._is_complete = True
        self._steps: Generator[None, None, None] = self._walk_all()

    def advance(self, seconds: float) -> bool:
        """Continue the walk; returns whether it is complete."""
        until = time.monotonic() + seconds
        with WithoutTimeLimit():
            return all(time.monotonic() <= until for _ in self._steps)

    def result(self, proc: str, pids: List[int], hides: bool = False) -> DiskUse:
        """The result, with unlinked files that processes have open or mapped. `hides`: there are more of them."""
        unlinked = UnlinkedFiles(self._devices.union(_devices_of(self._overlays, proc, pids)), self._shown)
        unlinked.look(proc, pids)
        return filesystem_use(self._paths)._replace(
            held=self._held + unlinked.size,
            entries=self._entries,
            has_all_names=self._is_complete,
            has_all_unlinked=unlinked.is_complete and not hides,
        )

    def close(self) -> None:
        self._steps.close()

    def _walk_all(self) -> Generator[None, None, None]:
        for path in self._paths:
            try:
                root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                self._is_complete = False
                continue
            yield from self._walk(root)

    def _walk(self, root: int) -> Iterator[None]:
        """Walk by descriptors, so that long paths and links do not matter. Parents stay open."""
        levels: List[Tuple[int, List[str]]] = [(root, [])]
        try:
            status = os.fstat(root)
            self._devices.add(status.st_dev)
            if not os.major(status.st_dev):
                self._shown.add(device_in_maps(root, status.st_dev))
                self.is_in_memory = self.is_in_memory or _is_in_memory(root, status.st_dev)
            self._held += status.st_blocks * 512
            yield from self._read_names(*levels[0])
            while levels:
                directory, below = levels[-1]
                if not below or self._entries >= _MOST_ENTRIES:
                    os.close(levels.pop()[0])
                    continue
                child = self._open(below.pop(), directory, len(levels))
                if child >= 0:
                    levels.append((child, []))
                    yield from self._read_names(*levels[-1])
        finally:
            for directory, _ in levels:
                os.close(directory)

    def _open(self, name: str, parent: int, depth: int) -> int:
        try:
            if depth <= _DEEPEST:
                return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return -1  # removed meanwhile
        self._is_complete = False
        return -1

    def _read_names(self, directory: int, below: List[str]) -> Iterator[None]:
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # removed meanwhile
                        continue
                    self._entries += 1
                    self._held += max(status.st_blocks * 512, _SMALLEST_ENTRY)
                    if stat.S_ISDIR(status.st_mode):
                        below.append(entry.name)
                    if self._entries >= _MOST_ENTRIES:
                        self._is_complete = False
                        return
                    if self._entries % _AT_A_TIME == 0:
                        yield
        except OSError as error:
            must_be_expected(error)
            self._is_complete = False


def _devices_of(overlays: Sequence[str], proc: str, pids: List[int]) -> Iterator[int]:
    """The devices of overlays: their files do not report the device of the directory in which they are stored."""
    for pid in pids if overlays else ():
        for path in overlays:
            with expected_errors:
                yield os.stat(f"{proc}/{pid}/root{path}").st_dev


def device_in_maps(directory: int, device: int) -> bytes:
    """The device of an open directory's file system in `maps`. On btrfs, stat() returns that of the subvolume."""
    fields = usage.mount_of(directory, device).split(" ", 3)
    return b"%02x:%02x" % tuple(map(int, fields[2].split(":"))) if len(fields) > 2 else b""


def _is_in_memory(directory: int, device: int) -> bool:
    return usage.mount_of(directory, device).rpartition(" - ")[2].startswith(("tmpfs ", "ramfs "))


class UnlinkedFiles:
    """Files without a name that processes have open or mapped, on some devices. `shown`: further names in `maps`."""

    def __init__(self, devices: Set[int], shown: Iterable[bytes] = ()) -> None:
        self._devices = devices
        self._names = {f"{os.major(device):02x}:{os.minor(device):02x}".encode() for device in devices}.union(shown)
        self._sizes: Dict[int, int] = {}
        self.is_complete = True

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    def look(self, proc: str, pids: List[int]) -> None:
        patience = Patience(*_LONGEST_LOOK)
        try:
            for pid in pids:
                is_readable = self._look_at_open(f"{proc}/{pid}", patience)
                is_readable = self._look_at_mapped(f"{proc}/{pid}", patience) and is_readable
                # A process that ends becomes unreadable before it is gone, and has nothing open by then.
                if not is_readable and not usage.is_ending(proc, pid):
                    self.is_complete = False
        except TooLong:
            self.is_complete = False

    def _look_at_open(self, base: str, patience: Patience) -> bool:
        is_readable = True
        for thread in usage.threads(base):
            try:
                names = os.listdir(f"{base}/task/{thread}/fd")
                for name in names:
                    patience.check()
                    self._add(f"{base}/task/{thread}/fd/{name}")
                if names:
                    return True  # threads share their descriptors; one that has ended shows none
            except PermissionError:
                is_readable = False
            except OSError as error:
                must_be_expected(error)
        return is_readable

    def _look_at_mapped(self, base: str, patience: Patience) -> bool:
        """Only root can read the size of a file that is mapped but not open."""
        is_readable = True
        for lines in usage.read_maps(base, patience):
            for place, device, inode in _DELETED.findall(lines) if b"(deleted)" in lines else ():
                if device in self._names and int(inode) not in self._sizes:
                    try:
                        self._add(f"{base}/map_files/{place.decode()}")
                    except OSError as error:
                        must_be_expected(error)
                        is_readable = False
        return is_readable

    def _add(self, path: str) -> None:
        status = os.stat(path)
        if status.st_nlink == 0 and status.st_dev in self._devices:
            self._sizes[status.st_ino] = status.st_blocks * 512


_DELETED = Pattern(rb"^(\S+) \S+ \S+ (\S+) (\d+) .* \(deleted\)$")


class WrittenBytes:
    """How much the processes of a tree have written to any file, as an upper bound."""

    def __init__(self) -> None:
        self._seen: Dict[int, int] = {}
        self._ended = 0

    def look(self, proc: str, pids: List[int], with_faults: bool = False) -> float:
        """The bytes written so far; infinite if a living process cannot be read.

        `with_faults`: each page fault counts as a page that was written through a mapping.
        """
        found = {pid: _bytes_by(proc, pid, with_faults) for pid in pids}
        # A parent that waited for a child has its bytes too; counting them twice keeps this an upper bound.
        self._ended += sum(size for pid, size in self._seen.items() if found.get(pid) is None)
        self._seen = {pid: size for pid, size in found.items() if size is not None}
        hidden = [pid for pid, size in found.items() if size is None and not usage.is_ending(proc, pid)]
        return inf if hidden else self._ended + sum(self._seen.values())


_PAGE = os.sysconf("SC_PAGESIZE")
_WRITTEN = Pattern(r"^(?:wchar|write_bytes): (\d+)$")


def _bytes_by(proc: str, pid: int, with_faults: bool) -> Optional[int]:
    """Bytes written by system calls and through mappings; None if they cannot be read."""
    with expected_errors:
        written = sum(map(int, _WRITTEN.findall(kernel_files.read(f"{proc}/{pid}/io"))))
        return written + (usage.page_faults(proc, pid) * _PAGE if with_faults else 0)
    return None


# The limit on what a guest writes to directories of the host.

#: Bytes per second that a guest might write between two looks, and how many names.
_FASTEST_WRITING, _MANY_NAMES = 2e9, 4096
_FASTEST_LOOK, _SLOWEST_WALK, _WALK_AT_A_TIME = 0.005, 0.25, 0.02


class DiskCeiling:
    """`look` returns when to call it again. It is cheap unless much was written."""

    def __init__(
        self,
        most: int,
        paths: Sequence[str],
        overlays: Sequence[str] = (),
        totals: Sequence[str] = (),
        devices: Sequence[int] = (),
    ) -> None:
        self._most, self._paths, self._overlays = most, paths, overlays
        #: Those of the paths whose whole content counts, and more devices that their files report.
        self._totals, self._devices = totals, devices
        self._at_start = self._last = DiskUse()
        self._written = WrittenBytes()
        #: How much more may be written, as of the last complete walk.
        self._room = most
        self._walk: Optional[Walk] = None
        #: Walks through the totals, before the guest starts, and through everything after its end.
        self._totals_walk: Optional[Walk] = None
        self._last_walk: Optional[Walk] = None
        self._walked = 0.0  # seconds that this walk has taken so far
        self._walk_began = self._seen = 0.0
        self._next_walk = self._next_urgent_walk = 0.0
        self.is_measured = self.is_over = False

    def measure(self, seconds: float) -> bool:
        """Measure the existing content, which does not count, before the guest's code starts. False if time ran out."""
        self._walk = self._walk or self._new_walk()
        if self._totals and tuple(self._totals) != tuple(self._paths):
            self._totals_walk = self._totals_walk or Walk(self._totals)
        totals_walk = self._totals_walk or self._walk
        if self._walk.advance(seconds) and totals_walk.advance(seconds):
            self._at_start = self._last = self._walk.result("/proc", [])
            self._count_totals(totals_walk.result("/proc", []))
            self._walk = self._totals_walk = None
            self.is_measured = True
        return self.is_measured

    def _new_walk(self) -> Walk:
        return Walk(self._paths, self._overlays, self._devices)

    def _count_totals(self, kept: DiskUse) -> None:
        """Let the existing content of `totals` count. If it exceeds the limit, the guest may still remove files."""
        if self._totals:
            start = self._at_start
            self._at_start = start._replace(held=start.held - kept.held, entries=start.entries - kept.entries)
            self._most = max(self._most, kept.held, kept.entries << 12)
            self._room = self._most - kept.held

    def look(self, proc: str, pids: List[int], hides: bool) -> float:
        """Measure; returns the pause before the next look. `hides`: there are files that no process shows."""
        now = filesystem_use(self._paths)
        written = max(0, now.filesystem - self._last.filesystem)
        new_names = now.filesystem_entries - self._last.filesystem_entries
        if self._walk is None and self._is_due(written > self._room / 2 or new_names > _MANY_NAMES):
            self._walk, self._walk_began = self._new_walk(), time.monotonic()
        if self._walk is None:
            return self.pause(written)
        spent = Spent()
        found = self._walk.result(proc, pids, hides) if self._walk.advance(_WALK_AT_A_TIME) else None
        self._walked += spent.seconds()
        if found is not None:
            in_all = self._written.look(proc, pids, self._walk.is_in_memory)
            self._judge(found._replace(written=in_all))
        return _FASTEST_LOOK

    def has_seen_all_since(self, moment: float) -> bool:
        """Whether a walk that began after that moment is complete."""
        return self._walk is None and self._seen > moment

    def pause(self, written: int = 0) -> float:
        """The pause before the next look, given the bytes written since the last complete walk."""
        return max((self._room - written) / _FASTEST_WRITING, _FASTEST_LOOK)

    def _is_due(self, is_urgent: bool) -> bool:
        """Whether to begin a walk. `is_urgent`: the file system grew, though perhaps by other users."""
        now = time.monotonic()
        return now >= self._next_walk or (is_urgent and now >= self._next_urgent_walk)

    def _judge(self, found: DiskUse) -> None:
        growth = found.growth_since(self._at_start)
        self.is_over = self.is_over or growth.is_over(self._most)
        self._last, self._walk, self._room = found, None, self._most - growth.held
        self._seen = self._walk_began
        # Walks take at most a tenth of the time, and a third while the file system grows fast.
        ended = time.monotonic()
        self._next_walk = ended + max(_SLOWEST_WALK, 10 * self._walked)
        self._next_urgent_walk = ended + 2 * self._walked
        self._walked = 0.0

    def look_at_end(self, seconds: float) -> bool:
        """Measure for the last time, when no process is left. False if time ran out: call it again to continue."""
        if not self.is_measured:  # it never started
            return True
        if self._last_walk is None:
            if self._walk is not None:
                self._walk.close()
            self._last_walk = Walk(self._paths)
        if not self._last_walk.advance(seconds):
            return False
        found = self._last_walk.result("/proc", [])._replace(written=self._last.written)
        self.is_over = self.is_over or found.growth_since(self._at_start).is_over(self._most)
        return True
