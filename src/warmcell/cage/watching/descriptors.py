"""What the kernel holds behind descriptors, on nobody's account: pages of pipes, and what epoll watches."""

from __future__ import annotations

import os
import stat
import time
from typing import Iterator, Sequence, Set

from ..linux.processes import must_be_expected
from .patience import Patience, pause_after

#: As many in all processes together are not looked at.
_FREE = 512
#: A pipe is taken to be full; one larger than this the filter refuses.
_PIPE, _EPOLL_ITEM = 1 << 16, 256


class Descriptors:
    """Looked at seldom enough to cost at most a tenth of the time; in between, what was last seen counts."""

    def __init__(self) -> None:
        self._held = 0
        self._next_look = 0.0

    def held(self, proc: str, pids: Sequence[int], patience: Patience) -> int:
        started = time.monotonic()
        if started >= self._next_look:
            is_crowded = sum(_count(proc, pid) for pid in pids) > _FREE
            self._held = _look(proc, pids, patience) if is_crowded else 0
            self._next_look = pause_after(started)
        return self._held


def _count(proc: str, pid: int) -> int:
    """How many a process has open: since Linux 6.2 that is the size of the directory, which was 0 before."""
    directory = f"{proc}/{pid}/fd"
    try:
        return os.stat(directory).st_size or len(os.listdir(directory))
    except OSError as error:
        must_be_expected(error)
        return 0


def _look(proc: str, pids: Sequence[int], patience: Patience) -> int:
    pipes: Set[int] = set()
    items = 0
    for pid in pids:
        for name in _names(f"{proc}/{pid}/fd"):
            patience.check()
            path = f"{proc}/{pid}/fd/{name}"
            try:
                status = os.stat(path)
                if stat.S_ISFIFO(status.st_mode):
                    pipes.add(status.st_ino)
                elif not stat.S_IFMT(status.st_mode) and os.readlink(path) == "anon_inode:[eventpoll]":
                    items += sum(lines.count(b"tfd:") for lines in patience.read(f"{proc}/{pid}/fdinfo/{name}"))
            except OSError as error:
                must_be_expected(error)
    return len(pipes) * _PIPE + items * _EPOLL_ITEM


def _names(directory: str) -> Iterator[str]:
    try:
        yield from os.listdir(directory)
    except OSError as error:
        must_be_expected(error)
