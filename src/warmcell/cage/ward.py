"""Ward: the zygote's end of a cell whose first process only sleeps. The zygote is the guest's parent there.

It learns from the guest that the cage stands, answers the calls that the guest is refused, and reports how it ended.
Nothing of this takes a process of its own: a waiting cell is the guest and two pages of init.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, Optional, Sequence

from . import refusals
from .enter import Home
from .failure import tell, told
from .linux.notify import Listener
from .wire import close_all, receive_packet, send_packet

#: What the guest hands over with its descriptors, once it is locked in.
NOTIFICATIONS, PROXY_LISTENER, CODE_DIRECTORY = "notifications", "listener", "code"


class Ward:
    """One cell, from the fork of its guest to its end."""

    def __init__(
        self, report_path: str, status: socket.socket, home: Home, guest: int, handoff: socket.socket, may_exec: bool
    ) -> None:
        self._report_name = os.path.basename(report_path)
        self._status = status
        self._home = home
        self._guest = guest
        self._handoff = handoff
        self._may_exec = may_exec
        self._listener: Optional[Listener] = None
        self._code_directory = -1

    @property
    def listens_to(self) -> int:
        """The descriptor to wait for: at first the guest's word that it is locked in, then its refused calls."""
        if self._listener is not None:
            return self._listener.descriptor
        return self._handoff.fileno()

    def attend(self) -> None:
        """Deals with what came on the descriptor that it listens to."""
        if self._listener is not None:
            self._listener.answer()
        else:
            self._hear()

    def _hear(self) -> None:
        try:
            message, descriptors = receive_packet(self._handoff)
        except OSError:
            message, descriptors = {}, []
        self._handoff.close()
        if "locked" not in message:
            tell(self._status, told(message))
            self._home.end()
            return
        given = dict(zip(message["locked"], descriptors))  # noqa: B905  # `strict` came after Python 3.9
        self._code_directory = given.get(CODE_DIRECTORY, -1)
        if NOTIFICATIONS in given:
            self._listener = Listener(given[NOTIFICATIONS], self._guest, None)
            self._listener.may_exec_once = self._may_exec
        proxy_listener = [given[PROXY_LISTENER]] if PROXY_LISTENER in given else []
        self._send({"ready": True}, proxy_listener)
        close_all(proxy_listener)

    def ended(self, status: int, cpu: float, peak: int) -> None:
        """The guest was reaped: whatever it left behind ends with init, and the supervisor is told."""
        self._home.end()
        report: Dict[str, Any] = {"exit": status, "verdict": "", "cpu": round(cpu, 6), "peak": peak}
        report["denials"] = self._listener.denials if self._listener else []
        if status and self._code_directory >= 0:
            report["denials"] += refusals.read(self._report_name, self._code_directory)
        self._send(report)
        self.close()

    def close(self) -> None:
        """Lets go of all descriptors; what they led to goes on."""
        for channel in (self._handoff, self._status):
            channel.close()
        close_all([self._home.init, self._code_directory, *([self._listener.descriptor] if self._listener else [])])

    def _send(self, message: Dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            send_packet(self._status, message, descriptors)
        except OSError:  # the supervisor let go of the cell
            self._home.end()
