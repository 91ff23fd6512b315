"""The keeper's life: waits for the guest's end, or makes it where a ceiling that nobody else keeps is reached."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from functools import partial
from typing import Any, Dict, List, Optional

from .. import refused_paths
from ..leftovers import Leftovers
from ..linux.notify import Listener
from ..linux.processes import descendants, kill_tree
from ..plan import LaunchPlan
from ..wire import receive_packet, send_packet
from . import connections
from .ceilings import Ceilings


class Keeper:
    """One cell's, from the moment that its cage stands."""

    def __init__(self, plan: LaunchPlan, status: socket.socket, guest: int, notifications: int) -> None:
        self._plan = plan
        self._status = status
        self._guest = guest
        self._listener = self._listen(notifications) if notifications >= 0 else None
        self._exit: Optional[int] = None
        #: Nobody is left in the cell: what the guest had started and not waited for became our children with its end.
        self._is_alone = False
        self._leftovers: Optional[Leftovers] = None
        self._ceilings = Ceilings(plan)
        self._is_stopped = False
        self._is_watching = False
        self._next_look = 0.0

    def _listen(self, notifications: int) -> Listener:
        """Where host directories are in sight, unix sockets are the guest's own only on the device of its scratch."""
        plan = self._plan
        shows_host = any(bind.as_owner for bind in plan.binds)
        if not (shows_host and plan.scratch_dirs and plan.network != "host"):
            return Listener(notifications, self._guest)
        own_device = os.stat(plan.scratch_dirs[0][0]).st_dev
        return Listener(notifications, self._guest, partial(connections.connect, own_device=own_device))

    def watch(self) -> None:
        """The loop: signals of ended children, words from outside, refused calls, and a look at what is used."""
        wake, signalled = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self._status, select.POLLIN)
        if self._listener:
            poll.register(self._listener.descriptor, select.POLLIN)
        self._reap()
        while not self._is_over():
            ready = dict(poll.poll(self._pause_ms()))
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self._status.fileno() in ready:
                self._hear()
            if self._listener and self._listener.descriptor in ready:
                if ready[self._listener.descriptor] & select.POLLIN:
                    # What allows an exec was sent before the job that makes it: hear it first.
                    if select.select([self._status], [], [], 0)[0]:
                        self._hear()
                    self._listener.answer()
                    if self._leftovers:
                        self._leftovers.were_heard()
                else:
                    poll.unregister(self._listener.descriptor)
            if self._is_watching and time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + self._ceilings.look(self._pids())
        self._end()

    def _is_over(self) -> bool:
        """Whether it must end, or the guest has ended and nothing that it left behind deserves more time."""
        if self._is_stopped or self._ceilings.verdict or (self._exit is not None and self._is_alone):
            return True
        if self._exit is None:
            return False
        self._leftovers = self._leftovers or Leftovers()
        is_due = time.monotonic() >= self._leftovers.next_look
        return is_due and not self._leftovers.deserve_time(self._pids())

    def _pause_ms(self) -> Optional[float]:
        """Until the next look at what is used, or at what is left."""
        due = [self._next_look] if self._is_watching else []
        due += [self._leftovers.next_look] if self._leftovers else []
        return max(0.0, min(due) - time.monotonic()) * 1000 if due else None

    def _hear(self) -> None:
        try:
            message, _ = receive_packet(self._status)
        except OSError:
            message = {}
        if self._listener and message.get("exec"):
            self._listener.may_exec_once = True
        if message.get("go"):
            self._is_watching = self._ceilings.is_watching
            self._ceilings.start()
        elif "go" not in message:
            self._is_stopped = True  # told to, or the supervisor is gone

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_alone = True
                return
            if pid == 0:
                return
            self._ceilings.add(pid, used)
            if pid == self._guest:
                self._exit = status

    def _pids(self) -> List[int]:
        if self._plan.isolation == "namespaces":
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        return list(descendants(os.getpid()))

    def _end(self) -> None:
        self._ceilings.last_look([] if self._is_alone else self._pids())
        self._kill_all()
        report: Dict[str, Any] = {
            "exit": self._exit if self._exit is not None else 9,
            "verdict": self._ceilings.verdict,
            "cpu": round(self._ceilings.cpu, 6),
            "peak": self._ceilings.peak,
            "limits": sorted(self._ceilings.met),
            "denials": (self._listener.denials if self._listener else [])
            + refused_paths.read_note(self._plan.report_path),
        }
        try:
            send_packet(self._status, report)
        except OSError:
            pass
        os._exit(0)

    def _kill_all(self) -> None:
        """SIGKILL to everything, until nothing is left: what forks faster than we look is stopped first."""
        while True:
            try:
                if self._plan.isolation == "namespaces":
                    os.kill(-1, signal.SIGKILL)
                else:
                    kill_tree(os.getpid(), itself=False)
            except ProcessLookupError:
                pass
            try:
                pid, status, used = os.wait4(-1, 0)
            except ChildProcessError:
                return
            except OSError as error:
                if error.errno != errno.EINTR:
                    raise
                continue
            self._ceilings.add(pid, used)
            if pid == self._guest:
                self._exit = status
