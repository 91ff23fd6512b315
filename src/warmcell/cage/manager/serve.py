"""The manager's loop: it is told what to make over one socket, looks after what it made, and ends with its supervisor.

It makes namespaces and roots, has its zygote fork guests, checks each cage, reaps, and reports. What it knows of runs
stays with it: guests are copies of the zygote, never of this process.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import struct
import time

from ..failure import CageError, tell
from ..light import signal, socket
from ..linux.owned import close_all
from ..linux.processes import children, kill_tree
from ..linux.syscalls import PR_SET_CHILD_SUBREAPER, call, prctl
from ..plan import PlanError, Watch, decode_binds
from ..watching.watcher import LOST, NO_VERDICT, Verdict, Watcher
from ..wire import PacketCut, new_inbox, receive_packet, send_packet
from .cells import CellMaker
from .guest_children import Ending, GuestChild, ending_of
from .zygote_child import ZygoteChild, ZygoteLost, is_for_one_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set

_QUIET_MS = 20  # what can be made ahead is made when nobody waits for anything
#: How long after a run the mounts of its cell are taken down and its descriptors closed, and how many cells may wait
#: for that.
_LINGER_MS, _MOST_LINGERING = 3, 2
#: Inits that were ended are reaped as well when nobody waits; less and less often where one takes its time. And who
#: is being made for that long is told of, so that it can be ended.
_SELDOM_MS = 1000
_WALL = 0x40000000  # those too whose end is not signalled
_SIGNAL_BYTES = 128


def _ends_of_children() -> int:
    """A descriptor that is readable when some have ended. A handler would have Python run it, and poll begin again."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    wanted = struct.pack("=Q", 1 << (signal.SIGCHLD - 1))
    return call("signalfd4", -1, wanted, len(wanted), os.O_CLOEXEC | os.O_NONBLOCK)


class Manager:
    """Holds what all cells have in common, and the guests that are its own children."""

    def __init__(
        self, control: socket.socket, supervisor: int, zygote: ZygoteChild, order: Dict[str, Any], host_id: int
    ) -> None:
        self._control: Optional[socket.socket] = control
        self._supervisor = supervisor
        self._inbox = new_inbox()
        self._zygote = zygote
        self._is_caging = order["isolation"] == "namespaces"
        #: Whether it is over with the first guest: its supervisor is a program that has a single one.
        self._is_for_one = bool(order.get("once"))
        #: Everything that is our child and has not been reaped, with what it may still use of our memory.
        self._processes: Dict[int, object] = {zygote.pid: None}
        self._guests: Dict[int, GuestChild] = {}
        #: Those that have been reaped, while what they left behind has its moment. Their pids may be anybody's by now.
        self._ended: List[GuestChild] = []
        #: Those of which the watcher has a last word to say; by its number for them.
        self._asked_for: Dict[int, GuestChild] = {}
        #: Mount namespaces whose cells have ended.
        self._lingering: List[int] = []
        #: Guests that were reported on, with their descriptors.
        self._reported: List[GuestChild] = []
        #: Inits that were ended and have not been reaped, and how long to wait before looking for them.
        self._ending_inits: Set[int] = set()
        self._reap_ms = _LINGER_MS
        self._watcher = Watcher()
        self._poll = select.poll()
        #: Where the ends of children are told, and whether anybody listens.
        self._ends, self._hears_ends = -1, True
        if not self._is_caging:
            # What a bare guest leaves behind when it killed its own keeper comes to us.
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        spares = bool(order.get("spares"))
        self._maker = CellMaker(zygote, self._is_caging, host_id, self._remember, self._start_watcher, spares)
        self._maker.prepare_first()
        if is_for_one_worker(order):
            self._start_watcher(is_sure=True)  # it will be shown directories, of which some can be written to
        elif order.get("preload") or order.get("site") or order.get("packages"):
            zygote.await_ready()  # what it loads of the caller's may fail, which is told before anything is ordered

    def _remember(self, pid: int, keeps: object) -> None:
        self._processes[pid] = keeps

    def serve(self) -> None:
        """Until the supervisor closes the control socket or dies; runs that are under way are seen to their end."""
        gc.enable()
        ends = self._ends = _ends_of_children()
        assert self._control is not None
        for descriptor in (ends, self._control.fileno(), self._supervisor):
            self._poll.register(descriptor, select.POLLIN)
        while self._control is not None or self._guests or self._ended or self._asked_for:
            ready = dict(self._poll.poll(self._pause_ms()))
            self._listen_to_ends()
            self._finish_ended()
            if not ready:
                self._tidy()
                if not self._ended and not self._maker.is_complete:
                    self._maker.complete()
                continue
            if ends in ready:
                self._report_unreaped()
                # Emptied before anybody is reaped: who ends in between makes it readable again.
                os.read(ends, _SIGNAL_BYTES)
                self._reap()
                if len(ready) == 1:
                    continue
            if self._supervisor in ready:
                self._kill_cells()
                return
            if self._watcher.listens_to in ready:
                self._hear_watcher()
            self._attend(ready)
            if self._control is not None and self._control.fileno() in ready:
                self._hear(self._control)

    def _listen_to_ends(self) -> None:
        if not self._hears_ends:
            self._hears_ends = True
            self._poll.register(self._ends, select.POLLIN)

    def _tidy(self) -> None:
        """Nobody waits for any of this; or somebody who can do nothing for lack of a name."""
        for guest in self._guests.values():
            if guest.is_being_made:
                guest.introduce()
        close_all(self._lingering)
        self._lingering.clear()
        while self._reported:
            self._reported.pop().close()
        listened_to = self._watcher.listens_to
        self._watcher.tell_ended()
        self._heed_watcher(listened_to)
        if self._ending_inits:
            self._reap()
            self._reap_ms = min(2 * self._reap_ms, _SELDOM_MS)

    def _pause_ms(self) -> Optional[float]:
        due = [guest.leftovers.next_look for guest in self._ended if guest.leftovers is not None]
        if due:
            return max(0.0, min(due) - time.monotonic()) * 1000
        if self._lingering or self._reported or not self._watcher.is_up_to_date:
            return _LINGER_MS
        if self._ending_inits:
            return self._reap_ms
        if not self._maker.is_complete:
            return _QUIET_MS
        return _SELDOM_MS if any(guest.is_being_made for guest in self._guests.values()) else None

    def _hear(self, control: socket.socket) -> None:
        try:
            order, descriptors = receive_packet(control, inbox=self._inbox)
        except PacketCut:
            return  # nobody here holds the cell's channels: the supervisor sees them end, and asks again
        if not order:
            self._stop_hearing()
            return
        if "attach" in order:
            self._attach(order, descriptors)
            return
        try:
            made = self._maker.make(order, descriptors)
        except ZygoteLost:
            self._stop_hearing()  # which the supervisor sees, and starts another
            return
        if made is not None:
            self._guests[made.pid] = made
            # Not for its word, which is of no use before the end of that channel: poll tells of ends unasked.
            self._poll.register(made.listens_to, 0)

    def _attach(self, order: Dict[str, Any], descriptors: List[int]) -> None:
        """Shows directories to a guest that has begun, and has the watcher see how much it writes to them.

        Then it is the watcher that answers, when it has measured what they hold.
        """
        answer = socket.socket(fileno=descriptors[0])
        try:
            binds = decode_binds(order["attach"])
            guest = next((guest for guest in self._guests.values() if guest.init_pid == order["cell"]), None)
            if guest is None:
                raise CageError("find cell", errno.ESRCH, str(order["cell"]))
            self._maker.attach(binds, guest)
            writable = tuple(bind.source for bind in binds if bind.writable)
            attached = {"attached": len(binds)}
            if writable:
                watch = Watch(disk_bytes=order["disk_bytes"], disk_paths=writable)
                self._with_watcher(lambda watcher: guest.watch_disk(watcher, watch, answer.fileno(), attached))
            else:
                send_packet(answer, attached)
        except CageError as failure:
            tell(answer, failure)
        except (PlanError, OSError) as trouble:
            tell(answer, CageError("attach paths", getattr(trouble, "errno", 0) or 0, str(trouble)))
        finally:
            answer.close()

    def _start_watcher(self, *, is_sure: bool = False) -> None:
        try:
            self._with_watcher(lambda watcher: watcher.start(is_sure=is_sure))
        except (OSError, MemoryError):
            pass  # whoever needs it tries again, and is told

    def _with_watcher(self, act: Callable[[Watcher], None]) -> None:
        """What is done may start the watcher, which is listened to from then on."""
        had_watcher = self._watcher.listens_to
        act(self._watcher)
        if self._watcher.listens_to != had_watcher:
            self._poll.register(self._watcher.listens_to, select.POLLIN)
            self._processes[self._watcher.pid] = None

    def _stop_hearing(self) -> None:
        assert self._control is not None
        self._poll.unregister(self._control)
        self._control.close()
        self._control = None

    def _hear_watcher(self) -> None:
        listened_to = self._watcher.listens_to
        self._watcher.hear()
        self._heed_watcher(listened_to)

    def _heed_watcher(self, listened_to: int) -> None:
        """After it was heard, for whosever sake: a verdict on a guest that has ended is what its report waits for."""
        if self._watcher.listens_to < 0 <= listened_to:
            self._poll.unregister(listened_to)
            for guest in self._guests.values():
                guest.lose_watcher()
            for number in list(self._asked_for):
                self._report(self._asked_for.pop(number), LOST)
        for number in [number for number in self._watcher.told if number in self._asked_for]:
            self._report(self._asked_for.pop(number), self._watcher.told.pop(number))

    def _attend(self, ready: Dict[int, int]) -> None:
        """One word of each guest that has one: a guest that is refused without end holds up no other."""
        for guest in [guest for guest in (*self._guests.values(), *self._ended) if guest.listens_to in ready]:
            if guest.is_being_made:
                self._attend_while_made(guest)
            elif ready[guest.listens_to] & select.POLLIN:
                guest.attend(self._watcher)
            else:  # nobody is left at the other end, which poll would tell for ever
                self._poll.unregister(guest.listens_to)
                self._end_init(guest)

    def _attend_while_made(self, guest: GuestChild) -> None:
        """What it listens to may be closed meanwhile, and the number be another's: so it is let go of first."""
        self._poll.unregister(guest.listens_to)
        self._with_watcher(guest.attend)
        if guest.listens_to >= 0:
            self._poll.register(guest.listens_to, select.POLLIN)
        if self._is_for_one and not guest.is_being_made:
            self._zygote.let_go()

    def _report_unreaped(self) -> None:
        """Guests whose cells are ending as well: somebody waits to hear how they ended, and reaping takes as long."""
        for guest in [guest for guest in self._guests.values() if guest.is_ending]:
            ending = ending_of(guest.pid)
            if ending is not None:
                del self._guests[guest.pid]
                self._take_end(guest, ending)

    def _reap(self) -> None:
        lost = False
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG | _WALL)
            except ChildProcessError:
                break
            if pid == 0:
                break
            guest = self._guests.pop(pid, None)
            if guest is not None:
                self._take_end(guest, Ending(status, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024))
            self._processes.pop(pid, None)
            self._ending_inits.discard(pid)
            self._maker.ids.give_back(pid)
            lost = True
        self._finish_ended()
        if lost and not self._is_caging:
            self._kill_strays()

    def _take_end(self, guest: GuestChild, ending: Ending) -> None:
        guest.ended(ending)
        if guest.is_ending:
            self._finish(guest)
        else:
            self._ended.append(guest)

    def _finish_ended(self) -> None:
        """Reports on guests that have ended, once nothing that they left behind deserves more time."""
        if not self._ended:
            return
        now = time.monotonic()
        for guest in [guest for guest in self._ended if guest.leftovers and guest.leftovers.next_look <= now]:
            if guest.is_over():
                self._ended.remove(guest)
                self._stop_listening(guest)
                self._finish(guest)

    def _stop_listening(self, guest: GuestChild) -> None:
        try:
            self._poll.unregister(guest.listens_to)
        except (KeyError, ValueError):  # not all of them are listened to any more
            pass

    def _end_init(self, guest: GuestChild) -> None:
        """When its guest was reaped, or before, as soon as all who had the guest's filter have begun to end: none of
        them runs again, and while they let go of their memory the rest of the cell can end as well.
        """
        if guest.is_ending:
            return
        if len(self._lingering) < _MOST_LINGERING:
            self._lingering += guest.hold_mounts()
        guest.end_all()
        self._ending_inits.add(guest.init_pid)
        self._reap_ms = _LINGER_MS

    def _finish(self, guest: GuestChild) -> None:
        self._end_init(guest)
        if guest.watch is None:
            self._report(guest, NO_VERDICT)
            return
        listened_to = self._watcher.listens_to
        verdict = self._watcher.end_of(guest.watch)
        if verdict is not None:
            self._report(guest, verdict)
        else:
            self._asked_for[guest.watch] = guest
        self._heed_watcher(listened_to)

    def _report(self, guest: GuestChild, verdict: Verdict) -> None:
        """The supervisor waits for this, and for init, which waits for its turn on this processor: the rest later.

        Nor are we to be woken by the end of init. The ends of other guests begin with what they listen to.
        """
        guest.report(verdict)
        is_last = not self._ended and not self._asked_for and all(one.will_be_heard for one in self._guests.values())
        if is_last and self._hears_ends:
            self._hears_ends = False
            self._poll.unregister(self._ends)
        if len(self._reported) < _MOST_LINGERING:
            self._reported.append(guest)
        else:
            guest.close()
        if self._is_for_one and self._control is not None:
            self._stop_hearing()

    def _kill_strays(self) -> None:
        """Whatever is our child and not a cell outlived its keeper (a bare guest may kill its own)."""
        for pid in children(os.getpid()):
            if pid not in self._processes:
                kill_tree(pid)

    def _kill_cells(self) -> None:
        """Everything below us, until nothing is: without a pid namespace, a keeper's death does not take its guests."""
        while True:
            kill_tree(os.getpid(), itself=False)
            try:
                os.waitpid(-1, _WALL)
            except ChildProcessError:
                return
