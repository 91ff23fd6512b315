"""Files of this host on their way to a sandbox of a server."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from warmcell.core.errors import InvalidRequest
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.mount_points import host_path
from warmcell.workspace.root import Root
from warmcell.workspace.transfer import download
from warmcell.workspace.walk import TreeLimits, walk
from warmcell.workspace.workspace import AnyPath


@dataclass(frozen=True, slots=True)
class Made:
    """A body to send: bytes that become `path`, or with `extract` an archive of what goes beneath it."""

    data: bytes
    path: str | None
    extract: bool = False
    #: None: as what was there before.
    executable: bool | None = None
    skipped: tuple[str, ...] = ()


def path_text(path: AnyPath | bytes) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise InvalidRequest(f"must be a path as text, not {type(path).__name__}", field="path")
    return text


def maybe_text(path: AnyPath | None) -> str | None:
    return None if path is None else path_text(path)


def archived(source: str, path: str | None, extract: bool) -> Made:
    """A file as it is, a directory as a tar without its links. Blocks."""
    place = Path(host_path("source", source))
    if place.is_dir():
        if extract:
            raise InvalidRequest("must be an archive, not a directory", field="source")
        return _directory(place, path or ".")
    try:
        data, is_executable = place.read_bytes(), bool(place.stat().st_mode & stat.S_IXUSR)
    except OSError as error:
        raise InvalidRequest(f"cannot read {source!r}: {error.strerror}", field="source") from None
    return Made(data, path if extract or path is not None else place.name, extract, is_executable)


def _directory(place: Path, path: str) -> Made:
    limits, root = ArchiveLimits(), Root(place)
    try:
        found = walk(root, (), TreeLimits(limits.entries, limits.total_bytes))
        skipped = tuple("/".join(map(str, one.parts)) for one in found if one.kind not in ("file", "directory"))
        return Made(download(root, (), limits.total_bytes, limits.entries), path, True, skipped=skipped)
    finally:
        root.close()
