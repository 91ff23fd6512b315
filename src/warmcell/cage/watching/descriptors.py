"""What is behind descriptors: memory on nobody's account, and quotas that a guest shares with others of its user."""

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

#: As many in all processes together are not looked at, where none of them can pass on others.
_FREE = 512
#: A pipe is taken to be full; one larger than this the filter refuses.
_PIPE, _PIPE_PAGES, _EPOLL_ITEM = 1 << 16, 16, 256
#: Descriptors that were sent and not received. The kernel lets a user have as many as one process may open.
_MOST_IN_FLIGHT = 256
_IN_FLIGHT = Pattern(rb"^scm_fds: (\d+)$")


class Held(NamedTuple):
    """By the descriptors of a tree of processes, those in flight between them included."""

    memory: int = 0
    in_flight: int = 0
    pipes: int = 0
    watched: int = 0

    def is_more_than_its_share(self, shares: Held) -> bool:
        return self.in_flight > shares.in_flight or self.pipes > shares.pipes or self.watched > shares.watched


def shares_of_one_guest() -> Held:
    """Half of what its user may have of one kind, so that one guest alone never leaves another without."""
    pages = int(kernel_files.read("/proc/sys/fs/pipe-user-pages-soft")) or 1 << 30
    watched = int(kernel_files.read("/proc/sys/fs/epoll/max_user_watches"))
    return Held(in_flight=_MOST_IN_FLIGHT, pipes=pages // _PIPE_PAGES // 2, watched=watched // 2)


class Descriptors:
    """Looked at seldom enough to cost at most a tenth of the time; in between, what was last seen counts."""

    def __init__(self) -> None:
        #: As of the last look.
        self.last = Held()
        self._next_look = 0.0

    def held(self, proc: str, pids: Sequence[int], patience: Patience) -> Held:
        if time.monotonic() >= self._next_look:
            spent = Spent()
            sockets = _unix_sockets(proc, pids)
            is_crowded = sum(_count(proc, pid) for pid in pids) > _FREE
            self.last = _look(proc, pids, sockets, patience) if is_crowded or sockets else Held()
            self._next_look = next_look_after(spent)
        return self.last


def _unix_sockets(proc: str, pids: Sequence[int]) -> List[int]:
    """Inodes of all in the guest's network; 0 is one that nobody has accepted yet."""
    for pid in pids:
        try:
            lines = kernel_files.read(f"{proc}/{pid}/net/unix").splitlines()[1:]
        except OSError as error:
            must_be_expected(error)
            continue
        return [int(fields[6]) for fields in (line.split(None, 7) for line in lines) if len(fields) > 6]
    return []


def _count(proc: str, pid: int) -> int:
    """How many a process has open: since Linux 6.2 that is the size of the directory, which was 0 before."""
    directory = f"{proc}/{pid}/fd"
    try:
        return os.stat(directory).st_size or len(os.listdir(directory))
    except OSError as error:
        must_be_expected(error)
        return 0


def _look(proc: str, pids: Sequence[int], sockets: List[int], patience: Patience) -> Held:
    known = set(sockets)
    pipes: Set[int] = set()
    seen: Set[int] = set()
    watched = in_flight = 0
    for pid in pids:
        for name in _names(f"{proc}/{pid}/fd"):
            patience.check()
            path = f"{proc}/{pid}/fd/{name}"
            try:
                status = os.stat(path)
                if stat.S_ISFIFO(status.st_mode):
                    pipes.add(status.st_ino)
                elif stat.S_ISSOCK(status.st_mode) and status.st_ino in known and status.st_ino not in seen:
                    seen.add(status.st_ino)
                    in_flight += _queued(f"{proc}/{pid}/fdinfo/{name}", patience)
                elif not stat.S_IFMT(status.st_mode) and os.readlink(path) == "anon_inode:[eventpoll]":
                    watched += sum(lines.count(b"tfd:") for lines in patience.read(f"{proc}/{pid}/fdinfo/{name}"))
            except OSError as error:
                must_be_expected(error)
    in_flight += _unheld(sockets, seen) if _has_own_network(proc, pids) else 0
    return Held(len(pipes) * _PIPE + watched * _EPOLL_ITEM, in_flight, len(pipes), watched)


def _queued(path: str, patience: Patience) -> int:
    return sum(int(number) for lines in patience.read(path) for number in _IN_FLIGHT.findall(lines))


def _unheld(sockets: List[int], seen: Set[int]) -> int:
    """Sockets that are in nobody's table are in flight themselves, or wait to be accepted."""
    return sum(inode not in seen for inode in sockets)


def _has_own_network(proc: str, pids: Sequence[int]) -> bool:
    """In the host's, there are sockets of everybody's."""
    for pid in pids:
        try:
            return os.stat(f"{proc}/{pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
        except OSError as error:
            must_be_expected(error)
    return False


def _names(directory: str) -> Iterator[str]:
    try:
        yield from os.listdir(directory)
    except OSError as error:
        must_be_expected(error)
