"""The watcher: one process that enforces the ceilings of all cells of a manager. This is the manager's end of it.

It is a child of the manager, in its namespaces, so it can see every cell and no cell can reach it. A cell is watched
from the moment its guest closes `go`. If the guest may write to directories of the host, these are measured first: the
supervisor requests that when it has a job, and sends the job after the answer. When a ceiling is exceeded, the watcher
reports it before it kills the cell's init, so that the manager has the verdict when it reaps the guest.
"""

from __future__ import annotations

import errno
import os
import select
import time

from .. import bundle
from ..cell_shape import CODE_DIRECTORY, PROCESSES
from ..fast_imports import socket
from ..linux.descriptors import make_pair
from ..linux.fds import close_all_but
from ..plan import LaunchPlan, Watch
from ..records import NamedTuple
from ..wire import receive_packet, send_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Optional, Set, Tuple


class Verdict(NamedTuple):
    """The watcher's report on an ended cell. Without a `reason`, it ended by itself."""

    reason: str
    peak: int
    cpu_lost: float
    #: Limits that the guest reached without being ended by them.
    met: Tuple[str, ...] = ()
    #: The most file pages that one process had mapped at any look. -1: not measured.
    mapped_files: int = -1
    #: The most memory that it had on one GPU, and how long its kernels executed. -1: unknown.
    gpu_peak: int = -1
    gpu_seconds: float = -1.0


_UP_SECONDS = 30.0
#: How many requests of one guest wait for room in the channel.
_MOST_WAITING = 64
NO_VERDICT = Verdict("", 0, 0.0)
#: The watcher died. What the guest used is unknown, so the run is a failure of the host.
LOST = Verdict("lost", 0, 0.0)


def ceilings_for(plan: LaunchPlan, host_id: int) -> Watch:
    """The limits of a plan that the watcher must enforce.

    Root's guests have their own users on the host, so they do not share per-user limits.
    """
    return plan.watch._replace(descriptors=plan.watch.descriptors and host_id == 0)


class Watcher:
    """The manager's end. The process starts with the first cell that needs it."""

    def __init__(self) -> None:
        self._channel: Optional[socket.socket] = None
        self._number = 0
        #: The number of the first cell of the process that runs now: another one, which died, watched those before.
        self._first = 1
        self._is_up = False
        self.pid = 0
        #: Cells that were looked at: the watcher must be asked for a verdict on them.
        self._looked_at: set[int] = set()
        #: Cells that ended without a look. The watcher is notified with the next order or when the manager is idle,
        #: since every message wakes it.
        self._ended: Set[int] = set()
        #: Verdicts received and not yet collected.
        self.verdicts: Dict[int, Verdict] = {}
        #: Lengths of shared memory that could not be sent yet, by the number of the cell.
        self._waiting: Dict[int, List[int]] = {}

    @property
    def listens_to(self) -> int:
        return self._channel.fileno() if self._channel is not None else -1

    def start(self, *, is_sure: bool = False) -> None:
        """Start it before the first cell that needs it, unless it runs. `is_sure`: there will be a cell to measure."""
        if self._channel is None:
            self._start(is_sure)

    def watch(
        self, plan: LaunchPlan, init: int, go: int, given: Dict[str, int], asker: int, answer: Dict[str, Any]
    ) -> int:
        """Watch a cell from the moment `go` is closed. Returns its number, for `end_of`.

        The disk is measured on a request over `asker`, or at once if `go` is closed already; then `answer` is sent.
        In an image it is watched earlier: its own Python, which waits for the job, has `go`, and may never close it.
        """
        self.start()
        self._await_up()
        assert self._channel is not None
        self._number += 1
        sources = {bind.target: bind.source for bind in plan.binds if bind.writable}
        paths, totals = (
            tuple(sources.get(path, path) for path in paths)
            for paths in (plan.watch.disk_paths, plan.watch.disk_totals)
        )
        watch = plan.watch._replace(disk_paths=paths, disk_totals=totals)
        descriptors = [init, go, given[PROCESSES], given[CODE_DIRECTORY]]
        most_tasks = dict(plan.rlimits).get("nproc", 0) if watch.memory_bytes else 0
        order = {"watch": self._number, "ceilings": list(watch), "most_tasks": most_tasks, "ended": list(self._ended)}
        if plan.layers:
            order["is_early"] = True
        if watch.disk_bytes:
            order["answer"] = answer
            descriptors.append(asker)
        send_packet(self._channel, order, descriptors)
        self._ended.clear()
        if watch.disk_bytes:
            self._looked_at.add(self._number)
        return self._number

    def _await_up(self) -> None:
        """Wait until the watcher is running: no guest may start before."""
        until = time.monotonic() + _UP_SECONDS
        poll = select.poll()
        poll.register(self.listens_to, select.POLLIN)
        while not self._is_up:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                self.close()
            if self._channel is None or not self.receive():
                raise OSError(errno.ESRCH, "the watcher did not start")

    def note_shared_memory(self, number: int, length: int) -> bool:
        """A guest is about to map this length. False if the watcher does not keep up with its requests.

        What cannot be sent now waits, for each guest by itself: one that makes many is refused, and no other.
        """
        if self._channel is None:
            return False
        waiting = self._waiting.setdefault(number, [])
        waiting.append(length)
        self.send_waiting()
        if len(waiting) <= _MOST_WAITING:
            return True
        waiting.pop()
        return False

    def send_waiting(self) -> None:
        """Send the requests that wait, one of each guest in turn, until the channel is full."""
        while self._waiting and self._channel is not None:
            number, lengths = next(iter(self._waiting.items()))
            try:
                send_packet(self._channel, {"shared": number, "length": lengths[0]}, flags=socket.MSG_DONTWAIT)
            except OSError:
                return
            del self._waiting[number], lengths[0]
            if lengths:
                self._waiting[number] = lengths

    def receive(self) -> bool:
        """Receive all messages that have arrived. False if the watcher has exited: then no cell is watched."""
        assert self._channel is not None
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while poll.poll(0):
            try:
                message, _ = receive_packet(self._channel)
            except OSError:
                message = {}
            if not message:
                self.close()
                return False
            if "up" in message:
                self._is_up = True
            elif "looks" in message:
                self._looked_at |= {message["looks"]} - self._ended
            elif message["end"] not in self._ended:
                figures = (message["reason"], message["peak"], message["lost"], tuple(message["met"]), message["files"])
                self.verdicts[message["end"]] = Verdict(*figures, *message.get("gpu", ()))
        return True

    def end_of(self, number: int) -> Optional[Verdict]:
        """The verdict on a cell whose guest has ended; None if it was requested and `receive` will get it."""
        self._waiting.pop(number, None)
        if self._channel is None or number < self._first or not self.receive():
            return LOST
        if number in self.verdicts:
            self._looked_at.discard(number)
            return self.verdicts.pop(number)
        if number not in self._looked_at:
            self._ended.add(number)
            return NO_VERDICT
        self._looked_at.discard(number)
        return None if self._send({"end": number}) else LOST

    @property
    def is_up_to_date(self) -> bool:
        return not (self._ended or self._waiting)

    def forget_ended(self) -> None:
        """Let the watcher release ended cells."""
        if self._ended and self._channel is not None:
            self._send({"ended": list(self._ended)})
        self._ended.clear()

    def _send(self, message: Dict[str, Any]) -> bool:
        assert self._channel is not None
        try:
            send_packet(self._channel, message)
        except OSError:
            self.close()  # otherwise it would never release the cell
            return False
        return True

    def close(self) -> None:
        self._waiting.clear()
        self._looked_at.clear()
        if self._channel is not None:
            os.close(self._channel.detach())
            self._channel = None

    def _start(self, is_sure: bool) -> None:
        from . import loop  # noqa: F401  # before the fork, so that its pages are shared

        ours, theirs = make_pair(socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            _run_watcher(theirs, is_sure)
        theirs.close()
        self._channel, self.pid, self._is_up = ours, pid, False
        self._first = self._number + 1


def _run_watcher(channel: socket.socket, is_sure: bool) -> NoReturn:
    """The new process, which must never run the manager's clean-up."""
    try:
        close_all_but(channel.fileno(), *bundle.descriptors())
        from .loop import Loop

        send_packet(channel, {"up": True})
        if is_sure:
            from . import ceilings  # noqa: F401  # before a cell waits for it
        Loop(channel).run()
    finally:
        os._exit(0)
