"""Reads the resources that a tree of processes uses from /proc."""

from __future__ import annotations

import os

from ..fast_imports import lru_cache
from ..linux import kernel_files
from ..linux.processes import expected_errors
from ..records import NamedTuple
from .patience import Patience
from .patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, Iterator, List, Tuple

_TICK = os.sysconf("SC_CLK_TCK")
_CPUS = os.cpu_count() or 1
#: By how much `status` may understate the memory of a process. Since Linux 6.2 each processor keeps back so many pages
#: before it adds them to the process's, and one that moves between processors leaves as many on each.
KEPT_BACK = _CPUS * max(32, 2 * _CPUS) * os.sysconf("SC_PAGESIZE")


class CpuTime(NamedTuple):
    """Of one process, in seconds: its own, and that of children it waited for; and the pid of its parent."""

    own: float
    waited: float
    parent: int


class ProcessMemory(NamedTuple):
    """Of a tree, in bytes."""

    #: Anonymous memory, swap and page tables: by cheap counters if that is below the ceiling, else exact.
    own: int
    #: The most file and tmpfs pages that one process has mapped. `own` does not include them.
    mapped_files: int
    #: The part of `own` that is page tables and huge pages.
    tables: int = 0


def cpu_times(proc: str, pids: Iterable[int]) -> Dict[int, CpuTime]:
    found = {}
    for pid in pids:
        fields = _stat_fields(proc, pid)
        if fields:
            user, system, waited_user, waited_system = (int(field) / _TICK for field in fields[11:15])
            found[pid] = CpuTime(user + system, waited_user + waited_system, int(fields[1]))
    return found


def tasks(proc: str, pids: Iterable[int]) -> int:
    """The number of threads, including zombies, which the kernel counts too."""
    found = (_stat_fields(proc, pid) for pid in pids)
    return sum(max(1, int(fields[17])) for fields in found if fields)


def page_faults(proc: str, pid: int) -> int:
    """Those of a process and of children it waited for."""
    return sum(map(int, _stat_fields(proc, pid)[7:11]))


def is_ending(proc: str, pid: int) -> bool:
    """Whether each of its threads is exiting, a zombie or gone. Its files are closed, and it may no longer be readable.

    The first thread may end long before the others: the process is a zombie by then, and keeps its files and memory.
    """
    place = f"{proc}/{pid}"
    return all(_is_ending(_stat_fields(f"{place}/task", int(thread))) for thread in threads(place))


_PF_EXITING = 0x4


def _is_ending(fields: List[str]) -> bool:
    return not fields or fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def _stat_fields(proc: str, pid: int) -> List[str]:
    """The fields of `stat` from the state on; empty if the process is gone."""
    with expected_errors:
        return kernel_files.read(f"{proc}/{pid}/stat").rpartition(")")[2].split()
    return []


def processes_memory(proc: str, pids: List[int], ceiling: int, patience: Patience) -> ProcessMemory:
    """The size by cheap counters if that is below `ceiling`, else the exact proportional size.

    The counters include what processes share, and may lack `KEPT_BACK` of each process.
    Only anonymous memory: tmpfs files are counted on their file system, shared memory by its mapped length.
    """
    found = [_counters(proc, pid) for pid in pids]
    mapped = max((one.get("RssFile", 0) + one.get("RssShmem", 0) for one in found), default=0)
    tables = sum(process.get("VmPTE", 0) + process.get("HugetlbPages", 0) for process in found)
    quick = tables + sum(process.get("VmRSS", 0) + process.get("VmSwap", 0) for process in found)
    if quick < ceiling or tables > ceiling:  # walking huge tables would take long
        return ProcessMemory(quick, mapped, tables)
    return ProcessMemory(tables + exact_memory(proc, pids, patience), mapped, tables)


def exact_memory(proc: str, pids: Iterable[int], patience: Patience) -> int:
    """Anonymous memory, including swap, without page tables."""
    return sum(_own_share(proc, pid, patience) for pid in pids)


_COUNTERS = Pattern(r"^(VmRSS|RssFile|RssShmem|VmPTE|VmSwap|HugetlbPages):\s+(\d+) kB$")


def _counters(proc: str, pid: int) -> Dict[str, int]:
    """Counters from `status`, in bytes. A huge untouched mapping is hardly resident, but has page tables."""
    return {name: int(size) * 1024 for name, size in _COUNTERS.findall(_readable(proc, pid, "status", "VmRSS"))}


def _readable(proc: str, pid: int, name: str, wanted: str) -> str:
    """The file of the process or, if its first thread has ended and the file is empty, of another thread."""
    for place in places(f"{proc}/{pid}"):
        with expected_errors:
            text = kernel_files.read(f"{place}/{name}")
            if wanted in text:
                return text
    return ""


def places(base: str) -> Iterator[str]:
    """The /proc directories of a process and its threads: files of the first are empty if that thread has ended."""
    yield base
    for thread in threads(base):
        yield f"{base}/task/{thread}"


def read_maps(base: str, patience: Patience) -> Iterator[bytes]:
    """The mappings of a process, in pieces."""
    for place in places(base):
        is_found = False
        for lines in patience.read(f"{place}/maps"):
            is_found = True
            yield lines
        if is_found:
            return


def descriptors(base: str) -> Tuple[str, List[str]]:
    """The /proc directory that shows a process's descriptors, and their names."""
    for place in places(base):
        with expected_errors:
            names = os.listdir(f"{place}/fd")
            if names:
                return place, names
    return base, []


def threads(base: str) -> Iterator[str]:
    with expected_errors:
        yield from os.listdir(f"{base}/task")


def _own_share(proc: str, pid: int, patience: Patience) -> int:
    """Its share of anonymous memory, including swap."""
    patience.check()
    rows = [line.split() for line in _readable(proc, pid, "smaps_rollup", "Pss_Anon:").splitlines()]
    parts = {row[0]: int(row[1]) * 1024 for row in rows if row[-1] == "kB"}
    if not parts:  # unreadable: count everything resident as its own
        counters = _counters(proc, pid)
        return counters.get("VmRSS", 0) + counters.get("VmSwap", 0)
    return parts.get("Pss_Anon:", 0) + parts.get("SwapPss:", 0)


def shared_by_fork(pid: int, with_files: bool) -> int:
    """How much of a process's memory its forks share until they write to it; 0 if it is gone."""
    counters = _counters("/proc", pid)
    files = 0 if with_files else counters.get("RssFile", 0) + counters.get("RssShmem", 0)
    return max(0, counters.get("VmRSS", 0) - files)


@lru_cache(maxsize=64)
def mount_of(directory: int, device: int) -> str:
    """The line of an open directory's mount in mountinfo, or "".

    Cached, since other processes cannot mount while mountinfo is read; `device` is that of stat().
    """
    lines = kernel_files.read(f"/proc/self/fdinfo/{directory}").split("\n")
    mount = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
    mounts = kernel_files.read("/proc/self/mountinfo").split("\n")
    return next((line for line in mounts if line.startswith(f"{mount} ")), "")


# ---- memory that need not be mapped by any process ----

#: Sizes of a semaphore and of a socket in the kernel; the number of unix sockets whose queues do not count.
_SEMAPHORE, SOCKET, _FREE_SOCKETS = 64, 4096, 64
#: What the kernel needs for a message besides its text, which may be empty, and the rounding of both together.
_MESSAGE = 128
#: The queue of a unix socket if net.core.wmem_default cannot be read.
_USUAL_SEND_BUFFER = 212_992

#: TCP states in which the queue columns are bytes: established and closing; and datagram sockets.
_CARRYING = {"01", "04", "05", "07", "08", "09", "0B"}

#: The kernel memory of a tmpfs file besides its blocks.
_TMPFS_INODE = 1024


def tmpfs_use(directory: int) -> int:
    """Bytes used on the tmpfs of an open directory."""
    status = os.fstatvfs(directory)
    return (status.f_blocks - status.f_bfree) * status.f_frsize + (status.f_files - status.f_ffree) * _TMPFS_INODE


def system_v_objects() -> int:
    """Bytes of System V objects in the caller's ipc namespace."""
    total = _column("/proc/sysvipc/shm", 14) + _column("/proc/sysvipc/shm", 15) + _column("/proc/sysvipc/msg", 3)
    total += _column("/proc/sysvipc/msg", 4) * _MESSAGE
    return total + _column("/proc/sysvipc/sem", 3) * _SEMAPHORE


def socket_buffers(net: str) -> int:
    """Bytes in socket queues. Unix sockets do not report theirs, so beyond the first few each counts as full.

    The seccomp filter ignores SO_SNDBUF, so a full one has net.core.wmem_default. sockstat shows which tables are
    empty: reading all of them takes longer than everything else.
    """
    rows = [line.split() for name in ("sockstat", "sockstat6") for line in _text_lines(f"{net}/{name}")]
    used = {row[0] + row[1]: int(row[2]) for row in rows if len(row) > 2}
    total = used.get("sockets:used", 0) * SOCKET
    if used.get("sockets:used", _FREE_SOCKETS + 1) > _FREE_SOCKETS:
        total += unix_queues(len(_lines(f"{net}/unix")))
    tables = [("tcp", used.get("TCP:inuse", 1)), ("udp", used.get("UDP:inuse", 1))]
    tables += [("tcp6", used.get("TCP6:inuse", 1)), ("udp6", used.get("UDP6:inuse", 1))]
    names = [name for name, count in [("netlink", used.get("sockets:used", 1)), *tables] if count]
    return total + sum(queue.size for queue in socket_queues(net, names))


def unix_queues(sockets: int) -> int:
    """Bytes in the queues of so many unix sockets, as `socket_buffers` counts them."""
    return max(0, sockets - _FREE_SOCKETS) * _send_buffer()


class SocketQueue(NamedTuple):
    """The bytes queued in one socket. Addresses are in the format of /proc; inode 0: no process has it open."""

    inode: int
    size: int
    local: str = ""
    remote: str = ""

    @property
    def port(self) -> str:
        return self.local.rpartition(":")[2]


def socket_queues(net: str, names: Iterable[str]) -> Iterator[SocketQueue]:
    """The queues of the sockets in these tables of a network."""
    for name in names:
        for fields in map(str.split, _lines(f"{net}/{name}")):
            if name == "netlink":
                yield SocketQueue(int(fields[9]), int(fields[4]))
                continue
            sent, _, received = fields[4].partition(":")
            size = int(sent, 16) + int(received, 16) if fields[3] in _CARRYING else 0
            yield SocketQueue(int(fields[9]), size, *fields[1:3])


def _send_buffer() -> int:
    with expected_errors:
        return int(kernel_files.read("/proc/sys/net/core/wmem_default"))
    return _USUAL_SEND_BUFFER


def _text_lines(path: str) -> List[str]:
    with expected_errors, open(path, errors="replace") as file:  # names of sockets may be any bytes
        return file.readlines()
    return []


def _lines(path: str) -> List[str]:
    """The lines without the heading."""
    return _text_lines(path)[1:]


def _column(path: str, index: int) -> int:
    return sum(int(line.split()[index]) for line in _lines(path))
