"""A full disk, where images are written: an error of the host, never of the image or of a command."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from warmcell.core.errors import ExecutionFailed
from warmcell.core.types import MIB

_HINT = "make room there; `warmcell image prune` removes what no image needs"


@contextmanager
def explain_full_disk(directory: str) -> Iterator[None]:
    """Turns the system's error into `ExecutionFailed`, which names the directory."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise full_disk(directory, error.strerror) from error


def has_no_room(directory: str) -> bool:
    """Whether less than a MiB is left for this user."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize < MIB


def full_disk(directory: str, reason: str | None = None) -> ExecutionFailed:
    return ExecutionFailed(f"could not write to {directory}: {reason or os.strerror(errno.ENOSPC)}", hint=_HINT)
