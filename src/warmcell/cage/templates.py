"""Templates: roots that many cells share. What is the same for all of them is mounted once and copied as a whole."""

from __future__ import annotations

import os
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from .linux import mounts
from .plan import Bind, LaunchPlan
from .wire import close_all

_MOST = 8


class _Template(NamedTuple):
    tree: int
    #: Device and inode of each source when it was made: what is replaced on the host is replaced in here.
    sources: Tuple[Tuple[int, int], ...]


class Templates:
    """Owned by the zygote, which must have a mount namespace of its own."""

    def __init__(self, detach: Callable[[Bind], int]) -> None:
        self._detach = detach
        self._nest: Optional[mounts.Nest] = None
        self._number = 0
        self._made: Dict[object, _Template] = {}

    def copy_for(self, plan: LaunchPlan) -> Optional[int]:
        """A detached tree that is the plan's root; None where each guest must build its own."""
        if not mounts.can_be_template(plan):
            return None
        key = (plan.binds, plan.files, plan.symlinks, plan.scratch_dirs)
        sources = tuple(_identity(bind.source) for bind in plan.binds)
        template = self._made.get(key)
        if template is None or template.sources != sources:
            if self._number >= _MOST:
                return None
            template = self._made[key] = _Template(self._make(plan), sources)
        return self._place.copy(template.tree)

    @property
    def _place(self) -> mounts.Nest:
        if self._nest is None:
            self._nest = mounts.Nest()
        return self._nest

    def _make(self, plan: LaunchPlan) -> int:
        self._number += 1
        trees: List[int] = []
        try:
            for bind in plan.binds:
                trees.append(self._detach(bind))
            return self._place.build(str(self._number), plan, trees)
        finally:
            close_all(trees)

    def let_go(self) -> None:
        """In a cell: none of this is its business."""
        if self._nest is not None:
            self._nest.let_go()
        close_all(template.tree for template in self._made.values())


def _identity(path: str) -> Tuple[int, int]:
    try:
        status = os.lstat(path)
    except OSError:  # opening it will say so
        return (0, 0)
    return (status.st_dev, status.st_ino)
