"""Making one cell: from an order and its descriptors to processes in namespaces of their own.

Caged, the guest is our own child, forked by the zygote into namespaces whose init sleeps and may have been made ahead.
In the classes without namespaces a keeper stands between us and the guest: somebody must be the parent of what it
leaves behind.
"""

from __future__ import annotations

import errno
import os
import stat

from .. import plan as plans
from .. import verify
from ..cell import Shape
from ..failure import CageError, step, tell
from ..light import lru_cache, partial, read_json, signal, socket
from ..linux import mounts, namespaces
from ..linux.owned import Owned
from ..linux.processes import kill
from ..linux.syscalls import call
from ..records import NamedTuple
from ..watching.watcher import watched
from ..wire import packets_at, send_packet
from .attach import Attacher
from .guest_children import GuestChild
from .host_ids import HostIds
from .shared_roots import SharedRoots
from .sleeping_inits import SleepingInits
from .zygote_child import ZygoteChild

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple


class Order(NamedTuple):
    """What came with an order: the cell's ends of its channels, and the groups that it is to join."""

    plan: plans.LaunchPlan
    #: The paths of the plan that are one guest's own.
    own: Tuple[plans.Bind, ...]
    #: The plan without where those come from: roots and recipes are the same for all cells that differ in that alone.
    common: plans.LaunchPlan
    #: Whether its job will be a program, and whether that comes later.
    may_exec: bool
    waits: bool
    #: Whether its job is sure to be one, and may come as a list of calls.
    is_program: bool
    job: int
    stdio: Tuple[int, ...]
    cgroups: Tuple[int, ...]


class CellMaker:
    """Owned by the manager, in namespaces of its own if it is caging. `on_birth` is told of every process."""

    def __init__(
        self,
        zygote: ZygoteChild,
        is_caging: bool,
        host_id: int,
        on_birth: Callable[[int, object], None],
        start_watcher: Callable[[], None],
        keeps_spares: bool = False,
    ) -> None:
        self._zygote = zygote
        self._is_root = is_caging and host_id != 0
        self.ids = HostIds(host_id)
        self._on_birth = on_birth
        self._start_watcher = start_watcher
        self._id_maps: Dict[Tuple[mounts.Owner, int], int] = {}
        self._outer = namespaces.identities()
        self._is_caging = is_caging
        if is_caging:
            self._roots = SharedRoots(lambda bind: self._open_tree(bind, host_id))
            self._attacher = Attacher(self._open_tree)
            self._inits = SleepingInits(self.ids, on_birth, keeps_spares, self._roots.tmpfs)

    @property
    def is_complete(self) -> bool:
        return not self._is_caging or self._inits.is_complete

    def prepare_first(self) -> None:
        """Makes what the first cell will most likely want, while there is time."""
        if self._is_caging:
            self._inits.make_ahead("loopback")

    def complete(self) -> None:
        """Makes what the next cell can have ready-made."""
        self._inits.complete()

    def attach(self, binds: Sequence[plans.Bind], guest: GuestChild) -> None:
        """Shows more of the host to a cell that stands."""
        self._attacher.attach(binds, guest.pid, guest.host_id)

    def make(self, order: Dict[str, Any], descriptors: List[int]) -> Optional[GuestChild]:
        """Has the processes of one cell made; the descriptors are ours from here.

        A guest to look after, or None: a keeper does, or it failed and the status channel was told.
        """
        job, status_end, *stdio = descriptors[:5]
        status = packets_at(status_end)
        owned = Owned(job, *descriptors[2:])
        try:
            plan, own, common = _parse(order["plan"])
            cgroups = tuple(descriptors[5:])
            execs, waits, is_program = (bool(order.get(word)) for word in ("execs", "waits", "program"))
            wanted = Order(plan, own, common, execs, waits, is_program, job, tuple(stdio), cgroups)
            if plan.isolation == "namespaces":
                return self._make_guest(wanted, status, owned)
            self._make_keeper(wanted, status, owned)
        except CageError as failure:
            tell(status, failure)
        except ValueError as problem:  # not JSON, or not a plan
            tell(status, CageError("read plan", 0, str(problem)))
        except MemoryError:
            tell(status, CageError("make cell", errno.ENOMEM, "the manager"))
        except OSError as error:  # one cell's trouble must not end the others' manager
            tell(status, CageError("make cell", error.errno or 0, str(error.filename or error.strerror)))
        finally:
            status.close()
            owned.close()
        return None

    def _make_guest(self, order: Order, status: socket.socket, owned: Owned) -> GuestChild:
        """A guest in the namespaces of a sleeping init, with this process as its parent."""
        begun, go = owned.pipe()
        init = self._inits.take(order.plan.network)
        for descriptor in (init.pidfd, init.asleep, init.lifeline):
            owned.take(descriptor)
        try:
            attached, trees = self._open_trees(order, init.host_id, owned)
            shape = Shape(order.common, len(order.cgroups), attached, _files(order.plan, attached))
            with step("fork guest"):
                self._zygote.teach(shape)  # what it does not know yet it learns while we make the first of such roots
            root = owned.take(self._roots.copy_for(order.common, attached))
            ours, handoff = owned.socketpair()
            given = (order.job, go, *order.stdio, handoff, init.pidfd, init.asleep, *order.cgroups, root, *trees)
            with step("fork guest"):
                self._zygote.order(shape, order.may_exec, order.waits, given, order.is_program)
                if watched(order.plan, init.host_id).is_needed:
                    self._start_watcher()  # while the zygote is busy
                pid, takes_list = self._zygote.answer()
            self._on_birth(pid, None)
            pidfd = owned.take(call("pidfd_open", pid, 0))
            kept = verify.identities((order.job, go, *order.stdio))
            expected = verify.Expected(order.plan, kept, self._outer, init.host_id)
            told, heard = packets_at(os.dup(status.fileno())), packets_at(ours)
            guest = GuestChild(pid, pidfd, expected, told, init, heard, begun, order.may_exec, takes_list)
        except BaseException:
            init.end()
            raise
        owned.give(init.pidfd, init.lifeline, pidfd, ours, begun)
        return guest

    def _open_trees(
        self, order: Order, host_id: int, owned: Owned
    ) -> Tuple[Tuple[Tuple[str, bool], ...], Sequence[int]]:
        """What goes on top of the root, and the trees of it."""
        trees = [owned.take(self._open_tree(bind, host_id)) for bind in order.own]
        kinds = (stat.S_ISDIR(os.fstat(tree).st_mode) for tree in trees)
        return tuple(zip((bind.target for bind in order.own), kinds)), trees  # noqa: B905  # since Python 3.10

    def _make_keeper(self, order: Order, status: socket.socket, owned: Owned) -> None:
        """A guest without namespaces, by way of its keeper."""
        begun, go = owned.pipe()
        files = tuple(path for path, _ in order.plan.landlock if not os.path.isdir(path))
        shape = Shape(order.plan, len(order.cgroups), files=files)
        given = (order.job, go, begun, status.fileno(), *order.stdio, *order.cgroups)
        with step("fork keeper"):
            self._zygote.order(shape, order.may_exec, order.waits, given)
            pid, _ = self._zygote.answer()
        self._on_birth(pid, None)
        try:
            send_packet(status, {"pid": pid}, [owned.take(call("pidfd_open", pid, 0))])
        except OSError:
            kill(pid)
            raise

    def _open_tree(self, bind: plans.Bind, host_id: int) -> int:
        return mounts.detached_tree(bind, partial(self._id_map, host_id))

    def _id_map(self, host_id: int, owner: mounts.Owner) -> Optional[int]:
        """For root: the caller's paths appear as the guest's own, through an id-mapped mount."""
        if not self._is_root:
            return None
        if (owner, host_id) not in self._id_maps:
            self._id_maps[owner, host_id] = _user_namespace(owner, host_id)
        return self._id_maps[owner, host_id]


def without_sources(plan: plans.LaunchPlan, own: Sequence[plans.Bind]) -> plans.LaunchPlan:
    """A run with a directory made for it then finds the root and recipe of the run before, which had another."""
    binds = (bind._replace(source="", identity="") if bind in own else bind for bind in plan.binds)
    return plan._replace(binds=tuple(binds)) if own else plan


def _files(plan: plans.LaunchPlan, attached: Sequence[Tuple[str, bool]]) -> Tuple[str, ...]:
    """Paths of its Landlock rules that are no directories: there are fewer rights to those."""
    named = {path for path, _ in plan.landlock}
    shared = [(bind.target, os.path.isdir(bind.source)) for bind in plan.binds if bind.target in named]
    return tuple(target for target, is_directory in {**dict(shared), **dict(attached)}.items() if not is_directory)


def _user_namespace(owner: mounts.Owner, host_id: int) -> int:
    """A user namespace, kept by descriptor, in which the owner of a path on disk is the guest's id on the host."""
    pid, pidfd = namespaces.clone(namespaces.CLONE_NEWUSER)
    if pid == 0:
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


@lru_cache(maxsize=64)
def _parse(text: str) -> Tuple[plans.LaunchPlan, Tuple[plans.Bind, ...], plans.LaunchPlan]:
    """The plan, the paths that are one guest's own, and the rest. The same text comes with every cell of a policy."""
    plan = plans.decode(read_json(text))
    own = tuple(bind for bind in plan.binds if not plans.is_shared(bind, plan))
    return plan, own, without_sources(plan, own)
