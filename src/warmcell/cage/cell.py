"""A cell's shape and its init, and the message by which its guest reports that it is locked in.

The message comes before any guest code runs, with descriptors for the process that looks after the guest: the manager,
or the keeper where there are no namespaces.
"""

from __future__ import annotations

import os
import stat

from .failure import CageError
from .fast_imports import signal, socket
from .records import NamedTuple
from .wire import SHORT_PACKET, receive_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from .linux.call_list import PreparedCalls
    from .plan import LaunchPlan


class CellShape(NamedTuple):
    """Everything that a guest's list of calls depends on."""

    plan: LaunchPlan
    cgroups: int
    #: What is attached to the shared root: mount point, and whether it is a directory.
    attached: Tuple[Tuple[str, bool], ...] = ()
    #: Paths of the plan's Landlock rules that are files.
    files: Tuple[str, ...] = ()


class SleepingInit(NamedTuple):
    """A set of namespaces, kept alive by their init, which only sleeps."""

    #: As the manager sees it.
    pid: int
    pidfd: int
    #: A pipe that is closed when it has gone to sleep; an earlier failure is written to it.
    asleep: int
    #: When this end is closed, it wakes up and exits.
    lifeline: int
    #: The calls that it makes before it sleeps, in memory that it shares with us until then.
    steps: PreparedCalls
    #: The id of its guest on the host.
    host_id: int

    def end(self) -> None:
        """Kills init, and with it everything in its namespaces."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """Closes the descriptors, including the lifeline."""
        for descriptor in (self.pidfd, self.asleep, self.lifeline):
            os.close(descriptor)


#: Names of handed-over descriptors: notifications of refused calls; the listener of the egress proxy; the directory of
#: the worker's note, on the scratch tmpfs; the guest's /proc.
NOTIFICATIONS, PROXY_LISTENER, CODE_DIRECTORY, PROCESSES = "notifications", "listener", "code", "processes"


def receive_locked(channel: socket.socket) -> Dict[str, int]:
    """Receives the descriptors, by name. Raises the failure that the guest's process sent instead, or its death."""
    message, descriptors = receive_packet(channel, SHORT_PACKET)
    if "locked" not in message:
        step, number, what = message.get("failed", ("lock guest", 0, "the guest's process died"))
        raise CageError(step, number, what if what or number else "unexpected message")
    return dict(zip(message["locked"], descriptors))  # noqa: B905  # `strict` came after Python 3.9


_MOST_NAMES, _MOST_BYTES = 8, 8192


def read_note(path: str, directory: Optional[int] = None) -> List[List[str]]:
    """Denials for the report, from the worker's note about its program's last error: the refused paths, NUL between.

    The guest can write this file too, so it is read as names only. Anything but a regular file is ignored. Path ""
    means that there is no note.
    """
    if not path:
        return []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return []
    try:
        noted = os.read(descriptor, _MOST_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return []
    finally:
        os.close(descriptor)
    names = [name for name in noted.split(b"\0") if name]
    return [["path", name.decode("utf-8", "replace")] for name in names[:_MOST_NAMES]]
