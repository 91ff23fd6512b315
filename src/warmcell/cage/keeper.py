"""The keeper: forks the guest, drops all privileges, reports when the cage is locked, and supervises the guest.

For the classes without namespaces, where a process must inherit everything that the guest leaves running, and kill it
at the end.
"""

from __future__ import annotations

import errno
import os
import select
import time

from . import verify
from .cell_shape import NOTIFICATIONS, read_note, receive_locked
from .failure import CageError, send_failure, step
from .fast_imports import partial, signal, socket
from .guest_entry import recipe
from .linux import capabilities
from .linux.call_list import CallList
from .linux.descriptors import close_all, from_descriptor, make_pair
from .linux.guest_files import TimeLimit, is_writable_by_rule
from .linux.notify import Listener
from .linux.processes import Leftovers, descendants, kill_tree
from .linux.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, prctl
from .plan import LaunchPlan
from .records import NamedTuple
from .watching import usage
from .watching.ceilings import Ceilings, Network, Tree
from .watching.kernel_memory import Locks
from .wire import receive_packet, send_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple


class KeeperDescriptors(NamedTuple):
    """The descriptors of a keeper and its guest."""

    job: int
    go: int
    begun: int
    status: int
    stdin: int
    stdout: int
    stderr: int
    cgroups: Tuple[int, ...]


def run(steps: recipe.Recipe, may_exec: bool, given: KeeperDescriptors) -> None:
    """Start the guest and supervise it. Returns only in the guest's process, when its cage is complete."""
    status = from_descriptor(given.status)
    plan = steps.plan
    try:
        with step("shield keeper"):
            # Before the fork: the guest has the same user, and the keeper must not be dumpable while it exists.
            prctl(PR_SET_DUMPABLE, 0)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        guest, handoff = _start_guest(steps, given)
        if guest == 0:
            status.detach()
            return
        kept = verify.identities((given.job, given.go, given.stdin, given.stdout, given.stderr))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python installs a handler for it
        _drop_privileges(plan)
        close_all([*given.cgroups, given.job, given.go, given.stdin, given.stdout, given.stderr])
        notifications = receive_locked(handoff).get(NOTIFICATIONS, -1)
        handoff.recv(1)  # until the guest closes it, which is its last call
        handoff.close()
        verify.check(guest, 0, verify.Expected(plan, kept, {}, os.geteuid()))
        send_packet(status, {"ready": True, "measures": bool(plan.watch.disk_bytes)})
    except CageError as failure:
        send_failure(status, failure)
        os._exit(1)
    except BaseException as error:
        send_failure(status, CageError("start guest", getattr(error, "errno", 0) or 0, repr(error)))
        os._exit(1)
    Keeper(plan, status, given.begun, guest, notifications, may_exec).watch()


def _start_guest(steps: recipe.Recipe, given: KeeperDescriptors) -> Tuple[int, socket.socket]:
    """Fork. The child builds and locks the cage, and reports on the other end of the returned socket."""
    ours, theirs = make_pair(socket.SOCK_SEQPACKET)
    handoff = theirs.fileno()
    descriptors = recipe.GuestDescriptors(
        given.job, given.go, given.stdin, given.stdout, given.stderr, handoff, rest=given.cgroups
    )
    prepared = steps.prepare(descriptors)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    theirs.detach()
    ours.detach()
    recipe.lock_in(prepared, handoff)
    return 0, ours


def _drop_privileges(plan: LaunchPlan) -> None:
    if plan.isolation != "none":
        calls = CallList()
        capabilities.drop_all(calls)
        calls.prepare(()).run()


class Keeper:
    """Supervises one locked cell: waits for the guest to exit, or kills it."""

    def __init__(
        self, plan: LaunchPlan, status: socket.socket, begun: int, guest: int, notifications: int, may_exec: bool
    ) -> None:
        self._plan, self._status, self._begun, self._guest = plan, status, begun, guest
        locks = Locks(lambda owner, pids: owner in pids)
        network = Network("/proc/self/net", is_own=False)
        tree = Tree("/proc", partial(_below, os.getpid()), locks.memory, plan.watch.disk_paths, network)
        self._ceilings = Ceilings(plan.watch, tree)
        self._listener: Optional[Listener] = None
        if notifications >= 0:
            is_own = partial(is_writable_by_rule, [path for path, is_writable in plan.landlock if is_writable])
            self._listener = Listener(notifications, guest, note_shared_memory=self._note_shared_memory, is_own=is_own)
            self._listener.may_exec_once = may_exec
        self._exit: Optional[int] = None
        #: Whether the cell is empty. Processes that the guest left running became our children.
        self._is_alone = False
        self._leftovers: Optional[Leftovers] = None
        self._is_stopped = False
        self._cpu = 0.0
        self._peak = 0
        self._next_look: Optional[float] = None

    def _note_shared_memory(self, length: int) -> bool:
        self._ceilings.mappings.note_shared_memory(length)
        return True

    def watch(self) -> None:
        """Handle exits of children, messages and refused calls, and check the ceilings."""
        wake, signalled = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poll = select.poll()
        for descriptor in (wake, self._status.fileno(), self._begun):
            poll.register(descriptor, select.POLLIN)
        if self._listener:
            poll.register(self._listener.descriptor, select.POLLIN)
        self._reap()
        while not self._is_over():
            ready = dict(poll.poll(self._pause_ms()))
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self._status.fileno() in ready:
                self._receive()
            if self._begun in ready:
                poll.unregister(self._begun)
                self._next_look = time.monotonic() + self._ceilings.begin()
            if self._listener and self._listener.descriptor in ready:
                if ready[self._listener.descriptor] & select.POLLIN:
                    self._listener.answer()
                    if self._leftovers:
                        self._leftovers.note_activity()
                else:
                    poll.unregister(self._listener.descriptor)
            if self._next_look is not None and time.monotonic() >= self._next_look:
                with TimeLimit():
                    self._next_look = time.monotonic() + self._ceilings.look()
        self._end()

    def _is_over(self) -> bool:
        """Whether it must stop, or the guest has exited and the processes that it left running may not continue."""
        if self._is_stopped or self._ceilings.verdict or (self._exit is not None and self._is_alone):
            return True
        if self._exit is None:
            return False
        self._leftovers = self._leftovers or Leftovers()
        is_due = time.monotonic() >= self._leftovers.next_look
        return is_due and not self._leftovers.may_continue(_below(os.getpid()))

    def _pause_ms(self) -> Optional[float]:
        """The time until the next check of the ceilings, or of processes that the guest left running."""
        due = [] if self._next_look is None else [self._next_look]
        due += [self._leftovers.next_look] if self._leftovers else []
        return max(0.0, min(due) - time.monotonic()) * 1000 if due else None

    def _receive(self) -> None:
        """Answer a request to measure the disk; any other message or a closed channel means stop."""
        try:
            message, _ = receive_packet(self._status)
            if "measure" in message:
                self._ceilings.measure()
                send_packet(self._status, {"measured": True})
                return
        except OSError:
            pass
        self._is_stopped = True

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_alone = True
                return
            if pid == 0:
                return
            self._account(pid, status, used)

    def _account(self, pid: int, status: int, used: Any) -> None:
        self._cpu += used.ru_utime + used.ru_stime
        self._peak = max(self._peak, used.ru_maxrss * 1024)
        if pid == self._guest:
            self._exit = status

    def _end(self) -> None:
        self._kill_all()
        self._ceilings.look_at_end()
        report: Dict[str, Any] = {
            "exit": self._exit if self._exit is not None else 9,
            "verdict": self._ceilings.verdict,
            "cpu": round(self._cpu, 6),
            "peak": max(self._peak, self._ceilings.peak),
            "limits": sorted(self._ceilings.met),
            "denials": (self._listener.denials if self._listener else []) + read_note(self._plan.report_path),
        }
        if 0 < self._plan.watch.memory_bytes < self._peak:
            files = self._ceilings.mapped_files
            report["resident"] = [self._peak, usage.shared_by_fork(os.getpid(), with_files=files < 0), files]
        try:
            send_packet(self._status, report)
        except OSError:
            pass
        os._exit(0)

    def _kill_all(self) -> None:
        """Kill every descendant until none is left. `kill_tree` stops them first, in case they fork quickly.

        All dead ones are reaped before the next attempt: there may be a chain of hundreds.
        """
        while not self._is_alone:
            kill_tree(os.getpid(), itself=False)
            try:
                self._account(*os.wait4(-1, 0))
            except ChildProcessError:
                return
            except OSError as error:
                if error.errno != errno.EINTR:
                    raise
            self._reap()


def _below(root: int) -> List[int]:
    return list(descendants(root))
