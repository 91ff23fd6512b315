"""Roots that many cells share: what is the same for all of a plan is laid out once, and copied as a whole for each.

A copy costs one call instead of some forty mounts. It is safe because the original is sealed before the first copy is
made, holds no path of a caller's, and every guest's own places (scratch, /proc) are mounted on its copy alone.
"""

from __future__ import annotations

import errno
import itertools
import os
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

from ..failure import step
from ..guest import root
from ..linux import mounts
from ..linux.fds import Owned, close_all
from ..linux.namespaces import CLONE_NEWNS
from ..linux.syscalls import call
from ..plan import Bind, LaunchPlan

#: Each holds mounts and a tmpfs. Further plans take the place of those that have not been used for longest.
_MOST = 8
_ASTRAY = 70


class _SharedRoot(NamedTuple):
    name: str
    tree: int
    #: Device and inode of each source when it was made: what is replaced on the host is replaced in here.
    sources: Tuple[Tuple[int, int], ...]


class SharedRoots:
    """Owned by the zygote, which must have a mount namespace of its own."""

    def __init__(self, open_tree: Callable[[Bind], int]) -> None:
        self._open_tree = open_tree
        self._workshop: Optional[_Workshop] = None
        self._names = itertools.count()
        self._made: Dict[object, _SharedRoot] = {}

    def copy_for(self, plan: LaunchPlan) -> Optional[int]:
        """A detached tree that is the plan's root; None where each guest must build its own."""
        if not _can_be_shared(plan):
            return None
        if self._workshop is None:
            self._workshop = _Workshop()
        key = (plan.binds, plan.files, plan.symlinks, plan.scratch_dirs)
        sources = tuple(_identity(bind.source) for bind in plan.binds)
        shared = self._made.pop(key, None)
        if shared is not None and shared.sources != sources:
            self._workshop.remove(shared)
            shared = None
        if shared is None:
            shared = _SharedRoot(*self._make(plan, self._workshop), sources)
        self._made[key] = shared  # at the end: those at the beginning have not been used for longest
        while len(self._made) > _MOST:
            self._workshop.remove(self._made.pop(next(iter(self._made))))
        return self._workshop.copy(shared.tree)

    def _make(self, plan: LaunchPlan, workshop: _Workshop) -> Tuple[str, int]:
        name = str(next(self._names))
        with Owned() as owned:
            trees = [owned.take(self._open_tree(bind)) for bind in plan.binds]
            return name, workshop.build(name, plan, trees)

    def let_go(self) -> None:
        """In a cell: none of this is its business."""
        if self._workshop is not None:
            self._workshop.let_go()
        close_all(shared.tree for shared in self._made.values())


class _Workshop:
    """A second mount namespace of this process's, for roots to be built in and copied from.

    In the zygote's own, each root would be one more thing that every cell's new mount namespace starts with.
    """

    def __init__(self) -> None:
        with step("make workshop"), Owned() as owned:
            self._own = owned.take(_open_mount_namespace())
            call("unshare", CLONE_NEWNS)
            try:
                root.enter_new_tmpfs("/tmp")
                self._other = owned.take(_open_mount_namespace())
            finally:
                self._return()
            owned.give_all()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with step("enter workshop"):
            call("setns", self._other, CLONE_NEWNS)
        try:
            yield
        finally:
            self._return()

    def _return(self) -> None:
        """Which also leads back to "/"."""
        try:
            call("setns", self._own, CLONE_NEWNS)
        except OSError:
            os._exit(_ASTRAY)  # every later cell would be made from the wrong mounts

    def build(self, name: str, plan: LaunchPlan, trees: Sequence[int]) -> int:
        """A root, sealed; returns its descriptor, for `copy`."""
        with self._inside(), Owned() as owned:
            os.mkdir(f"/tmp/{name}")
            try:
                root.enter_new_tmpfs(f"/tmp/{name}")
                root.make_places(plan)
                root.lay_out(plan, trees)
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
        with self._inside(), step("copy root"):
            return mounts.copy_tree(tree)

    def remove(self, shared: _SharedRoot) -> None:
        """Cells that have a copy keep it."""
        os.close(shared.tree)
        with self._inside():
            _clear(shared.name)

    def let_go(self) -> None:
        for descriptor in (self._own, self._other):
            os.close(descriptor)


def _open_mount_namespace() -> int:
    return os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def _clear(name: str) -> None:
    os.chdir("/")
    try:
        mounts.detach(f"/tmp/{name}")
    except OSError as error:
        if error.errno != errno.EINVAL:  # nothing was mounted there yet
            raise
    os.rmdir(f"/tmp/{name}")


def _can_be_shared(plan: LaunchPlan) -> bool:
    """Whether the root holds nothing of one caller's, and nothing that stands on what each guest gets anew."""
    places = [path + "/" for path, _ in plan.scratch_dirs]
    return not any(
        bind.as_owner or bind.writable or (bind.target + "/").startswith(tuple(places)) for bind in plan.binds
    )


def _identity(path: str) -> Tuple[int, int]:
    try:
        status = os.lstat(path)
    except OSError:  # opening it will say so
        return (0, 0)
    return (status.st_dev, status.st_ino)
