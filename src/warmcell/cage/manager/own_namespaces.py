"""The manager's own user, mount, pid and network namespaces, made once, before it has a zygote.

A mount namespace lets it clone mount trees, for which an ordinary user needs a user namespace. As the first process of
a pid namespace it may move its children into others and back, which in the host's only root may do; and its end is the
end of every cell. In a network of its own it may move between those that it makes for its cells and come back, which it
could not do from the host's. The process that was started clones the manager as its sibling, and exits.
"""

from __future__ import annotations

import os

from ..failure import step
from ..fast_imports import signal, socket
from ..linux import fast_ctypes, kernel_files, mounts, namespaces
from ..linux.syscalls import call
from ..wire import send_packet
from .host_ids import IDS_OF_A_MANAGER

_CLONE_PARENT = 0x8000


def enter(control: socket.socket, has_host_network: bool = False) -> int:
    """Returns in the new process, with the first host id for guests as that process sees it; 0 for ordinary users."""
    is_root = kernel_files.is_root_of_host()
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    pidfd = fast_ctypes.c_int(-1)
    flags = namespaces.CLONE_NEWNS | namespaces.CLONE_NEWPID | (0 if is_root else namespaces.CLONE_NEWUSER)
    flags |= 0 if has_host_network else namespaces.CLONE_NEWNET
    uid, gid = os.geteuid(), os.getegid()
    with step("create namespaces"):
        flags |= _CLONE_PARENT | namespaces.CLONE_PIDFD | signal.SIGCHLD
        pid = call("clone", flags, 0, fast_ctypes.byref(pidfd), 0, 0)
    if pid:
        with step("map own user"):
            if not is_root:
                namespaces.map_ids(pid, uid, gid, 0, 0)
        # The supervisor is its parent, and must know its pid before the first message from it.
        send_packet(control, {"pid": pid}, [pidfd.value])
        os.write(go_write, str(pid).encode())
        os._exit(0)
    os.close(go_write)
    number = os.read(go_read, 32)
    os.close(go_read)
    if not number:
        os._exit(1)  # the other process could not finish, and reported why
    if is_root:
        os.setgroups([])
    with step("make mounts slave"):
        mounts.make_slave()
    with step("mount own proc"):
        mounts.mount("proc", "/proc", "proc", mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC)
    return kernel_files.UNOWNED_UID_BASE + int(number) * IDS_OF_A_MANAGER if is_root else 0
