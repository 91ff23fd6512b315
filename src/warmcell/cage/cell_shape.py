"""A cell's shape, its init, and the message by which its guest reports that its cage is complete.

The guest's process sends the message before it runs guest code, with descriptors for the process that supervises the
guest: the manager, or the keeper where there are no namespaces.
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
    """Everything that the call list of a guest depends on."""

    plan: LaunchPlan
    cgroups: int
    #: Mounts on top of the shared root: mount point, and whether it is a directory.
    attached: Tuple[Tuple[str, bool], ...] = ()
    #: Paths of the plan's Landlock rules that are files.
    files: Tuple[str, ...] = ()


class SleepingInit(NamedTuple):
    """A set of namespaces, kept alive by their init, which only sleeps."""

    #: In the manager's pid namespace.
    pid: int
    pidfd: int
    #: A pipe that init closes when it goes to sleep; a failure before that is written to it.
    asleep: int
    #: Init exits when this end is closed.
    lifeline: int
    #: The calls that init makes before it sleeps, in memory that it shares with us until then.
    steps: PreparedCalls
    #: The guest's user and group id on the host.
    host_id: int

    def end(self) -> None:
        """Kill init, and with it everything in its namespaces."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """Close the descriptors, including the lifeline."""
        for descriptor in (self.pidfd, self.asleep, self.lifeline):
            os.close(descriptor)


#: Names of the descriptors in the message: notifications of refused calls; the listener of the egress proxy; the
#: directory of the worker's report, on the scratch tmpfs; the guest's /proc.
NOTIFICATIONS, PROXY_LISTENER, CODE_DIRECTORY, PROCESSES = "notifications", "listener", "code", "processes"


def receive_locked(channel: socket.socket) -> Dict[str, int]:
    """Receive the descriptors, by name. Raises `CageError` if the guest's process failed or died."""
    message, descriptors = receive_packet(channel, SHORT_PACKET)
    if "locked" not in message:
        step, number, what = message.get("failed", ("lock guest", 0, "the guest's process died"))
        raise CageError(step, number, what if what or number else "unexpected message")
    return dict(zip(message["locked"], descriptors))  # noqa: B905  # `strict` came after Python 3.9


_MOST_NAMES, _MOST_BYTES = 8, 8192


def read_note(path: str, directory: Optional[int] = None) -> List[List[str]]:
    """Read the worker's report of the paths that its program was refused, separated by NUL, as denials.

    The guest can write this file too, so the content is used as names only, and anything but a regular file is ignored.
    Path "" means that there is no report.
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
