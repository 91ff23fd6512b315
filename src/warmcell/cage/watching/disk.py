"""What writable directories of the host hold, and how that grows."""

from __future__ import annotations

import os
import stat
from typing import Dict, Iterable, Iterator, List, NamedTuple, Set, Tuple

from ..linux.processes import must_be_expected
from . import usage


class DiskUse(NamedTuple):
    """What writable host directories hold. Not `is_complete`: parts could not be looked at."""

    held: int
    filesystem: int
    is_complete: bool


_SMALLEST_ENTRY = 512
_DEEPEST = 200
_MOST_ENTRIES = 200_000


def disk_use(paths: Iterable[str], proc: str, pids: List[int]) -> DiskUse:
    """Names below the paths, and files of those file systems that are in use but have no name any more."""
    held, left, devices = 0, _MOST_ENTRIES, set()
    is_complete, filesystem = True, 0
    for path in paths:
        try:
            root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            is_complete = False
            continue
        devices.add(os.fstat(root).st_dev)
        filesystem += _filled(root)
        size, left, is_whole = _walk(root, left, 0)
        held += size
        is_complete = is_complete and is_whole
    return DiskUse(held + _nameless(proc, pids, devices), filesystem, is_complete)


def _walk(directory: int, left: int, depth: int) -> Tuple[int, int, bool]:
    """By descriptors, so that neither long paths nor links matter. Closes `directory`."""
    total, is_complete, below = 0, True, []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                left -= 1
                status = entry.stat(follow_symlinks=False)
                total += max(status.st_blocks * 512, _SMALLEST_ENTRY)
                if stat.S_ISDIR(status.st_mode):
                    below.append(entry.name)
                if left <= 0:
                    return total, left, False
        for name in below:
            if depth >= _DEEPEST:
                return total, left, False
            try:
                child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            except OSError:
                is_complete = False
                continue
            size, left, is_whole = _walk(child, left, depth + 1)
            total += size
            is_complete = is_complete and is_whole
        return total, left, is_complete
    except OSError as error:
        must_be_expected(error)
        return total, left, False
    finally:
        os.close(directory)


def _nameless(proc: str, pids: List[int], devices: Set[int]) -> int:
    """Open files by their size; files that are only mapped any more by what is mapped of them."""
    sizes: Dict[int, int] = {}
    for pid in pids:
        for thread in usage.threads(f"{proc}/{pid}"):
            base = f"{proc}/{pid}/task/{thread}/fd"
            try:
                for name in os.listdir(base):
                    status = os.stat(f"{base}/{name}")
                    if status.st_nlink == 0 and status.st_dev in devices:
                        sizes[status.st_ino] = status.st_blocks * 512
            except OSError as error:
                must_be_expected(error)
                continue
            break  # threads share their descriptors
        for inode, size in _mapped_nameless(proc, pid, devices):
            sizes[inode] = max(sizes.get(inode, 0), size)
    return sum(sizes.values())


def _mapped_nameless(proc: str, pid: int, devices: Set[int]) -> Iterator[Tuple[int, int]]:
    names = {f"{os.major(device):02x}:{os.minor(device):02x}" for device in devices}
    for line in usage.text_lines(f"{proc}/{pid}/maps"):
        if line.endswith(" (deleted)\n"):
            place, _, offset, device, inode, _ = line.split(None, 5)
            if device in names:
                start, end = (int(number, 16) for number in place.split("-"))
                yield int(inode), int(offset, 16) + end - start


def _filled(directory: int) -> int:
    status = os.fstatvfs(directory)
    return (status.f_blocks - status.f_bfree) * status.f_frsize
