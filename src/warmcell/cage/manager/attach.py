"""More of the host for a cell that stands already: put into its mount namespace from outside, for it can mount nothing.

Each tree is made as for a new cell: a private copy of what stands at the path, compared by identity, its permissions
reduced. Where it may appear the cell's own plan said: the places are on its sealed root, and Landlock knows them.
"""

from __future__ import annotations

import os

from ..failure import step
from ..linux import mounts
from ..linux.namespaces import CLONE_NEWNS
from ..linux.owned import Owned
from ..linux.syscalls import call
from ..plan import Bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Sequence

_ASTRAY = 70


class Attacher:
    """Owned by the manager, which must have a mount namespace of its own and the say over those of its cells."""

    def __init__(self, open_tree: Callable[[Bind, int], int]) -> None:
        self._open_tree = open_tree
        self._own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def attach(self, binds: Sequence[Bind], pid: int, host_id: int) -> None:
        """To the mount namespace of a child of ours. Raises `CageError` that names the step."""
        with Owned() as owned:
            with step("find cell"):
                process = owned.take(call("pidfd_open", pid, 0))
            trees = [owned.take(self._open_tree(bind, host_id)) for bind in binds]
            with step("enter mount namespace"):
                call("setns", process, CLONE_NEWNS)
            try:
                for bind, tree in zip(binds, trees):  # noqa: B905  # `strict` came after Python 3.9
                    with step("attach path", bind.target):
                        mounts.attach_tree(tree, bind.target)
            finally:
                self._return()

    def _return(self) -> None:
        """Which also leads back to "/"."""
        try:
            call("setns", self._own, CLONE_NEWNS)
        except OSError:
            os._exit(_ASTRAY)  # every later cell would be made from a guest's mounts
