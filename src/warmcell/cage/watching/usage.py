"""What a tree of processes uses, read from the kernel's files about it."""

from __future__ import annotations

import os

from ..linux import kernel_files
from ..linux.processes import must_be_expected
from ..records import NamedTuple
from .patience import Patience
from .patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, Iterator, List

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


def processes_memory(proc: str, pids: List[int], ceiling: int, patience: Patience) -> int:
    """An upper bound from cheap counters while that is below `ceiling`; the exact proportional figure above it.

    Of anonymous memory alone: files of tmpfs are counted where they live, shared memory by what was asked for.
    """
    found = [_counters(proc, pid) for pid in pids]
    tables = sum(process.get("VmPTE", 0) + process.get("HugetlbPages", 0) for process in found)
    quick = tables + sum(process.get("VmRSS", 0) + process.get("VmSwap", 0) for process in found)
    if quick < ceiling or tables > ceiling:  # where tables alone are too much, walking them would take long
        return quick
    return tables + sum(_own_share(proc, pid, patience) for pid in pids)


_COUNTERS = Pattern(r"^(VmRSS|VmPTE|VmSwap|HugetlbPages):\s+(\d+) kB$")


def _counters(proc: str, pid: int) -> Dict[str, int]:
    """A huge mapping of nothing has next to nothing resident, but the tables that describe it are real."""
    return {name: int(size) * 1024 for name, size in _COUNTERS.findall(_readable(proc, pid, "status", "VmRSS"))}


def _readable(proc: str, pid: int, name: str, wanted: str) -> str:
    """Of the process or, when its first thread has ended and so shows nothing, of any thread that has not."""
    base = f"{proc}/{pid}"
    try:
        text = kernel_files.read(f"{base}/{name}")
        if wanted in text:
            return text
    except OSError as error:
        must_be_expected(error)
    for thread in threads(base):
        try:
            text = kernel_files.read(f"{base}/task/{thread}/{name}")
        except OSError as error:
            must_be_expected(error)
            continue
        if wanted in text:
            return text
    return ""


def threads(base: str) -> Iterator[str]:
    try:
        yield from os.listdir(f"{base}/task")
    except OSError as error:
        must_be_expected(error)


def _own_share(proc: str, pid: int, patience: Patience) -> int:
    """Its part of anonymous memory, what was swapped out included."""
    patience.check()
    rows = [line.split() for line in _readable(proc, pid, "smaps_rollup", "Pss_Anon:").splitlines()]
    parts = {row[0]: int(row[1]) * 1024 for row in rows if row[-1] == "kB"}
    if not parts:  # it made itself unreadable: all that it has is taken to be its own
        counters = _counters(proc, pid)
        return counters.get("VmRSS", 0) + counters.get("VmSwap", 0)
    return parts.get("Pss_Anon:", 0) + parts.get("SwapPss:", 0)


# ---- memory that no process need have mapped ----

#: The kernel's size of one semaphore, and what a unix socket may hold unread; a program's first few are free.
_SEMAPHORE, _UNIX_BUFFER, _FREE_SOCKETS = 64, 212_992, 64

#: States in which the queue columns are bytes: established, closing in one way or another, and datagrams.
_CARRYING = {"01", "04", "05", "07", "08", "09", "0B"}


#: What the kernel keeps about a file of a tmpfs, beside its blocks.
_TMPFS_INODE = 1024


def filled(directory: int) -> int:
    """How much the tmpfs that a descriptor is on holds."""
    status = os.fstatvfs(directory)
    return (status.f_blocks - status.f_bfree) * status.f_frsize + (status.f_files - status.f_ffree) * _TMPFS_INODE


def system_v_objects() -> int:
    """Of the ipc namespace that the caller is in."""
    total = _column("/proc/sysvipc/shm", 14) + _column("/proc/sysvipc/shm", 15) + _column("/proc/sysvipc/msg", 3)
    return total + _column("/proc/sysvipc/sem", 3) * _SEMAPHORE


def socket_buffers(net: str) -> int:
    """TCP and UDP queues as they are; unix sockets show none, so many of them are taken to be full.

    The kernel's summary tells which of the tables have anything in them: reading them all takes longer than the rest.
    """
    rows = [line.split() for name in ("sockstat", "sockstat6") for line in text_lines(f"{net}/{name}")]
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


def text_lines(path: str) -> List[str]:
    try:
        with open(path) as file:
            return file.readlines()
    except OSError as error:
        must_be_expected(error)
        return []


def _lines(path: str) -> List[str]:
    """Without the heading."""
    return text_lines(path)[1:]


def _column(path: str, index: int) -> int:
    return sum(int(line.split()[index]) for line in _lines(path))
