"""Cell: the supervisor's end of one caged process, from its making to its end. Used once."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable

from warmcell.cage.linux import kernel_files
from warmcell.cage.wire import SHORT_PACKET, Job, encode_job, receive_packet, send_packet
from warmcell.core.errors import EnforcerFailed, SandboxError
from warmcell.core.light import suppress
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.lifetime.ownership import own, undisturbed_by_forks
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.runner.cgroups import Group, KernelUsage
from warmcell.runner.not_started import JOB_UNREAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any

    from warmcell.cage.program_job import ProgramJob
else:  # their halves in C: the rest takes longer to load
    import _signal as signal
    import _socket as socket

_PATIENCE_MS = 5000
#: What is there before a guest may be much, on a slow disk of a host that is busy.
_MEASURE_SECONDS = 60.0
#: What a report may have in it.
_REPORT: dict[str, type | tuple[type, ...]] = {
    "exit": int,
    "verdict": str,
    "cpu": (int, float),
    "peak": int,
    "denials": list,
    "limits": list,
}


class CellLost(Exception):
    """The cell died before it was given anything to do: another one can take its place."""


class Cell:
    """Descriptors and state of a cell. Whoever holds it must call `close`, which leaves nothing behind.

    For one thread at a time. In a fork it is closed, without the original's being touched.
    """

    def __init__(
        self, enforcer: str, *, has_namespaces: bool = True, has_keeper: bool = True, stdin: int | None = None
    ) -> None:
        self.enforcer = enforcer
        #: How long it may take to end everything when asked. Killing init is no way out where it has no namespace, and
        #: loses the report where it has one: a busy host is to get the time to make it.
        self.grace = 1.0 if has_namespaces else 3.0
        #: Whether init looks after the run.
        self.has_keeper = has_keeper
        #: Known to be, with everything in it.
        self.is_gone = False
        self.group: Group | None = None
        self.group_usage: KernelUsage | None = None
        #: What becomes of the group when everybody has left it.
        self.dispose_of_group: Callable[[Group], object] = Group.remove
        #: What whoever made it calls its first process.
        self.number = 0
        self.pidfd = -1
        #: The guest's own process, where it is no child of a keeper.
        self.guest = -1
        self.listener = -1
        self.report: dict[str, Any] | None = None
        #: Told of every refusal at once, where the cell stays: its kind, and what it was.
        self.on_denied: Callable[[str, str], object] = lambda kind, what: None
        #: Why the program could not be started, if it could not: only told before the guest's code.
        self.start_failure = ""
        self._is_ordered = self._is_ready = self._is_closed = False
        #: Whether the directories that its guest may write to are to be measured before it begins, and have been.
        self._measures = self._is_measured = False
        #: Whether it wants its job as a list of calls, and then the job that it got.
        self._takes_list = False
        self._program_job: ProgramJob | None = None
        self._owned = Descriptors()
        with self._owned:
            self._open_channels(stdin)
        own(self)

    def _open_channels(self, stdin: int | None) -> None:
        self.job, their_job = self._owned.socketpair(socket.SOCK_STREAM)
        self.status, their_status = self._owned.socketpair(socket.SOCK_SEQPACKET)
        if stdin is None:
            their_stdin, self.stdin = self._owned.pipe()
        else:
            their_stdin, self.stdin = self._owned.opened(lambda: os.dup(stdin)), -1
        self.stdout, their_stdout = self._owned.pipe()
        self.stderr, their_stderr = self._owned.pipe()
        for descriptor in (self.stdin, self.stdout, self.stderr):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)
        self._theirs = [their_job, their_status, their_stdin, their_stdout, their_stderr]

    def descriptors_to_send(self) -> list[int]:
        """The cell's ends in the order that the zygote expects; `sent` closes our copies of them."""
        for way in self.group.ways_in() if self.group is not None else ():
            self._theirs.append(self._owned.opened(lambda way=way: os.open(way, os.O_WRONLY | os.O_CLOEXEC)))  # type: ignore[misc]
        return self._theirs

    def sent(self) -> None:
        self._is_ordered = True
        self._close_theirs()

    def _close_theirs(self) -> None:
        self._owned.close_only(*self._theirs)
        self._theirs = []

    def await_ready(self, timeout: float, cancelled: int = -1) -> None:
        """Waits until the cage stands and has been checked. Raises with the step that failed.

        `cancelled`: `RunCancelled` as soon as this descriptor is readable.
        """
        # A keeper may be heard before the one who tells of it.
        self._hear_until(lambda: self._is_ready and self.pidfd >= 0, "the cage was not ready", timeout, cancelled)

    def _hear_until(self, is_there: Callable[[], bool], problem: str, timeout: float, cancelled: int) -> None:
        deadline = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self.status, select.POLLIN)
        if cancelled >= 0:
            poll.register(cancelled, select.POLLIN)
        while not is_there():
            ready = [descriptor for descriptor, _ in poll.poll(max(0, deadline - time.monotonic()) * 1000)]
            if cancelled in ready:
                raise RunCancelled
            if not ready:
                raise EnforcerFailed(self.enforcer, f"{problem} after {timeout:g} s")
            self.hear()

    def hear(self) -> None:
        """Takes one message from the cell: its pid, that it is ready, or its report at the end."""
        message, descriptors = self._receive()
        if not message:
            raise CellLost("the cell ended")
        try:
            failure = self._failure(*message["failed"]) if "failed" in message else None
            if failure is None:
                self._take(message, descriptors)
        except (TypeError, ValueError, IndexError, OverflowError):
            raise EnforcerFailed(self.enforcer, "the cage said what it never says") from None
        if failure is not None:
            raise failure

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "pid" in message:
            self.number, self.pidfd = int(message["pid"]), descriptors[0]
            # Where init only sleeps it ends, and everything with it, when the third is closed: by us or by our death.
            self.guest = descriptors[1] if len(descriptors) > 1 else -1
            descriptors = descriptors[3:]
        if "ready" in message:
            self._is_ready = True
            self._takes_list = bool(message.get("list"))
            self._measures = bool(message.get("measures"))
            self.listener = descriptors[0] if descriptors else -1
        elif "pid" in message:
            return
        elif "denied" in message:
            kind, what = message["denied"]
            self.on_denied(str(kind), str(what))
        elif "measured" in message:
            self._is_measured = True
        elif _is_report(message):
            self.report = message
        else:
            raise ValueError("no report")

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        """A cell that ended with a word of ours unread makes the first attempt fail; what it said is still there."""
        for _ in range(2):
            try:
                with undisturbed_by_forks:
                    message, descriptors = receive_packet(self.status, SHORT_PACKET)
                    self._owned.take(descriptors)
                return message, descriptors
            except ConnectionResetError:
                continue
        return {}, []

    def _failure(self, step: str, number: int, what: str) -> Exception:
        if number in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.EFBIG):
            return host_failure(OSError(number, os.strerror(number)), step)
        reason = f": {os.strerror(number)}" if number else ""
        return EnforcerFailed(self.enforcer, f"could not {step}: {what}{reason}")

    def give_listener(self) -> socket.socket | None:
        """The only way out of the guest's network, where it has one; the caller closes it."""
        if self.listener < 0:
            return None
        descriptor, self.listener = self._owned.give(self.listener), -1
        from socket import socket as whole

        return whole(fileno=descriptor)

    def start(self, job: Job, run: Run | None = None) -> None:
        """Gives the waiting cell its work. `RunCancelled` where the run is given up before the cell can have it."""
        try:
            if self._measures and job.mode != "prelude":
                self._await_measure(run or Run())
            self.job.sendall(self._encoded(job))
        except OSError as error:
            raise CellLost(str(error)) from None

    def _await_measure(self, run: Run) -> None:
        """What its guest may write to is measured now, and not when the cell was made; what it writes comes later."""
        problem = "what it may write to was not measured"
        send_packet(self.status, {"measure": True})
        with run.descriptor() as cancelled:
            self._hear_until(lambda: self._is_measured or bool(self.report), problem, _MEASURE_SECONDS, cancelled)
        if not self._is_measured:
            raise CellLost("the cell ended")

    def _encoded(self, job: Job) -> bytes:
        if not self._takes_list:
            return encode_job(job)
        from warmcell.cage.program_job import encode_program_job

        self._program_job = encode_program_job(job)
        return self._program_job.content

    def hear_start(self) -> bool:
        """Call it when the job channel is readable. Whether that has ended: then the guest's code runs, or never will.

        Our own code in the guest's process closes it after the job has come and before any of the guest's runs; where
        the guest is a program, the kernel does.
        """
        try:
            words = self.job.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            self.start_failure = JOB_UNREAD
            return True
        if words and self._program_job is not None:
            self.start_failure = self._program_job.explain(words)
        else:
            self.start_failure += words.decode("utf-8", "replace")
        return not words

    def close_job(self) -> None:
        """When it has begun: there is more time for that while it runs than when it has ended."""
        self._owned.close_only(self.job.fileno())

    def close_early(self, *descriptors: int) -> None:
        """Those that are of no more use, while there is time: at the end somebody waits."""
        self._owned.close_only(*descriptors)

    def has_begun(self) -> None:
        """For a cell that stays: lets go of what was open for its beginning, since there may be hundreds of them."""
        self._owned.close_only(self.job.fileno(), self.guest)
        self.guest = -1

    def prepare_for_end(self) -> None:
        """For who has the time, since nobody has at the end."""
        if self.group is not None:
            self.group.open_counters()

    @property
    def guest_pid(self) -> int:
        """The guest's own process as this host numbers it; 0 where only its keeper knows, or it is gone."""
        if self.guest < 0:
            return 0
        rows = (line.split() for line in kernel_files.read(f"/proc/self/fdinfo/{self.guest}").splitlines())
        return max(0, next((int(row[1]) for row in rows if row[0] == "Pid:"), 0))

    def cpu_seconds(self) -> float:
        """What the whole group has used so far."""
        return self.group.cpu_seconds() if self.group is not None else 0.0

    def ask_to_stop(self) -> None:
        """Everything in the cell is killed and what it used is reported."""
        if not self.has_keeper:
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
        if self.pidfd >= 0 and not self.is_gone:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            self.is_gone = bool(poll.poll(timeout * 1000))
        return self.is_gone or self.pidfd < 0

    def is_alive(self) -> bool:
        """Whether it waits and whoever looks after it is there: neither has anything to say before it has a job."""
        if not self._is_ready or self._is_closed:
            return False
        poll = select.poll()
        for descriptor in (self.pidfd, self.status.fileno()):
            poll.register(descriptor, select.POLLIN)
        return not poll.poll(0)

    def close_stdin(self) -> None:
        self._owned.close_only(self.stdin)
        self.stdin = -1

    def close(self) -> None:
        """Ends the cell if it has not ended, waits until it is gone, and gives everything back."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self.is_gone:
                self._end()
        except BaseException:
            self.kill()  # there was no memory to wait with
            raise
        finally:
            self._give_back()

    def _end(self) -> None:
        self._close_theirs()
        self.close_job()
        if self._is_ordered and self.pidfd < 0:
            self._learn_who_it_is()
        if self.report is None and not self.await_gone(0):
            self.ask_to_stop()
            if not self.await_gone(2 * self.grace):
                self.kill()
        self.await_gone(10)

    def _give_back(self) -> None:
        self._owned.close()
        self.stdin = self.stdout = self.stderr = self.pidfd = self.guest = self.listener = -1
        if self.group is not None:
            try:
                self.group_usage = self.group.usage()
            finally:
                self.dispose_of_group(self.group)

    def _learn_who_it_is(self) -> None:
        """Given up while it was being made: only one that is known can be ended and waited for."""
        poll = select.poll()
        poll.register(self.status, select.POLLIN)
        with suppress(CellLost, SandboxError, OSError):
            while self.pidfd < 0 and poll.poll(_PATIENCE_MS):
                self.hear()

    def abandon(self) -> None:
        self._is_closed = True


def _is_report(message: dict[str, Any]) -> bool:
    for name, kind in _REPORT.items():  # no generator: this is said of every run
        if name in message and not isinstance(message[name], kind):
            return False
    denials: list[object] = message.get("denials", [])
    return all(isinstance(item, list) and [type(word) for word in item] == [str, str] for item in denials)
