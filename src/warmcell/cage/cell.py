"""What the processes of a cell are made with, inherited over a fork, and the one word that the guest's then says.

That word, locked in, comes before any code of the guest's runs, with what others need to look after it. It goes to the
keeper or, where init sleeps, to the zygote.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Dict, NamedTuple, Tuple

from .failure import CageError
from .plan import LaunchPlan
from .wire import receive_packet, send_packet


class Kit(NamedTuple):
    """What the zygote prepared before the fork, because it is the same for many cells or needs the outside."""

    plan: LaunchPlan
    filter: bytes
    trees: Tuple[int, ...]
    cgroups: Tuple[int, ...]
    outer_namespaces: Dict[str, int]
    #: The only tree is the whole root, and not one path of it.
    has_shared_root: bool = False


class Channels(NamedTuple):
    """The cell's descriptors. The guest keeps stdio and, until its job has come, `job`; a keeper keeps `status`."""

    job: int
    status: socket.socket
    stdin: int
    stdout: int
    stderr: int


class SleepingInit(NamedTuple):
    """Namespaces that stand, by their first process, which only sleeps."""

    #: As the zygote sees it.
    pid: int
    pidfd: int
    #: A pipe that ends when it has gone to sleep; what went wrong before is told on it.
    asleep: int
    #: Without anybody at this end, it wakes up and ends.
    lifeline: int

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


#: What a keeper says to the guest's process when it is out of the guest's reach.
SETTLED = b"settled"

#: Where refused calls are heard of; the listener of the egress proxy; the directory of the worker's note.
NOTIFICATIONS, PROXY_LISTENER, CODE_DIRECTORY = "notifications", "listener", "code"


def hand_over(channel: socket.socket, given: Dict[str, int]) -> None:
    send_packet(channel, {"locked": list(given)}, list(given.values()))


def take_over(channel: socket.socket) -> Dict[str, int]:
    """The descriptors by name. Raises what the guest's process said instead; a process that died says nothing."""
    message, descriptors = receive_packet(channel)
    if "locked" not in message:
        raise CageError(*message.get("failed", ("lock guest", 0, "the guest's process died")))
    return dict(zip(message["locked"], descriptors))  # noqa: B905  # `strict` came after Python 3.9
