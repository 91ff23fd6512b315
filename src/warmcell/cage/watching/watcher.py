"""The watcher: one process that looks after the ceilings of all cells of a manager. This is the manager's end of it.

It is a child of the manager, in its namespaces, so it may look into every cell and no cell can reach it. A cell is
watched from the moment that its guest closes `go`. Where the guest may write to directories of the host, what they hold
is measured before, when there is a job for it: whoever has the job asks, and sends it when that was answered. Where a
ceiling is passed, the watcher says so, and then ends the cell's init: whoever reaps the guest finds the verdict already
there.
"""

from __future__ import annotations

import errno
import os
import select
import time

from .. import bundle
from ..cell import CODE_DIRECTORY, PROCESSES
from ..light import socket
from ..linux.fds import close_all_but
from ..plan import LaunchPlan, Watch
from ..records import NamedTuple
from ..wire import receive_packet, send_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, NoReturn, Optional, Set, Tuple


class Verdict(NamedTuple):
    """What the watcher says of a cell at its end. No `reason`: the guest's end was its own."""

    reason: str
    peak: int
    cpu_lost: float
    #: Limits that the guest met without ending by them.
    met: Tuple[str, ...] = ()


_UP_SECONDS = 30.0
NO_VERDICT = Verdict("", 0, 0.0)
#: Nobody knows what it used: that is no end that a guest can be held to.
LOST = Verdict("lost", 0, 0.0)


def watched(plan: LaunchPlan, host_id: int) -> Watch:
    """What of a plan is the watcher's to keep, none of which may be set.

    Root's guests have a user of their own on the host, and nobody to share its quotas with.
    """
    return plan.watch._replace(descriptors=plan.watch.descriptors and host_id == 0)


class Watcher:
    """The manager's end. The process starts with the first cell that needs it."""

    def __init__(self) -> None:
        self._channel: Optional[socket.socket] = None
        self._number = 0
        self._is_up = False
        self.pid = 0
        #: Cells that were looked at, of which more is known than the guest's own account.
        self._looked_at: set[int] = set()
        #: Cells that have ended, of which it has nothing to say: told with the next one that begins, or when there is
        #: time, since every word wakes it.
        self._ended: Set[int] = set()
        #: Verdicts that nobody asked for yet, and answers.
        self.told: Dict[int, Verdict] = {}

    @property
    def listens_to(self) -> int:
        return self._channel.fileno() if self._channel is not None else -1

    def start(self, *, is_sure: bool = False) -> None:
        """Unless it runs: the first cell that will be watched need not wait for it. `is_sure`: there will be one, of
        which something is to be measured.
        """
        if self._channel is None:
            self._start(is_sure)

    def watch(
        self, plan: LaunchPlan, init: int, go: int, given: Dict[str, int], asker: int, answer: Dict[str, Any]
    ) -> int:
        """From when `go` is closed. Returns the number under which its end is asked for.

        What is on disk is measured when something comes from `asker`, or at once where `go` is closed; it gets the
        answer when that is done.
        """
        self.start()
        self._await_up()
        assert self._channel is not None
        self._number += 1
        sources = {bind.target: bind.source for bind in plan.binds if bind.writable}
        watch = plan.watch._replace(disk_paths=tuple(sources.get(path, path) for path in plan.watch.disk_paths))
        descriptors = [init, go, given[PROCESSES], given[CODE_DIRECTORY]]
        most_tasks = dict(plan.rlimits).get("nproc", 0) if watch.memory_bytes else 0
        order = {"watch": self._number, "ceilings": list(watch), "most_tasks": most_tasks, "ended": list(self._ended)}
        if watch.disk_bytes:
            order["answer"] = answer
            descriptors.append(asker)
        send_packet(self._channel, order, descriptors)
        self._ended.clear()
        if watch.disk_bytes:
            self._looked_at.add(self._number)
        return self._number

    def _await_up(self) -> None:
        """No guest begins before the watcher can look."""
        until = time.monotonic() + _UP_SECONDS
        poll = select.poll()
        poll.register(self.listens_to, select.POLLIN)
        while not self._is_up:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                self.let_go()
            if self._channel is None or not self.hear():
                raise OSError(errno.ESRCH, "the watcher did not come up")

    def note_shared_memory(self, number: int, length: int) -> bool:
        """A guest is about to map so much of it. False: it asks faster than the watcher listens."""
        if self._channel is None:
            return False
        try:
            send_packet(self._channel, {"shared": number, "length": length}, flags=socket.MSG_DONTWAIT)
            return True
        except OSError:
            return False

    def hear(self) -> bool:
        """Takes all that the watcher has said by now. False: it is gone, and with it every promise to watch."""
        assert self._channel is not None
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while poll.poll(0):
            try:
                message, _ = receive_packet(self._channel)
            except OSError:
                message = {}
            if not message:
                self.let_go()
                return False
            if "up" in message:
                self._is_up = True
            elif "looks" in message:
                self._looked_at |= {message["looks"]} - self._ended
            elif message["end"] not in self._ended:
                self.told[message["end"]] = Verdict(
                    message["reason"], message["peak"], message["lost"], tuple(message["met"])
                )
        return True

    def end_of(self, number: int) -> Optional[Verdict]:
        """The verdict on a cell whose guest has ended; None: it has been asked for, and comes by way of `hear`."""
        if self._channel is None or not self.hear():
            return LOST
        if number in self.told:
            self._looked_at.discard(number)
            return self.told.pop(number)
        if number not in self._looked_at:
            self._ended.add(number)
            return NO_VERDICT
        self._looked_at.discard(number)
        return None if self._say({"end": number}) else LOST

    @property
    def is_up_to_date(self) -> bool:
        return not self._ended

    def tell_ended(self) -> None:
        """It lets go of what it has of them."""
        if self._ended and self._channel is not None:
            self._say({"ended": list(self._ended)})
        self._ended.clear()

    def _say(self, message: Dict[str, Any]) -> bool:
        assert self._channel is not None
        try:
            send_packet(self._channel, message)
        except OSError:
            self.let_go()  # it would keep what it has of the cell for ever
            return False
        return True

    def let_go(self) -> None:
        if self._channel is not None:
            os.close(self._channel.detach())
            self._channel = None

    def _start(self, is_sure: bool) -> None:
        from . import loop  # noqa: F401  # loaded before the fork, it need not be copied

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            _be_watcher(theirs, is_sure)
        theirs.close()
        self._channel, self.pid, self._is_up = ours, pid, False


def _be_watcher(channel: socket.socket, is_sure: bool) -> NoReturn:
    """In the new process. Whatever happens to it, nothing that is its manager's is closed or run a second time."""
    try:
        close_all_but(channel.fileno(), *bundle.descriptors())
        from .loop import Loop

        send_packet(channel, {"up": True})
        if is_sure:
            from . import looking  # noqa: F401  # now, when nobody waits for it
        Loop(channel).run()
    finally:
        os._exit(0)
