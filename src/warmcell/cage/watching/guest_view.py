"""What a look at one cell needs. Loaded at the first look: most runs end before that."""

from __future__ import annotations

import os
import stat

from ..fast_imports import partial
from ..linux.namespaces import CLONE_NEWIPC
from ..linux.processes import must_be_expected
from ..linux.syscalls import call
from ..plan import Watch
from . import usage
from .ceilings import Ceilings, Network, Tree
from .locks import Locks
from .patience import Patience
from .patterns import compile_all as compile_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List


def make_ceilings(watch: Watch, most_tasks: int, init: int, processes: int, scratch: int) -> Ceilings:
    """For the cell with these descriptors, which the caller keeps."""
    proc = f"/proc/self/fd/{processes}"
    # Not the network of whichever process is first in the listing: that one may be the manager's (see guest_pids).
    network = Network(f"{proc}/1/net", has_own_network(f"{proc}/1"))
    locks = Locks(partial(_is_in_cell, _namespace(f"{proc}/1", "pid")), os.fstat(scratch).st_dev)
    stores = partial(_memory_outside_processes, init, scratch, locks, network)
    pids = partial(guest_pids, proc, _namespace("/proc/self", "user"))
    ceilings = Ceilings(watch, Tree(proc, pids, stores, watch.disk_paths, network), most_tasks)
    if watch.gpus:
        _add_gpus(ceilings, watch, proc, pids)
    return ceilings


def _add_gpus(ceilings: Ceilings, watch: Watch, proc: str, pids: Callable[[], List[int]]) -> None:
    from . import gpu_use  # loads ctypes, and the driver's library

    is_of_cell = partial(_has_pid_namespace, _namespace(f"{proc}/1", "pid"))
    try:
        ceilings.gpu = gpu_use.GpuUse(gpu_use.load(), watch.gpus, is_of_cell, lambda: _has_gpu_open(proc, pids()))
    except OSError:
        ceilings.lose_gpus()


#: The major number of NVIDIA's devices.
_NVIDIA = 195


def _has_gpu_open(proc: str, pids: List[int]) -> bool:
    for pid in pids:
        try:
            found = [os.stat(f"{proc}/{pid}/fd/{name}") for name in os.listdir(f"{proc}/{pid}/fd")]
        except OSError as error:  # it has ended, or closed one
            must_be_expected(error)
            continue
        if any(stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == _NVIDIA for status in found):
            return True
    return False


def _has_pid_namespace(pid_namespace: int, pid: int) -> bool:
    return pid_namespace != 0 and _namespace(f"/proc/{pid}", "pid") == pid_namespace


def guest_pids(proc: str, manager_users: int) -> List[int]:
    """The guest's processes in a cell's /proc: all but init and those of the manager's user namespace.

    The manager starts processes in the cell's pid namespace (see pid_numbers). They share the manager's memory and
    its other namespaces: what they show is the host's. A guest has a user namespace of its own and cannot leave it.
    """
    pids = [int(name) for name in os.listdir(proc) if name.isdigit() and name != "1"]
    return [pid for pid in pids if _namespace(f"{proc}/{pid}", "user") != manager_users]


def has_own_network(base: str) -> bool:
    """Whether the process has a network namespace other than ours. In ours, the sockets belong to the host."""
    return _namespace(base, "net") not in (0, _namespace("/proc/self", "net"))


def _namespace(base: str, kind: str) -> int:
    """Its inode number. 0 if it cannot be read, as for a thread group whose first thread has ended."""
    try:
        return os.stat(f"{base}/ns/{kind}").st_ino
    except OSError as error:
        must_be_expected(error)
        return 0


def _is_in_cell(pid_namespace: int, owner: int, pids: List[int]) -> bool:
    return _has_pid_namespace(pid_namespace, owner)


def _memory_outside_processes(
    init: int, scratch: int, locks: Locks, network: Network, pids: List[int], patience: Patience
) -> int:
    """The scratch tmpfs, System V objects, locks and socket queues. System V objects show only inside the namespace."""
    call("setns", init, CLONE_NEWIPC)
    total = usage.tmpfs_use(scratch) + usage.system_v_objects() + locks.memory(pids, patience)
    return total + (usage.socket_buffers(network.path) if network.is_own else 0)
