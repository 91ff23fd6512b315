"""Memory and per-user quotas behind open descriptors: pipes, epoll sets and descriptors in flight."""

from __future__ import annotations

import os
import stat
import time

from ..linux import kernel_files
from ..linux.processes import must_be_expected
from ..records import NamedTuple
from .patience import Patience, Spent, next_look_after
from .patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Sequence, Set

#: Up to so many in all processes together are not looked at, unless descriptors can be in flight.
_FREE = 512
#: A pipe is taken to be full. The seccomp filter refuses to enlarge one.
_PIPE, _PIPE_PAGES, _EPOLL_ITEM = 1 << 16, 16, 256
#: Descriptors that were sent and not received. The kernel allows a user as many as one process may open.
_MOST_IN_FLIGHT = 256
_IN_FLIGHT = Pattern(rb"^scm_fds: (\d+)$")


class DescriptorUse(NamedTuple):
    """Of a tree of processes, including descriptors in flight between them."""

    memory: int = 0
    in_flight: int = 0
    pipes: int = 0
    epoll_items: int = 0

    def exceeds(self, share: DescriptorUse) -> bool:
        return self.in_flight > share.in_flight or self.pipes > share.pipes or self.epoll_items > share.epoll_items


def share_of_one_guest() -> DescriptorUse:
    """Half of what its user may have of each kind, so that one guest never uses up another's."""
    pages = int(kernel_files.read("/proc/sys/fs/pipe-user-pages-soft")) or 1 << 30
    items = int(kernel_files.read("/proc/sys/fs/epoll/max_user_watches"))
    return DescriptorUse(in_flight=_MOST_IN_FLIGHT, pipes=pages // _PIPE_PAGES // 2, epoll_items=items // 2)


def unix_sockets(network: str) -> List[int]:
    """Inodes of all in the network namespace. 0 is a connection that has not been accepted yet."""
    try:
        lines = kernel_files.read(f"{network}/unix").splitlines()[1:]
    except OSError as error:
        must_be_expected(error)
        return []
    return [int(fields[6]) for fields in (line.split(None, 7) for line in lines) if len(fields) > 6]


class DescriptorTable:
    """Looks rarely enough to cost at most a tenth of the time. In between, the last look counts."""

    def __init__(self, proc: str, network: str, has_own_network: bool) -> None:
        self._proc = proc
        self._network = network
        self._has_own_network = has_own_network
        #: As of the last look.
        self.last = DescriptorUse()
        self._next_look = 0.0

    def look(self, pids: Sequence[int], patience: Patience) -> DescriptorUse:
        if time.monotonic() >= self._next_look:
            spent = Spent()
            sockets = unix_sockets(self._network)
            is_crowded = sum(self._count(pid) for pid in pids) > _FREE
            self.last = self._look(pids, sockets, patience) if is_crowded or sockets else DescriptorUse()
            self._next_look = next_look_after(spent)
        return self.last

    def _count(self, pid: int) -> int:
        """Since Linux 6.2 the size of the directory is the number of descriptors; before, it was 0."""
        directory = f"{self._proc}/{pid}/fd"
        try:
            return os.stat(directory).st_size or len(os.listdir(directory))
        except OSError as error:
            must_be_expected(error)
            return 0

    def _look(self, pids: Sequence[int], sockets: List[int], patience: Patience) -> DescriptorUse:
        known = set(sockets)
        pipes: Set[int] = set()
        seen: Set[int] = set()
        items = in_flight = 0
        for pid in pids:
            base = f"{self._proc}/{pid}"
            for name in _names(f"{base}/fd"):
                patience.check()
                path = f"{base}/fd/{name}"
                try:
                    status = os.stat(path)
                    if stat.S_ISFIFO(status.st_mode):
                        pipes.add(status.st_ino)
                    elif stat.S_ISSOCK(status.st_mode) and status.st_ino in known and status.st_ino not in seen:
                        seen.add(status.st_ino)
                        in_flight += _count_in_flight(f"{base}/fdinfo/{name}", patience)
                    elif not stat.S_IFMT(status.st_mode) and os.readlink(path) == "anon_inode:[eventpoll]":
                        items += sum(lines.count(b"tfd:") for lines in patience.read(f"{base}/fdinfo/{name}"))
                except OSError as error:
                    must_be_expected(error)
        if self._has_own_network:  # a socket in no process's table is in flight itself, or waits to be accepted
            in_flight += sum(inode not in seen for inode in sockets)
        return DescriptorUse(len(pipes) * _PIPE + items * _EPOLL_ITEM, in_flight, len(pipes), items)


def _count_in_flight(path: str, patience: Patience) -> int:
    return sum(int(number) for lines in patience.read(path) for number in _IN_FLIGHT.findall(lines))


def _names(directory: str) -> Iterator[str]:
    try:
        yield from os.listdir(directory)
    except OSError as error:
        must_be_expected(error)
