"""Forking a child of this process into the pid namespace of another."""

from __future__ import annotations

import errno
import os

from ..linux import namespaces
from ..linux.fds import Owned

_FAILED = b"failed "
_ASTRAY = 70


class NamespaceFork:
    """Owned by the zygote, which must be the reaper of what its children leave behind."""

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._can_return = _may_join(self._own)

    def into(self, process: int) -> int:
        """Forks into the namespace of the process behind a pidfd; returns as `os.fork` does."""
        if not self._can_return:
            return _fork_through_another(process)
        # The kernel applies this to children only; we ourselves stay where we are.
        namespaces.send_children_to(process)
        child = -1
        try:
            child = os.fork()
        finally:
            if child:
                self._return()
        return child

    def _return(self) -> None:
        try:
            namespaces.send_children_to(self._own)
        except OSError:
            os._exit(_ASTRAY)  # every later child would be born among the processes of this guest

    def let_go(self) -> None:
        """In a cell: none of this is its business."""
        os.close(self._own)


def _may_join(namespace: int) -> bool:
    """An ordinary user may send its children into a namespace of its own making, and never again into its first."""
    try:
        namespaces.send_children_to(namespace)
        return True
    except OSError:
        return False


def _fork_through_another(process: int) -> int:
    """A process in between goes there for good, and leaves us its child when it ends, for we are the subreaper."""
    with Owned() as owned:
        told, tells = owned.pipe()
        between = os.fork()
        if between == 0:
            owned.give_all()
            return _fork_and_tell(process, told, tells)
        owned.give(tells)
        os.close(tells)
        try:
            answer = os.read(told, 64)
        finally:
            os.waitpid(between, 0)
    if not answer.isdigit():
        raise OSError(int(answer[len(_FAILED) :] or errno.ECHILD), "no child came of it")
    return int(answer)


def _fork_and_tell(process: int, told: int, tells: int) -> int:
    """Returns in the child only. In the process in between nothing may: it would be a second zygote."""
    child = -1
    try:
        os.close(told)
        namespaces.send_children_to(process)
        # Still in our own namespace, this process is told the pid that the zygote knows the child by.
        child = os.fork()
        if child:
            os.write(tells, str(child).encode())
    except OSError as error:
        os.write(tells, _FAILED + str(error.errno or 0).encode())
    finally:
        if child:
            os._exit(0)
    os.close(tells)
    return 0
