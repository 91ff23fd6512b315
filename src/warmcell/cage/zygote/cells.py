"""Making one cell: from an order and its descriptors to processes in namespaces of their own.

There are two ways. With a keeper, one clone becomes the cell's init and forks the guest itself. Where nobody has to
watch the run, init sleeps in namespaces that may have been made ahead, and the guest is forked into them as our child.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import socket
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from .. import plan as plans
from ..cell import Channels, Kit, SleepingInit
from ..failure import CageError, step, tell
from ..guest import recipe
from ..keeper import start as keeper
from ..linux import mounts, namespaces, seccomp
from ..linux.fds import Owned, close_all
from ..linux.processes import kill
from ..linux.syscalls import call
from ..wire import send_packet
from .fork_into import NamespaceFork
from .guest_children import GuestChild
from .shared_roots import SharedRoots
from .sleeping_inits import SleepingInits, await_go

_FIXED_DESCRIPTORS = 5  # job, status, stdin, stdout, stderr; the rest are cgroups


class Newborn(NamedTuple):
    """In a fresh child: what it needs to become a guest, by way of being its keeper or in a sleeping init's place."""

    kit: Kit
    channels: Channels
    handoff: int = -1
    init: Optional[SleepingInit] = None
    #: Its job comes later, so it has the time to prepare for it.
    waits: bool = False

    def grow(self) -> None:
        """Returns in the guest's process, locked in."""
        if self.init is None:
            keeper.run(self.kit, self.channels)
        else:
            recipe.lock_in(self.kit, self.channels, socket.socket(fileno=self.handoff), self.init)


class CellMaker:
    """Owned by the zygote. `on_birth` is told the pid of every process that is forked."""

    def __init__(self, is_caging: bool, on_birth: Callable[[int], None], keeps_spares: bool = False) -> None:
        self._is_root = os.geteuid() == 0
        self._host_id = 0
        self._on_birth = on_birth
        self._id_maps: Dict[mounts.Owner, int] = {}
        self._outer = namespaces.identities()
        self._is_caging = is_caging
        if is_caging:
            self._own_mounts()
            self._inits = SleepingInits(self._host_id, on_birth, keeps_spares)
            self._roots = SharedRoots(self._open_tree)
            self._fork = NamespaceFork()

    def _own_mounts(self) -> None:
        """A mount namespace in which this process may clone trees; an ordinary user needs a user namespace for that."""
        uid, gid = os.geteuid(), os.getegid()
        if self._is_root:
            os.setgroups([])
        with step("create namespaces"):
            call("unshare", namespaces.CLONE_NEWNS | (0 if self._is_root else namespaces.CLONE_NEWUSER))
        if not self._is_root:
            with step("map own user"):
                namespaces.map_ids(os.getpid(), uid, gid, 0, 0)
        with step("make mounts slave"):
            mounts.make_slave()
        self._host_id = namespaces.UNOWNED_UID_BASE + os.getpid() if self._is_root else 0

    @property
    def is_complete(self) -> bool:
        return not self._is_caging or self._inits.is_complete

    def complete(self) -> None:
        """Makes what the next cell can have ready-made."""
        self._inits.complete()

    def make(self, order: Dict[str, Any], descriptors: List[int]) -> Union[Newborn, GuestChild, None]:
        """Clones the processes of one cell; the descriptors are ours from here. In the child: what it is to be.

        In the zygote, a guest to look after, or None: a keeper does, or it failed and the status channel was told.
        """
        status = socket.socket(fileno=descriptors[1])
        channels = Channels(descriptors[0], status, *descriptors[2:_FIXED_DESCRIPTORS])
        made: Union[Newborn, GuestChild, None] = None
        with Owned(descriptors[0], *descriptors[2:]) as owned:
            try:
                kit = self._kit(order, tuple(descriptors[_FIXED_DESCRIPTORS:]), owned)
                make = self._fork_guest if order.get("sleeps") else self._clone_keeper
                made = make(kit, channels, order)
            except (CageError, OSError, ValueError, MemoryError) as trouble:
                # One cell's trouble must not end the others' zygote.
                tell(status, _failure(trouble))
            if isinstance(made, Newborn):
                owned.give_all()
        if made is None:
            status.close()
        return made

    def _kit(self, order: Dict[str, Any], cgroups: Tuple[int, ...], owned: Owned) -> Kit:
        plan, program = _parse(order["plan"])
        shared_root = self._roots.copy_for(plan) if order.get("sleeps") else None
        if shared_root is not None:
            trees = [owned.take(shared_root)]
        else:
            trees = [owned.take(self._open_tree(bind)) for bind in plan.binds]
        return Kit(plan, program, tuple(trees), cgroups, self._outer, has_shared_root=shared_root is not None)

    def _clone_keeper(self, kit: Kit, channels: Channels, order: Dict[str, Any]) -> Optional[Newborn]:
        """A cell with a keeper. In the child, what it is to be; it waits until it has its user."""
        is_caged = kit.plan.isolation == "namespaces"
        with Owned() as owned:
            go_read, go_write = owned.pipe()
            with step("clone into namespaces" if is_caged else "fork"):
                pid, pidfd = namespaces.clone(namespaces.flags_for(kit.plan.network) if is_caged else 0)
            if pid == 0:
                owned.give_all()
                await_go(go_read, go_write)
                return self._born(Newborn(kit, channels, waits=bool(order.get("waits"))))
            self._on_birth(pid)
            owned.take(pidfd)
            try:
                if is_caged:
                    with step("map user"):
                        namespaces.map_ids(pid, self._host_id, self._host_id)
                send_packet(channels.status, {"pid": pid}, [pidfd])  # before anything that the cell itself can say
                os.write(go_write, b"g")
            except BaseException:
                kill(pid)
                raise
        return None

    def _fork_guest(self, kit: Kit, channels: Channels, order: Dict[str, Any]) -> Union[Newborn, GuestChild]:
        """A guest in the namespaces of a sleeping init, with this process as its parent."""
        init = self._inits.take(kit.plan.network)
        with Owned(init.pidfd, init.asleep, init.lifeline) as owned:
            try:
                ours, theirs = owned.socketpair()
                with step("fork guest"):
                    guest = self._fork.into(init.pidfd)
                if guest == 0:
                    owned.give_all()
                    os.close(ours)
                    return self._born(Newborn(kit, channels, theirs, init, waits=bool(order.get("waits"))))
                self._on_birth(guest)
                pidfd = owned.take(call("pidfd_open", guest, 0))
                # The lifeline goes to the supervisor and to nobody else: when it dies, init wakes up and ends.
                send_packet(channels.status, {"pid": init.pid}, [init.pidfd, pidfd, init.lifeline])
                handoff = socket.socket(fileno=ours)
            except BaseException:
                init.end()  # and with it the guest, if there is one
                raise
            owned.give(ours, init.pidfd)
        return GuestChild(guest, kit.plan.report_path, channels.status, init, handoff, order["execs"])

    def _born(self, newborn: Newborn) -> Newborn:
        """In the child, which must never come back to where the zygote serves: it would be a second one."""
        try:
            self._let_go()
        except BaseException:
            os._exit(1)
        return newborn

    def _let_go(self) -> None:
        """In a cell: none of this is its business."""
        signal.set_wakeup_fd(-1)
        if self._is_caging:
            self._inits.let_go()
            self._roots.let_go()
            self._fork.let_go()
        close_all(self._id_maps.values())

    def _open_tree(self, bind: plans.Bind) -> int:
        return mounts.detached_tree(bind, self._id_map)

    def _id_map(self, owner: mounts.Owner) -> Optional[int]:
        """For root: the caller's paths appear as the guest's own, through an id-mapped mount."""
        if not self._is_root:
            return None
        if owner not in self._id_maps:
            self._id_maps[owner] = _user_namespace(owner, self._host_id)
        return self._id_maps[owner]


def _user_namespace(owner: mounts.Owner, host_id: int) -> int:
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
        kill(pid)
        os.waitpid(pid, 0)


def _failure(trouble: BaseException) -> CageError:
    if isinstance(trouble, CageError):
        return trouble
    if isinstance(trouble, OSError):
        return CageError("make cell", trouble.errno or 0, str(trouble.filename or trouble.strerror))
    if isinstance(trouble, MemoryError):
        return CageError("make cell", errno.ENOMEM, "memory of the zygote")
    return CageError("read plan", 0, str(trouble))


@functools.lru_cache(maxsize=64)
def _parse(text: str) -> Tuple[plans.LaunchPlan, bytes]:
    """The plan and its filter: the same text comes again with every cell of a policy, and compiling takes a while."""
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
