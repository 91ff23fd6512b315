"""A guest that is the zygote's own child, because its cell's init only sleeps.

The zygote learns from it that the cage stands, answers the calls that it is refused, and reports how it ended. Nothing
of this takes a process of its own: a waiting cell is the guest and two pages of init.
"""

from __future__ import annotations

import os
import socket
from functools import cached_property
from typing import Any, Dict, Optional, Sequence

from .. import refused_paths
from ..cell import CODE_DIRECTORY, NOTIFICATIONS, PROXY_LISTENER, SleepingInit, take_over
from ..failure import CageError, tell
from ..leftovers import Leftovers
from ..linux.fds import close_all
from ..linux.mounts import is_full
from ..linux.notify import Listener
from ..linux.processes import descendants
from ..wire import send_packet


class GuestChild:
    """One guest, from its fork to its end. It owns the status channel, the handoff and what is handed over."""

    def __init__(
        self,
        pid: int,
        report_path: str,
        status: socket.socket,
        init: SleepingInit,
        handoff: socket.socket,
        may_exec: bool,
    ) -> None:
        self.pid = pid
        self._report_name = os.path.basename(report_path)
        self._status = status
        self._init = init
        self._handoff = handoff
        self._may_exec = may_exec
        self._listener: Optional[Listener] = None
        self._code_directory = -1
        self._report: Dict[str, Any] = {}

    @cached_property
    def leftovers(self) -> Leftovers:
        """Of the guest that has ended: made then, because their time counts from then on."""
        return Leftovers()

    @property
    def listens_to(self) -> int:
        """The descriptor to wait for: at first the guest's word that it is locked in, then its refused calls."""
        if self._listener is not None:
            return self._listener.descriptor
        return self._handoff.fileno()

    def attend(self) -> None:
        """Deals with what came on the descriptor that it listens to."""
        if self._listener is None:
            self._hear()
            return
        self._listener.answer()
        if self._report:
            self.leftovers.were_heard()

    def _hear(self) -> None:
        try:
            given = take_over(self._handoff)
        except CageError as failure:
            tell(self._status, failure)
            self._init.end()
            return
        except OSError as error:
            tell(self._status, CageError("lock guest", error.errno or 0, "the guest's process died"))
            self._init.end()
            return
        finally:
            self._handoff.close()
        self._code_directory = given.get(CODE_DIRECTORY, -1)
        if NOTIFICATIONS in given:
            self._listener = Listener(given[NOTIFICATIONS], self.pid)
            self._listener.may_exec_once = self._may_exec
        proxy_listener = [given[PROXY_LISTENER]] if PROXY_LISTENER in given else []
        self._send({"ready": True}, proxy_listener)
        close_all(proxy_listener)

    def ended(self, status: int, cpu: float, peak: int) -> None:
        """It was reaped. What it left behind may still be about something: see `is_over`."""
        self._report = {"exit": status, "verdict": "", "cpu": round(cpu, 6), "peak": peak}

    def is_over(self) -> bool:
        """Whether nothing is left in the cell that deserves more time. All of that are now children of init."""
        return not self.leftovers.deserve_time(descendants(self._init.pid))

    def finish(self) -> None:
        """Whatever is left ends with init, and the supervisor is told."""
        self._init.end()
        report, code = self._report, self._code_directory
        report["denials"] = self._listener.denials if self._listener else []
        if report["exit"] and code >= 0:
            report["denials"] += refused_paths.read_note(self._report_name, code)
        # The code is on the one tmpfs of everything that the guest may write. Processes are the cgroup's to count.
        report["limits"] = ["disk"] if code >= 0 and is_full(code) else []
        self._send(report)
        self.close()

    def close(self) -> None:
        """Lets go of all descriptors; what they led to goes on."""
        for channel in (self._handoff, self._status):
            channel.close()
        close_all([self._init.pidfd, self._code_directory, *([self._listener.descriptor] if self._listener else [])])

    def _send(self, message: Dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            send_packet(self._status, message, descriptors)
        except OSError:  # the supervisor let go of the cell
            self._init.end()
