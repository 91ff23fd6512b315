"""Exports a directory as a copy or a tar file."""

from __future__ import annotations

import errno
import gzip

from warmcell.core.errors import InvalidRequest
from warmcell.core.light import on_error
from warmcell.images.layer_tar import write_tree
from warmcell.images.limits import Budget, ImageLimits
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.own_modes import make_directory
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.new_file import create_file
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import Root
from warmcell.workspaces.snapshots.take import LIMITS

_TAR, _COMPRESSED = (".tar",), (".tar.gz", ".tgz")


def is_tar(target: str) -> bool:
    return target.endswith(_TAR + _COMPRESSED)


def export_directory(directory: str, target: str) -> None:
    """Write a copy or a tar file, all or nothing. The target must not exist."""
    try:
        if is_tar(target):
            _write_tar(directory, target)
        else:
            _copy(directory, target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise host_failure(error, f"write {target!r}") from error
        reason = (error.strerror or str(error)).lower()
        raise InvalidRequest(f"cannot write {target!r}: {reason}", field="path") from None


def _write_tar(directory: str, target: str) -> None:
    budget = Budget(ImageLimits(LIMITS.total_bytes, LIMITS.entries))
    with create_file(target) as file:
        if target.endswith(_COMPRESSED):
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                write_tree(directory, packed, budget)
        else:
            write_tree(directory, file, budget)


def _copy(directory: str, target: str) -> None:
    make_directory(target)
    with on_error(lambda: remove_directory(target)), Root(directory) as source, Root(target) as copy:
        copy_tree(source, copy, limits=LIMITS)
