"""What a tree of processes uses, read from the kernel's files about it."""

from __future__ import annotations

import os
import stat
from typing import Dict, Iterable, Iterator, List, NamedTuple, Set, Tuple

from ..linux import kernel_files
from ..linux.processes import must_be_expected

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


class CpuTime(NamedTuple):
    """Of one process, in seconds: its own, that of children it waited for, and whose child it is."""

    own: float
    waited: float
    parent: int


def cpu_times(proc: str, pids: Iterable[int]) -> Dict[int, CpuTime]:
    found = {}
    for pid in pids:
        try:
            fields = kernel_files.read(f"{proc}/{pid}/stat").rpartition(")")[2].split()
        except OSError as error:
            must_be_expected(error)
            continue
        user, system, waited_user, waited_system = (int(field) / _TICK for field in fields[11:15])
        found[pid] = CpuTime(user + system, waited_user + waited_system, int(fields[1]))
    return found


def tasks(proc: str, pids: Iterable[int]) -> int:
    """Processes and threads, those that have ended and wait to be reaped among them: the kernel counts them too."""
    total = 0
    for pid in pids:
        try:
            fields = kernel_files.read(f"{proc}/{pid}/stat").rpartition(")")[2].split()
        except OSError as error:
            must_be_expected(error)
            continue
        total += max(1, int(fields[17]))
    return total


def processes_memory(proc: str, pids: List[int], ceiling: int) -> int:
    """An upper bound from cheap counters while that is below `ceiling`; the exact proportional figure above it."""
    tables = sum(_page_tables(proc, pid) for pid in pids)
    quick = tables + sum(_resident(proc, pid) for pid in pids)
    if quick < ceiling or tables > ceiling:  # where tables alone are too much, walking them would take long
        return quick
    return tables + sum(_own_share(proc, pid) for pid in pids)


def _readable(proc: str, pid: int, name: str) -> str:
    """Of the process or, when its first thread has ended and so shows nothing, of any thread that has not."""
    base = f"{proc}/{pid}"
    for path in (f"{base}/{name}", *(f"{base}/task/{thread}/{name}" for thread in _threads(base))):
        try:
            with open(path) as file:
                text = file.read()
        except OSError as error:
            must_be_expected(error)
            continue
        if text and not text.startswith("0 "):
            return text
    return ""


def _threads(base: str) -> Iterator[str]:
    try:
        yield from os.listdir(f"{base}/task")
    except OSError as error:
        must_be_expected(error)


def _resident(proc: str, pid: int) -> int:
    fields = _readable(proc, pid, "statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _page_tables(proc: str, pid: int) -> int:
    """A huge mapping of nothing has next to nothing resident, but the tables that describe it are real."""
    for line in _readable(proc, pid, "status").splitlines():
        if line.startswith("VmPTE:"):
            return int(line.split()[1]) * 1024
    return 0


def _own_share(proc: str, pid: int) -> int:
    """Its part of anonymous memory, shared anonymous mappings included; tmpfs files are counted where they live."""
    rows = [line.split() for line in _readable(proc, pid, "smaps_rollup").splitlines()]
    parts = {row[0]: int(row[1]) * 1024 for row in rows if row[-1] == "kB"}
    if not parts:
        return _resident(proc, pid)  # it made itself unreadable: all that it has is taken to be its own
    shared = _shared_anonymous(proc, pid) if parts.get("Pss_Shmem:") else 0
    return parts.get("Pss_Anon:", 0) + shared


def _shared_anonymous(proc: str, pid: int) -> int:
    total, is_counted = 0, False
    for line in _readable(proc, pid, "smaps").splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_counted = line.endswith("/dev/zero (deleted)")
        elif is_counted and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total


# ---- memory that no process need have mapped ----

#: The kernel's size of one semaphore, and what a unix socket may hold unread; a program's first few are free.
_SEMAPHORE, _UNIX_BUFFER, _FREE_SOCKETS = 64, 212_992, 64

#: States in which the queue columns are bytes: established, closing in one way or another, and datagrams.
_CARRYING = {"01", "04", "05", "07", "08", "09", "0B"}


def filled(directory: int) -> int:
    """How much the file system that a descriptor is on holds."""
    status = os.fstatvfs(directory)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def system_v_objects() -> int:
    """Of the ipc namespace that the caller is in."""
    total = _column("/proc/sysvipc/shm", 14) + _column("/proc/sysvipc/msg", 3)
    return total + _column("/proc/sysvipc/sem", 3) * _SEMAPHORE


def socket_buffers(net: str) -> int:
    """TCP and UDP queues as they are; unix sockets show none, so many of them are taken to be full.

    The kernel's summary tells which of the tables have anything in them: reading them all takes longer than the rest.
    """
    rows = [line.split() for name in ("sockstat", "sockstat6") for line in _text(f"{net}/{name}")]
    used = {row[0] + row[1]: int(row[2]) for row in rows if len(row) > 2}
    total = 0
    if used.get("sockets:used", _FREE_SOCKETS + 1) > _FREE_SOCKETS:
        total += max(0, len(_lines(f"{net}/unix")) - _FREE_SOCKETS) * _UNIX_BUFFER
    tables = [("tcp", used.get("TCP:inuse", 1)), ("udp", used.get("UDP:inuse", 1))]
    tables += [("tcp6", used.get("TCP6:inuse", 1)), ("udp6", used.get("UDP6:inuse", 1))]
    for name, count in tables:
        for line in _lines(f"{net}/{name}") if count else ():
            fields = line.split()
            if fields[3] in _CARRYING:
                sent, _, received = fields[4].partition(":")
                total += int(sent, 16) + int(received, 16)
    return total


def _text(path: str) -> List[str]:
    try:
        with open(path) as file:
            return file.readlines()
    except OSError as error:
        must_be_expected(error)
        return []


def _lines(path: str) -> List[str]:
    """Without the heading."""
    return _text(path)[1:]


def _column(path: str, index: int) -> int:
    return sum(int(line.split()[index]) for line in _lines(path))


# ---- disk ----


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
        filesystem += filled(root)
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
        for thread in _threads(f"{proc}/{pid}"):
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
    for line in _text(f"{proc}/{pid}/maps"):
        if line.endswith(" (deleted)\n"):
            place, _, offset, device, inode, _ = line.split(None, 5)
            if device in names:
                start, end = (int(number, 16) for number in place.split("-"))
                yield int(inode), int(offset, 16) + end - start
