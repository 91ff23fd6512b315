"""The manager's loop: receives orders for cells over one socket, supervises the cells, and exits with its supervisor.

It makes namespaces and roots, has its zygote fork guests, checks each cage, reaps, and reports. Guests cannot see what
it knows of runs: they are copies of the zygote, never of this process.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import struct
import time

from ..failure import CageError, send_failure
from ..fast_imports import signal, socket
from ..linux.descriptors import close_all, from_descriptor
from ..linux.processes import children, kill_tree
from ..linux.syscalls import PR_SET_CHILD_SUBREAPER, call, prctl
from ..plan import PlanError, Watch, decode_binds
from ..watching.watcher import LOST, NO_VERDICT, Verdict, Watcher
from ..wire import PacketTruncated, new_receive_buffer, receive_packet, send_packet
from .cell_maker import CellMaker
from .guest_child import ExitReport, GuestChild, exit_report_of
from .zygote_handle import ZygoteHandle, ZygoteLost, is_for_one_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set

#: How long the manager must be idle before it makes the next init in advance.
_QUIET_MS = 20
#: How long after a run its mounts and descriptors are closed, and for how many cells this may be delayed.
_LINGER_MS, _MOST_LINGERING = 3, 2
#: The longest pause between attempts to reap killed inits; it doubles each time. A cell that takes this long to make is
#: announced before it is ready, so that the supervisor can kill it.
_LONGEST_PAUSE_MS = 1000
_WALL = 0x40000000  # __WALL: also children that send no signal when they exit
_SIGNAL_BYTES = 128


def _open_child_exits() -> int:
    """A descriptor that is readable when a child has exited. With a handler, Python would restart `poll`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    wanted = struct.pack("=Q", 1 << (signal.SIGCHLD - 1))
    return call("signalfd4", -1, wanted, len(wanted), os.O_CLOEXEC | os.O_NONBLOCK)


class Manager:
    """Runs the loop. Guests are children of this process."""

    def __init__(
        self, control: socket.socket, supervisor: int, zygote: ZygoteHandle, order: Dict[str, Any], host_id: int
    ) -> None:
        self._control: Optional[socket.socket] = control
        self._supervisor = supervisor
        self._inbox = new_receive_buffer()
        self._zygote = zygote
        self._is_caging = order["isolation"] == "namespaces"
        #: Whether the supervisor runs a single guest: the manager exits after it.
        self._is_for_one = bool(order.get("once"))
        #: Children that have not been reaped, with the memory that they may share with us.
        self._processes: Dict[int, object] = {zygote.pid: None}
        self._guests: Dict[int, GuestChild] = {}
        #: Guests that were reaped, but left processes running that may finish. Their pids may be reused.
        self._exited: List[GuestChild] = []
        #: Guests whose report waits for the watcher's verdict, by the watcher's number for them.
        self._awaiting_verdict: Dict[int, GuestChild] = {}
        #: Mount namespaces of ended cells.
        self._mounts_to_close: List[int] = []
        #: Reported guests that still have open descriptors.
        self._to_close: List[GuestChild] = []
        #: Inits that were killed and not yet reaped, and how long to wait before the next attempt.
        self._ending_inits: Set[int] = set()
        self._reap_ms = _LINGER_MS
        self._watcher = Watcher()
        self._poll = select.poll()
        #: The descriptor of child exits, and whether it is polled.
        self._child_exits, self._polls_child_exits = -1, True
        if not self._is_caging:
            # Orphans of a guest without namespaces that killed its own keeper become our children.
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._maker = CellMaker(
            zygote,
            self._is_caging,
            host_id,
            self._remember,
            self._start_watcher,
            keeps_spares=bool(order.get("spares")),
            has_host_network=bool(order.get("host_network")),
            is_for_one=self._is_for_one,
        )
        self._maker.make_ahead()
        if is_for_one_worker(order):
            self._start_watcher(is_sure=True)  # it will be given directories, some of them writable
        elif order.get("preload") or order.get("site") or order.get("packages"):
            zygote.await_ready()  # loading the caller's modules may fail: report that before the first order

    def _remember(self, pid: int, keeps: object) -> None:
        self._processes[pid] = keeps

    def serve(self) -> None:
        """Run until the supervisor closes the control socket, and finish runs in progress; or until it dies."""
        gc.enable()
        ends = self._child_exits = _open_child_exits()
        assert self._control is not None
        for descriptor in (ends, self._control.fileno(), self._supervisor):
            self._poll.register(descriptor, select.POLLIN)
        while self._control is not None or self._guests or self._exited or self._awaiting_verdict:
            ready = dict(self._poll.poll(self._pause_ms()))
            self._poll_child_exits()
            self._watcher.send_waiting()  # here, because guests that are never quiet could put off `_tidy`
            self._finish_exited()
            if self._maker.guarded.descriptor in ready and self._maker.guarded.has_changes():
                for guest in (*self._guests.values(), *self._exited):
                    guest.end_if_unguarded()
            if not ready:
                self._tidy()
                if not self._exited and not self._maker.is_complete:
                    self._maker.make_ahead()
                continue
            if ends in ready:
                self._report_unreaped()
                # Emptied before reaping: a child that exits in between makes it readable again.
                os.read(ends, _SIGNAL_BYTES)
                self._reap()
                if len(ready) == 1:
                    continue
            if self._supervisor in ready:
                self._kill_cells()
                return
            if self._watcher.listens_to in ready:
                self._receive_from_watcher()
            self._serve_guests(ready)
            if self._control is not None and self._control.fileno() in ready:
                self._receive_order(self._control)

    def _poll_child_exits(self) -> None:
        if not self._polls_child_exits:
            self._polls_child_exits = True
            self._poll.register(self._child_exits, select.POLLIN)

    def _tidy(self) -> None:
        """Do deferred work, and announce cells that take long to make."""
        for guest in self._guests.values():
            if guest.is_being_made:
                guest.send_identity()
        close_all(self._mounts_to_close)
        self._mounts_to_close.clear()
        while self._to_close:
            self._to_close.pop().close()
        descriptor = self._watcher.listens_to
        self._watcher.forget_ended()
        self._handle_verdicts(descriptor)
        if self._ending_inits:
            self._reap()
            self._reap_ms = min(2 * self._reap_ms, _LONGEST_PAUSE_MS)

    def _pause_ms(self) -> Optional[float]:
        due = [guest.leftovers.next_look for guest in self._exited if guest.leftovers is not None]
        if due:
            return max(0.0, min(due) - time.monotonic()) * 1000
        if self._mounts_to_close or self._to_close or not self._watcher.is_up_to_date:
            return _LINGER_MS
        if self._ending_inits:
            return self._reap_ms
        if not self._maker.is_complete:
            return _QUIET_MS
        return _LONGEST_PAUSE_MS if any(guest.is_being_made for guest in self._guests.values()) else None

    def _receive_order(self, control: socket.socket) -> None:
        try:
            order, descriptors = receive_packet(control, inbox=self._inbox)
        except PacketTruncated:
            return  # this closed the cell's channels: the supervisor notices, and orders again
        if not order:
            self._close_control()
            return
        if "end_twin" in order:
            self._maker.twins.end(order["end_twin"])
            return
        if "attach" in order:
            self._attach(order, descriptors)
            return
        try:
            made = self._maker.make(order, descriptors)
        except ZygoteLost:
            self._close_control()  # the supervisor notices, and starts another manager
            return
        if made is not None:
            self._guests[made.pid] = made
            # Without POLLIN: wait until it closes the channel, which poll always reports.
            self._poll.register(made.poll_descriptor, 0)
            self._poll_guarded(made)

    def _poll_guarded(self, guest: GuestChild) -> None:
        if guest.guarded:
            self._poll.register(self._maker.guarded.descriptor, select.POLLIN)

    def _attach(self, order: Dict[str, Any], descriptors: List[int]) -> None:
        """Attach directories to a running guest, and have the watcher limit what it writes to them.

        If some are writable, the watcher measures them first and sends the answer.
        """
        answer = from_descriptor(descriptors[0])
        try:
            binds = decode_binds(order["attach"])
            guest = next((guest for guest in self._guests.values() if guest.init_pid == order["cell"]), None)
            if guest is None:
                raise CageError("find cell", errno.ESRCH, str(order["cell"]))
            self._maker.attach(binds, guest)
            self._poll_guarded(guest)
            writable = tuple(bind.source for bind in binds if bind.writable)
            attached = {"attached": len(binds)}
            if writable:
                watch = Watch(disk_bytes=order["disk_bytes"], disk_paths=writable)
                self._with_watcher(lambda watcher: guest.start_watch(watcher, watch, answer.fileno(), attached))
            else:
                send_packet(answer, attached)
        except CageError as failure:
            send_failure(answer, failure)
        except (PlanError, OSError) as trouble:
            send_failure(answer, CageError("attach paths", getattr(trouble, "errno", 0) or 0, str(trouble)))
        finally:
            answer.close()

    def _start_watcher(self, *, is_sure: bool = False) -> None:
        try:
            self._with_watcher(lambda watcher: watcher.start(is_sure=is_sure))
        except (OSError, MemoryError):
            pass  # a cell that needs it will try again, and report the error

    def _with_watcher(self, act: Callable[[Watcher], None]) -> None:
        """Call `act`, which may start the watcher or find that it has died, and then poll the watcher."""
        had_watcher = self._watcher.listens_to
        try:
            act(self._watcher)
        finally:
            self._handle_verdicts(had_watcher)
            if self._watcher.listens_to not in (had_watcher, -1):
                self._poll.register(self._watcher.listens_to, select.POLLIN)
                self._processes[self._watcher.pid] = None

    def _close_control(self) -> None:
        assert self._control is not None
        self._poll.unregister(self._control)
        self._control.close()
        self._control = None

    def _receive_from_watcher(self) -> None:
        descriptor = self._watcher.listens_to
        self._watcher.receive()
        self._handle_verdicts(descriptor)

    def _handle_verdicts(self, descriptor: int) -> None:
        """Send the reports that waited for a verdict. Call it after receiving from the watcher."""
        if self._watcher.listens_to < 0 <= descriptor:
            self._poll.unregister(descriptor)
            for guest in self._guests.values():
                guest.lose_watcher()
            for number in list(self._awaiting_verdict):
                self._report(self._awaiting_verdict.pop(number), LOST)
        for number in [number for number in self._watcher.verdicts if number in self._awaiting_verdict]:
            self._report(self._awaiting_verdict.pop(number), self._watcher.verdicts.pop(number))

    def _serve_guests(self, ready: Dict[int, int]) -> None:
        """Handle one event of each guest, so that a guest with endless refused calls does not delay others."""
        for guest in [guest for guest in (*self._guests.values(), *self._exited) if guest.poll_descriptor in ready]:
            if guest.is_being_made:
                self._serve_new_guest(guest)
            elif ready[guest.poll_descriptor] & select.POLLIN:
                guest.handle_event(self._watcher)
            else:  # the other end is closed, which poll would report forever
                self._poll.unregister(guest.poll_descriptor)
                self._end_init(guest)

    def _serve_new_guest(self, guest: GuestChild) -> None:
        """Unregisters first: the descriptor may be closed by the handler, and its number reused."""
        self._poll.unregister(guest.poll_descriptor)
        self._with_watcher(guest.handle_event)
        if guest.poll_descriptor >= 0:
            self._poll.register(guest.poll_descriptor, select.POLLIN)
        if self._is_for_one and not guest.is_being_made:
            self._zygote.let_go()

    def _report_unreaped(self) -> None:
        """Report guests of killed cells before reaping them, which takes as long as the exit itself."""
        for guest in [guest for guest in self._guests.values() if guest.is_ending]:
            ending = exit_report_of(guest.pid)
            if ending is not None:
                del self._guests[guest.pid]
                self._handle_exit(guest, ending)

    def _reap(self) -> None:
        lost = False
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG | _WALL)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status):  # its parent exited after the listener's check, so we trace it
                continue
            guest = self._guests.pop(pid, None)
            if guest is not None:
                self._handle_exit(guest, ExitReport(status, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024))
            self._processes.pop(pid, None)
            self._ending_inits.discard(pid)
            self._maker.take_back(pid)
            lost = True
        self._finish_exited()
        if lost and not self._is_caging:
            self._kill_strays()

    def _handle_exit(self, guest: GuestChild, ending: ExitReport) -> None:
        guest.record_exit(ending)
        if guest.is_ending:
            self._finish(guest)
        else:
            self._exited.append(guest)

    def _finish_exited(self) -> None:
        """Report exited guests when the processes that they left running have ended or run out of time."""
        if not self._exited:
            return
        now = time.monotonic()
        for guest in [guest for guest in self._exited if guest.leftovers and guest.leftovers.next_look <= now]:
            if guest.is_over():
                self._exited.remove(guest)
                self._stop_listening(guest)
                self._finish(guest)

    def _stop_listening(self, guest: GuestChild) -> None:
        try:
            self._poll.unregister(guest.poll_descriptor)
        except (KeyError, ValueError):  # not all of them are still registered
            pass

    def _end_init(self, guest: GuestChild) -> None:
        """Kill init after its guest was reaped, or when all processes with the guest's seccomp filter are exiting: none
        of them runs again, and the rest of the cell can be removed while they free their memory.
        """
        if guest.is_ending:
            return
        if len(self._mounts_to_close) < _MOST_LINGERING:
            self._mounts_to_close += guest.open_mount_namespace()
        guest.end_all()
        self._ending_inits.add(guest.init_pid)
        self._reap_ms = _LINGER_MS

    def _finish(self, guest: GuestChild) -> None:
        self._end_init(guest)
        if guest.watch is None:
            self._report(guest, NO_VERDICT)
            return
        descriptor = self._watcher.listens_to
        verdict = self._watcher.end_of(guest.watch)
        if verdict is not None:
            self._report(guest, verdict)
        else:
            self._awaiting_verdict[guest.watch] = guest
        self._handle_verdicts(descriptor)

    def _report(self, guest: GuestChild, verdict: Verdict) -> None:
        """Send the report and defer the rest: the supervisor waits for it and for init, which needs the processor.

        Child exits are not polled if only inits remain: guests have their own descriptors.
        """
        guest.report(verdict, self._zygote.pid)
        is_last = (
            not self._exited
            and not self._awaiting_verdict
            and all(one.is_exit_notified for one in self._guests.values())
        )
        if is_last and self._polls_child_exits:
            self._polls_child_exits = False
            self._poll.unregister(self._child_exits)
        if len(self._to_close) < _MOST_LINGERING:
            self._to_close.append(guest)
        else:
            guest.close()
        if self._is_for_one and self._control is not None:
            self._close_control()

    def _kill_strays(self) -> None:
        """Kill children that are not cells: they outlived their keeper, which a guest without namespaces may kill."""
        for pid in children(os.getpid()):
            if pid not in self._processes:
                kill_tree(pid)

    def _kill_cells(self) -> None:
        """Kill every descendant until none is left: without a pid namespace, guests outlive their keeper."""
        while True:
            kill_tree(os.getpid(), itself=False)
            try:
                os.waitpid(-1, _WALL)
            except ChildProcessError:
                return
