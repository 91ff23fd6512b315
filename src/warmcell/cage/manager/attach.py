"""Attaches host paths to a running cell, by mounting into its mount namespace from outside.

Each mount tree is made as for a new cell: a private copy of what is at the path, compared by identity, with reduced
permissions. The cell's plan named the mount points: they are on its sealed root, and its Landlock rules include them.
"""

from __future__ import annotations

from ..failure import step
from ..linux import mounts
from ..linux.descriptors import OwnedDescriptors
from ..linux.namespaces import HomeNamespace
from ..linux.syscalls import call
from ..plan import Bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Sequence


class Attacher:
    """Owned by the manager, which must have a mount namespace of its own and privileges over those of its cells."""

    def __init__(self, open_tree: Callable[[Bind, int], int]) -> None:
        self._open_tree = open_tree
        self._home = HomeNamespace("mnt")

    def attach(self, binds: Sequence[Bind], pid: int, host_id: int) -> None:
        """Into the mount namespace of a child. Raises `CageError` with the step that failed."""
        with OwnedDescriptors() as owned:
            with step("find cell"):
                process = owned.take(call("pidfd_open", pid, 0))
            trees = [owned.take(self._open_tree(bind, host_id)) for bind in binds]
            with step("enter mount namespace"):
                self._home.enter(process)
            try:
                for bind, tree in zip(binds, trees):  # noqa: B905  # `strict` came after Python 3.9
                    with step("attach path", bind.target):
                        mounts.attach_tree(tree, bind.target)
            finally:
                self._home.return_home()
