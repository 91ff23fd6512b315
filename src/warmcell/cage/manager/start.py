"""The start of a manager: its own namespaces, its zygote, and only then the modules that it needs itself."""

from __future__ import annotations

import os
import select
import sys

from .. import cell as cell  # this and the next imports: what manager and zygote both need, loaded once
from ..failure import CageError
from ..fast_imports import socket
from ..guest import root as root
from ..linux import call_list, kernel_support
from ..linux import capabilities as capabilities
from ..linux import fds as fds
from ..linux.descriptors import from_descriptor
from ..linux.syscalls import call
from ..wire import receive_packet, send_packet
from . import own_namespaces
from .zygote_handle import ZygoteHandle, is_for_one_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, NoReturn

    from ..zygote.loop import GuestMain


def main(control_descriptor: int) -> GuestMain:
    """Returns only in a guest's process, with the function that makes it the guest, so that little is on its stack."""
    os.umask(0o022)  # for the directories of roots; the host program's may forbid even us to use them
    control = from_descriptor(control_descriptor)
    # By descriptor: a pid can be reused.
    supervisor = call("pidfd_open", os.getppid(), 0)
    order, _ = receive_packet(control)
    if not order:  # started early, and not needed
        os._exit(0)
    if order.get("overlays"):
        _serve_overlays(control, supervisor)
    # From files that may be out of sight later: in some namespaces something else is mounted over /tmp.
    call_list.load_machine_code()
    try:
        is_caging, is_host = order["isolation"] == "namespaces", bool(order.get("host_network"))
        host_id = own_namespaces.enter(control, has_host_network=is_host) if is_caging else os.geteuid()
        zygote = ZygoteHandle(order, not_for_it=[control.fileno(), supervisor])
        if zygote.become is not None:
            control.detach()
            _kept.append((control, order, zygote))
            return zygote.become
        if order.get("once"):  # the supervisor, a new process, need not ask the kernel itself
            send_packet(control, {"namespaces": True, "landlock": kernel_support.landlock_version_if_complete()})
        if is_for_one_worker(order):
            # The zygote has far more to load than we have, on the same processors: go on when there is an order.
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
        own_namespaces.enter(control, has_host_network=True)
    except CageError as failure:
        send_packet(control, {"failed": [failure.step, failure.errno, failure.what]})
        os._exit(1)
    serve(control, supervisor)


def _send_ready(control: socket.socket) -> None:
    send_packet(control, {"ready": True, "version": list(sys.version_info[:3])})


def _await_message(control: socket.socket) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.poll()


#: In a guest: objects that it does not need. Freeing them would write to, and so copy, the pages that they are on.
_kept: List[object] = []
