"""Roots that many cells share: what is the same for all of a plan is laid out once, and copied as a whole for each.

A copy costs one call instead of some forty mounts. It is safe because the original is sealed before the first copy is
made, holds no path of a caller's, and every guest's own places (scratch, /proc, allowed paths) are mounted on its copy
alone.
"""

from __future__ import annotations

import errno
import os
import time

from ..failure import step
from ..guest import root
from ..linux import mounts
from ..linux.namespaces import CLONE_NEWNS
from ..linux.owned import Owned
from ..linux.syscalls import call
from ..plan import Bind, LaunchPlan, is_shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Sequence, Tuple

    Attached = Tuple[Tuple[str, bool], ...]

#: Each holds mounts and a tmpfs; the one that was not used for longest goes first.
_MOST = 8
_ASTRAY = 70
_SECONDS_BETWEEN_LOOKS = 1.0


class _SharedRoot:
    """One original. What is replaced on the host is replaced in here, a second later at the most."""

    def __init__(self, name: str, tree: int, sources: Dict[str, Tuple[int, int]]) -> None:
        self.name = name
        self.tree = tree
        #: Device and inode of each when it was made.
        self._sources = sources
        self._looked = time.monotonic()

    def is_current(self) -> bool:
        if time.monotonic() - self._looked < _SECONDS_BETWEEN_LOOKS:
            return True
        self._looked = time.monotonic()
        return all(_identity(path) == identity for path, identity in self._sources.items())


class SharedRoots:
    """Owned by the manager, which must have a mount namespace of its own."""

    def __init__(self, open_tree: Callable[[Bind], int]) -> None:
        self._open_tree = open_tree
        self._workshop = _Workshop()
        self._number = 0
        self._made: Dict[object, _SharedRoot] = {}

    @property
    def tmpfs(self) -> str:
        """A directory on a file system of ours, for files that must be on one."""
        return self._workshop.tmpfs

    def copy_for(self, plan: LaunchPlan, attached: Attached) -> int:
        """A detached tree that is the plan's root, with places for what is to be attached to it."""
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
        with Owned() as owned:
            trees = [owned.take(self._open_tree(bind)) for bind in shared]
            return _SharedRoot(name, self._workshop.build(name, plan, trees, attached), sources)


class _Workshop:
    """A second mount namespace of this process's, for roots to be built in and copied from.

    In the manager's own, each root would be one more thing that every cell's new mount namespace starts with.
    """

    def __init__(self) -> None:
        with step("make workshop"), Owned() as owned:
            self._own = owned.take(_open_mount_namespace())
            call("unshare", CLONE_NEWNS)
            try:
                root.enter_new_tmpfs("/tmp")
                self._tmpfs = owned.take(os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
                self._other = owned.take(_open_mount_namespace())
            finally:
                self._return()
            owned.give(self._own, self._tmpfs, self._other)

    @property
    def tmpfs(self) -> str:
        return f"/proc/self/fd/{self._tmpfs}"

    def __enter__(self) -> None:
        """Inside, this process is in that namespace."""
        with step("enter workshop"):
            call("setns", self._other, CLONE_NEWNS)

    def __exit__(self, *_: object) -> None:
        self._return()

    def _return(self) -> None:
        """Which also leads back to "/"."""
        try:
            call("setns", self._own, CLONE_NEWNS)
        except OSError:
            os._exit(_ASTRAY)  # every later cell would be made from the wrong mounts

    def build(self, name: str, plan: LaunchPlan, trees: Sequence[int], attached: Attached) -> int:
        """A root, sealed; returns its descriptor, for `copy`."""
        with self, Owned() as owned:
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
        """A detached copy: open_tree copies only what is mounted in the caller's namespace, so it steps inside."""
        with self, step("copy root"):
            return mounts.copy_tree(tree)

    def remove(self, shared: _SharedRoot) -> None:
        """Cells that have a copy keep it."""
        os.close(shared.tree)
        with self:
            _clear(shared.name)


def _open_mount_namespace() -> int:
    return os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


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
    except OSError:  # opening it will say so
        return (0, 0)
    return (status.st_dev, status.st_ino)
