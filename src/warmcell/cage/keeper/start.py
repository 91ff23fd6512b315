"""The keeper's beginning: it starts the guest, gives up all privileges, and says when the cage stands.

It is the first process of its pid namespace, so its death takes everything with it: the kernel kills whatever is left.
In the classes without namespaces it is the subreaper of everything that the guest starts, and kills that itself.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from ..cell import NOTIFICATIONS, SETTLED, Channels, Kit, take_over
from ..failure import CageError, tell
from ..guest import recipe
from ..linux.fds import close_all
from ..linux.syscalls import PR_SET_CHILD_SUBREAPER, prctl
from ..wire import send_packet
from .watch import Keeper


def run(kit: Kit, channels: Channels) -> None:
    """Starts the guest, which builds its cage. Returns in the guest's process, locked in; in the keeper's own never."""
    try:
        if kit.plan.isolation != "namespaces":
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        recipe.join_cgroup(kit)
        guest, handoff = _start_guest(kit, channels)
        if guest == 0:
            return
        # The kernel keeps from pid 1 every signal of its namespace that it has no handler for; Python has this one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        recipe.settle(kit.plan)
        close_all([*kit.trees, *kit.cgroups, channels.job, channels.stdin, channels.stdout, channels.stderr])
        with handoff:
            with suppress(ConnectionError):  # the guest's process gave up, and has said why
                handoff.send(SETTLED)
            notifications = take_over(handoff).get(NOTIFICATIONS, -1)
        _tell_ready(kit, channels.status)
    except CageError as failure:
        tell(channels.status, failure)
        os._exit(1)
    except BaseException as error:
        tell(channels.status, CageError("start guest", getattr(error, "errno", 0) or 0, repr(error)))
        os._exit(1)
    Keeper(kit.plan, channels.status, guest, notifications).watch()


def _start_guest(kit: Kit, channels: Channels) -> tuple[int, socket.socket]:
    """Forks. The child builds and locks the cage and says how that went on the other end of the returned socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    recipe.lock_in(kit, channels, theirs)
    return 0, theirs


def _tell_ready(kit: Kit, status: socket.socket) -> None:
    listener = recipe.open_proxy_listener(kit.plan)
    send_packet(status, {"ready": True}, [listener.fileno()] if listener else [])
    if listener:
        listener.close()
