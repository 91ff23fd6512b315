"""Forking a child of this process into the pid namespace of another."""

from __future__ import annotations

import os

from ..linux import namespaces

_FAILED = b"failed "


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
                namespaces.send_children_to(self._own)
        return child

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
    told, tells = os.pipe2(os.O_CLOEXEC)
    between = os.fork()
    if between == 0:
        os.close(told)
        child = _fork_and_tell(process, tells)
        os.close(tells)
        return child
    os.close(tells)
    try:
        answer = os.read(told, 64)
    finally:
        os.close(told)
        os.waitpid(between, 0)
    if not answer.isdigit():
        raise OSError(int(answer[len(_FAILED) :] or 0), "no child came of it")
    return int(answer)


def _fork_and_tell(process: int, tells: int) -> int:
    """Returns in the child only."""
    try:
        namespaces.send_children_to(process)
        # Still in our own namespace, this process is told the pid that the zygote knows the child by.
        child = os.fork()
        if child == 0:
            return 0
        os.write(tells, str(child).encode())
    except OSError as error:
        os.write(tells, _FAILED + str(error.errno or 0).encode())
    os._exit(0)
