"""Removes what no name and no running program uses, and explains a full disk. Pruning locks the store exclusively."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from warmcell.core.errors import ExecutionFailed, ImageInvalid
from warmcell.core.types import MIB
from warmcell.images.blobs import BlobStore
from warmcell.images.build.cache import BuildCache
from warmcell.images.layers import LayerStore
from warmcell.images.records import Records
from warmcell.lifetime.held_directories import hold
from warmcell.workspace.remove import remove_directory


def collect_garbage(records: Records, layers: LayerStore, blobs: BlobStore) -> int:
    """Remove unused images, blobs and unfinished files, and set unused layers aside; returns the bytes freed.

    The caller sweeps when it has released the lock: a layer may have a million files, and others wait only so long.
    """
    named = {digest for digest in records.names().values() if records.is_intact(digest)}
    for digest in records.image_digests():
        if digest not in named:
            _remove_image(records.image_directory(digest))
    left = [digest for digest in records.image_digests() if records.has_image(digest)]
    if not all(map(records.is_intact, left)):
        return 0  # a program runs an image whose record is damaged, so its layers are unknown
    kept = [records.image(digest) for digest in left]
    records.remove_unfinished()
    freed = _set_layers_aside(layers, {diff_id for record in kept for diff_id in record["layers"]}) + _remove_blobs(
        blobs, {digest for record in kept for digest in record["blobs"]}
    )
    BuildCache(os.path.dirname(layers.path), blobs, layers).remove_stale()
    return freed


def _remove_image(directory: str) -> None:
    held = hold(directory)
    if held is not None:  # else a program runs it
        with held:
            remove_directory(directory)


def _set_layers_aside(layers: LayerStore, used: Iterable[str]) -> int:
    freed = 0
    for diff_id in set(layers.digests()) - set(used):
        with suppress(ImageInvalid):  # a damaged one is removed too
            freed += layers.size(diff_id)
        layers.set_aside(diff_id)
    return freed


def _remove_blobs(blobs: BlobStore, used: Iterable[str]) -> int:
    kept, freed = {os.path.basename(blobs.path_of(digest)) for digest in used}, 0
    for entry in blobs.files():
        if entry.name not in kept:
            freed += entry.stat(follow_symlinks=False).st_size
            os.unlink(entry.path)
    return freed


_HINT = "free space there; `warmcell image prune` removes unused layers"


@contextmanager
def explain_full_disk(directory: str) -> Iterator[None]:
    """Turn ENOSPC and EDQUOT into `ExecutionFailed`, which names the directory: never a fault of the image."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise full_disk(directory, error.strerror) from error


def is_disk_full(directory: str) -> bool:
    """Whether this user can write less than one MiB more."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize < MIB


#: Images leave a twentieth of their disk free, but at most this, for the user's other programs.
_KEPT_FREE, _FREE_SHARE = 2048 * MIB, 20


def check_room(store: str) -> None:
    """Raise `ExecutionFailed` if images leave too little of their disk free. The store may not exist yet."""
    place = store
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    disk = os.statvfs(place)
    kept = min(_KEPT_FREE, disk.f_blocks * disk.f_frsize // _FREE_SHARE)
    if disk.f_bavail * disk.f_frsize < kept:
        raise full_disk(store, f"it would leave less than {kept // MIB} MB of the disk free")


def full_disk(directory: str, reason: str | None = None) -> ExecutionFailed:
    return ExecutionFailed(f"could not write to {directory}: {reason or os.strerror(errno.ENOSPC)}", hint=_HINT)
