"""Namespaces with a sleeping init, for guests to be forked into. Where cells may wait, one is kept ready.

What takes longest about a cell does not depend on its plan: new namespaces, their users, their network. So the next
ones are made when there is nothing else to do. An init never needs our memory: it is started without a copy of it.
"""

from __future__ import annotations

import os
import select

from ..cell import SleepingInit
from ..failure import CageError, step
from ..light import signal
from ..linux import call_list, capabilities, namespaces, sleeper
from ..linux.call_list import CallList, Prepared, Spawned, Value
from ..linux.owned import Owned
from .host_ids import HostIds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, NoReturn

_GO, _LIFELINE, _AWAKE, _PROGRAM = (Value(place) for place in range(4))


class SleepingInits:
    """Owned by the manager. `on_birth` is told the pid of every init, and what must be kept until it has ended."""

    def __init__(self, ids: HostIds, on_birth: Callable[[int, object], None], keeps_spares: bool, tmpfs: str) -> None:
        self._ids = ids
        self._on_birth = on_birth
        self._program = sleeper.make(tmpfs)
        self._recipes: Dict[str, CallList] = {}
        self._spare: Dict[str, SleepingInit] = {}
        self._missing: List[str] = []
        self._keeps_spares = keeps_spares

    @property
    def is_complete(self) -> bool:
        return not self._missing

    def take(self, network: str) -> SleepingInit:
        """One with that network; the caller owns its descriptors."""
        if self._keeps_spares and network not in self._missing:
            self._missing.append(network)
        spare = self._spare.pop(network, None)
        if spare is not None and _is_there(spare):
            return spare
        if spare is not None:
            spare.close()
        return self._make(network)

    def complete(self) -> None:
        """Makes one that is missing."""
        self.make_ahead(self._missing.pop())

    def make_ahead(self, network: str) -> None:
        """If that fails, whoever needs it is told why."""
        try:
            self._spare[network] = self._make(network)
        except (CageError, OSError):
            pass

    def _make(self, network: str) -> SleepingInit:
        if network not in self._recipes:
            self._recipes[network] = _recipe(network)
        with Owned() as owned:
            (go_read, go_write), (asleep, awake), (sleeps_on, lifeline) = (owned.pipe() for _ in range(3))
            prepared = self._recipes[network].prepare([go_read, sleeps_on, awake, self._program])
            with step("clone into namespaces"):
                spawned = _start(namespaces.flags_for(network), prepared, awake)
            self._on_birth(spawned.pid, spawned)
            host_id = self._ids.next()
            self._ids.take(host_id, spawned.pid)
            init = SleepingInit(spawned.pid, owned.take(spawned.pidfd), asleep, lifeline, prepared, host_id)
            try:
                with step("map user"):
                    namespaces.map_ids(spawned.pid, host_id, host_id)
                os.write(go_write, b"g")
            except BaseException:
                init.end()
                raise
            owned.give(init.pidfd, asleep, lifeline)
            return init


def _recipe(network: str) -> CallList:
    """What the first process does: it furnishes its namespaces, gives up everything and sleeps."""
    calls = CallList(4)
    calls.part("await user")  # a clone has no user until its parent gave it one
    calls.call("read", _GO, bytes(1), 1, wanted=1)
    namespaces.become_guest(calls)
    if network == "loopback":
        namespaces.bring_up_loopback(calls)
    calls.part("drop capabilities")
    capabilities.clear(calls)
    sleeper.become(calls, _PROGRAM, _LIFELINE, _AWAKE)
    return calls


def _start(flags: int, prepared: Prepared, awake: int) -> Spawned:
    """Signals stay blocked in it for good: nothing of ours may run there, and no guest may wake it."""
    if not call_list.can_spawn():
        pid, pidfd = namespaces.clone(flags)
        if pid == 0:
            _run_plainly(prepared, awake)
        return Spawned(pid, pidfd, ())
    # Its end is no news: whoever ends it reaps it when there is time. Once it sleeps it is another program, and the
    # kernel tells of the ends of those all the same: see `Manager._report`.
    return call_list.spawn(flags, prepared, exit_signal=0)


def _run_plainly(prepared: Prepared, awake: int) -> NoReturn:
    """In a clone with a copy of our memory: what goes wrong is told on the pipe that sleeping closes."""
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        prepared.run()
    except CageError as failure:
        os.write(awake, str(failure).encode())
    finally:
        os._exit(1)


def _is_there(init: SleepingInit) -> bool:
    """Not by a signal to it: one that has ended takes them until it is reaped."""
    poll = select.poll()
    poll.register(init.pidfd, select.POLLIN)
    return not poll.poll(0)
