"""The manager's own namespaces: of users, mounts and processes, once, before it has a zygote.

In a mount namespace it may clone trees, for which an ordinary user needs a user namespace. As the first process of a
pid namespace it may send its children into others and take that back, which only root may do in the host's; and
whatever ends it ends every cell. The process that was started clones it, as a sibling, and is done.
"""

from __future__ import annotations

import os

from ..failure import step
from ..light import signal, socket
from ..linux import foreign, host_root, mounts, namespaces
from ..linux.syscalls import call
from ..wire import send_packet
from .host_ids import IDS_OF_A_MANAGER

_CLONE_PARENT = 0x8000


def enter(control: socket.socket) -> int:
    """Returns in the new process: the first of those that guests are to be on the host, as it is seen from in there."""
    is_root = host_root.is_root_of_host()
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    pidfd = foreign.c_int(-1)
    flags = namespaces.CLONE_NEWNS | namespaces.CLONE_NEWPID | (0 if is_root else namespaces.CLONE_NEWUSER)
    uid, gid = os.geteuid(), os.getegid()
    with step("create namespaces"):
        flags |= _CLONE_PARENT | namespaces.CLONE_PIDFD | signal.SIGCHLD
        pid = call("clone", flags, 0, foreign.byref(pidfd), 0, 0)
    if pid:
        with step("map own user"):
            if not is_root:
                namespaces.map_ids(pid, uid, gid, 0, 0)
        # The supervisor is its parent, and must know before it hears from it.
        send_packet(control, {"pid": pid}, [pidfd.value])
        os.write(go_write, str(pid).encode())
        os._exit(0)
    os.close(go_write)
    number = os.read(go_read, 32)
    os.close(go_read)
    if not number:
        os._exit(1)  # the other one could not finish, and said why
    if is_root:
        os.setgroups([])
    with step("make mounts slave"):
        mounts.make_slave()
    with step("mount own proc"):
        mounts.mount("proc", "/proc", "proc", mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC)
    return host_root.UNOWNED_UID_BASE + int(number) * IDS_OF_A_MANAGER if is_root else 0
