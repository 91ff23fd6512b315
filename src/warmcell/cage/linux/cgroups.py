"""Control groups, from inside: how a cell joins those that its supervisor made for it."""

from __future__ import annotations

import errno
import os
from typing import Iterable

from .namespaces import CLONE_NEWCGROUP
from .syscalls import call


def join(descriptors: Iterable[int]) -> None:
    """Moves this process into groups whose `cgroup.procs` were opened outside, and hides what is above them."""
    for descriptor in descriptors:
        os.write(descriptor, b"0")
    try:
        call("unshare", CLONE_NEWCGROUP)
    except OSError as error:
        if error.errno != errno.EPERM:  # the classes without namespaces have no right to one
            raise
