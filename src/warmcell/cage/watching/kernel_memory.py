"""Measures kernel memory of a tree, and its share of per-user limits: descriptors, mappings and locks."""

from __future__ import annotations

import bisect
import os
import stat
import time

from ..linux import kernel_files
from ..linux.processes import expected_errors
from ..linux.seccomp_rules import SMALL_SHARED_MEMORY
from ..records import NamedTuple
from . import usage
from .patience import Patience, Spent, TooLong, next_look_after
from .patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Sequence, Set, Tuple

#: Every pipe counts as full. The seccomp filter refuses to enlarge one.
_PIPE_PAGES, _EPOLL_ITEM = 16, 256
#: An open file of /proc buffers the text that was read: a page or less, or a line for each item of an epoll set.
_PROC_PAGES, _LINE = 2, 256
#: Descriptors that were sent and not received. The kernel allows a user as many as one process may open.
_MOST_IN_FLIGHT = 256
_TABLES = ("tcp", "tcp6", "udp", "udp6", "icmp", "icmp6", "netlink")
_IN_FLIGHT = Pattern(rb"^scm_fds: (\d+)$")


class DescriptorUse(NamedTuple):
    """The use of a tree of processes, including descriptors in flight between them."""

    memory: int = 0
    in_flight: int = 0
    pipes: int = 0
    epoll_items: int = 0

    def exceeds(self, share: DescriptorUse) -> bool:
        return self.in_flight > share.in_flight or self.pipes > share.pipes or self.epoll_items > share.epoll_items


def share_of_one_guest() -> DescriptorUse:
    """Half of the user's limit of each kind, so that one guest leaves enough for others."""
    pages = int(kernel_files.read("/proc/sys/fs/pipe-user-pages-soft")) or 1 << 30
    items = int(kernel_files.read("/proc/sys/fs/epoll/max_user_watches"))
    return DescriptorUse(in_flight=_MOST_IN_FLIGHT, pipes=pages // _PIPE_PAGES // 2, epoll_items=items // 2)


def unix_sockets(network: str) -> List[int]:
    """The inodes of all unix sockets in the network namespace. 0: a connection that has not been accepted yet."""
    with expected_errors:
        lines = kernel_files.read(f"{network}/unix").splitlines()[1:]
        rows = (line.split(None, 7) for line in lines)
        # A name is shown as it is: one with a line break makes a line of its own.
        return [int(row[6]) for row in rows if len(row) > 6 and row[6].isdecimal()]
    return []


class DescriptorTable:
    """Pipes, epoll sets, files of /proc, descriptors in flight, and socket queues in a network shared with the host.

    Measures at most a tenth of the time; in between, the last result counts.
    """

    def __init__(self, proc: str, network: str, has_own_network: bool) -> None:
        self._proc, self._network, self._has_own_network = proc, network, has_own_network
        #: 4 kB, or up to 64 kB on aarch64.
        self._page = os.sysconf("SC_PAGESIZE")
        #: The last result.
        self.last = DescriptorUse()
        self._next_look = 0.0
        self._most_items = 0

    def look(self, pids: Sequence[int], patience: Patience) -> DescriptorUse:
        if time.monotonic() >= self._next_look:
            spent = Spent()
            self.last = self._look(pids, unix_sockets(self._network), patience)
            self._next_look = next_look_after(spent)
        return self.last

    def _look(self, pids: Sequence[int], sockets: List[int], patience: Patience) -> DescriptorUse:
        known = set(sockets)
        pipes: Set[int] = set()
        seen: Set[int] = set()
        others: Set[int] = set()
        items = in_flight = files = item_lists = 0
        device = os.stat(self._proc).st_dev
        for pid in pids:
            base, names = usage.descriptors(f"{self._proc}/{pid}")
            for name in names:
                patience.check()
                path = f"{base}/fd/{name}"
                with expected_errors:
                    status = os.stat(path)
                    if stat.S_ISFIFO(status.st_mode):
                        pipes.add(status.st_ino)
                    elif stat.S_ISSOCK(status.st_mode) and status.st_ino in known and status.st_ino not in seen:
                        seen.add(status.st_ino)
                        for lines in patience.read(f"{base}/fdinfo/{name}"):
                            in_flight += sum(map(int, _IN_FLIGHT.findall(lines)))
                    elif stat.S_ISSOCK(status.st_mode):
                        others.add(status.st_ino)
                    elif stat.S_ISREG(status.st_mode) and status.st_dev == device:
                        files += 1
                        item_lists += "/fdinfo/" in os.readlink(path)
                    elif not stat.S_IFMT(status.st_mode) and os.readlink(path) == "anon_inode:[eventpoll]":
                        items += sum(lines.count(b"tfd:") for lines in patience.read(f"{base}/fdinfo/{name}"))
        self._most_items = max(self._most_items, items)
        memory = (len(pipes) * _PIPE_PAGES + files * _PROC_PAGES) * self._page
        memory += items * _EPOLL_ITEM + item_lists * self._most_items * _LINE
        if self._has_own_network:  # a socket that no process has open is in flight, or waits to be accepted
            in_flight += sum(inode not in seen for inode in sockets)
        else:  # otherwise `usage.socket_buffers` counts them
            memory += len(seen | others) * usage.SOCKET + usage.unix_queues(len(seen))
            memory += self._sum_queues(others, patience)
        return DescriptorUse(memory, in_flight, len(pipes), items)

    def _sum_queues(self, sockets: Set[int], patience: Patience) -> int:
        """Socket queues in a network shared with the host, whose long tables do not count against the guest's patience.

        Connections that were closed or not accepted have no process: those of the guest's ports count as its own.
        """
        processor, clock = time.process_time(), time.monotonic()
        found = list(usage.socket_queues(self._network, _TABLES)) if sockets else []
        own = [queue for queue in found if queue.inode in sockets]
        places = {queue.local for queue in own}
        ports = {queue.port for queue in own if queue.local}
        lost = [queue for queue in found if not queue.inode and (queue.port in ports or queue.remote in places)]
        patience.extend(time.process_time() - processor, time.monotonic() - clock)
        return sum(queue.size for queue in own + lost)


#: The kernel memory of one touched mapping.
_MAPPING = 400
_MOST_LENGTHS = 4096
#: The longest expected delay between a request and its mapping.
_NOTED_SECONDS = 0.25
_SHARED_MEMORY = Pattern(rb"^(\w+)-(\w+) \S+ (\w+) (\S+ \d+) +/dev/zero \(deleted\)$")


class Mappings:
    """The number of mappings, and shared anonymous memory, which need not be resident in any process.

    Measures at most a tenth of the time; in between, the last result counts.

    A segment of shared anonymous memory lives as long as any page of it is mapped anywhere, and the kernel does not
    show its size: touched pages remain when they are unmapped (MADV_DONTNEED, munmap of all but one). So every living
    segment counts with its requested length. Which requests are alive is unknown, so the longest count; a segment
    counts at least as much as was seen mapped, since a request long before its mapping may be forgotten.

    A process hides its mappings if its program may be executed and not read. Then all requests count.
    """

    def __init__(self) -> None:
        self._lengths: List[int] = []
        #: The sum of those that were too many.
        self._dropped = 0
        self._noted = 0.0
        #: Living segments, with the most of each that was seen mapped.
        self._sizes: Dict[bytes, int] = {}
        self._is_hidden = False
        self._count = 0
        self._next_look = 0.0

    def note_shared_memory(self, length: int) -> None:
        """Shared anonymous memory of this length is about to be mapped."""
        bisect.insort(self._lengths, length)
        if len(self._lengths) > _MOST_LENGTHS:
            self._dropped += self._lengths.pop(0)
        self._noted = time.monotonic()
        self._next_look = 0.0

    def memory(self, proc: str, pids: Sequence[int], patience: Patience) -> int:
        """Bytes of shared anonymous memory, and the kernel's memory for all mappings."""
        if time.monotonic() >= self._next_look:
            spent = Spent()
            self._look(proc, pids, patience)
            self._next_look = next_look_after(spent)
        return self._shared_memory() + self._count * _MAPPING

    def _shared_memory(self) -> int:
        sizes = sorted(self._sizes.values(), reverse=True)
        lengths = self._lengths[: -len(sizes) - 1 : -1] + [SMALL_SHARED_MEMORY] * len(sizes)
        seen = sum(map(max, sizes, lengths))
        return max(seen, self._dropped + sum(self._lengths)) if self._is_hidden else seen

    def _look(self, proc: str, pids: Sequence[int], patience: Patience) -> None:
        count = 0
        sizes: Dict[bytes, int] = {}
        is_hidden = False
        for pid in pids:
            before = count
            for lines in usage.read_maps(f"{proc}/{pid}", patience):
                count += lines.count(b"\n")
                if b"/dev/zero" in lines:
                    self._note_sizes(sizes, lines)
            is_hidden = is_hidden or (count == before and not usage.is_ending(proc, pid))
        is_in_use = sizes or self._sizes or is_hidden
        if not is_in_use and time.monotonic() - self._noted > _NOTED_SECONDS:
            self._lengths.clear()
            self._dropped = 0
        self._count, self._sizes, self._is_hidden = count, sizes, is_hidden

    def _note_sizes(self, sizes: Dict[bytes, int], lines: bytes) -> None:
        for start, end, offset, segment in _SHARED_MEMORY.findall(lines):
            size = int(offset, 16) + int(end, 16) - int(start, 16)
            sizes[segment] = max(size, sizes.get(segment, 0), self._sizes.get(segment, 0))


_LOCK = 256
#: Up to this number on the whole host are not counted.
_FREE_LOCKS = 4096
#: The longest reading of the table, in processor time and in wall time. If it takes longer, a guest with so many locks
#: in the part that was read is too large to measure.
_LONGEST_READING, _MANY_LOCKS = (0.1, 0.5), 1024
_OWNER_AND_DEVICE = Pattern(rb" (-?\d+) ([0-9a-f]+:[0-9a-f]+):\d+ ")


class LockTable:
    """All visible locks, by owner and device. One for all cells: the kernel lists the locks of every guest, so
    reading them must take no guest's time. A table that takes too long is read in part.
    """

    def __init__(self) -> None:
        self._found: Dict[Tuple[bytes, bytes], int] = {}
        self.is_complete = True
        self._next_look = 0.0

    def look(self) -> Dict[Tuple[bytes, bytes], int]:
        if time.monotonic() < self._next_look:
            return self._found
        spent, patience = Spent(), Patience(*_LONGEST_READING)
        was_complete = self.is_complete
        self._found, self.is_complete = {}, True
        try:
            for lines in patience.read("/proc/locks"):
                for lock in _OWNER_AND_DEVICE.findall(lines):
                    self._found[lock] = self._found.get(lock, 0) + 1
        except TooLong:
            self.is_complete = False
        self._next_look = next_look_after(spent)
        if was_complete and not self.is_complete:
            self._next_look = 0.0  # a single long reading may be a stall of the host: the next look reads again
        return self._found


_table = LockTable()


class Locks:
    """File locks: the kernel allows any number of locked ranges and does not account their memory.

    Counts those of the pids that `is_ours` accepts, and all on `device`: some locks have no owner.
    """

    def __init__(self, is_ours: Callable[[int, List[int]], bool], device: int = 0) -> None:
        self._is_ours = is_ours
        self._device = b"%02x:%02x" % (os.major(device), os.minor(device)) if device else b""
        self._memory = 0
        self._next_look = 0.0

    def memory(self, pids: List[int], patience: Patience) -> int:
        if time.monotonic() >= self._next_look:
            spent = Spent()
            self._memory = self._look(pids, patience)
            self._next_look = next_look_after(spent)
        return self._memory

    def _look(self, pids: List[int], patience: Patience) -> int:
        processor, clock = time.process_time(), time.monotonic()
        found = _table.look()
        patience.extend(time.process_time() - processor, time.monotonic() - clock)
        if sum(found.values()) <= _FREE_LOCKS:
            return 0
        owners = {pid for pid, _ in found}
        ours = {pid for pid in owners if int(pid) > 0 and self._is_ours(int(pid), pids)}
        held = sum(number for (pid, where), number in found.items() if pid in ours or where == self._device)
        if held > _MANY_LOCKS and not _table.is_complete:
            raise TooLong
        return _LOCK * held
