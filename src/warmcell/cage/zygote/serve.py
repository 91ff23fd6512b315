"""The zygote's loop: it is told what to make over one socket, looks after what it made, and ends with its supervisor.

One thread, no locks: a fork copies one thread only, and a lock that another one held would stay locked in every cell.
It holds no secret and never sees a guest's output, because guests begin as copies of its memory.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ..failure import CageError
from ..guest.job import await_job
from ..linux import pages
from ..linux.fds import close_all
from ..linux.processes import children, kill_tree
from ..linux.syscalls import PR_SET_CHILD_SUBREAPER, call, prctl
from ..wire import PacketCut, receive_packet, send_packet
from .cells import CellMaker, Newborn
from .guest_children import GuestChild
from .prepare import forget_callers_signals, hide_command_line, load_worker

_QUIET_MS = 20  # what can be made ahead is made when nobody waits for anything


def main(control_descriptor: int) -> Callable[[], None]:
    """Returns only in a guest's process, with what turns it into the guest, so that little of us is on its stack."""
    control = socket.socket(fileno=control_descriptor)
    zygote = Zygote(control)
    try:
        order, _ = receive_packet(control)
        if not order:  # started ahead of need, and not needed
            os._exit(0)
        zygote.prepare(order)
        send_packet(control, {"ready": True, "version": list(sys.version_info[:3])})
    except CageError as failure:
        send_packet(control, {"failed": [failure.step, failure.errno, failure.what]})
        os._exit(1)
    newborn = zygote.serve()
    if newborn is None:
        os._exit(0)
    newborn.grow()
    return await_job(newborn.channels.job, zygote.worker, zygote.file_pages if newborn.waits else None)


class Zygote:
    """Holds what every cell of this interpreter has in common, and the guests that are its own children."""

    def __init__(self, control: socket.socket) -> None:
        self.worker: Optional[ModuleType] = None
        self.file_pages: List[Tuple[int, int]] = []
        self._control = control
        self._maker: CellMaker
        self._is_caging = False
        #: Everything that we forked and have not reaped.
        self._pids: Set[int] = set()
        self._guests: Dict[int, GuestChild] = {}
        #: Those that have been reaped and not been reported on. Their pids may be anybody's by now.
        self._ended: List[GuestChild] = []
        self._poll = select.poll()
        # By descriptor: a pid could be somebody else's by the time that we look.
        self._supervisor = call("pidfd_open", os.getppid(), 0)

    def prepare(self, order: Dict[str, Any]) -> None:
        """Loads the worker and the preloads, then steps out of the host's mount namespace; all of it once."""
        # What a cell leaves behind comes to us: guests that are forked by way of another, a bare guest's strays.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        forget_callers_signals()
        if order.get("worker"):
            self.worker = load_worker(order["worker"], order.get("site", False), order.get("preload", []))
        hide_command_line()
        self._is_caging = order["isolation"] == "namespaces"
        self._maker = CellMaker(self._is_caging, self._pids.add, keeps_spares=order.get("spares", False))
        # Frozen objects are not visited by a guest's collector, which would copy every page that it touches.
        gc.collect()
        self.file_pages = pages.of_files()
        gc.freeze()

    def serve(self) -> Optional[Newborn]:
        """Until the supervisor closes the control socket or dies. In a new child, returns what that child is to be."""
        wake, signalled = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for descriptor in (wake, self._control.fileno(), self._supervisor):
            self._poll.register(descriptor, select.POLLIN)
        while self._control.fileno() >= 0 or self._guests or self._ended:
            ready = dict(self._poll.poll(self._pause_ms()))
            self._finish_ended()
            if not ready:
                if not self._ended and not self._maker.is_complete:
                    self._maker.complete()
                continue
            if wake in ready:
                # Emptied before anybody is reaped: who ends in between makes it readable again.
                os.read(wake, 4096)
                self._reap()
            if self._supervisor in ready:
                self._kill_cells()
                return None
            self._attend(ready)
            if self._control.fileno() in ready:
                newborn = self._obey()
                if newborn is not None:
                    close_all([wake, signalled])
                    return newborn
        return None

    def _pause_ms(self) -> Optional[float]:
        if self._ended:
            next_look = min(guest.leftovers.next_look for guest in self._ended)
            return max(0.0, next_look - time.monotonic()) * 1000
        return None if self._maker.is_complete else _QUIET_MS

    def _obey(self) -> Optional[Newborn]:
        """Makes the cell that is asked for. In the cell, returns what it is to be."""
        try:
            order, descriptors = receive_packet(self._control)
        except PacketCut:
            return None  # nobody here holds the cell's channels: the supervisor sees them end, and asks again
        if not order:
            # Runs that are under way still need somebody to report how they end.
            self._poll.unregister(self._control)
            self._control.close()
            return None
        made = self._maker.make(order, descriptors)
        if isinstance(made, Newborn):
            self._let_go()
            return made
        if made is not None:
            self._guests[made.pid] = made
            self._poll.register(made.listens_to, select.POLLIN)
        return None

    def _attend(self, ready: Dict[int, int]) -> None:
        """One word of each guest that has one: a guest that is refused without end holds up no other."""
        for guest in [guest for guest in (*self._guests.values(), *self._ended) if guest.listens_to in ready]:
            watched, event = guest.listens_to, ready[guest.listens_to]
            has_word = bool(event & select.POLLIN)
            if has_word:
                guest.attend()
            if guest.listens_to == watched and event == select.POLLIN:
                continue
            # It listens to something else now, or nobody is left at the other end, which poll would tell for ever.
            self._poll.unregister(watched)
            if has_word and guest.listens_to >= 0:
                self._poll.register(guest.listens_to, select.POLLIN)

    def _reap(self) -> None:
        lost = False
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._pids.discard(pid)
            lost = True
            guest = self._guests.pop(pid, None)
            if guest is not None:
                guest.ended(status, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
                self._ended.append(guest)
        self._finish_ended()
        if lost and not self._is_caging:
            self._kill_strays()

    def _finish_ended(self) -> None:
        """Reports on guests that have ended, once nothing that they left behind deserves more time."""
        now = time.monotonic()
        for guest in [guest for guest in self._ended if guest.leftovers.next_look <= now]:
            if guest.is_over():
                self._ended.remove(guest)
                with suppress(KeyError, ValueError):  # not all of them are listened to any more
                    self._poll.unregister(guest.listens_to)
                guest.finish()

    def _kill_strays(self) -> None:
        """Whatever is our child and not a cell outlived its keeper (a bare guest may kill its own)."""
        for pid in children(os.getpid()):
            if pid not in self._pids:
                kill_tree(pid)

    def _kill_cells(self) -> None:
        """Everything below us, until nothing is: without a pid namespace, a keeper's death does not take its guests."""
        while True:
            kill_tree(os.getpid(), itself=False)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def _let_go(self) -> None:
        """In a cell: nothing of the zygote's own is any business of it, and other guests' reports least of all."""
        for guest in (*self._guests.values(), *self._ended):
            guest.close()
        self._guests.clear()
        self._ended.clear()
        close_all([self._control.detach(), self._supervisor])
