"""Makes one cell: from an order and its descriptors to processes in their own namespaces.

In a full cage the guest is the manager's child, forked by the zygote into the namespaces of a sleeping init, which may
have been made in advance. Without namespaces, a keeper is the guest's parent and reaps what it leaves running.
"""

from __future__ import annotations

import errno
import os
import stat

from .. import plan as plans
from .. import verify
from ..cell_shape import CellShape
from ..failure import CageError, send_failure, step
from ..fast_imports import lru_cache, partial, read_json, signal, socket
from ..linux import mounts, namespaces
from ..linux.descriptors import OwnedDescriptors
from ..linux.processes import kill
from ..linux.syscalls import call
from ..records import NamedTuple
from ..watching.watcher import ceilings_for
from ..wire import packet_socket, send_packet
from .guarded_mounts import GuardedMounts, find_guarded
from .guest_child import GuestChild
from .network_namespaces import NetworkNamespaces
from .shared_roots import SharedRoots
from .sleeping_inits import HostIds, SleepingInits
from .zygote_handle import ZygoteHandle, ZygoteLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

    from .guarded_mounts import Watched

#: Beyond this, the least recently used twin is ended, and forked again on demand.
_MOST_TWINS = 64


class Order(NamedTuple):
    """A decoded order: plan, the cell's ends of its channels, and the cgroups to join."""

    plan: plans.LaunchPlan
    #: The binds of the plan that belong to one guest.
    own: Tuple[plans.Bind, ...]
    #: The plan without the sources of `own`: cells that differ only in them share roots and recipes.
    common: plans.LaunchPlan
    #: Whether its job may be a program, and whether the job comes later.
    may_exec: bool
    waits: bool
    #: Whether its job is certain to be a program, and may be sent as a call list.
    is_program: bool
    job: int
    stdio: Tuple[int, ...]
    cgroups: Tuple[int, ...]
    #: The trees of the plan's given binds, in their order.
    trees: Tuple[int, ...]
    #: The twin of the zygote to fork it from, if the plan contains path names of one caller; 0: the zygote.
    twin: int


class Twins:
    """Forks of the zygote for plans with path names of one caller: guests are copies of their zygote's memory.

    Forking a twin is far cheaper than starting another interpreter. The zygote has no names of callers; a twin gets
    those of one pool of the supervisor. `is_for_one`: the zygote has a single guest, and needs no twins.
    """

    def __init__(self, zygote: ZygoteHandle, is_for_one: bool = False) -> None:
        self._zygote = zygote
        self._is_for_one = is_for_one
        #: By the supervisor's number; the least recently used comes first.
        self._twins: Dict[int, ZygoteHandle] = {}

    def zygote_for(self, number: int) -> ZygoteHandle:
        """The twin of that number, forked if necessary; 0 is the zygote itself."""
        if not number or self._is_for_one:
            return self._zygote
        twin = self._twins.pop(number, None) or self._zygote.fork_twin()
        self._twins[number] = twin
        if len(self._twins) > _MOST_TWINS:
            self.end(next(iter(self._twins)))
        return twin

    def end(self, number: int) -> bool:
        """End a twin; its guests continue. Returns whether it existed."""
        twin = self._twins.pop(number, None)
        if twin is not None:
            twin.close()
        return twin is not None


class CellMaker:
    """Owned by the manager, in its own namespaces for full cages. `on_birth` is called with every new process."""

    def __init__(
        self,
        zygote: ZygoteHandle,
        is_caging: bool,
        host_id: int,
        on_birth: Callable[[int, object], None],
        start_watcher: Callable[[], None],
        keeps_spares: bool = False,
        has_host_network: bool = False,
        is_for_one: bool = False,
    ) -> None:
        self.twins = Twins(zygote, is_for_one)
        self._is_root = is_caging and host_id != 0
        self.ids = HostIds(host_id)
        self._on_birth = on_birth
        self._start_watcher = start_watcher
        self._id_maps: Dict[Tuple[mounts.Owner, int], int] = {}
        self._outer = namespaces.identities()
        self._is_caging = is_caging
        self.guarded = GuardedMounts()
        if is_caging:
            self._roots = SharedRoots(lambda bind: self._open_tree(bind, host_id))
            self._home = namespaces.HomeNamespace("mnt")
            self._networks = None if has_host_network else NetworkNamespaces(is_for_one)
            self._inits = SleepingInits(self.ids, on_birth, keeps_spares, self._roots.tmpfs, self._networks, self._home)

    @property
    def is_complete(self) -> bool:
        return not self._is_caging or self._inits.is_complete

    def make_ahead(self) -> None:
        """Make the init that the next cell will most likely need."""
        if self._is_caging:
            self._inits.make_ahead()

    def take_back(self, process: int) -> None:
        """Release the id and the network of a cell after its init was reaped."""
        self.ids.give_back(process)
        if self._is_caging and self._networks is not None:
            self._networks.give_back(process)

    def attach(self, binds: Sequence[plans.Bind], guest: GuestChild) -> None:
        """Attach more host paths to a running cell, by mounting into its mount namespace from outside.

        Each mount tree is made as for a new cell: a private copy, compared by identity, with reduced permissions. The
        mount points were part of the cell's plan, on its sealed root and in its Landlock rules. Raises `CageError`.
        """
        guarded = find_guarded(binds)
        watched = self.guarded.watch(guarded)
        try:
            self._attach_trees(binds, guest)
        except BaseException:
            self.guarded.forget(watched)
            raise
        self._guard(guest, guarded, watched)

    def _guard(self, guest: GuestChild, guarded: Iterable[str], watched: Watched) -> None:
        """Have the cell end when one of these mount points is lost, and forget the watches when it is closed."""
        guest.guarded += tuple(guarded)
        guest.on_close.append(partial(self.guarded.forget, watched))

    def _attach_trees(self, binds: Sequence[plans.Bind], guest: GuestChild) -> None:
        with OwnedDescriptors() as owned:
            with step("find cell"):
                process = owned.take(call("pidfd_open", guest.pid, 0))
            trees = [owned.take(self._open_tree(bind, guest.host_id)) for bind in binds]
            with step("enter mount namespace"):
                self._home.enter(process)
            try:
                for bind, tree in zip(binds, trees):  # noqa: B905  # `strict` came after Python 3.9
                    with step("attach path", bind.target):
                        mounts.attach_tree(tree, bind.target)
            finally:
                self._home.return_home()

    def make(self, order: Dict[str, Any], descriptors: List[int]) -> Optional[GuestChild]:
        """Make the processes of one cell, and take over the descriptors.

        Returns the guest to supervise; None if a keeper does that, or the failure was sent on the status channel.
        """
        job, status_end, *stdio = descriptors[:5]
        status = packet_socket(status_end)
        owned = OwnedDescriptors(job, *descriptors[2:])
        try:
            plan, own, common = _parse(order["plan"])
            if "sources" in order:
                plan, own = _put_sources(plan, own, order["sources"])
            trees = len([bind for bind in own if bind.given])
            cgroups, given = tuple(descriptors[5 : len(descriptors) - trees]), descriptors[len(descriptors) - trees :]
            may_exec, waits, is_program = (bool(order.get(word)) for word in ("may_exec", "waits", "program"))
            kind = (may_exec, waits, is_program)
            twin = order.get("twin", 0)
            wanted = Order(plan, own, common, *kind, job, tuple(stdio), cgroups, tuple(given), twin)
            if plan.isolation == "namespaces":
                return self._make_guest_again_if_lost(wanted, status, owned)
            self._make_keeper(wanted, status, owned)
        except CageError as failure:
            send_failure(status, failure)
        except ValueError as problem:  # not JSON, or not a plan
            send_failure(status, CageError("read plan", 0, str(problem)))
        except MemoryError:
            send_failure(status, CageError("make cell", errno.ENOMEM, "the manager"))
        except OSError as error:  # the failure of one cell must not end the manager of the others
            send_failure(status, CageError("make cell", error.errno or 0, str(error.filename or error.strerror)))
        finally:
            status.close()
            owned.close()
        return None

    def _make_guest_again_if_lost(self, order: Order, status: socket.socket, owned: OwnedDescriptors) -> GuestChild:
        """Make the guest, with another twin if its twin has died."""
        try:
            return self._make_guest(order, status, owned)
        except ZygoteLost:
            if not self.twins.end(order.twin):
                raise
        return self._make_guest(order, status, owned)

    def _make_guest(self, order: Order, status: socket.socket, owned: OwnedDescriptors) -> GuestChild:
        """Make a guest in the namespaces of a sleeping init, with this process as its parent."""
        begun, go = owned.pipe()
        if (order.plan.network == "host") != (self._networks is None):
            raise CageError("read plan", errno.EINVAL, "network")
        init = self._inits.take((order.plan.uid, order.plan.gid))
        for descriptor in (init.pidfd, init.asleep, init.lifeline):
            owned.take(descriptor)
        guarded, watched = find_guarded(order.own), []
        try:
            watched = self.guarded.watch(guarded)
            attached, trees = self._open_trees(order, init.host_id, owned)
            shape = CellShape(order.common, len(order.cgroups), attached, _files(order.plan, attached))
            zygote = self.twins.zygote_for(order.twin)
            with step("fork guest"):
                zygote.send_shape(shape)  # if it is new, the zygote writes the recipe while we make the root
            root = owned.take(self._roots.copy_for(order.common, attached))
            ours, handoff = owned.socketpair()
            image = (*order.plan.layers, *order.plan.upper)
            trees = [root, *trees, *(owned.take(self._open_tree(layer, init.host_id)) for layer in image)]
            given = (order.job, go, *order.stdio, handoff, init.pidfd, init.asleep, *order.cgroups, *trees)
            with step("fork guest"):
                zygote.order(shape, order.may_exec, order.waits, given, order.is_program)
                if ceilings_for(order.plan, init.host_id).is_needed:
                    self._start_watcher()  # while the zygote is busy
                pid, takes_list, has_live_modules = zygote.answer()
            self._on_birth(pid, None)
            pidfd = owned.take(call("pidfd_open", pid, 0))
            kept = verify.identities((order.job, go, *order.stdio))
            expected = verify.Expected(order.plan, kept, self._outer, init.host_id)
            sends, receives = packet_socket(os.dup(status.fileno())), packet_socket(ours)
            guest = GuestChild(pid, pidfd, expected, sends, init, receives, begun, order.may_exec)
            guest.takes_list, guest.has_live_modules = takes_list, has_live_modules
            self._guard(guest, guarded, watched)
        except BaseException:
            self.guarded.forget(watched)
            init.end()
            raise
        owned.give(init.pidfd, init.lifeline, pidfd, ours, begun)
        return guest

    def _open_trees(
        self, order: Order, host_id: int, owned: OwnedDescriptors
    ) -> Tuple[Tuple[Tuple[str, bool], ...], Sequence[int]]:
        """The mount points of the guest's own paths on top of the root, and their mount trees."""
        given = iter(order.trees)
        trees = [next(given) if bind.given else owned.take(self._open_tree(bind, host_id)) for bind in order.own]
        kinds = (stat.S_ISDIR(os.fstat(tree).st_mode) for tree in trees)
        return tuple(zip((bind.target for bind in order.own), kinds)), trees  # noqa: B905  # since Python 3.10

    def _make_keeper(self, order: Order, status: socket.socket, owned: OwnedDescriptors) -> None:
        """Start a keeper, which makes a guest without namespaces."""
        begun, go = owned.pipe()
        files = tuple(path for path, _ in order.plan.landlock if not os.path.isdir(path))
        shape = CellShape(order.plan, len(order.cgroups), files=files)
        given = (order.job, go, begun, status.fileno(), *order.stdio, *order.cgroups)
        with step("fork keeper"):
            zygote = self.twins.zygote_for(0)
            zygote.order(shape, order.may_exec, order.waits, given)
            pid, _, _ = zygote.answer()
        self._on_birth(pid, None)
        try:
            send_packet(status, {"pid": pid}, [owned.take(call("pidfd_open", pid, 0))])
        except OSError:
            kill(pid)
            raise

    def _open_tree(self, bind: plans.Bind, host_id: int) -> int:
        return mounts.detached_tree(bind, partial(self._id_map, host_id))

    def _id_map(self, host_id: int, owner: mounts.Owner) -> Optional[int]:
        """For root: the user namespace of an id-mapped mount, which makes the guest the owner of the caller's paths."""
        if not self._is_root:
            return None
        if (owner, host_id) not in self._id_maps:
            self._id_maps[owner, host_id] = _user_namespace(owner, host_id)
        return self._id_maps[owner, host_id]


def without_sources(plan: plans.LaunchPlan, own: Sequence[plans.Bind]) -> plans.LaunchPlan:
    """The plan without the sources of a guest's own paths, so that runs with different ones share root and recipe."""
    binds = (bind._replace(source="", identity="") if bind in own else bind for bind in plan.binds)
    if not own and not plan.layers:
        return plan
    layers, upper = (
        tuple(layer._replace(source="", identity="") for layer in group) for group in (plan.layers, plan.upper)
    )
    return plan._replace(binds=tuple(binds), layers=layers, upper=upper)


def _files(plan: plans.LaunchPlan, attached: Sequence[Tuple[str, bool]]) -> Tuple[str, ...]:
    """The paths of the plan's Landlock rules that are files, to which fewer rights apply."""
    named = {path for path, _ in plan.landlock}
    shared = [(bind.target, os.path.isdir(bind.source)) for bind in plan.binds if bind.target in named]
    return tuple(target for target, is_directory in {**dict(shared), **dict(attached)}.items() if not is_directory)


def _user_namespace(owner: mounts.Owner, host_id: int) -> int:
    """A user namespace, kept by descriptor, that maps the owner of a path to the guest's id on the host."""
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


def _put_sources(
    plan: plans.LaunchPlan, own: Sequence[plans.Bind], sources: object
) -> Tuple[plans.LaunchPlan, Tuple[plans.Bind, ...]]:
    """Put the sources of one order into a plan that many orders share; returns the plan and the guest's own binds."""
    binds = plans.put_sources(plan.binds, sources)
    pairs = zip(plan.binds, binds)  # noqa: B905  # since Python 3.10
    return plan._replace(binds=binds), tuple(bind for before, bind in pairs if before in own)


@lru_cache(maxsize=64)
def _parse(text: str) -> Tuple[plans.LaunchPlan, Tuple[plans.Bind, ...], plans.LaunchPlan]:
    """The plan, the binds of one guest, and the plan without their sources. Cells of a policy share the text."""
    plan = plans.decode(read_json(text))
    own = tuple(bind for bind in plan.binds if not plans.is_shared(bind, plan))
    return plan, own, without_sources(plan, own)
