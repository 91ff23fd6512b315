"""A cell's first process, and the one word that its guest says.

That word, locked in, comes before any code of the guest's runs, with what others need to look after it. It goes to the
keeper or, where init sleeps, to the manager.
"""

from __future__ import annotations

import os

from .failure import CageError
from .light import signal, socket
from .records import NamedTuple
from .wire import SHORT_PACKET, receive_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Tuple

    from .linux.call_list import Prepared
    from .plan import LaunchPlan


class Shape(NamedTuple):
    """Everything that decides what a guest's list of calls looks like."""

    plan: LaunchPlan
    cgroups: int
    #: What goes on top of the shared root: where, and whether it is a directory.
    attached: Tuple[Tuple[str, bool], ...] = ()
    #: Paths of the plan's Landlock rules that are no directories.
    files: Tuple[str, ...] = ()


class SleepingInit(NamedTuple):
    """Namespaces that stand, by their first process, which only sleeps."""

    #: As the manager sees it.
    pid: int
    pidfd: int
    #: A pipe that ends when it has gone to sleep; what went wrong before is told on it.
    asleep: int
    #: Without anybody at this end, it wakes up and ends.
    lifeline: int
    #: What it does before it sleeps, in memory that we share until then.
    steps: Prepared
    #: Who its guest is on the host.
    host_id: int

    def end(self) -> None:
        """Init, and with it everything in its namespaces."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """Lets go of the descriptors, the lifeline among them."""
        for descriptor in (self.pidfd, self.asleep, self.lifeline):
            os.close(descriptor)


#: Where refused calls are heard of; the listener of the egress proxy; the directory of the worker's note, which is a
#: part of the scratch; the guest's own /proc.
NOTIFICATIONS, PROXY_LISTENER, CODE_DIRECTORY, PROCESSES = "notifications", "listener", "code", "processes"


def take_over(channel: socket.socket) -> Dict[str, int]:
    """The descriptors by name. Raises what the guest's process said instead; a process that died says nothing."""
    message, descriptors = receive_packet(channel, SHORT_PACKET)
    if "locked" not in message:
        step, number, what = message.get("failed", ("lock guest", 0, "the guest's process died"))
        raise CageError(step, number, what if what or number else "unexpected answer")
    return dict(zip(message["locked"], descriptors))  # noqa: B905  # `strict` came after Python 3.9
