"""The body of an upload: bytes, or a file or directory of this host."""

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
class UploadBody:
    """Bytes that become `path`, or with `extract` an archive to unpack beneath it."""

    data: bytes
    path: str | None
    extract: bool = False
    #: None keeps the mode of an existing file.
    executable: bool | None = None
    skipped: tuple[str, ...] = ()


def path_text(path: AnyPath | bytes) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise InvalidRequest(f"must be a path as text, not {type(path).__name__}", field="path")
    return text


def optional_path_text(path: AnyPath | None) -> str | None:
    return None if path is None else path_text(path)


def read_upload(source: str, path: str | None, extract: bool) -> UploadBody:
    """A file as it is, a directory as a tar without links. Blocks."""
    place = Path(host_path("source", source))
    if place.is_dir():
        if extract:
            raise InvalidRequest("must be an archive, not a directory", field="source")
        return _tar_directory(place, path or ".")
    try:
        data, is_executable = place.read_bytes(), bool(place.stat().st_mode & stat.S_IXUSR)
    except OSError as error:
        raise InvalidRequest(f"cannot read {source!r}: {error.strerror}", field="source") from None
    return UploadBody(data, path if extract or path is not None else place.name, extract, is_executable)


def _tar_directory(place: Path, path: str) -> UploadBody:
    limits = ArchiveLimits()
    with Root(place) as root:
        entries = walk(root, (), TreeLimits(limits.entries, limits.total_bytes))
        skipped = tuple("/".join(map(str, one.parts)) for one in entries if one.kind not in ("file", "directory"))
        return UploadBody(download(root, (), limits.total_bytes, limits.entries), path, True, skipped=skipped)
