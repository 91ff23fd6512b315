"""A guest as the manager's child.

The manager receives its message that the cage is locked, verifies the cage, answers the calls that its filter refuses,
and reports its exit. So a waiting cell consists only of the guest and an init of two pages.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from .. import cell_shape, verify
from ..cell_shape import CODE_DIRECTORY, NOTIFICATIONS, PROXY_LISTENER, SleepingInit, receive_locked
from ..failure import CageError, send_failure
from ..fast_imports import partial, socket
from ..linux import call_list, fast_ctypes, namespaces, notify
from ..linux.call_list import CallList
from ..linux.descriptors import close_all
from ..linux.mounts import close_file_system, is_full
from ..linux.notify import Listener
from ..linux.processes import Leftovers, below_init, exits_unless_stopped, kill, last_pid
from ..linux.syscalls import NUMBERS
from ..plan import Watch
from ..records import NamedTuple
from ..watching.watcher import LOST, Verdict, Watcher, ceilings_for
from ..wire import send_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

_MSG_DONTWAIT = 0x40
_DENIAL_INTERVAL_SECONDS = 0.1
#: How often the same denial is sent within one interval.
_MOST_DENIALS_SENT = 4
#: Denials may fill the channel to this size, less than net.core.wmem_default: the report needs room.
_SIOCOUTQ, _MOST_UNREAD = 0x5411, 1 << 17
#: How long to wait for a process that finds the next pid, and how long none is started after one did not exit.
_NEXT_PID_SECONDS, _NEXT_PID_PAUSE_SECONDS = 1.0, 20.0
_pid_home: Optional[namespaces.HomeNamespace] = None
_no_next_pid_until = 0.0


class ExitReport(NamedTuple):
    """The kernel's account of a process that exited."""

    status: int
    cpu: float
    peak: int


_P_PID, _EXITED, _DUMPED = 1, 1, 3
_WITHOUT_REAPING = 4 | os.WNOHANG | 0x1000000 | 0x40000000  # WEXITED, WNOWAIT, __WALL
#: siginfo_t and struct rusage of 64-bit Linux: code, pid and status; times and peak memory.
_siginfo, _SIGINFO = fast_ctypes.create_string_buffer(b"", 128), struct.Struct("=8xi4xi4xi")
_rusage, _RUSAGE = fast_ctypes.create_string_buffer(b"", 144), struct.Struct("=5q")
_WAITID = NUMBERS.get("waitid", -1)
#: With declared argument types: `syscalls.call` takes longer to convert them than the call itself.
_waitid = fast_ctypes.CDLL(None).syscall
_long, _int, _pointer = fast_ctypes.c_long, fast_ctypes.c_int, fast_ctypes.c_void_p
_waitid.argtypes = [_long, _int, _int, _pointer, _int, _pointer]


def exit_report_of(pid: int) -> Optional[ExitReport]:
    """The exit of a child before it is reaped; None if it is still running or is not our child."""
    if _waitid(_WAITID, _P_PID, pid, _siginfo, _WITHOUT_REAPING, _rusage) != 0:
        return None
    code, found, status = _SIGINFO.unpack_from(_siginfo)
    if not found:
        return None
    seconds, microseconds, more_seconds, more_microseconds, most = _RUSAGE.unpack_from(_rusage)
    cpu = seconds + more_seconds + (microseconds + more_microseconds) / 1e6
    return ExitReport(status << 8 if code == _EXITED else status | 0x80 * (code == _DUMPED), cpu, most * 1024)


def next_pid(process: int) -> int:
    """The pid that the next process in that process's namespace gets; 0 if it cannot be determined.

    The kernel shows it only inside the namespace, so this starts a process there that calls getpid(). A guest may stop
    it, and could let all others wait if it did so at the end of each of its runs.
    """
    global _pid_home, _no_next_pid_until
    if not call_list.can_spawn() or time.monotonic() < _no_next_pid_until:
        return 0
    _pid_home = _pid_home or namespaces.HomeNamespace("pid")
    calls = CallList()
    number = calls.call("getpid")
    calls.call("exit", 0)
    prepared = calls.prepare(())
    try:
        _pid_home.enter(process)
    except OSError:  # it has just exited
        return 0
    try:
        child = call_list.spawn(0, prepared)
    except OSError:
        return 0
    finally:
        _pid_home.return_home()
    if not exits_unless_stopped(child.pid, child.pidfd, _NEXT_PID_SECONDS):  # without root they have the same user
        _no_next_pid_until = time.monotonic() + _NEXT_PID_PAUSE_SECONDS
    kill(child.pid)
    os.waitpid(child.pid, 0)
    os.close(child.pidfd)
    return prepared.result(number)


class GuestChild:
    """One guest, from its fork to its exit. Owns the status channel, the handoff, `begun` and what the guest sent."""

    def __init__(
        self,
        pid: int,
        pidfd: int,
        expected: verify.Expected,
        status: socket.socket,
        init: SleepingInit,
        handoff: socket.socket,
        begun: int,
        may_exec: bool,
    ) -> None:
        self.pid = pid
        #: Descriptors for the supervisor, until sent. It alone has the lifeline, so init exits when it dies.
        self._identity = [init.pidfd, pidfd, init.lifeline]
        self._plan = expected.plan
        self._expected = expected
        self._status = status
        self._init = init
        self.init_pid, self.host_id = init.pid, init.host_id
        self._handoff = handoff
        self._begun = begun
        self._may_exec = may_exec
        #: Whether its job must be sent as a call list, and whether it has the modules of live cages.
        self.takes_list = self.has_live_modules = False
        self._given: Dict[str, int] = {}
        #: The last pid of our own namespace before the guest started: each of its tasks has a pid there too.
        self._last_pid_before = 0
        self.is_being_made = True
        self._listener: Optional[Listener] = None
        #: For each denial, when its interval began and how often it was sent in it.
        self._denials_sent: Dict[Tuple[str, str], Tuple[float, int]] = {}
        #: Its number with the watcher.
        self.watch: Optional[int] = None
        self._exit: Optional[ExitReport] = None
        #: Whether init has been ended.
        self.is_ending = False
        self._limits: Set[str] = set()
        self.leftovers: Optional[Leftovers] = None
        #: Mount points that must stay (see `guarded_mounts`), the first that did not, and what `close` calls.
        self.guarded: Tuple[str, ...] = ()
        self._lost_mount = ""
        self.on_close: List[Callable[[], None]] = []

    @property
    def poll_descriptor(self) -> int:
        """At first for the guest's message that its cage is locked, then for its refused calls."""
        if self._listener is not None:
            return self._listener.descriptor
        return self._handoff.fileno()

    def handle_event(self, watcher: Watcher) -> None:
        """Handle an event on `poll_descriptor`."""
        if self._listener is not None:
            self._listener.answer()
            if self.leftovers is not None:
                self.leftovers.note_activity()
            return
        try:
            self._receive_locked_message(watcher)
        except (CageError, OSError) as error:
            self._handoff.close()
            self._fail(error)

    def _receive_locked_message(self, watcher: Watcher) -> None:
        """Receive the message and its descriptors. Closing the channel is the last call of the guest's list."""
        self._given = receive_locked(self._handoff)
        self._handoff.close()
        verify.check(self.pid, self._init.pid, self._expected)
        self._listen(watcher)
        watch = ceilings_for(self._plan, self._expected.host_id)
        if watch.is_needed:
            self.start_watch(watcher, watch, self._status.fileno(), {"measured": True})
        listener = self._given.pop(PROXY_LISTENER, -1)
        self.is_being_made = False
        self._last_pid_before = last_pid()
        ready = {"ready": True, "list": self.takes_list, "live_modules": self.has_live_modules}
        if watch.disk_bytes:
            ready["measures"] = True
        self._send_with_identity(ready, [listener] if listener >= 0 else [])
        close_all([listener])

    def send_identity(self) -> None:
        """Announce the cell before it is ready, so that the supervisor can kill it."""
        if self._identity:
            self._send_with_identity({}, [])

    def _send_with_identity(self, message: Dict[str, Any], descriptors: List[int]) -> None:
        """Add pid and descriptors unless they were sent already: one packet wakes the supervisor once."""
        if self._identity:
            message = {"pid": self._init.pid, **message}
        self._send(message, self._identity + descriptors)
        close_all(self._identity[1:])
        self._identity = []

    def _note_shared_memory(self, watcher: Watcher, length: int) -> bool:
        return self.watch is not None and watcher.note_shared_memory(self.watch, length)

    def _listen(self, watcher: Watcher) -> None:
        """Start to answer calls. With host directories, only unix sockets on its scratch are the guest's own."""
        if NOTIFICATIONS not in self._given:
            return
        plan = self._plan
        scratch = self._given.get(CODE_DIRECTORY, -1)
        connect = None
        if plan.network != "host" and scratch >= 0 and any(bind.as_owner for bind in plan.binds):
            connect = partial(notify.connect, own_device=os.fstat(scratch).st_dev)
        note = partial(self._note_shared_memory, watcher)
        keepers = namespaces.pids_of_keepers(plan.terminals) if plan.allow_tracing else ()
        self._listener = Listener(
            self._given[NOTIFICATIONS], self.pid, connect, scratch, note, self._init.host_id, keepers=keepers
        )
        self._listener.may_exec_once = self._may_exec
        if plan.watch.disk_bytes:
            self._listener.attribute_room = plan.watch.disk_bytes
        self._listener.on_denial = self._send_denial if plan.terminals else None

    def _send_denial(self, kind: str, what: str) -> None:
        """For live cages, whose final report would be too late. Limited in rate, and dropped if the channel is full:
        the manager never waits for a reader. The last one of an interval says how long repetitions are not reported.
        """
        now = time.monotonic()
        began, count = self._denials_sent.get((kind, what), (now, 0))
        if now >= began + _DENIAL_INTERVAL_SECONDS:
            began, count = now, 0
        if count == _MOST_DENIALS_SENT:
            return
        silence = began + _DENIAL_INTERVAL_SECONDS - now if count + 1 == _MOST_DENIALS_SENT else 0.0
        try:
            (unread,) = struct.unpack("=i", fcntl.ioctl(self._status.fileno(), _SIOCOUTQ, bytes(4)))
            if unread > _MOST_UNREAD:
                return
            send_packet(self._status, {"denied": [kind, what, silence]}, flags=_MSG_DONTWAIT)
        except OSError:
            return  # elsewhere, the exit of the supervisor is noticed
        self._denials_sent[kind, what] = began, count + 1

    def _fail(self, error: Exception) -> None:
        """Report the failure. If init failed too, that is the cause: the guest dies with it."""
        self.send_identity()
        failure = self._init.steps.failure()
        if failure is None and isinstance(error, CageError):
            failure = error
        send_failure(
            self._status, failure or CageError("lock guest", getattr(error, "errno", 0) or 0, "its process died")
        )
        self._init.end()

    @property
    def is_exit_notified(self) -> bool:
        """Whether `poll_descriptor` will report its exit as well."""
        return self._listener is not None and not self.is_ending

    def start_watch(self, watcher: Watcher, watch: Watch, asker: int, answer: Dict[str, Any]) -> None:
        """Watch the cell, and send `answer` when its host directories have been measured."""
        plan = self._plan._replace(watch=watch)
        self.watch = watcher.watch(plan, self._init.pidfd, self._begun, self._given, asker, answer)

    def lose_watcher(self) -> None:
        """Called when the watcher died: end a guest that must be watched."""
        if self.watch is not None:
            self._init.end()

    def end_if_unguarded(self) -> None:
        """End the cell if one of these mounts is gone. While it is being made, `verify` will look."""
        if not self.guarded or self.is_being_made or self.is_ending or self._lost_mount:
            return
        if self._exit is None:
            self._lost_mount = verify.find_missing_mount(self.pid, self.guarded)
        if self._lost_mount or self._exit is not None:  # what an exited guest left running just ends
            self._init.end()

    def record_exit(self, ending: ExitReport) -> None:
        """Record the exit. Processes that it left running may continue briefly as children of init: see `is_over`."""
        self._exit = ending
        if self.is_being_made and self._handoff.fileno() >= 0:
            self._report_early_death()
        if not self.is_ending:
            self.leftovers = Leftovers()

    def _report_early_death(self) -> None:
        """The guest died before its cage was ready; its message may still be unread."""
        try:
            self._handoff.setblocking(False)
            if not self._given:
                self._given = receive_locked(self._handoff)
            self._fail(CageError("lock guest", 0, "its process died"))
        except (CageError, OSError) as error:
            self._fail(error)

    def is_over(self) -> bool:
        """Whether no process of the cell may continue."""
        assert self.leftovers is not None
        return self.is_ending or not self.leftovers.may_continue(below_init(self._init.pid))

    def open_mount_namespace(self) -> List[int]:
        """Open the cell's mount namespace, to be closed when the manager is idle.

        The last user of a mount namespace unmounts everything and waits for every processor. Otherwise that would be
        init, and the supervisor waits for init. Not with paths of the caller, which must be free when the run is over;
        nor with an image, because its overlay keeps every file that the guest has looked at: freeing a million of them
        would hold up the manager.
        """
        if self._plan.layers or any(bind.as_owner for bind in self._plan.binds):
            return []
        try:
            return [os.open(f"/proc/{self._init.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)]
        except OSError:  # init has exited, or no descriptors are left
            return []

    def end_all(self) -> None:
        """Kill init, and with it the cell. Its disk use is measured for the last time after that."""
        self.is_ending = True
        self._limits = self._find_reached_limits()
        self._init.end()

    def report(self, verdict: Verdict, zygote: int = 0) -> None:
        """Send the report to the supervisor. `close` may be called later."""
        assert self._exit is not None
        report: Dict[str, Any] = {
            "exit": self._exit.status,
            "verdict": f"replaced {self._lost_mount}" if self._lost_mount else verdict.reason,
            "cpu": round(self._exit.cpu + verdict.cpu_lost, 6),
            "peak": max(self._exit.peak, verdict.peak),
            "limits": sorted(self._limits.union(verdict.met)),
            "denials": self._denials(self._exit.status),
        }
        if verdict.gpu_peak >= 0:
            report["gpu"] = [verdict.gpu_peak, verdict.gpu_seconds]
        if 0 < self._plan.watch.memory_bytes < self._exit.peak:  # the watcher may have looked too late
            from ..watching.usage import shared_by_fork

            shared = 0 if self._may_exec else shared_by_fork(zygote, with_files=verdict.mapped_files < 0)
            report["resident"] = [self._exit.peak, shared, verdict.mapped_files]
        if verdict == LOST:
            report = {"failed": ["watch", 0, "the watcher died"]}
        self._send(report)

    def _find_reached_limits(self) -> Set[str]:
        """Limits that the kernel enforces by an error that only the guest sees."""
        met = set()
        # The code directory is on the one tmpfs that holds everything the guest may write.
        if CODE_DIRECTORY in self._given and is_full(self._given[CODE_DIRECTORY]):
            met.add("disk")
        if self._has_reached_task_limit():
            met.add("processes")
        return met

    def _has_reached_task_limit(self) -> bool:
        """Whether exactly as many pids were used as tasks are allowed: then a further task was refused.

        If tasks have ended meanwhile, the numbers are higher, and only the watcher can notice. A cgroup counts.
        Finding the next pid takes a process, so it is skipped if all cells together used fewer pids.
        """
        most_tasks = dict(self._plan.rlimits).get("nproc", 0)
        if not self._plan.watch.memory_bytes or not most_tasks:
            return False
        used = last_pid() - self._last_pid_before  # negative after a wrap-around
        return not 0 <= used < most_tasks - 2 and next_pid(self._init.pidfd) == most_tasks + 1

    def _denials(self, status: int) -> List[List[str]]:
        found = self._listener.denials if self._listener else []
        if status and CODE_DIRECTORY in self._given:
            name = os.path.basename(self._plan.report_path)
            found = found + cell_shape.read_note(name, self._given[CODE_DIRECTORY])
        return found

    def close(self) -> None:
        """Close all descriptors; the processes continue. A guest with a million files must not hold up the others."""
        while self.on_close:
            self.on_close.pop()()
        if CODE_DIRECTORY in self._given:
            close_file_system(self._given.pop(CODE_DIRECTORY))
        for channel in (self._handoff, self._status):
            channel.close()
        close_all([self._init.pidfd, self._begun, *self._identity[1:], *self._given.values()])
        self._given, self._identity = {}, []

    def _send(self, message: Dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            send_packet(self._status, message, descriptors)
        except OSError:  # the supervisor closed the channel: it no longer needs the cell
            self._init.end()
