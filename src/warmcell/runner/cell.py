"""Cell: the supervisor's end of one caged process, from its creation to its end. Used once."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable

from warmcell.cage.linux import kernel_files
from warmcell.cage.wire import SHORT_PACKET, GuestJob, encode_job, receive_packet, send_packet
from warmcell.core.errors import EnforcerFailed, EnforcerUnavailable, SandboxError
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
#: Measuring large directories takes long on a slow disk of a busy host.
_MEASURE_SECONDS = 60.0
#: The fields of a report.
_REPORT: dict[str, type | tuple[type, ...]] = {
    "exit": int,
    "verdict": str,
    "cpu": (int, float),
    "peak": int,
    "denials": list,
    "limits": list,
    "resident": list,
    "gpu": list,
}


class CellLost(Exception):
    """The cell died before it received a job: another one can take its place."""


class Cell:
    """Descriptors and state of a cell. Its owner must call `close`, which leaves nothing behind.

    For one thread at a time. In a fork of this process it is closed without touching the original.
    """

    def __init__(
        self, enforcer: str, *, has_namespaces: bool = True, has_keeper: bool = True, stdin: int | None = None
    ) -> None:
        self.enforcer = enforcer
        #: How long it may take to end everything when asked. Killing init ends nothing where it has no namespace, and
        #: loses the report where it has one, so a busy host gets the time to send it.
        self.grace = 1.0 if has_namespaces else 10.0
        #: Whether a keeper process watches the run.
        self.has_keeper = has_keeper
        #: Whether it is known to be gone, with everything in it.
        self.is_gone = False
        self.group: Group | None = None
        self.group_usage: KernelUsage | None = None
        #: What to do with the group when it is empty.
        self.dispose_of_group: Callable[[Group], object] = Group.remove
        #: The pid of its first process, as the manager numbers it.
        self.number = 0
        self.pidfd = -1
        #: The guest's own process, unless it is a child of a keeper.
        self.guest = -1
        self.listener = -1
        self.report: dict[str, Any] | None = None
        #: In a live cage, called with the kind and the object of refusals, and for how many seconds the same one is not
        #: reported again.
        self.on_denied: Callable[[str, str, float], object] = lambda kind, what, silence: None
        #: Why the program could not be started. Set only before the guest's code runs.
        self.start_failure = ""
        self._is_ordered = self._is_ready = self._is_closed = False
        #: Whether the directories that the guest may write to are to be measured first, and have been.
        self._measures = self._is_measured = False
        #: Whether its guest has the modules of live cages already.
        self.has_live_modules = False
        #: Whether it takes its job as a list of system calls, and that job.
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
            their_stdin, self.stdin = self._owned.open(lambda: os.dup(stdin)), -1
        self.stdout, their_stdout = self._owned.pipe()
        self.stderr, their_stderr = self._owned.pipe()
        for descriptor in (self.stdin, self.stdout, self.stderr):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)
        self._theirs = [their_job, their_status, their_stdin, their_stdout, their_stderr]

    def descriptors_to_send(self) -> list[int]:
        """The cell's ends in the order that the zygote expects; `close_their_ends` closes our copies of them."""
        for way in self.group.join_paths() if self.group is not None else ():
            self._theirs.append(self._owned.open(lambda way=way: os.open(way, os.O_WRONLY | os.O_CLOEXEC)))  # type: ignore[misc]
        return self._theirs

    def close_their_ends(self) -> None:
        self._is_ordered = True
        self._close_theirs()

    def _close_theirs(self) -> None:
        self._owned.close_only(*self._theirs)
        self._theirs = []

    def await_ready(self, timeout: float, cancelled: int = -1) -> None:
        """Waits until the cage is built and verified. Raises with the step that failed.

        Raises `RunCancelled` as soon as the descriptor `cancelled` is readable.
        """
        # A keeper's first message may arrive before the message with its pid.
        self._receive_until(lambda: self._is_ready and self.pidfd >= 0, "the cage was not ready", timeout, cancelled)

    def _receive_until(self, is_there: Callable[[], bool], problem: str, timeout: float, cancelled: int) -> None:
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
            self.receive_message()

    def receive_message(self) -> None:
        """Receives one message from the cell: its pid, that it is ready, or its report at the end."""
        message, descriptors = self._receive()
        if not message:
            raise CellLost("the cell ended")
        try:
            failure = self._failure(*message["failed"]) if "failed" in message else None
            if failure is None:
                self._take(message, descriptors)
        except (TypeError, ValueError, IndexError, OverflowError):
            raise EnforcerFailed(self.enforcer, "unexpected message from the cage manager") from None
        if failure is not None:
            raise failure

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "pid" in message:
            self.number, self.pidfd = int(message["pid"]), descriptors[0]
            # A sleeping init ends, and everything with it, when the third descriptor is closed, by us or by our death.
            self.guest = descriptors[1] if len(descriptors) > 1 else -1
            descriptors = descriptors[3:]
        if "ready" in message:
            self._is_ready = True
            self._takes_list = bool(message.get("list"))
            self.has_live_modules = bool(message.get("live_modules"))
            self._measures = bool(message.get("measures"))
            self.listener = descriptors[0] if descriptors else -1
        elif "pid" in message:
            return
        elif "denied" in message:
            kind, what, silence = message["denied"]
            self.on_denied(str(kind), str(what), float(silence))
        elif "measured" in message:
            self._is_measured = True
        elif _is_report(message):
            self.report = message
        else:
            raise ValueError("no report")

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        """If the cell ended with a message of ours unread, the first attempt fails, and the next one reads its own."""
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
        if step == "mount image":
            hint = "see the row for images of `warmcell doctor`, or move the image store to another file system"
            return EnforcerUnavailable(self.enforcer, f"the kernel does not mount the image{reason}", hint=hint)
        return EnforcerFailed(self.enforcer, f"could not {step}: {what}{reason}")

    def give_listener(self) -> socket.socket | None:
        """The listener of the guest's egress proxy, if it has one. The caller closes it."""
        if self.listener < 0:
            return None
        descriptor, self.listener = self._owned.give(self.listener), -1
        from socket import socket as whole

        return whole(fileno=descriptor)

    def start(self, job: GuestJob, run: Run | None = None) -> None:
        """Sends the waiting cell its job. Raises `RunCancelled` if the run is cancelled before."""
        try:
            if self._measures and job.mode != "prelude":
                self._await_measure(run or Run())
            self.job.sendall(self._encode(job))
        except OSError as error:
            raise CellLost(str(error)) from None

    def _await_measure(self, run: Run) -> None:
        """Directories are measured now, not when the cell was made, and before the guest can write."""
        problem = "the writable directories were not measured"
        send_packet(self.status, {"measure": True})
        with run.descriptor() as cancelled:
            self._receive_until(lambda: self._is_measured or bool(self.report), problem, _MEASURE_SECONDS, cancelled)
        if not self._is_measured:
            raise CellLost("the cell ended")

    def _encode(self, job: GuestJob) -> bytes:
        if not self._takes_list:
            return encode_job(job)
        self._takes_list = False  # the next job is read by the program that this one started
        from warmcell.cage.program_job import encode_program_job

        self._program_job = encode_program_job(job)
        return self._program_job.content

    def receive_start(self) -> bool:
        """Call it when the job channel is readable. True if it was closed: the guest's code runs, or never will.

        Our own code in the guest's process closes it after it has read the job and before it runs any of the guest's.
        If the guest is a program, the kernel closes it in execve.
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
        """Closes the job channel after the start: at the end the caller waits."""
        self._owned.close_only(self.job.fileno())

    def close_early(self, *descriptors: int) -> None:
        """Closes descriptors that are no longer needed while there is time: at the end the caller waits."""
        self._owned.close_only(*descriptors)

    def close_start_channels(self) -> None:
        """In a live cage: closes what was needed for the start, since there may be hundreds of cages."""
        self._owned.close_only(self.job.fileno(), self.guest)
        self.guest = -1

    def prepare_for_end(self) -> None:
        """Opens the counters while there is time: at the end the caller waits."""
        if self.group is not None:
            self.group.open_counters()

    @property
    def guest_pid(self) -> int:
        """The pid of the guest's own process on this host. 0 if only its keeper knows it, or if it is gone."""
        return _pid_of(self.guest)

    def pids(self) -> list[int]:
        """The processes on this host below which all of the cell's are. 0 for one that is gone."""
        return [_pid_of(self.guest), _pid_of(self.pidfd)]

    def cpu_seconds(self) -> float:
        """The usage of the whole control group so far."""
        return self.group.cpu_seconds() if self.group is not None else 0.0

    def ask_to_stop(self) -> None:
        """Requests that everything in the cell be killed and a report sent."""
        if not self.has_keeper:
            self.kill()
            return
        with suppress(OSError):
            send_packet(self.status, {"stop": True})

    def kill(self) -> None:
        """Kills the namespace with everything in it."""
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def await_end(self, timeout: float) -> bool:
        """Whether all processes of the cell have ended: its init is the last to be reaped."""
        if self.pidfd >= 0 and not self.is_gone:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            self.is_gone = bool(poll.poll(timeout * 1000))
        return self.is_gone or self.pidfd < 0

    def is_alive(self) -> bool:
        """Whether it still waits for a job and its watcher lives. Neither sends anything before the job."""
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
        """Ends the cell if it has not ended, waits until it is gone, and releases everything."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self.is_gone:
                self._end()
        except BaseException:
            self.kill()  # there was no memory for waiting
            raise
        finally:
            self._give_back()

    def _end(self) -> None:
        self._close_theirs()
        self.close_job()
        if self._is_ordered and self.pidfd < 0:
            self._await_pid()
        if self.report is None and not self.await_end(0):
            self.ask_to_stop()
            if not self.await_end(2 * self.grace):
                self.kill()
        self.await_end(10)

    def _give_back(self) -> None:
        self._owned.close()
        self.stdin = self.stdout = self.stderr = self.pidfd = self.guest = self.listener = -1
        if self.group is not None:
            try:
                self.group_usage = self.group.usage()
            finally:
                self.dispose_of_group(self.group)

    def _await_pid(self) -> None:
        """Cancelled while it was being made: it can be ended and waited for only when its pid is known."""
        poll = select.poll()
        poll.register(self.status, select.POLLIN)
        with suppress(CellLost, SandboxError, OSError):
            while self.pidfd < 0 and poll.poll(_PATIENCE_MS):
                self.receive_message()

    def abandon(self) -> None:
        self._is_closed = True


def _pid_of(pidfd: int) -> int:
    if pidfd < 0:
        return 0
    rows = (line.split() for line in kernel_files.read(f"/proc/self/fdinfo/{pidfd}").splitlines())
    return max(0, next((int(row[1]) for row in rows if row[0] == "Pid:"), 0))


def _is_report(message: dict[str, Any]) -> bool:
    for name, kind in _REPORT.items():  # not a generator: this is done for every run
        if name in message and not isinstance(message[name], kind):
            return False
    if "resident" in message and [type(size) for size in message["resident"]] != [int, int, int]:
        return False
    if "gpu" in message and [type(figure) for figure in message["gpu"]] not in ([int, float], [int, int]):
        return False
    denials: list[object] = message.get("denials", [])
    return all(isinstance(item, list) and [type(word) for word in item] == [str, str] for item in denials)
