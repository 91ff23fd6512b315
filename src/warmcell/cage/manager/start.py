"""The start of a manager: its own namespaces, its zygote, and only then all that it needs itself."""

from __future__ import annotations

import os
import select
import sys

from .. import cell as cell  # and what else both it and its zygote need, loaded once
from ..failure import CageError
from ..guest import root as root
from ..light import socket
from ..linux import capabilities as capabilities
from ..linux import fds as fds
from ..linux import offered
from ..linux.syscalls import call
from ..wire import receive_packet, send_packet
from . import own_namespaces
from .zygote_child import ZygoteChild, is_for_one_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from ..zygote.serve import Becoming


def main(control_descriptor: int) -> Becoming:
    """Returns only in a guest's process, with what turns it into the guest, so that little of us is on its stack."""
    control = socket.socket(fileno=control_descriptor)
    # By descriptor: a pid could be somebody else's by the time that we look.
    supervisor = call("pidfd_open", os.getppid(), 0)
    order, _ = receive_packet(control)
    if not order:  # started ahead of need, and not needed
        os._exit(0)
    try:
        host_id = own_namespaces.enter(control) if order["isolation"] == "namespaces" else os.geteuid()
        zygote = ZygoteChild(order, not_for_it=[control.fileno(), supervisor])
        if zygote.become is not None:
            control.detach()
            _kept.append((control, order, zygote))
            return zygote.become
        if order.get("once"):  # its supervisor has just begun, and need not ask the kernel for itself
            send_packet(control, {"namespaces": True, "landlock": offered.landlock_beside_all_else()})
        if is_for_one_worker(order):
            # Its zygote has far more to load than we have, and shares two processors with us and the supervisor: we go
            # on when we are asked for something.
            _say_ready(control)
            _await_word(control)
        from .serve import Manager  # its zygote loads what it needs at the same time

        manager = Manager(control, supervisor, zygote, order, host_id)
    except CageError as failure:
        send_packet(control, {"failed": [failure.step, failure.errno, failure.what]})
        os._exit(1)
    if not is_for_one_worker(order):
        _say_ready(control)
    manager.serve()
    os._exit(0)


def _say_ready(control: socket.socket) -> None:
    send_packet(control, {"ready": True, "version": list(sys.version_info[:3])})


def _await_word(control: socket.socket) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.poll()


#: In a guest: what it has no more use for. Freeing it would write to, and so copy, every page that it lies on.
_kept: List[object] = []
