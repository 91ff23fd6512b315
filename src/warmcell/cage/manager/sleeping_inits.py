"""Namespaces with a sleeping init, into which guests are forked. With a pool, one is kept ready.

The slowest part of a cell does not depend on its plan: new namespaces, their user map, their network. So the next
one is made when the manager is idle. An init is started without copying the manager's memory.
"""

from __future__ import annotations

import os
import select

from ..cell_shape import SleepingInit
from ..failure import CageError, step
from ..fast_imports import signal
from ..guest_entry.root import enter_new_tmpfs
from ..linux import call_list, capabilities, mounts, namespaces, sleeper
from ..linux.call_list import CallList, PreparedCalls, SpawnedChild, Value
from ..linux.descriptors import OwnedDescriptors
from ..linux.kernel_files import IDS_OF_A_MANAGER
from .network_namespaces import NetworkNamespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, NoReturn, Optional, Tuple

#: The user and group that most guests have.
_USUAL_IDS = (namespaces.GUEST_UID, namespaces.GUEST_GID)

_GO, _LIFELINE, _AWAKE, _PROGRAM = (Value(place) for place in range(4))


class HostIds:
    """User ids of cells on the host. For root each cell has its own, so that the kernel's per-user limits are per cell.

    An ordinary user has only one id. With more cells than ids, the least used id is shared.
    """

    def __init__(self, first: int) -> None:
        self._ids = range(first, first + (IDS_OF_A_MANAGER if first else 1))
        self._used = dict.fromkeys(self._ids, 0)
        self._by_process: Dict[int, int] = {}

    def next(self) -> int:
        """The lowest of the least used ids, so that its id maps are reused."""
        return min(self._ids, key=self._used.__getitem__)

    def take(self, host_id: int, init: int) -> None:
        self._used[host_id] += 1
        self._by_process[init] = host_id

    def give_back(self, process: int) -> None:
        """Call it after the process was reaped. Does nothing unless it was an init."""
        host_id = self._by_process.pop(process, None)
        if host_id is not None:
            self._used[host_id] -= 1


class InitMounts:
    """The mount namespace in which inits are cloned: an empty root, and the manager's /proc.

    A new mount namespace is a copy of its creator's, and the kernel copies and removes mounts under one lock for the
    whole machine. A guest needs none of the host's mounts, since its root is a detached tree; but without a visible
    /proc, the kernel refuses to mount another.

    Owned by the manager, which must have its own mount namespace, `home`. In the block, this process is in it.
    """

    def __init__(self, home: namespaces.HomeNamespace) -> None:
        self._home = home
        with step("make mounts of init"), OwnedDescriptors() as owned:
            self._home.enter_new()
            try:
                _lay_out_mounts()
                self._other = owned.take(self._home.open_current())
            finally:
                self._home.return_home()
            owned.give(self._other)

    def __enter__(self) -> None:
        self._home.enter(self._other)

    def __exit__(self, *_: object) -> None:
        self._home.return_home()


def _lay_out_mounts() -> None:
    enter_new_tmpfs("/tmp")
    for name in ("proc", "tmp"):
        os.mkdir(name)
    mounts.mount("/proc", "proc", None, mounts.MS_BIND)
    calls = CallList()
    calls.begin_step("make mounts of init")
    mounts.pivot_into_working_directory(calls)
    calls.prepare(()).run()


class SleepingInits:
    """Owned by the manager. `on_birth` is called with the pid of every init and objects to keep until it exits.

    Each has a network of its own from `networks`; without that, the manager's, which is then the host's.
    """

    def __init__(
        self,
        ids: HostIds,
        on_birth: Callable[[int, object], None],
        keeps_spares: bool,
        tmpfs: str,
        networks: Optional[NetworkNamespaces],
        home: namespaces.HomeNamespace,
    ) -> None:
        self._ids = ids
        self._home = home
        self._on_birth = on_birth
        self._networks = networks
        #: Made with the first spare, or for the second cell: for a single cell it would take longer than it saves.
        self._mounts: Optional[InitMounts] = None
        self._program = sleeper.make(tmpfs)
        self._calls: Optional[CallList] = None
        self._ids_of_calls = _USUAL_IDS
        self._spare: Optional[SleepingInit] = None
        self._keeps_spares = keeps_spares
        self.is_complete = True

    def take(self, inside: Tuple[int, int] = _USUAL_IDS) -> SleepingInit:
        """An init for a guest with these ids inside; the caller owns its descriptors."""
        if inside != _USUAL_IDS:
            return self._make(inside)
        self.is_complete = not self._keeps_spares
        spare, self._spare = self._spare, None
        if spare is not None and _is_alive(spare):
            return spare
        if spare is not None:
            spare.close()
        if self._calls is not None:  # another was made before
            self._prepare_mounts()
        return self._make()

    def make_ahead(self) -> None:
        """Make the spare. If this fails, the next cell tries again, and reports the error."""
        self.is_complete = True
        try:
            if self._keeps_spares:
                self._prepare_mounts()
            self._spare = self._make()
        except (CageError, OSError):
            pass

    def _prepare_mounts(self) -> None:
        if self._mounts is None:
            self._mounts = InitMounts(self._home)

    def _make(self, inside: Tuple[int, int] = _USUAL_IDS) -> SleepingInit:
        if self._calls is None or self._ids_of_calls != inside:
            self._calls, self._ids_of_calls = _recipe(*inside), inside
        with OwnedDescriptors() as owned:
            (go_read, go_write), (asleep, awake), (sleeps_on, lifeline) = (owned.pipe() for _ in range(3))
            prepared = self._calls.prepare([go_read, sleeps_on, awake, self._program])
            spawned = self._start(prepared, awake)
            self._on_birth(spawned.pid, spawned)
            host_id = self._ids.next()
            self._ids.take(host_id, spawned.pid)
            init = SleepingInit(spawned.pid, owned.take(spawned.pidfd), asleep, lifeline, prepared, host_id)
            try:
                with step("map user"):
                    namespaces.map_ids(spawned.pid, host_id, host_id, *inside)
                os.write(go_write, b"g")
            except BaseException:
                init.end()
                raise
            owned.give(init.pidfd, asleep, lifeline)
            return init

    def _start(self, prepared: PreparedCalls, awake: int) -> SpawnedChild:
        if self._networks is None:
            return self._clone(prepared, awake)
        own = self._networks.enter()
        try:
            spawned = self._clone(prepared, awake)
        except BaseException:
            os.close(own)
            raise
        finally:
            self._networks.leave()
        self._networks.assign(own, spawned.pid)
        return spawned

    def _clone(self, prepared: PreparedCalls, awake: int) -> SpawnedChild:
        with step("clone into namespaces"):
            if self._mounts is None:
                return _start(prepared, awake)
            with self._mounts:
                return _start(prepared, awake)


def _recipe(uid: int, gid: int) -> CallList:
    """The calls of an init: it waits for its user map, drops all privileges and sleeps."""
    calls = CallList(4)
    calls.begin_step("await user")  # a clone has no user until its parent has written the map
    calls.call("read", _GO, bytes(1), 1, expected=1)
    namespaces.become_guest(calls, uid, gid)
    calls.begin_step("drop capabilities")
    capabilities.clear(calls)
    sleeper.become(calls, _PROGRAM, _LIFELINE, _AWAKE)
    return calls


def _start(prepared: PreparedCalls, awake: int) -> SpawnedChild:
    """Start it in new namespaces of every kind, except the network namespace, which is the current one.

    Its signals stay blocked: no handler of ours may run there, and no guest may wake it.
    """
    if not call_list.can_spawn():
        pid, pidfd = namespaces.clone(namespaces.OF_INIT)
        if pid == 0:
            _run_in_copy(prepared, awake)
        return SpawnedChild(pid, pidfd, ())
    # No exit signal: the manager reaps it when it is idle. The kernel resets this at exec, so a sleeping init does
    # signal its exit: see `Manager._report`.
    return call_list.spawn(namespaces.OF_INIT, prepared, exit_signal=0)


def _run_in_copy(prepared: PreparedCalls, awake: int) -> NoReturn:
    """Run the list in a clone with a copy of our memory; write a failure to the pipe that the sleeper would close."""
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        prepared.run()
    except CageError as failure:
        os.write(awake, str(failure).encode())
    finally:
        os._exit(1)


def _is_alive(init: SleepingInit) -> bool:
    """Checks the pidfd: a process that has exited accepts signals until it is reaped."""
    poll = select.poll()
    poll.register(init.pidfd, select.POLLIN)
    return not poll.poll(0)
