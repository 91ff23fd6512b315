"""The zygote: a warm, single-threaded, secret-free interpreter that clones every run straight into its cage.

It is told what to make over one socket, never sees a guest's output, and ends with its supervisor.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import select
import signal
import socket
import sys
from types import ModuleType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import init
from . import plan as plans
from .births import Births
from .enter import Home, Kit
from .failure import CageError, step, tell
from .homes import Homes, await_go
from .job import become_program, rehearse, restore_signals, write_files
from .linux import mounts, namespaces, pages, seccomp, usage
from .linux.syscalls import PR_SET_CHILD_SUBREAPER, call, prctl
from .preparation import forget_callers_signals, hide_command_line, load_worker
from .templates import Templates
from .ward import Ward
from .wire import close_all, receive_job, receive_packet, send_packet

_FIXED_DESCRIPTORS = 5  # job, status, stdin, stdout, stderr; the rest are cgroups

_QUIET_MS = 20  # what can be made ahead is made when nobody waits for anything


def main(control_descriptor: int) -> Callable[[], None]:
    """Returns only in a guest's process, with what turns it into the guest, so that little of us is on its stack."""
    control = socket.socket(fileno=control_descriptor)
    zygote = Zygote(control)
    try:
        order, _ = receive_packet(control)
        if not order:  # started ahead of need, and not needed
            os._exit(0)
        zygote.prepare(order)
        send_packet(control, {"ready": True, "version": list(sys.version_info[:3])})
    except CageError as failure:
        send_packet(control, {"failed": [failure.step, failure.errno, failure.what]})
        os._exit(1)
    newborn = zygote.serve()
    if newborn is None:
        os._exit(0)
    newborn.grow()
    return zygote.await_job(newborn)


class Newborn(NamedTuple):
    """What a fresh child needs to become a guest, by way of being its init or in the namespaces of another."""

    kit: Kit
    channels: init.Channels
    handoff: Optional[socket.socket] = None
    home: Optional[Home] = None
    #: Its job comes later, so it has the time to prepare for it.
    waits: bool = False

    def grow(self) -> None:
        """Returns in the guest's process, locked in."""
        if self.handoff is None:
            init.run(self.kit, self.channels)
        else:
            init.lock_in(self.kit, self.channels, self.handoff, self.home)


class Zygote:
    """Holds what every cell of this interpreter has in common."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._worker: Optional[ModuleType] = None
        self._is_root = os.geteuid() == 0
        self._host_id = 0
        self._outer: Dict[str, int] = {}
        self._id_maps: Dict[Tuple[int, int], int] = {}
        self._cells: set[int] = set()
        self._wards: Dict[int, Ward] = {}
        self._is_caging = False
        self._poll = select.poll()
        self._supervisor = call("pidfd_open", os.getppid(), 0)

    def prepare(self, order: Dict[str, Any]) -> None:
        """Loads the worker and the preloads, then steps out of the host's mount namespace; all of it once."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        forget_callers_signals()
        if order.get("worker"):
            self._worker = load_worker(order["worker"], order.get("site", False), order.get("preload", []))
        hide_command_line()
        self._outer = namespaces.identities()
        self._is_caging = order["isolation"] == "namespaces"
        if self._is_caging:
            self._own_mounts()
            self._homes = Homes(self._host_id, self._cells.add, keeps_spares=order.get("spares", False))
            self._templates = Templates(self._detach)
            self._births = Births()
        gc.collect()
        self._file_pages = pages.of_files()
        gc.freeze()

    def _own_mounts(self) -> None:
        """A mount namespace in which this process may clone trees; an ordinary user needs a user namespace for that."""
        flags = namespaces.CLONE_NEWNS
        uid, gid = os.geteuid(), os.getegid()
        if self._is_root:
            os.setgroups([])
        if not self._is_root:
            flags |= namespaces.CLONE_NEWUSER
        with step("create namespaces"):
            call("unshare", flags)
        if not self._is_root:
            with step("map own user"):
                namespaces.map_ids(os.getpid(), uid, gid, 0, 0)
        with step("make mounts slave"):
            mounts.make_slave()
        self._host_id = namespaces.UNOWNED_UID_BASE + os.getpid() if self._is_root else 0

    def serve(self) -> Optional[Newborn]:
        """Until the supervisor closes the control socket or dies. In a new child, returns what that child is to be."""
        wake, signalled = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for descriptor in (wake, self._control.fileno(), self._supervisor):
            self._poll.register(descriptor, select.POLLIN)
        is_open = True
        while is_open or self._wards:
            ready = dict(self._poll.poll(None if self._is_settled else _QUIET_MS))
            if not ready:
                self._homes.complete()
                continue
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self._supervisor in ready:
                self._kill_cells()
                return None
            for ward in [ward for ward in self._wards.values() if ward.listens_to in ready]:
                self._attend(ward, ready[ward.listens_to])
            if is_open and self._control.fileno() in ready:
                message, descriptors = receive_packet(self._control)
                if not message:
                    is_open = False  # runs that are under way still need somebody to report how they end
                    self._poll.unregister(self._control)
                    continue
                newborn = self.make_cell(message, descriptors)
                if newborn is not None:
                    close_all([wake, signalled])
                    return newborn
        return None

    @property
    def _is_settled(self) -> bool:
        return not self._is_caging or self._homes.is_complete

    def _attend(self, ward: Ward, event: int) -> None:
        watched, has_word = ward.listens_to, bool(event & select.POLLIN)
        if has_word:
            ward.attend()
        if ward.listens_to == watched and event == select.POLLIN:
            return
        self._poll.unregister(watched)
        if has_word and ward.listens_to >= 0:
            self._poll.register(ward.listens_to, select.POLLIN)

    def _reap(self) -> None:
        lost = False
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._cells.discard(pid)
            lost = True
            ward = self._wards.pop(pid, None)
            if ward is not None:
                self._forget(ward)
                ward.ended(status, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
        if lost and not self._is_caging:
            self._kill_strays()

    def _forget(self, ward: Ward) -> None:
        try:
            self._poll.unregister(ward.listens_to)
        except (KeyError, ValueError):
            pass

    def _kill_strays(self) -> None:
        """Whatever is our child and not a cell outlived its init (a bare guest may kill its own)."""
        for pid in usage.children(os.getpid()):
            if pid not in self._cells:
                init.kill_tree(pid)

    def _kill_cells(self) -> None:
        """Everything below us, until nothing is: without a pid namespace, an init's death does not take its guests."""
        while True:
            init.kill_tree(os.getpid(), itself=False)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def make_cell(self, message: Dict[str, Any], descriptors: List[int]) -> Optional[Newborn]:
        """Clones a child for one cell. The child gets back what it is to be."""
        status = socket.socket(fileno=descriptors[1])
        trees: List[int] = []
        newborn = None
        try:
            plan, program = _parse(message["plan"])
            sleeps = bool(message.get("sleeps"))
            template = self._templates.copy_for(plan) if sleeps else None
            if template is not None:
                trees.append(template)
            else:
                for bind in plan.binds:
                    trees.append(self._detach(bind))
            channels = init.Channels(descriptors[0], status, *descriptors[2:_FIXED_DESCRIPTORS])
            groups = tuple(descriptors[_FIXED_DESCRIPTORS:])
            kit = Kit(plan, program, tuple(trees), groups, self._outer, has_template=template is not None)
            newborn = self._clone_ward(kit, channels, message["execs"]) if sleeps else self._clone(kit, channels)
            if newborn is not None:
                newborn = newborn._replace(waits=bool(message.get("waits")))
        except CageError as failure:
            tell(status, failure)
        except plans.PlanError as problem:
            tell(status, CageError("read plan", 0, str(problem)))
        except OSError as error:  # one cell's trouble must not end the others' zygote
            tell(status, CageError("make cell", error.errno or 0, str(error.filename or error.strerror)))
        if newborn is None:
            status.close()
            close_all([*trees, descriptors[0], *descriptors[2:]])
        return newborn

    def _clone(self, kit: Kit, channels: init.Channels) -> Optional[Newborn]:
        """A cell whose init looks after it. In the child, what it is to be; it waits until it has its user."""
        is_caged = kit.plan.isolation == "namespaces"
        go_read, go_write = os.pipe2(os.O_CLOEXEC)
        with step("clone into namespaces" if is_caged else "fork"):
            if is_caged:
                pid, pidfd = namespaces.clone(namespaces.flags_for(kit.plan.network))
            else:
                pid = os.fork()
                pidfd = call("pidfd_open", pid, 0) if pid else -1
        if pid == 0:
            os.close(go_write)
            await_go(go_read)
            self._be_born()
            return Newborn(kit, channels)
        os.close(go_read)
        self._cells.add(pid)
        try:
            if is_caged:
                with step("map user"):
                    namespaces.map_ids(pid, self._host_id, self._host_id)
            send_packet(channels.status, {"pid": pid}, [pidfd])  # before anything that the cell itself can say
            os.write(go_write, b"g")
        except (CageError, OSError):
            _kill(pid)
            raise
        finally:
            close_all([go_write, pidfd])
        return None

    def _clone_ward(self, kit: Kit, channels: init.Channels, may_exec: bool) -> Optional[Newborn]:
        """A guest in a home, with this process as its parent. In the guest: what it is to be."""
        home = self._homes.take(kit.plan.network)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        guest = guest_pidfd = -1
        try:
            with step("fork guest"):
                guest = self._births.fork_into(home.init)
            if guest == 0:
                self._be_born()
                ours.close()
                return Newborn(kit, channels, theirs, home)
            self._cells.add(guest)
            guest_pidfd = call("pidfd_open", guest, 0)
            send_packet(channels.status, {"pid": home.pid}, [home.init, guest_pidfd, home.lifeline])
            ward = Ward(kit.plan.report_path, channels.status.dup(), home, guest, ours, may_exec)
        except BaseException:
            home.end()
            ours.close()
            close_all([home.init])
            raise
        finally:
            if guest:
                theirs.close()
                close_all([home.asleep, home.lifeline, guest_pidfd])
        self._wards[guest] = ward
        self._poll.register(ward.listens_to, select.POLLIN)
        return None

    def _be_born(self) -> None:
        """Nothing of the zygote's own is any business of a cell."""
        signal.set_wakeup_fd(-1)
        while self._wards:
            self._wards.popitem()[1].close()
        if self._is_caging:
            self._homes.let_go()
            self._templates.let_go()
            self._births.let_go()
        close_all([self._control.detach(), self._supervisor, *self._id_maps.values()])

    def await_job(self, newborn: Newborn) -> Callable[[], None]:
        """In the guest's process, cage complete: waits for the job and returns what carries it out."""
        restore_signals()
        if self._worker is not None:
            if newborn.waits:
                rehearse()
                self._worker.warm_up()
            self._worker.forget_the_zygote()
            if newborn.waits:
                pages.drop(self._file_pages)
        job_descriptor = newborn.channels.job
        try:
            job = receive_job(job_descriptor)
        except EOFError:
            os._exit(0)
        if job.mode != "python" or self._worker is None:
            return functools.partial(become_program, job, job_descriptor)
        write_files(job)
        os.close(job_descriptor)
        return functools.partial(self._worker.run, job)

    def _detach(self, bind: plans.Bind) -> int:
        return mounts.detach_tree(bind, self._id_map)

    def _id_map(self, owner: mounts.Owner) -> Optional[int]:
        """For root: the caller's paths appear as the guest's own, through an id-mapped mount."""
        if not self._is_root:
            return None
        if owner not in self._id_maps:
            self._id_maps[owner] = _user_namespace(owner, self._host_id)
        return self._id_maps[owner]


def _user_namespace(owner: Tuple[int, int], host_id: int) -> int:
    """A user namespace, kept by descriptor, in which the owner of a path on disk is the guest's id on the host."""
    pid, pidfd = namespaces.clone(namespaces.CLONE_NEWUSER)
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.pause()
        os._exit(0)
    try:
        with step("map owner of allowed path"):
            namespaces.map_ids(pid, host_id, host_id, owner[0], owner[1])
            return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(pidfd)
        _kill(pid)
        os.waitpid(pid, 0)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@functools.lru_cache(maxsize=64)
def _parse(text: str) -> Tuple[plans.LaunchPlan, bytes]:
    plan = plans.decode(json.loads(text))
    if not plan.seccomp:
        return plan, b""
    is_caged = plan.isolation == "namespaces"
    shows_host = is_caged and any(bind.as_owner for bind in plan.binds)
    profile = seccomp.Profile(
        allow_spawn=plan.allow_spawn,
        allow_internet=is_caged or plan.network == "host",
        is_caged=is_caged,
        shows_host=shows_host,
        allow_unix=is_caged and not (shows_host and plan.network == "host"),
        is_watched=is_caged and bool(plan.watch.memory_bytes),
    )
    return plan, seccomp.compile_filter(profile)
