"""All that looking at a cell takes, loaded when somebody is about to: most runs end before that."""

from __future__ import annotations

import os

from ..light import partial
from ..linux.namespaces import CLONE_NEWIPC
from ..linux.syscalls import call
from ..plan import Watch
from . import usage
from .ceilings import Ceilings, Tree, processes_in
from .locks import Locks, is_in_namespace_of
from .patience import Patience
from .patterns import compile_all as compile_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List


def ceilings_of(watch: Watch, most_tasks: int, init: int, processes: int, scratch: int) -> Ceilings:
    """Of the cell that has these descriptors, which stay the caller's."""
    proc = f"/proc/self/fd/{processes}"
    locks = Locks(partial(_is_in, proc), os.fstat(scratch).st_dev)
    stores = partial(_stores, init, proc, scratch, locks)
    return Ceilings(watch, Tree(proc, partial(processes_in, proc), stores, watch.disk_paths), most_tasks)


def _is_in(proc: str, owner: int, pids: List[int]) -> bool:
    return bool(pids) and is_in_namespace_of(owner, f"{proc}/{pids[0]}")


def _stores(init: int, proc: str, scratch: int, locks: Locks, pids: List[int], patience: Patience) -> int:
    """The scratch tmpfs, System V objects, locks, what sockets hold. Only who is in a namespace can read some of it."""
    call("setns", init, CLONE_NEWIPC)
    total = usage.filled(scratch) + usage.system_v_objects() + locks.held(pids, patience)
    return total + (usage.socket_buffers(f"{proc}/{pids[0]}/net") if pids else 0)
