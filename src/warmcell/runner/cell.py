"""Cell: the supervisor's end of one caged process, from creation to end. Used once."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable
from functools import partial

from warmcell.cage.linux import kernel_files
from warmcell.cage.wire import SHORT_PACKET, GuestJob, encode_job, receive_packet, send_packet
from warmcell.core.errors import EnforcerFailed, EnforcerUnavailable, SandboxError
from warmcell.core.light import suppress
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.lifetime.ownership import fork_lock, own
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.runner.cgroups import Group, KernelUsage
from warmcell.runner.not_started import JOB_UNREAD, JobUnread, failure_or_unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any

    from warmcell.cage.program_job import ProgramJob
else:  # the C modules, which load faster
    import _signal as signal
    import _socket as socket

_PATIENCE_MS = 5000
#: Measuring large directories takes long on a busy host with a slow disk.
_MEASURE_SECONDS = 60.0
#: How long a program that reads its own job may take to do so.
_READ_SECONDS = 60.0
#: The fields of a report and their types.
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
    """The cell died before it received its job. The run can be repeated in another cell."""


class Cell:
    """Descriptors and state of a cell. Its owner must call `close`, which leaves nothing behind.

    For one thread at a time. In a fork of the program it is closed, which does not affect the parent's.
    """

    def __init__(
        self, enforcer: str, *, has_namespaces: bool = True, has_keeper: bool = True, stdin: int | None = None
    ) -> None:
        self.enforcer = enforcer
        #: How long to wait after a request to stop, before init is killed. Without a namespace that kill ends nothing
        #: else; with one, the report is lost.
        self.grace = 1.0 if has_namespaces else 10.0
        #: Whether a keeper process watches the run.
        self.has_keeper = has_keeper
        #: Whether all its processes are known to have ended.
        self.is_gone = False
        self.group: Group | None = None
        self.group_usage: KernelUsage | None = None
        #: Called with the group when it is empty.
        self.dispose_of_group: Callable[[Group], object] = Group.remove
        #: The pid of its first process in the manager's pid namespace.
        self.number = 0
        self.pidfd = -1
        #: Of the guest's own process, unless it is a child of a keeper.
        self.guest_pidfd = -1
        self.listener = -1
        self.report: dict[str, Any] | None = None
        #: In a live cage, called with each refusal's kind and object, and the seconds during which it is not repeated.
        self.on_denied: Callable[[str, str, float], object] = lambda kind, what, silence: None
        #: Why the program could not be started. Set only before the guest's code runs.
        self.start_failure = ""
        self._is_ordered = self._is_ready = self._is_closed = False
        #: Whether the manager must measure the guest's writable directories before the job, and whether it has.
        self._measures = self._is_measured = False
        #: Whether its guest has loaded the modules of live cages.
        self.has_live_modules = False
        #: Whether it expects its job as a list of system calls.
        self._takes_call_list = False
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
        for path in self.group.join_paths() if self.group is not None else ():
            self._theirs.append(self._owned.open(partial(os.open, path, os.O_WRONLY | os.O_CLOEXEC)))
        return self._theirs

    def close_their_ends(self) -> None:
        self._is_ordered = True
        self._close_theirs()

    def _close_theirs(self) -> None:
        self._owned.close_only(*self._theirs)
        self._theirs = []

    def await_ready(self, timeout: float, cancelled: int = -1) -> None:
        """Waits until the cage is built and verified. Raises an error that names the step that failed.

        Raises `RunCancelled` as soon as the descriptor `cancelled` is readable.
        """
        # A keeper's first message may arrive before the manager's message with its pid.
        self._receive_until(lambda: self._is_ready and self.pidfd >= 0, "the cage was not ready", timeout, cancelled)

    def _receive_until(self, is_done: Callable[[], bool], problem: str, timeout: float, cancelled: int) -> None:
        deadline = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self.status, select.POLLIN)
        if cancelled >= 0:
            poll.register(cancelled, select.POLLIN)
        while not is_done():
            ready = [descriptor for descriptor, _ in poll.poll(max(0, deadline - time.monotonic()) * 1000)]
            if cancelled in ready:
                raise RunCancelled
            if not ready:
                raise EnforcerFailed(self.enforcer, f"{problem} after {timeout:g} s")
            self.receive_message()

    def receive_message(self) -> None:
        """Receives and handles one message from the cell, such as its pid, readiness, or final report."""
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
            # The third descriptor, if any, keeps a sleeping init alive until we close it or die.
            self.guest_pidfd = descriptors[1] if len(descriptors) > 1 else -1
            descriptors = descriptors[3:]
        if "ready" in message:
            self._is_ready = True
            self._takes_call_list = bool(message.get("list"))
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
            raise ValueError("not a report")

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        for _ in range(2):  # the first fails with ECONNRESET if the cell ended before it had read a message of ours
            try:
                with fork_lock:
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

    def take_listener(self) -> socket.socket | None:
        """The listener of the guest's egress proxy, if it has one. The caller closes it."""
        if self.listener < 0:
            return None
        descriptor, self.listener = self._owned.give(self.listener), -1
        from socket import socket as python_socket

        return python_socket(fileno=descriptor)

    def send_job(self, job: GuestJob, run: Run | None = None) -> None:
        """Sends the waiting cell its job. Raises `RunCancelled` if the run is cancelled first."""
        try:
            if self._measures and job.mode != "prelude":
                self._await_measure(run or Run())
            with (run or Run()).on_cancel(self.ask_to_stop):
                self.job.sendall(self._encode(job))
            # The next job is for the program that this one starts: an image's own Python may never read it.
            if job.mode == "prelude" or self.job.gettimeout() is not None:
                self.job.settimeout(_READ_SECONDS if job.mode == "prelude" else None)
        except TimeoutError:
            raise JobUnread(0, f"it did not read its job within {_READ_SECONDS:g} s") from None
        except OSError as error:
            if run is not None:
                run.check()
            raise CellLost(str(error)) from None

    def _await_measure(self, run: Run) -> None:
        """Has the writable directories measured: now, because they may have changed since the cell was made."""
        problem = "the writable directories were not measured"
        send_packet(self.status, {"measure": True})
        with run.descriptor() as cancelled:
            self._receive_until(lambda: self._is_measured or bool(self.report), problem, _MEASURE_SECONDS, cancelled)
        if not self._is_measured:
            raise CellLost("the cell ended")

    def _encode(self, job: GuestJob) -> bytes:
        if not self._takes_call_list:
            return encode_job(job)
        self._takes_call_list = False  # the next job goes to the program that this one starts
        from warmcell.cage.program_job import encode_program_job

        self._program_job = encode_program_job(job)
        return self._program_job.content

    def receive_start(self) -> bool:
        """Reads the job channel. Returns True once it is closed: the guest's code runs, or `start_failure` is set.

        Our code in the guest's process closes it after it has read the job and before it runs any of the guest's code.
        If the guest is a program, the kernel closes it in execve.
        """
        try:
            failure = self.job.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            self.start_failure = JOB_UNREAD
            return True
        if not failure:
            return True
        if self._program_job is not None:
            self.start_failure = self._program_job.explain(failure)
        else:
            self.start_failure = failure_or_unread(self.start_failure + failure.decode("utf-8", "replace"))
        return False

    def close_early(self, *descriptors: int) -> None:
        """Closes descriptors before the end of the run, for which the caller waits."""
        self._owned.close_only(*descriptors)

    def close_start_channels(self) -> None:
        """Closes what only the start needs. For live cages, of which there may be hundreds."""
        self._owned.close_only(self.job.fileno(), self.guest_pidfd)
        self.guest_pidfd = -1

    def prepare_for_end(self) -> None:
        """Opens the group's counters before the run, because the caller waits for its end."""
        if self.group is not None:
            self.group.open_counters()

    @property
    def guest_pid(self) -> int:
        """The host's pid of the guest's own process. 0 if it has ended or only its keeper knows it."""
        return _pid_of(self.guest_pidfd)

    def pids(self) -> list[int]:
        """The host's pids of the roots of the cell's process trees. 0 for one that has ended."""
        return [_pid_of(self.guest_pidfd), _pid_of(self.pidfd)]

    def cpu_seconds(self) -> float:
        """Processor time of the control group so far; 0 without one."""
        return self.group.cpu_seconds() if self.group is not None else 0.0

    def ask_to_stop(self) -> None:
        """Asks the keeper to kill everything in the cell and report. Without a keeper, kills init."""
        if not self.has_keeper:
            self.kill()
            return
        with suppress(OSError):
            send_packet(self.status, {"stop": True})

    def kill(self) -> None:
        """Kills init, and with it everything in its pid namespace."""
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def await_end(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds. Returns whether all processes have ended: init is the last to be reaped."""
        if self.pidfd >= 0 and not self.is_gone:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            self.is_gone = bool(poll.poll(timeout * 1000))
        return self.is_gone or self.pidfd < 0

    def is_alive(self) -> bool:
        """Whether it waits for a job and its watcher is alive. Neither sends anything before the job."""
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
        """Ends the cell if necessary, waits for its end, and releases everything."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self.is_gone:
                self._end()
        except BaseException:
            self.kill()  # poll may fail for lack of memory
            raise
        finally:
            self._release()

    def _end(self) -> None:
        self._close_theirs()
        self.close_early(self.job.fileno())
        if self._is_ordered and self.pidfd < 0:
            self._await_pid()
        if self.report is None and not self.await_end(0):
            self.ask_to_stop()
            if not self.await_end(2 * self.grace):
                self.kill()
        self.await_end(10)

    def _release(self) -> None:
        self._owned.close()
        self.stdin = self.stdout = self.stderr = self.pidfd = self.guest_pidfd = self.listener = -1
        if self.group is not None:
            try:
                self.group_usage = self.group.usage()
            finally:
                self.dispose_of_group(self.group)

    def _await_pid(self) -> None:
        """Waits for the pid of a cell that is being made: without it, it cannot be ended or waited for."""
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
    for name, kind in _REPORT.items():  # not all(...), which is slower: this is done for every run
        if name in message and not isinstance(message[name], kind):
            return False
    if "resident" in message and [type(size) for size in message["resident"]] != [int, int, int]:
        return False
    if "gpu" in message and [type(figure) for figure in message["gpu"]] not in ([int, float], [int, int]):
        return False
    denials: list[object] = message.get("denials", [])
    return all(isinstance(item, list) and [type(word) for word in item] == [str, str] for item in denials)
