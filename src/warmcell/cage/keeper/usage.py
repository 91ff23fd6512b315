"""What the whole tree uses, read from the /proc that the keeper sees: every process in it belongs to the run."""

from __future__ import annotations

import os
import stat
from typing import Dict, Iterable, Iterator, List, NamedTuple, Set, Tuple

from ..linux import kernel_files
from ..linux.processes import must_be_expected

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: List[int]) -> float:
    total = 0
    for pid in pids:
        try:
            fields = kernel_files.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        except OSError as error:
            must_be_expected(error)
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / _TICK


def tasks(pids: List[int]) -> int:
    """Processes and threads, those that have ended and wait to be reaped among them: the kernel counts them too."""
    total = 0
    for pid in pids:
        try:
            fields = kernel_files.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        except OSError as error:
            must_be_expected(error)
            continue
        total += max(1, int(fields[17]))
    return total


def memory_bytes(pids: List[int], scratch: str, ceiling: int) -> int:
    """An upper bound from cheap counters while that is below `ceiling`; the exact proportional figure above it."""
    stores = _stores(scratch)
    stores += sum(_page_tables(pid) for pid in pids)
    quick = stores + sum(_resident(pid) for pid in pids)
    return quick if quick < ceiling else stores + sum(_own_share(pid) for pid in pids)


def _readable(pid: int, name: str) -> str:
    """Of the process or, when its first thread has ended and so shows nothing, of any thread that has not."""
    for path in (f"/proc/{pid}/{name}", *(f"/proc/{pid}/task/{thread}/{name}" for thread in _threads(pid))):
        try:
            with open(path) as file:
                text = file.read()
        except OSError as error:
            must_be_expected(error)
            continue
        if text and not text.startswith("0 "):
            return text
    return ""


def _threads(pid: int) -> Iterator[str]:
    try:
        yield from os.listdir(f"/proc/{pid}/task")
    except OSError as error:
        must_be_expected(error)


def _resident(pid: int) -> int:
    fields = _readable(pid, "statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _page_tables(pid: int) -> int:
    """A huge mapping of nothing has next to nothing resident, but the tables that describe it are real."""
    for line in _readable(pid, "status").splitlines():
        if line.startswith("VmPTE:"):
            return int(line.split()[1]) * 1024
    return 0


def _own_share(pid: int) -> int:
    """Its part of anonymous memory, shared anonymous mappings included; tmpfs files are counted where they live."""
    rows = [line.split() for line in _readable(pid, "smaps_rollup").splitlines()]
    parts = {row[0]: int(row[1]) * 1024 for row in rows if row[-1] == "kB"}
    if not parts:
        return _resident(pid)  # it made itself unreadable: all that it has is taken to be its own
    shared = _shared_anonymous(pid) if parts.get("Pss_Shmem:") else 0
    return parts.get("Pss_Anon:", 0) + shared


def _shared_anonymous(pid: int) -> int:
    total, is_counted = 0, False
    for line in _readable(pid, "smaps").splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_counted = line.endswith("/dev/zero (deleted)")
        elif is_counted and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total


def _stores(scratch: str) -> int:
    """Memory that no process need have mapped: the scratch tmpfs, System V objects, what sockets hold."""
    if not scratch:
        return 0  # without namespaces all of this is the host's
    status = os.statvfs(scratch)
    total = (status.f_blocks - status.f_bfree) * status.f_frsize
    total += _column("/proc/sysvipc/shm", 14) + _column("/proc/sysvipc/msg", 3)
    total += _column("/proc/sysvipc/sem", 3) * _SEMAPHORE
    return total + _socket_buffers()


#: The kernel's size of one semaphore, and what a unix socket may hold unread; a program's first few are free.
_SEMAPHORE, _UNIX_BUFFER, _FREE_SOCKETS = 64, 212_992, 64


#: States in which the queue columns are bytes: established, closing in one way or another, and datagrams.
_CARRYING = {"01", "04", "05", "07", "08", "09", "0B"}


def _socket_buffers() -> int:
    """TCP and UDP queues as they are; unix sockets show none, so many of them are taken to be full."""
    total = max(0, len(_lines("/proc/net/unix")) - _FREE_SOCKETS) * _UNIX_BUFFER
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in _lines(f"/proc/net/{name}"):
            fields = line.split()
            if fields[3] in _CARRYING:
                sent, _, received = fields[4].partition(":")
                total += int(sent, 16) + int(received, 16)
    return total


def _lines(path: str) -> List[str]:
    """Without the heading."""
    try:
        with open(path) as file:
            return file.readlines()[1:]
    except OSError as error:
        must_be_expected(error)
        return []


def _column(path: str, index: int) -> int:
    return sum(int(line.split()[index]) for line in _lines(path))


class DiskUse(NamedTuple):
    """What writable host directories hold. Not `is_complete`: parts could not be looked at."""

    held: int
    filesystem: int
    is_complete: bool


_SMALLEST_ENTRY = 512
_DEEPEST = 200
_MOST_ENTRIES = 200_000


def disk_use(paths: Iterable[str], pids: List[int]) -> DiskUse:
    """Names below the paths, and files of those file systems that are open but have no name any more."""
    held, left, devices = 0, _MOST_ENTRIES, set()
    is_complete, filesystem = True, 0
    for path in paths:
        try:
            root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            is_complete = False
            continue
        devices.add(os.fstat(root).st_dev)
        status = os.statvfs(root)
        filesystem += (status.f_blocks - status.f_bfree) * status.f_frsize
        size, left, is_whole = _walk(root, left, 0)
        held += size
        is_complete = is_complete and is_whole
    return DiskUse(held + _nameless(pids, devices), filesystem, is_complete)


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


def _nameless(pids: List[int], devices: Set[int]) -> int:
    sizes: Dict[int, int] = {}
    for pid in pids:
        for thread in _threads(pid):
            base = f"/proc/{pid}/task/{thread}/fd"
            try:
                for name in os.listdir(base):
                    status = os.stat(f"{base}/{name}")
                    if status.st_nlink == 0 and status.st_dev in devices:
                        sizes[status.st_ino] = status.st_blocks * 512
            except OSError as error:
                must_be_expected(error)
                continue
            break  # threads share their descriptors
    return sum(sizes.values())
