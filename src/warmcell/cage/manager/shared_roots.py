"""Roots that cells share: the part that is the same for all cells of a plan is built once, and copied for each.

A copy is one system call instead of some forty mounts. It is safe because the original is sealed before the first copy
and has no path of a caller; what belongs to one guest (scratch, /proc, allowed paths) is mounted on its copy only.
"""

from __future__ import annotations

import errno
import os
import time

from ..failure import step
from ..guest_entry import root
from ..linux import mounts
from ..linux.descriptors import OwnedDescriptors
from ..linux.namespaces import HomeNamespace
from ..linux.syscalls import call
from ..plan import Bind, LaunchPlan, is_shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Sequence, Tuple

    Attached = Tuple[Tuple[str, bool], ...]

#: Each holds mounts and a tmpfs; the least recently used is removed first.
_MOST = 8
_SECONDS_BETWEEN_LOOKS = 1.0


class _SharedRoot:
    """One original. It is rebuilt at most a second after one of its sources was replaced on the host."""

    def __init__(self, name: str, tree: int, sources: Dict[str, Tuple[int, int]]) -> None:
        self.name = name
        self.tree = tree
        #: Device and inode of each source when this was made.
        self._sources = sources
        self._looked = time.monotonic()

    def is_current(self) -> bool:
        if time.monotonic() - self._looked < _SECONDS_BETWEEN_LOOKS:
            return True
        self._looked = time.monotonic()
        return all(_identity(path) == identity for path, identity in self._sources.items())


class SharedRoots:
    """Owned by the manager, which must have its own mount namespace."""

    def __init__(self, open_tree: Callable[[Bind], int]) -> None:
        self._open_tree = open_tree
        self._workshop = _Workshop()
        #: A directory on a tmpfs of ours.
        self.tmpfs = self._workshop.tmpfs
        self._number = 0
        self._made: Dict[object, _SharedRoot] = {}

    def copy_for(self, plan: LaunchPlan, attached: Attached) -> int:
        """A detached tree of the plan's root, with mount points for what will be attached."""
        key = (plan, attached)
        found = self._made.pop(key, None)
        if found is not None and not found.is_current():
            self._workshop.remove(found)
            found = None
        if found is None:
            found = self._make(plan, attached)
        self._made[key] = found
        while len(self._made) > _MOST:
            self._workshop.remove(self._made.pop(next(iter(self._made))))
        return self._workshop.copy(found.tree)

    def _make(self, plan: LaunchPlan, attached: Attached) -> _SharedRoot:
        self._number += 1
        shared = [bind for bind in plan.binds if is_shared(bind, plan)]
        sources = {bind.source: _identity(bind.source) for bind in shared}
        name = str(self._number)
        with OwnedDescriptors() as owned:
            trees = [owned.take(self._open_tree(bind)) for bind in shared]
            return _SharedRoot(name, self._workshop.build(name, plan, trees, attached), sources)


class _Workshop:
    """A second mount namespace of the manager, in which roots are built and copied.

    In the manager's own one, every new mount namespace of a cell would start with a copy of each root.
    """

    def __init__(self) -> None:
        with step("make workshop"), OwnedDescriptors() as owned:
            self._home = HomeNamespace("mnt")
            self._home.enter_new()
            try:
                root.enter_new_tmpfs("/tmp")
                tmpfs = owned.take(os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
                self._other = owned.take(self._home.open_current())
            finally:
                self._home.return_home()
            owned.give(tmpfs, self._other)
            self.tmpfs = f"/proc/self/fd/{tmpfs}"

    def __enter__(self) -> None:
        """In the block, this process is in that namespace."""
        with step("enter workshop"):
            self._home.enter(self._other)

    def __exit__(self, *_: object) -> None:
        self._home.return_home()

    def build(self, name: str, plan: LaunchPlan, trees: Sequence[int], attached: Attached) -> int:
        """Build and seal a root; returns its descriptor, for `copy`."""
        with self, OwnedDescriptors() as owned:
            os.mkdir(f"/tmp/{name}")
            try:
                root.enter_new_tmpfs(f"/tmp/{name}")
                root.lay_out(plan, trees, attached)
                tree = owned.take(os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
                with step("seal root", "/"):
                    mounts.seal(tree)
            except BaseException:
                _clear(name)
                raise
            owned.give(tree)
            return tree

    def copy(self, tree: int) -> int:
        """Make a detached copy. open_tree only copies mounts of the caller's namespace, so this enters the workshop."""
        with self, step("copy root"):
            return mounts.copy_tree(tree)

    def remove(self, shared: _SharedRoot) -> None:
        """Remove an original; cells keep their copies."""
        os.close(shared.tree)
        with self:
            _clear(shared.name)


def _clear(name: str) -> None:
    os.chdir("/")
    try:
        call("umount2", f"/tmp/{name}".encode(), mounts.MNT_DETACH)
    except OSError as error:
        if error.errno != errno.EINVAL:  # nothing was mounted there yet
            raise
    os.rmdir(f"/tmp/{name}")


def _identity(path: str) -> Tuple[int, int]:
    try:
        status = os.lstat(path)
    except OSError:  # opening it will report the error
        return (0, 0)
    return (status.st_dev, status.st_ino)
