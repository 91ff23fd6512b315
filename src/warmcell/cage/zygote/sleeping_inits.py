"""Namespaces with a sleeping init, for guests to be forked into. Where cells may wait, one is kept ready.

What takes longest about a cell does not depend on its plan: new namespaces, their users, their network. So the next
ones are made when there is nothing else to do.
"""

from __future__ import annotations

import os
import signal
from typing import Callable, Dict, List

from ..cell import SleepingInit
from ..failure import CageError, step
from ..guest.recipe import become_sleeping_init
from ..linux import namespaces, sleeper
from ..linux.fds import Owned


class SleepingInits:
    """Owned by the zygote. `on_birth` is told the pid of every init."""

    def __init__(self, host_id: int, on_birth: Callable[[int], None], keeps_spares: bool) -> None:
        self._host_id = host_id
        self._on_birth = on_birth
        self._program = sleeper.make()
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
        """Makes one that is missing. If that fails, whoever needs it is told why."""
        network = self._missing.pop()
        try:
            self._spare[network] = self._make(network)
        except (CageError, OSError):
            pass

    def let_go(self) -> None:
        """In a cell: none of this is its business."""
        os.close(self._program)
        while self._spare:
            self._spare.popitem()[1].close()

    def _make(self, network: str) -> SleepingInit:
        with Owned() as owned:
            go_read, go_write = owned.pipe()
            asleep, awake = owned.pipe()
            sleeps_on, lifeline = owned.pipe()
            with step("clone into namespaces"):
                pid, pidfd = namespaces.clone(namespaces.flags_for(network))
            if pid == 0:
                try:
                    os.close(lifeline)
                    await_go(go_read, go_write)
                    become_sleeping_init(network, self._program, sleeps_on, awake)
                finally:  # it must never come back to where the zygote serves
                    os._exit(1)
            self._on_birth(pid)
            init = SleepingInit(pid, owned.take(pidfd), asleep, lifeline)
            try:
                with step("map user"):
                    namespaces.map_ids(pid, self._host_id, self._host_id)
                os.write(go_write, b"g")
            except BaseException:
                init.end()
                raise
            owned.give(pidfd, asleep, lifeline)
        return init


def await_go(go_read: int, go_write: int) -> None:
    """In a clone, which has no user until its parent gave it one. If the parent gives up instead, it ends."""
    signal.set_wakeup_fd(-1)
    os.close(go_write)
    if os.read(go_read, 1) != b"g":
        os._exit(1)
    os.close(go_read)


def _is_there(init: SleepingInit) -> bool:
    try:
        signal.pidfd_send_signal(init.pidfd, 0)
        return True
    except ProcessLookupError:
        return False
