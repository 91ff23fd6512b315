"""Workspace: host-side operations on a sandbox's files, by path. Blocking; `AsyncSandbox` calls it in threads."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from warmcell.core.errors import InvalidRequest
from warmcell.core.light import on_error
from warmcell.enforcers.host_paths import forget_writable, note_writable
from warmcell.workspace import diff, files
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.diff import FsChange, State
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.files import DirEntry, FileStat, check_limit
from warmcell.workspace.mount_points import WORK, MountedRoot, MountPoint, MountTable, guest_work_path, host_path
from warmcell.workspace.names import Parts, split_guest_absolute
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.remove import remove
from warmcell.workspace.root import Quota, Root
from warmcell.workspace.snapshot import SnapshotId, SnapshotStore

if TYPE_CHECKING:
    from warmcell.workspace.file_watch import FileWatch
    from warmcell.workspace.transfer import Uploaded

AnyPath = str | os.PathLike[str]

#: All snapshots of a sandbox together may take this many times its disk limit.
_SNAPSHOT_FACTOR = 16


class Layer(Protocol):
    """Changes to a host directory that are kept separate from it."""

    @property
    def descriptor(self) -> int:
        """The directory with the changes, open."""
        ...

    @property
    def lower(self) -> Root:
        """The directory without them."""
        ...

    def diff(self) -> list[FsChange]: ...


class Workspace:
    """The work directory and the mounts of one sandbox. Thread-safe; call `close` last.

    Without `work_dir` the directory is private (mode 0700) and removed by `close` or at interpreter exit. A mount at
    "/work" replaces the work directory. `disk_mb` bounds what these methods add to all writable directories together.
    `work_path` is "/work", or "host": guests see the directory at its host path. With `layer`, changes are kept
    separate from the directory. `protected` returns the relative paths in a host directory that these methods must not
    change.
    """

    def __init__(
        self,
        work_dir: AnyPath | None = None,
        mounts: Sequence[MountPoint] = (),
        *,
        track_changes: bool = True,
        disk_mb: int | None = None,
        work_path: str = WORK,
        layer: Layer | None = None,
        protected: Callable[[str], Iterable[Parts]] = lambda directory: (),
    ) -> None:
        work_mount = next((mount for mount in mounts if mount.guest_path == WORK), None)
        if work_mount is not None and work_dir is not None:
            raise InvalidRequest("cannot mount at /work and pass work_dir", field="mounts")
        self._cleanup: weakref.finalize[[], Workspace] | None = None
        if work_mount is None and work_dir is None:
            private = PrivateDirectory("work", is_named=True)
            work_dir = private.path
            self._cleanup = weakref.finalize(self, private.close)
        elif work_dir is not None:
            work_dir = host_path("work_dir", work_dir)
        host = work_mount.host if work_mount is not None else work_dir
        assert host is not None
        self._disk_mb = disk_mb
        quota = None if disk_mb is None else Quota(disk_mb)
        is_writable = work_mount is None or work_mount.writable
        root = Root(host, quota=quota, descriptor=None if layer is None else layer.descriptor)
        with on_error(self.discard), on_error(root.close):
            self.guest_path = guest_work_path(work_path, root.path)
        work = MountedRoot(split_guest_absolute(self.guest_path), root, is_writable)
        self._mounts = MountTable(work, [_open_mount(mount, quota) for mount in mounts if mount is not work_mount])
        places = self._mounts.all if self._cleanup is None else self._mounts.all[1:]
        directories = {place.root.path for place in places if place.is_writable}
        found = {directory: tuple(protected(directory)) for directory in directories}  # one may have several places
        for place in places:
            place.root.protected = found[place.root.path] if place.is_writable else ()
        if is_writable and self._cleanup is None:  # private directories are never used as host paths
            note_writable(work.root.path)
        self._begin_lock = threading.Lock()
        self._layer = layer
        self._before: State | LimitExceeded | None = None
        if not track_changes or layer is not None:
            hint = "create the Sandbox with track_changes=True"
            self._before = LimitExceeded(WORK, "is not tracked for changes", limit=0, hint=hint)
        self._snapshots: SnapshotStore | None = None

    @property
    def host_path(self) -> str:
        """The host path of the work directory."""
        return self._mounts.work.root.path

    @property
    def is_private(self) -> bool:
        """Whether the work directory was made by this object and is removed with it."""
        return self._cleanup is not None

    @property
    def root(self) -> Root:
        """The work directory."""
        return self._mounts.work.root

    @property
    def writable_root(self) -> Root:
        """The work directory. `PolicyViolation` if it is mounted read-only."""
        return self._mounts.find_writable(".")[0]

    @property
    def is_writable(self) -> bool:
        return self._mounts.work.is_writable

    @property
    def has_begun(self) -> bool:
        """Whether `begin` has nothing to do."""
        return self._before is not None or not self.is_writable

    def begin(self) -> None:
        """Record the state that `diff` compares with, on the first call. Call before anything can change it."""
        with self._begin_lock:
            if not self.has_begun:
                try:
                    self._before = diff.record(self._mounts.work.root)
                except LimitExceeded as error:
                    # A tree that is too large to hash can still be used; only `diff` raises.
                    self._before = error

    def close(self) -> None:
        """Close all roots and remove private directories. Idempotent."""
        self._mounts.close()
        if self._snapshots is not None:
            self._snapshots.close()
        if self._cleanup is not None:
            forget_writable(self.host_path)
        self.discard()

    def discard(self) -> None:
        """Remove the private work directory, if there is one."""
        if self._cleanup is not None:
            self._cleanup()

    def guest_cwd(self, path: AnyPath | None = None) -> str:
        """The absolute guest path of a working directory. It must exist, and its path contain no link."""
        place, parts = self._mounts.find("." if path is None else path)
        with place.root.directory(parts):
            return place.guest_path(parts)

    def standing_cwd(self, path: AnyPath | None = None) -> str | None:
        """`guest_cwd` for the work directory and mounts, which always exist and need no check; None for others."""
        place, parts = self._mounts.find("." if path is None else path)
        return None if parts else place.guest_path(())

    def watch(self, path: AnyPath = ".", *, recursive: bool = False) -> FileWatch:
        """Watch a directory, or with `recursive` a tree, from now on."""
        from warmcell.workspace.file_watch import FileWatch

        place, parts = self._mounts.find(path)
        prefix = "" if place is self._mounts.work else place.guest_path(())
        return FileWatch(place.root, parts, prefix, recursive=bool(recursive))

    def read_file(self, path: AnyPath, *, max_bytes: int = files.MAX_FILE_BYTES) -> bytes:
        """The content of a file. `LimitExceeded`, before reading, if it is larger than `max_bytes` (64 MiB)."""
        return files.read_file(*self._mounts.find_readable(path), check_limit("max_bytes", max_bytes))

    def read_text(self, path: AnyPath, *, encoding: str = "utf-8", max_bytes: int = files.MAX_FILE_BYTES) -> str:
        """The content of a file as text; invalid bytes become U+FFFD."""
        return self.read_file(path, max_bytes=max_bytes).decode(encoding, "replace")

    def write_file(self, path: AnyPath, data: str | bytes, *, parents: bool = True) -> None:
        """Write a file atomically, creating parent directories unless `parents` is false."""
        root, parts = self._mounts.find_writable(path)
        files.write_file(root, parts, as_bytes("data", data), parents=parents)

    def list_dir(self, path: AnyPath = ".", *, max_entries: int = files.MAX_LIST_ENTRIES) -> list[DirEntry]:
        """The entries of a directory, sorted by name. `LimitExceeded` if there are more than `max_entries` (10,000)."""
        return files.list_dir(*self._mounts.find_readable(path), check_limit("max_entries", max_entries))

    def stat(self, path: AnyPath) -> FileStat:
        """Stat a file or directory. Links and special files raise `PathTraversal`."""
        return files.stat_path(*self._mounts.find_readable(path))

    def exists(self, path: AnyPath) -> bool:
        """Whether the path is a file or directory. A path that leads outside raises."""
        try:
            return bool(self.stat(path))
        except FileNotFoundError:
            return False

    def remove(self, path: AnyPath, *, recursive: bool = True) -> None:
        """Remove a file or directory tree (with `recursive=False`, only an empty directory)."""
        remove(*self._mounts.find_writable(path), recursive=recursive)

    def mkdir(self, path: AnyPath, *, parents: bool = False) -> None:
        """Create a directory; with `parents`, like `mkdir -p`."""
        files.make_dir(*self._mounts.find_writable(path), parents=parents)

    def upload(
        self,
        source: bytes | AnyPath,
        path: AnyPath | None = None,
        *,
        extract: bool = False,
        executable: bool | None = None,
        limits: ArchiveLimits | None = None,
    ) -> Uploaded:
        """Copy bytes, or a file or directory of the host, into the workspace. Never let a model choose a host path.

        Bytes are written to the file `path`, which `executable` makes a program. A host file is copied to `path`, or
        into it if that is a directory; the content of a host directory is copied beneath `path`. With `extract`, the
        source is a tar or zip archive, unpacked beneath `path`; if it contains anything but plain files and
        directories, nothing is written (`ArchiveRejected`).
        """
        from warmcell.workspace import transfer  # imported late: most sandboxes never use archives

        limits = limits or ArchiveLimits()
        if extract:
            root, parts = self._mounts.find_writable("." if path is None else path)
            return transfer.upload_archive(
                root, parts, source if isinstance(source, bytes) else _host_source(source), limits
            )
        if isinstance(source, bytes):
            if path is None:
                raise InvalidRequest("is required to upload bytes", field="path", hint="or pass extract=True")
            return transfer.upload_bytes(*self._mounts.find_writable(path), source, limits, executable=executable)
        root, parts = self._mounts.find_writable("." if path is None else path)
        return transfer.upload_path(root, parts, _host_source(source), limits)

    def download(self, path: AnyPath = ".", *, max_bytes: int = files.MAX_FILE_BYTES) -> bytes:
        """A file's content, or a directory as a tar without links and special files."""
        from warmcell.workspace import transfer

        return transfer.download(*self._mounts.find_readable(path), check_limit("max_bytes", max_bytes))

    def apply_patch(self, patch: str | bytes, path: AnyPath = ".") -> list[FsChange]:
        """Apply a unified diff or a `*** Begin Patch` beneath `path`, all or nothing. Raises `PatchRejected`."""
        from warmcell.workspace.patch.apply import apply_patch

        as_bytes("patch", patch, check_only=True)
        return apply_patch(*self._mounts.find_writable(path), patch)

    def diff(self) -> list[FsChange]:
        """Files created, modified and deleted in the work directory since the last `mark`, or since creation."""
        if self._layer is not None:
            return self._layer.diff()
        before = self._state_before()
        return [] if before is None else diff.changes_since(before, self._mounts.work.root)

    def read_before(self, path: AnyPath) -> bytes:
        """The content of a small file of the work directory in the state that `diff` compares with."""
        place, parts = self._mounts.find(path)
        if self._layer is not None and place is self._mounts.work:
            return files.read_file(self._layer.lower, parts)
        before = self._state_before()
        if before is None or place is not self._mounts.work:
            return self.read_file(path)  # read-only, or not tracked
        return diff.content_before(before, parts)

    def mark(self) -> None:
        """Record the current state for `diff` to compare with."""
        if self._layer is not None:
            hint = "use commit() or discard()"
            raise InvalidRequest("changes are compared with the host's directory", field="changes", hint=hint)
        self._state_before()
        with self._begin_lock:
            if self.is_writable:
                self._before = diff.record(self._mounts.work.root)

    def _state_before(self) -> State | None:
        """The recorded state; None if the work directory is read-only."""
        self.begin()
        if isinstance(self._before, LimitExceeded):
            raise self._before
        return self._before

    def snapshot(self) -> SnapshotId:
        """Copy the work directory. The copy is kept until the sandbox is closed."""
        return self._store().take(self._mounts.work.root)

    def remove_snapshot(self, snapshot: str) -> None:
        """Remove a snapshot and free its share of the disk limit."""
        self._store().remove(snapshot)

    def restore(self, snapshot: str) -> None:
        """Replace the content of the work directory by a snapshot."""
        self._store().restore(snapshot, self.writable_root)

    def copy_to(self, other: Workspace, snapshot: str | None = None) -> None:
        """Fill another, new workspace from this one or one of its snapshots. Mounts are not copied."""
        if other._cleanup is None:
            return
        target, _ = other._mounts.find_writable(".")
        if snapshot is None:
            copy_tree(self._mounts.work.root, target)
        else:
            self._store().copy(snapshot, target)

    def _store(self) -> SnapshotStore:
        with self._begin_lock:
            if self._snapshots is None:
                self._snapshots = SnapshotStore(quota=_snapshot_quota(self._disk_mb))
            return self._snapshots


def _open_mount(mount: MountPoint, quota: Quota | None) -> MountedRoot:
    if mount.writable:
        note_writable(mount.host)
    return MountedRoot(split_guest_absolute(mount.guest_path), Root(mount.host, quota=quota), mount.writable)


def _snapshot_quota(disk_mb: int | None) -> Quota | None:
    hint = "close the sandbox, or give it a larger limits=Limits(disk_mb=...)"
    return None if disk_mb is None else Quota(disk_mb * _SNAPSHOT_FACTOR, "for snapshots of the sandbox", hint)


def _host_source(path: AnyPath) -> Path:
    return Path(host_path("source", path))


def as_bytes(name: str, data: str | bytes, *, check_only: bool = False) -> bytes:
    if isinstance(data, bytes):
        return data
    if not isinstance(data, str):
        raise InvalidRequest(f"must be text or bytes, not {type(data).__name__}", field=name)
    try:
        return b"" if check_only else data.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("must be valid Unicode (it contains a lone surrogate)", field=name) from None
