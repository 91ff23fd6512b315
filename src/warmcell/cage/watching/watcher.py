"""The watcher: one process that looks after the ceilings of all cells of a manager. It sleeps while none of them runs.

It is a child of the manager, in its namespaces, so it may look into every cell and no cell can reach it. A cell is
watched from the moment that its guest closes `go`. Where a ceiling is passed, the watcher says so, and then ends the
cell's init: whoever reaps the guest finds the verdict already there.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from functools import partial

from ..cell import CODE_DIRECTORY, PROCESSES
from ..linux.fds import close_all_but
from ..linux.namespaces import CLONE_NEWIPC
from ..linux.owned import close_all
from ..linux.syscalls import call
from ..plan import LaunchPlan, Watch
from ..records import NamedTuple
from ..wire import receive_packet, send_packet
from . import usage
from .ceilings import Ceilings, Tree, processes_in
from .locks import Locks, is_in_namespace_of
from .patience import Patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Optional, Set, Tuple


class Verdict(NamedTuple):
    """What the watcher says of a cell at its end. No `reason`: the guest's end was its own."""

    reason: str
    peak: int
    cpu_lost: float
    #: Limits that the guest met without ending by them.
    met: Tuple[str, ...] = ()


NO_VERDICT = Verdict("", 0, 0.0)
#: Nobody knows what it used: that is no end that a guest can be held to.
LOST = Verdict("lost", 0, 0.0)


#: For everybody in a cell to be gone after its init was killed.
_LAST_MOMENT_MS = 500


class Watcher:
    """The manager's end. The process starts with the first cell that needs it."""

    def __init__(self) -> None:
        self._channel: Optional[socket.socket] = None
        self._number = 0
        self.pid = 0
        #: Cells that were looked at, of which more is known than the guest's own account.
        self._looked_at: set[int] = set()
        #: Verdicts that nobody asked for yet, and answers.
        self.told: Dict[int, Verdict] = {}

    @property
    def listens_to(self) -> int:
        return self._channel.fileno() if self._channel is not None else -1

    def watch(self, plan: LaunchPlan, init: int, go: int, given: Dict[str, int]) -> int:
        """From when `go` is closed. Returns the number under which its end is asked for."""
        if self._channel is None:
            self._start()
        assert self._channel is not None
        self._number += 1
        sources = {bind.target: bind.source for bind in plan.binds if bind.writable}
        watch = plan.watch._replace(disk_paths=tuple(sources.get(path, path) for path in plan.watch.disk_paths))
        descriptors = [init, go, given[PROCESSES], given[CODE_DIRECTORY]]
        most_tasks = dict(plan.rlimits).get("nproc", 0) if watch.memory_bytes else 0
        order = {"watch": self._number, "ceilings": list(watch), "most_tasks": most_tasks}
        send_packet(self._channel, order, descriptors)
        if watch.disk_bytes:
            self._looked_at.add(self._number)
        return self._number

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
            if "looks" in message:
                self._looked_at.add(message["looks"])
            else:
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
        has_more_to_say = number in self._looked_at
        self._looked_at.discard(number)
        try:
            send_packet(self._channel, {"end": number, "tell": has_more_to_say})
        except OSError:
            self.let_go()  # it would keep what it has of the cell for ever
            return LOST
        return None if has_more_to_say else NO_VERDICT

    def let_go(self) -> None:
        if self._channel is not None:
            os.close(self._channel.detach())
            self._channel = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            _be_watcher(theirs)
        theirs.close()
        self._channel, self.pid = ours, pid


def _be_watcher(channel: socket.socket) -> NoReturn:
    """In the new process. Whatever happens to it, nothing that is its manager's is closed or run a second time."""
    try:
        signal.set_wakeup_fd(-1)
        close_all_but(channel.fileno())
        _Loop(channel).run()
    finally:
        os._exit(0)


class _Cell(NamedTuple):
    init: int
    go: int
    processes: int
    scratch: int
    ceilings: Ceilings

    def close(self) -> None:
        close_all([self.init, self.processes, self.scratch])


class _Loop:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._cells: Dict[int, _Cell] = {}
        self._waiting: Dict[int, int] = {}
        #: When each running cell is to be looked at, and which of them have been.
        self._due: Dict[int, float] = {}
        self._looked_at: Set[int] = set()
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def run(self) -> None:
        """Until the manager is gone."""
        while True:
            pause = max(0.0, min(self._due.values()) - time.monotonic()) * 1000 if self._due else None
            ready = dict(self._poll.poll(pause))
            now = time.monotonic()
            # Looks come first: no number of messages may put them off.
            for number in [number for number, due in self._due.items() if due <= now]:
                self._look(number)
            for descriptor in ready.keys() & self._waiting.keys():
                self._begin(descriptor)
            if self._channel.fileno() in ready and not self._hear():
                return

    def _hear(self) -> bool:
        message, descriptors = receive_packet(self._channel)
        if not message:
            return False
        if "watch" in message:
            self._add(message["watch"], Watch(*message["ceilings"]), message["most_tasks"], descriptors)
        elif "shared" in message:
            if message["shared"] in self._cells:
                self._cells[message["shared"]].ceilings.mappings.asked_for(message["length"])
        else:
            self._end(message["end"], message["tell"])
        return True

    def _add(self, number: int, watch: Watch, most_tasks: int, descriptors: List[int]) -> None:
        init, go, processes, scratch = descriptors
        proc = f"/proc/self/fd/{processes}"
        stores = partial(_stores, init, proc, scratch, Locks(partial(_is_in, proc), os.fstat(scratch).st_dev))
        tree = Tree(proc, partial(processes_in, proc), stores, watch.disk_paths)
        self._cells[number] = _Cell(init, go, processes, scratch, Ceilings(watch, tree, most_tasks))
        self._waiting[go] = number
        self._poll.register(go, select.POLLIN)

    def _begin(self, go: int) -> None:
        number = self._waiting.pop(go)
        self._poll.unregister(go)
        os.close(go)
        self._due[number] = time.monotonic() + self._cells[number].ceilings.begin()

    def _look(self, number: int) -> None:
        cell = self._cells[number]
        if number not in self._looked_at:
            self._looked_at.add(number)
            self._say({"looks": number})
        try:
            pause = cell.ceilings.look()
        except OSError:
            if _has_ended(cell.init):
                del self._due[number]  # by itself, in the middle of the look: whoever reaps it says so
                return
            cell.ceilings.verdict = "blind"  # what cannot be looked at is not kept
        if not cell.ceilings.verdict:
            self._due[number] = time.monotonic() + pause
            return
        self._tell(number)
        try:
            signal.pidfd_send_signal(cell.init, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._forget(number)

    def _end(self, number: int, tells: bool) -> None:
        if number not in self._cells:
            return  # the verdict is on its way
        if tells:
            _has_ended(self._cells[number].init, _LAST_MOMENT_MS)
            self._cells[number].ceilings.last_look()
            self._tell(number)
        self._forget(number)

    def _tell(self, number: int) -> None:
        ceilings = self._cells[number].ceilings
        told = {"reason": ceilings.verdict, "peak": ceilings.peak, "lost": round(ceilings.cpu_lost, 6)}
        self._say({"end": number, **told, "met": sorted(ceilings.met)})

    def _say(self, message: Dict[str, Any]) -> None:
        try:
            send_packet(self._channel, message)
        except OSError:
            os._exit(0)

    def _forget(self, number: int) -> None:
        cell = self._cells.pop(number)
        self._looked_at.discard(number)
        self._due.pop(number, None)
        # One that has begun has closed its descriptor, and another's may have that number now: that one is waited for.
        if self._waiting.get(cell.go) == number:
            del self._waiting[cell.go]
            self._poll.unregister(cell.go)
            os.close(cell.go)
        cell.close()


def _has_ended(process: int, patience_ms: int = 0) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(patience_ms))


def _is_in(proc: str, owner: int, pids: List[int]) -> bool:
    return bool(pids) and is_in_namespace_of(owner, f"{proc}/{pids[0]}")


def _stores(init: int, proc: str, scratch: int, locks: Locks, pids: List[int], patience: Patience) -> int:
    """The scratch tmpfs, System V objects, locks, what sockets hold. Only who is in a namespace can read some of it."""
    call("setns", init, CLONE_NEWIPC)
    total = usage.filled(scratch) + usage.system_v_objects() + locks.held(pids, patience)
    return total + (usage.socket_buffers(f"{proc}/{pids[0]}/net") if pids else 0)
