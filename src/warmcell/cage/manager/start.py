"""Starts a manager: its namespaces, its zygote, and only then the modules that it needs itself."""

from __future__ import annotations

import os
import select
import sys

from .. import cell_shape as cell_shape  # this and the next imports: what manager and zygote both need, loaded once
from ..failure import CageError, step
from ..fast_imports import signal, socket
from ..guest_entry import root as root
from ..linux import call_list, fast_ctypes, kernel_files, kernel_support, mounts, namespaces
from ..linux import capabilities as capabilities
from ..linux import fds as fds
from ..linux.descriptors import from_descriptor
from ..linux.syscalls import call
from ..wire import receive_packet, send_packet
from .zygote_handle import ZygoteHandle, is_for_one_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, NoReturn

    from ..zygote.loop import GuestMain

_CLONE_PARENT = 0x8000


def main(control_descriptor: int) -> GuestMain:
    """Run a manager. Returns only in a guest's process, with its function, so that little is on its stack."""
    os.umask(0o022)  # for the directories of roots, which the host program's umask might make unusable
    control = from_descriptor(control_descriptor)
    # By descriptor: a pid can be reused.
    supervisor = call("pidfd_open", os.getppid(), 0)
    order, _ = receive_packet(control)
    if not order:  # started in advance, and not needed
        os._exit(0)
    if order.get("overlays"):
        _serve_overlays(control, supervisor)
    # Now: in some namespaces something else is mounted over /tmp, which may hide our files.
    call_list.load_machine_code()
    try:
        is_caging, is_host = order["isolation"] == "namespaces", bool(order.get("host_network"))
        host_id = _enter_own_namespaces(control, has_host_network=is_host) if is_caging else os.geteuid()
        zygote = ZygoteHandle(order, not_for_it=[control.fileno(), supervisor])
        if zygote.become is not None:
            control.detach()
            _kept.append((control, order, zygote))
            return zygote.become
        if order.get("once"):  # saves the supervisor, a new process, from probing the kernel itself
            send_packet(control, {"namespaces": True, "landlock": kernel_support.landlock_version_if_complete()})
        if is_for_one_worker(order):
            # The zygote has far more to load, on the same processors: continue when there is an order.
            _send_ready(control)
            _await_message(control)
        from .loop import Manager  # while the zygote loads its own modules

        manager = Manager(control, supervisor, zygote, order, host_id)
    except CageError as failure:
        send_packet(control, {"failed": [failure.step, failure.errno, failure.what]})
        os._exit(1)
    if not is_for_one_worker(order):
        _send_ready(control)
    manager.serve()
    os._exit(0)


def _serve_overlays(control: socket.socket, supervisor: int) -> NoReturn:
    from ..overlay_server import serve

    try:
        _enter_own_namespaces(control, has_host_network=True)
    except CageError as failure:
        send_packet(control, {"failed": [failure.step, failure.errno, failure.what]})
        os._exit(1)
    serve(control, supervisor)


def _enter_own_namespaces(control: socket.socket, has_host_network: bool) -> int:
    """Create user, mount, pid and network namespaces, once, before starting the zygote.

    A mount namespace lets the manager clone mount trees, for which an ordinary user needs a user namespace. As the
    first process of a pid namespace, the manager may move its children into other ones and back, which only root may do
    on the host; and every cell dies with it. In its own network namespace it may enter those of its cells and return,
    which it could not do from the host's. This process clones the manager as its sibling, and exits.

    Returns in the new process, with the first host id for guests in its user namespace; 0 for ordinary users.
    """
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
        # The supervisor is its parent, and must know its pid before it receives a message from it.
        send_packet(control, {"pid": pid}, [pidfd.value])
        os.write(go_write, str(pid).encode())
        os._exit(0)
    os.close(go_write)
    number = os.read(go_read, 32)
    os.close(go_read)
    if not number:
        os._exit(1)  # the other process failed, and reported the error
    if is_root:
        os.setgroups([])
    with step("make mounts slave"):
        mounts.make_slave()
    with step("mount own proc"):
        mounts.mount("proc", "/proc", "proc", mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC)
    return kernel_files.UNOWNED_UID_BASE + int(number) * kernel_files.IDS_OF_A_MANAGER if is_root else 0


def _send_ready(control: socket.socket) -> None:
    send_packet(control, {"ready": True, "version": list(sys.version_info[:3])})


def _await_message(control: socket.socket) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.poll()


#: In a guest: objects that it does not need. Freeing them would write to, and so copy, the pages that they are on.
_kept: List[object] = []
