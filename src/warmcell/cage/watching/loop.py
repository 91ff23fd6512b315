"""What the watcher does: looks at running cells when they are due, says what it found, ends who passed a ceiling."""

from __future__ import annotations

import os
import select
import time

from ..light import partial, signal, socket
from ..linux.namespaces import CLONE_NEWIPC
from ..linux.owned import close_all
from ..linux.syscalls import call
from ..plan import Watch
from ..wire import new_inbox, receive_packet, send_packet
from . import usage
from .ceilings import Ceilings, Tree, pause_before_look, processes_in
from .locks import Locks, is_in_namespace_of
from .patience import Patience
from .patterns import compile_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set

#: A run that takes longer will be looked at.
_NOT_SHORT_MS = 5
#: For everybody in a cell to be gone after its init was killed.
_LAST_MOMENT_MS = 500


class _Cell:
    """What is known of one. How to look at it is found out when it is first looked at: most runs end before that."""

    __slots__ = ("_ceilings", "_most_tasks", "go", "init", "processes", "scratch", "watch")

    def __init__(self, watch: Watch, most_tasks: int, init: int, go: int, processes: int, scratch: int) -> None:
        self.watch, self._most_tasks = watch, most_tasks
        self.init, self.go, self.processes, self.scratch = init, go, processes, scratch
        self._ceilings: Optional[Ceilings] = None

    @property
    def ceilings(self) -> Ceilings:
        if self._ceilings is None:
            proc = f"/proc/self/fd/{self.processes}"
            locks = Locks(partial(_is_in, proc), os.fstat(self.scratch).st_dev)
            stores = partial(_stores, self.init, proc, self.scratch, locks)
            tree = Tree(proc, partial(processes_in, proc), stores, self.watch.disk_paths)
            self._ceilings = Ceilings(self.watch, tree, self._most_tasks)
        return self._ceilings

    def begin(self) -> float:
        """When its guest's code begins; returns how long it is safe not to look."""
        return self.ceilings.begin() if self.watch.disk_bytes else pause_before_look(self.watch)

    def close(self) -> None:
        if self._ceilings is not None:
            self._ceilings.close()
        close_all([self.init, self.processes, self.scratch])


class Loop:
    """Sleeps while no cell runs."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._inbox = new_inbox()
        self._cells: Dict[int, _Cell] = {}
        self._waiting: Dict[int, int] = {}
        #: When each running cell is to be looked at, and which of them have been.
        self._due: Dict[int, float] = {}
        self._looked_at: Set[int] = set()
        self._is_prepared = False
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def run(self) -> None:
        """Until the manager is gone."""
        while True:
            ready = dict(self._poll.poll(self._pause_ms()))
            if not ready and not self._is_prepared:
                compile_all()
                self._is_prepared = True
            now = time.monotonic()
            # Looks come first: no number of messages may put them off.
            for number in [number for number, due in self._due.items() if due <= now]:
                self._look(number)
            for descriptor in ready.keys() & self._waiting.keys():
                self._begin(descriptor)
            if self._channel.fileno() in ready and not self._hear():
                return

    def _pause_ms(self) -> Optional[float]:
        if not self._due:
            return None
        pause = max(0.0, min(self._due.values()) - time.monotonic()) * 1000
        return pause if self._is_prepared else min(pause, _NOT_SHORT_MS)

    def _hear(self) -> bool:
        message, descriptors = receive_packet(self._channel, inbox=self._inbox)
        if not message:
            return False
        for number in message.get("ended", ()):
            self._end(number, tells=False)
        if "watch" in message:
            self._add(message["watch"], Watch(*message["ceilings"]), message["most_tasks"], descriptors)
        elif "shared" in message:
            if message["shared"] in self._cells:
                self._cells[message["shared"]].ceilings.mappings.asked_for(message["length"])
        elif "end" in message:
            self._end(message["end"], tells=True)
        return True

    def _add(self, number: int, watch: Watch, most_tasks: int, descriptors: List[int]) -> None:
        cell = self._cells[number] = _Cell(watch, most_tasks, *descriptors)
        self._waiting[cell.go] = number
        self._poll.register(cell.go, select.POLLIN)

    def _begin(self, go: int) -> None:
        number = self._waiting.pop(go)
        self._poll.unregister(go)
        os.close(go)
        self._due[number] = time.monotonic() + self._cells[number].begin()

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
