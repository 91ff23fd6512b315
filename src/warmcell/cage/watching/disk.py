"""What writable directories of the host hold, and how that grows."""

from __future__ import annotations

import errno
import os
import stat
import time

from ..linux.processes import must_be_expected
from ..records import NamedTuple
from . import usage
from .patience import Patience, TooLong
from .patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Generator, Iterator, List, Sequence, Set, Tuple


class DiskUse(NamedTuple):
    """Bytes and names below some paths, and on their file systems. Not `is_complete`: some could not be looked at."""

    held: int = 0
    entries: int = 0
    filesystem: int = 0
    filesystem_entries: int = 0
    is_complete: bool = True

    def grown_since(self, start: DiskUse) -> DiskUse:
        """What cannot be looked into still shows in how full its file system is, if less exactly."""
        held, entries = self.held - start.held, self.entries - start.entries
        if not (self.is_complete and start.is_complete):
            held = max(held, self.filesystem - start.filesystem)
            entries = max(entries, self.filesystem_entries - start.filesystem_entries)
        return DiskUse(held, entries)

    def is_over(self, most_bytes: int) -> bool:
        """As many names as a private place of that size has."""
        return self.held > most_bytes or self.entries > max(most_bytes >> 12, 16_384)


_SMALLEST_ENTRY = 512
_DEEPEST = 200
_MOST_ENTRIES = 200_000
_AT_A_TIME = 64
_LONGEST_LOOK = (0.1, 1.0)


def of_filesystems(paths: Sequence[str]) -> DiskUse:
    """All that they hold, whosever it is. Quick."""
    held = entries = 0
    for path in paths:
        try:
            status = os.statvfs(path)
        except OSError as error:
            must_be_expected(error)
            continue
        held += (status.f_blocks - status.f_bfree) * status.f_frsize
        entries += status.f_files - status.f_ffree
    return DiskUse(filesystem=held, filesystem_entries=entries)


def disk_use(paths: Sequence[str], proc: str, pids: List[int]) -> DiskUse:
    """At once, however long it takes."""
    walk = Walk(paths)
    walk.go_on(float("inf"))
    return walk.result(proc, pids)


class Walk:
    """Through names below the paths, a part at a time: whoever walks has others to look after."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._devices: Set[int] = set()
        self._held = self._entries = 0
        self._is_complete = True
        self._steps: Generator[None, None, None] = self._through_all()

    def go_on(self, seconds: float) -> bool:
        """Whether it has come to its end by then."""
        until = time.monotonic() + seconds
        return all(time.monotonic() <= until for _ in self._steps)

    def result(self, proc: str, pids: List[int], hides: bool = False) -> DiskUse:
        """With files that have no name any more, as far as processes show them; `hides`: they do not show all."""
        hidden = Nameless(self._devices)
        hidden.look(proc, pids)
        whole = of_filesystems(self._paths)
        is_complete = self._is_complete and hidden.is_complete and not hides
        return whole._replace(held=self._held + hidden.held, entries=self._entries, is_complete=is_complete)

    def close(self) -> None:
        self._steps.close()

    def _through_all(self) -> Generator[None, None, None]:
        for path in self._paths:
            try:
                root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                self._is_complete = False
                continue
            yield from self._through(root)

    def _through(self, root: int) -> Iterator[None]:
        """By descriptors, so that neither long paths nor links matter. A directory stays open while we are below it."""
        levels: List[Tuple[int, List[str]]] = [(root, [])]
        try:
            status = os.fstat(root)
            self._devices.add(status.st_dev)
            self._held += status.st_blocks * 512
            yield from self._names_in(*levels[0])
            while levels:
                directory, below = levels[-1]
                if not below or self._entries >= _MOST_ENTRIES:
                    os.close(levels.pop()[0])
                    continue
                child = self._open(below.pop(), directory, len(levels))
                if child >= 0:
                    levels.append((child, []))
                    yield from self._names_in(*levels[-1])
        finally:
            for directory, _ in levels:
                os.close(directory)

    def _open(self, name: str, parent: int, depth: int) -> int:
        try:
            if depth <= _DEEPEST:
                return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return -1  # gone meanwhile
        self._is_complete = False
        return -1

    def _names_in(self, directory: int, below: List[str]) -> Iterator[None]:
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
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


class Nameless:
    """Files without a name that processes have open or mapped, on some devices."""

    def __init__(self, devices: Set[int]) -> None:
        self._devices = devices
        self._names = {f"{os.major(device):02x}:{os.minor(device):02x}".encode() for device in devices}
        self._sizes: Dict[int, int] = {}
        self.is_complete = True

    @property
    def held(self) -> int:
        return sum(self._sizes.values())

    def look(self, proc: str, pids: List[int]) -> None:
        patience = Patience(*_LONGEST_LOOK)
        try:
            for pid in pids:
                self._look_at_open(f"{proc}/{pid}", patience)
                self._look_at_mapped(f"{proc}/{pid}", patience)
        except TooLong:
            self.is_complete = False

    def _look_at_open(self, base: str, patience: Patience) -> None:
        for thread in usage.threads(base):
            try:
                for name in os.listdir(f"{base}/task/{thread}/fd"):
                    patience.check()
                    self._add(f"{base}/task/{thread}/fd/{name}")
                return  # threads share their descriptors
            except PermissionError:
                self.is_complete = False
            except OSError as error:
                must_be_expected(error)

    def _look_at_mapped(self, base: str, patience: Patience) -> None:
        """How large one is that is only mapped, root alone can see: a page may be all that is mapped of it."""
        for lines in patience.read(f"{base}/maps"):
            for place, device, inode in _DELETED.findall(lines) if b"(deleted)" in lines else ():
                if device in self._names and int(inode) not in self._sizes:
                    try:
                        self._add(f"{base}/map_files/{place.decode()}")
                    except OSError as error:
                        must_be_expected(error)
                        self.is_complete = False

    def _add(self, path: str) -> None:
        status = os.stat(path)
        if status.st_nlink == 0 and status.st_dev in self._devices:
            self._sizes[status.st_ino] = status.st_blocks * 512


_DELETED = Pattern(rb"^(\S+) \S+ \S+ (\S+) (\d+) .* \(deleted\)$")
