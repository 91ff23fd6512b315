"""The mount namespace in which inits are cloned: an empty root, and the manager's /proc.

A new mount namespace starts as a copy of the one that its process was cloned in, and the kernel copies, changes and
removes mounts under one lock for the whole machine. A guest needs none of the host's mounts: its root comes as a
detached tree. It needs a visible /proc, without which the kernel refuses to mount another.
"""

from __future__ import annotations

import os

from ..failure import step
from ..guest.root import enter_new_tmpfs
from ..linux import mounts
from ..linux.call_list import CallList
from ..linux.descriptors import OwnedDescriptors
from ..linux.mounts import MS_BIND
from ..linux.namespaces import HomeNamespace


class InitMounts:
    """Owned by the manager, which must have a mount namespace of its own. In the block, this process is in it."""

    def __init__(self) -> None:
        self._home = HomeNamespace("mnt")
        with step("make mounts of init"), OwnedDescriptors() as owned:
            self._home.enter_new()
            try:
                _lay_out()
                self._other = owned.take(self._home.open_current())
            finally:
                self._home.return_home()
            owned.give(self._other)

    def __enter__(self) -> None:
        self._home.enter(self._other)

    def __exit__(self, *_: object) -> None:
        self._home.return_home()


def _lay_out() -> None:
    enter_new_tmpfs("/tmp")
    for name in ("proc", "tmp"):
        os.mkdir(name)
    mounts.mount("/proc", "proc", None, MS_BIND)
    calls = CallList()
    calls.begin_step("make mounts of init")
    mounts.pivot_into_working_directory(calls)
    calls.prepare(()).run()
