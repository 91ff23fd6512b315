"""The first process of a cell: starts the guest, reaps, keeps the limits that nobody else keeps, reports, and dies.

Its death takes everything with it: the kernel kills whatever is left in the namespace. In the classes without
namespaces it is the subreaper of everything the guest starts, and kills that itself.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Set

from . import enter, refusals
from .failure import CageError, tell, told
from .linux import fds, usage
from .linux.notify import Listener
from .linux.syscalls import PR_SET_CHILD_SUBREAPER, prctl
from .ward import CODE_DIRECTORY, NOTIFICATIONS, PROXY_LISTENER
from .wire import close_all, receive_packet, send_packet

_SLOWEST_LOOK = 0.1
_SLOWEST_CPU_LOOK = 0.02
_FASTEST_GROWTH = 4e9  # bytes per second that a guest might allocate between two looks


class Channels(NamedTuple):
    """The cell's descriptors. The guest keeps stdio and, until its job has come, `job`; init keeps `status`."""

    job: int
    status: socket.socket
    stdin: int
    stdout: int
    stderr: int


def run(kit: enter.Kit, channels: Channels) -> None:
    """Starts the guest, which builds its cage. Returns in the guest's process, locked in; in init's own never."""
    try:
        if kit.plan.isolation != "namespaces":
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        enter.share(kit)
        guest, handoff = _start_guest(kit, channels)
        if guest == 0:
            return
        enter.settle(kit)
        close_all([*kit.trees, *kit.cgroups, channels.job, channels.stdin, channels.stdout, channels.stderr])
        notifications = _await_lock(handoff)
        listener = _open_listener(kit)
        send_packet(channels.status, {"ready": True}, [listener.fileno()] if listener else [])
        if listener:
            listener.close()
    except CageError as failure:
        _give_up(channels.status, failure)
    except OSError as error:
        _give_up(channels.status, CageError("start guest", error.errno or 0, str(error)))
    Supervisor(kit, channels.status, guest, notifications).watch()


def _give_up(channel: socket.socket, failure: CageError) -> NoReturn:
    tell(channel, failure)
    os._exit(1)


def _open_listener(kit: enter.Kit) -> Optional[socket.socket]:
    """The only way out of the guest's network: a listener in here whose connections the host's proxy accepts."""
    if not kit.plan.listener_port:
        return None
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(("127.0.0.1", kit.plan.listener_port))
    listener.listen(128)
    return listener


def _start_guest(kit: enter.Kit, channels: Channels) -> tuple[int, socket.socket]:
    """Forks. The child builds and locks the cage and says how that went on the other end of the returned socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    lock_in(kit, channels, theirs)
    return 0, theirs


def lock_in(kit: enter.Kit, channels: Channels, handoff: socket.socket, home: Optional[enter.Home] = None) -> None:
    """In the guest's process: builds the cage around it, and hands over what others need to look after it.

    `home` is where there are namespaces already that it is to enter first.
    """
    try:
        fds.use_as_stdio(channels.stdin, channels.stdout, channels.stderr)
        if home is not None:
            enter.join(kit, home)
        enter.build(kit, is_furnished=home is not None)
        given = {}
        if home is not None:
            given = _open_for_ward(kit)
            enter.await_sleep(home)
        keep = (channels.job, handoff.fileno(), *given.values())
        notifications = enter.lock(kit, keep)
        if notifications >= 0:
            given = {NOTIFICATIONS: notifications, **given}
        enter.check(kit, (channels.job, handoff.fileno(), *given.values()))
        send_packet(handoff, {"locked": list(given)}, list(given.values()))
        close_all(given.values())
        handoff.close()
        channels.status.detach()  # closed with the rest; the object must not close whatever has its number later
    except CageError as failure:
        _give_up(handoff, failure)
    except BaseException as error:
        _give_up(handoff, CageError("lock guest", getattr(error, "errno", 0) or 0, repr(error)))


def _open_for_ward(kit: enter.Kit) -> Dict[str, int]:
    """What the zygote cannot open itself, being outside."""
    given = {}
    listener = _open_listener(kit)
    if listener is not None:
        given[PROXY_LISTENER] = listener.detach()
    if kit.plan.report_path:
        given[CODE_DIRECTORY] = os.open(os.path.dirname(kit.plan.report_path), os.O_PATH | os.O_CLOEXEC)
    return given


def _await_lock(handoff: socket.socket) -> int:
    """The notification descriptor, once the guest has locked and checked itself; -1 when the plan has none."""
    message, descriptors = receive_packet(handoff)
    handoff.close()
    if "locked" not in message:
        raise told(message)
    return descriptors[0] if descriptors else -1


class Supervisor:
    """Waits for the guest's end, or makes it."""

    def __init__(self, kit: enter.Kit, status: socket.socket, guest: int, notifications: int) -> None:
        self._plan = kit.plan
        self._status = status
        self._guest = guest
        # Any part of the scratch tmpfs tells how full the whole is.
        self._scratch = kit.plan.scratch_dirs[0][0] if kit.plan.scratch_dirs else ""
        self._listener: Optional[Listener] = None
        if notifications >= 0:
            shows_host = any(bind.as_owner for bind in kit.plan.binds)
            is_guarded = shows_host and self._scratch and kit.plan.network != "host"
            own_device = os.stat(self._scratch).st_dev if is_guarded else None
            self._listener = Listener(notifications, guest, own_device)
        self._exit: Optional[int] = None
        self._verdict = ""
        self._cpu = 0.0
        self._peak = 0
        self._is_watching = False
        self._next_look = 0.0
        self._disk_at_start = usage.DiskUse(0, 0, True)
        #: What living processes had used when last seen; one that vanishes unwaited keeps that on the bill.
        self._cpu_seen: Dict[int, float] = {}
        self._cpu_lost = 0.0
        self._waited: Set[int] = set()
        self._next_disk_look = 0.0

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
        while self._exit is None and not self._verdict:
            pause = max(0.0, self._next_look - time.monotonic()) * 1000
            ready = dict(poll.poll(pause if self._is_watching else None))
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
                else:
                    poll.unregister(self._listener.descriptor)
            if self._is_watching and time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + self._look()
        self._end()

    def _hear(self) -> None:
        try:
            message, _ = receive_packet(self._status)
        except OSError:
            message = {}
        if self._listener and message.get("exec"):
            self._listener.may_exec_once = True
        if message.get("go"):
            watch = self._plan.watch
            self._is_watching = bool(watch.memory_bytes or watch.cpu_seconds or watch.disk_bytes)
            self._disk_at_start = usage.disk_use(watch.disk_paths, [])
        elif "go" not in message:
            self._verdict = "stopped"  # told to, or the supervisor is gone

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._cpu += used.ru_utime + used.ru_stime
            self._waited.add(pid)
            self._peak = max(self._peak, used.ru_maxrss * 1024)
            if pid == self._guest:
                self._exit = status

    def _pids(self) -> List[int]:
        if self._plan.isolation == "namespaces":
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        return list(usage.descendants(os.getpid()))

    def _look(self) -> float:
        """Compares use with the ceilings; returns how long it is safe not to look."""
        watch, pids, pause = self._plan.watch, self._pids(), _SLOWEST_LOOK
        if watch.memory_bytes:
            used = usage.memory_bytes(pids, self._scratch, watch.memory_bytes)
            self._peak = max(self._peak, used)
            if used > watch.memory_bytes:
                self._verdict = "memory"
            pause = min(pause, max((watch.memory_bytes - used) / _FASTEST_GROWTH, 0.002))
        if watch.cpu_seconds:
            pause = min(pause, _SLOWEST_CPU_LOOK)
            if self._cpu_used(pids) > watch.cpu_seconds:
                self._verdict = "cpu"
        if watch.disk_bytes and time.monotonic() >= self._next_disk_look:
            started = time.monotonic()
            if self._disk_grown(pids) > watch.disk_bytes:
                self._verdict = "disk"
            # A large tree is looked at less often, so that looking never costs more than a tenth of the time.
            self._next_disk_look = time.monotonic() + max(0.25, 10 * (time.monotonic() - started))
        return pause

    def _cpu_used(self, pids: List[int]) -> float:
        """A child that nobody waits for (SIGCHLD ignored) is on nobody's account but this one."""
        now = {pid: usage.cpu_seconds([pid]) for pid in pids}
        self._cpu_lost += sum(
            used for pid, used in self._cpu_seen.items() if pid not in now and pid not in self._waited
        )
        self._waited.clear()
        self._cpu_seen = now
        return self._cpu + self._cpu_lost + sum(now.values())

    def _disk_grown(self, pids: List[int]) -> int:
        before, now = self._disk_at_start, usage.disk_use(self._plan.watch.disk_paths, pids)
        grown = now.held - before.held
        # What cannot be looked into still shows in how full its file system is, if less exactly.
        return grown if now.is_complete else max(grown, now.filesystem - before.filesystem)

    def _end(self) -> None:
        self._kill_all()
        report: Dict[str, Any] = {
            "exit": self._exit if self._exit is not None else 9,
            "verdict": self._verdict,
            "cpu": round(self._cpu + self._cpu_lost, 6),
            "peak": self._peak,
            "denials": (self._listener.denials if self._listener else []) + refusals.read(self._plan.report_path),
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
            self._cpu += used.ru_utime + used.ru_stime
            self._peak = max(self._peak, used.ru_maxrss * 1024)
            if pid == self._guest:
                self._exit = status


def kill_tree(root: int, itself: bool = True) -> None:
    """Stops everything first, so that nothing forks while it is being killed."""
    found = [*([root] if itself else []), *usage.descendants(root)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue
