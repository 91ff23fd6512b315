"""Cell: the supervisor's end of one caged process, from its making to its end. Used once."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any

from warmcell.cage.linux.cgroups import Group, GroupUsage
from warmcell.cage.wire import SHORT_PACKET, Job, encode_job, receive_packet, send_packet
from warmcell.core.errors import EnforcerFailed
from warmcell.lifetime.ownership import own


class CellLost(Exception):
    """The cell died before it was given anything to do: another one can take its place."""


class Cell:
    """Descriptors and state of a cell. Whoever holds it must call `close`, which leaves nothing behind."""

    def __init__(
        self,
        enforcer: str,
        group: Group | None,
        *,
        has_namespaces: bool = True,
        has_keeper: bool = True,
        stdin: int | None = None,
    ) -> None:
        self.enforcer = enforcer
        #: How long it may take to end everything when asked. Killing init is no way out where it has no namespace.
        self.grace = 0.25 if has_namespaces else 3.0
        #: Whether init looks after the run.
        self._has_keeper = has_keeper
        self.group = group
        self.group_usage: GroupUsage | None = None
        self.pid = 0
        self.pidfd = -1
        #: The guest's own process, where it is a child of the zygote.
        self.guest = -1
        self.listener = -1
        self.report: dict[str, Any] | None = None
        self._is_ready = False
        self._has_started = False
        self._is_closed = False
        self.job, self._their_job = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.status, self._their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs, self.stdin = (os.dup(stdin), -1) if stdin is not None else os.pipe2(os.O_CLOEXEC)
        self.stdout, stdout = os.pipe2(os.O_CLOEXEC)
        self.stderr, stderr = os.pipe2(os.O_CLOEXEC)
        self._theirs = [theirs, stdout, stderr]
        #: An init that only sleeps ends, and everything with it, when this is closed: by us, or by our death.
        self._lifeline = -1
        for descriptor in (self.stdin, self.stdout, self.stderr):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)
        own(self)

    def descriptors_to_send(self) -> list[int]:
        """The cell's ends in the order that the zygote expects; `sent` closes our copies of them."""
        if self.group is not None:
            self._theirs += self.group.open_procs()
        return [self._their_job.fileno(), self._their_status.fileno(), *self._theirs]

    def sent(self) -> None:
        self._their_job.close()
        self._their_status.close()
        while self._theirs:
            os.close(self._theirs.pop())

    def await_ready(self, timeout: float) -> None:
        """Waits until the cage stands and has been checked. Raises with the step that failed."""
        deadline = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self.status, select.POLLIN)
        while not self._is_ready:
            if not poll.poll(max(0, deadline - time.monotonic()) * 1000):
                raise EnforcerFailed(self.enforcer, f"the cage was not ready after {timeout:g} s")
            self.hear()

    def hear(self) -> None:
        """Takes one message from the cell: its pid, that it is ready, or its report at the end."""
        message, descriptors = self._receive()
        if not message:
            raise CellLost("the cell ended")
        if "failed" in message:
            step, errno, what = message["failed"]
            reason = f": {os.strerror(errno)}" if errno else ""
            raise EnforcerFailed(self.enforcer, f"could not {step}: {what}{reason}")
        if "pid" in message:
            self.pid, self.pidfd = message["pid"], descriptors[0]
            self.guest, self._lifeline = descriptors[1:] or (-1, -1)
        elif "ready" in message:
            self._is_ready = True
            self.listener = descriptors[0] if descriptors else -1
        else:
            self.report = message

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        """A cell that ended with a word of ours unread makes the first attempt fail; what it said is still there."""
        for _ in range(2):
            with suppress(ConnectionResetError):
                return receive_packet(self.status, SHORT_PACKET)
        return {}, []

    def start(self, job: Job, *, starts_clock: bool = True, tells_init: bool = True) -> None:
        """Gives the waiting cell its work. `starts_clock`: from now on init watches what it uses.

        Init hears first whether one exec is to come, because where new programs are forbidden it refuses all others.
        Where it has nothing to watch and nothing to refuse, it is left asleep.
        """
        try:
            if tells_init and self._has_keeper:
                is_exec = job.mode != "python" and not self._has_started
                send_packet(self.status, {"go": starts_clock, "exec": is_exec})
            self._has_started = True
            self.job.sendall(encode_job(job))
        except OSError as error:
            raise CellLost(str(error)) from None

    def start_failure(self) -> str:
        """Why the program could not be started, if it could not: only told before the guest's code."""
        self.job.setblocking(False)
        with suppress(OSError):
            return self.job.recv(4096).decode("utf-8", "replace")
        return ""

    def cpu_seconds(self) -> float:
        """What the whole group has used so far."""
        return self.group.cpu_seconds() if self.group is not None else 0.0

    def ask_to_stop(self) -> None:
        """Everything in the cell is killed and what it used is reported."""
        if not self._has_keeper:
            self.kill()
            return
        with suppress(OSError):
            send_packet(self.status, {"stop": True})

    def kill(self) -> None:
        """Takes the namespace down, whatever is in it."""
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def await_gone(self, timeout: float) -> bool:
        """Whether everything of the cell has ended: its init is reaped only after all the rest."""
        if self.pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def is_alive(self) -> bool:
        """Whether it waits and whoever looks after it is there: neither has anything to say before it has a job."""
        if not self._is_ready or self._is_closed:
            return False
        poll = select.poll()
        for descriptor in (self.pidfd, self.status.fileno()):
            poll.register(descriptor, select.POLLIN)
        return not poll.poll(0)

    def report_orphan(self) -> None:
        """The guest ended and its zygote is not there to say how."""
        from warmcell.runner.orphans import exit_status

        self.kill()
        status = exit_status(self.guest)
        if status is None:
            raise CellLost("the zygote died")
        self.report = {"exit": status}

    def close(self) -> None:
        """Ends the cell if it has not ended, waits until it is gone, and gives everything back."""
        if self._is_closed:
            return
        self._is_closed = True
        self.sent()
        self.job.close()
        if self.report is None and not self.await_gone(0):
            self.ask_to_stop()
            if not self.await_gone(2 * self.grace):
                self.kill()
        self.await_gone(10)
        self.status.close()
        for descriptor in self._descriptors():
            os.close(descriptor)
        self.stdin = self.stdout = self.stderr = self.pidfd = self.guest = self.listener = self._lifeline = -1
        if self.group is not None:
            self.group_usage = self.group.usage()
            self.group.remove()

    def close_stdin(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def abandon(self) -> None:
        """In a forked copy of the supervisor: let go of the descriptors without touching the cell."""
        if self._is_closed:
            return
        self._is_closed = True
        for channel in (self.job, self.status, self._their_job, self._their_status):
            channel.close()
        for descriptor in (*self._descriptors(), *self._theirs):
            with suppress(OSError):
                os.close(descriptor)

    def _descriptors(self) -> list[int]:
        ours = (self.stdin, self.stdout, self.stderr, self.pidfd, self.guest, self.listener, self._lifeline)
        return [descriptor for descriptor in ours if descriptor >= 0]
