"""Workspace: all that the host does with a sandbox's files, by path, blocking. `AsyncSandbox` calls it in threads."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warmcell.core.errors import InvalidRequest
from warmcell.enforcers.host_paths import note_writable
from warmcell.workspace import diff, files
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.diff import FsChange, State
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.files import DirEntry, FileStat, check_limit
from warmcell.workspace.mount_points import WORK, MountPoint, Place, Places, guest_work_path, host_path
from warmcell.workspace.names import split_guest_absolute
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.quota import Quota
from warmcell.workspace.remove import remove
from warmcell.workspace.root import Root
from warmcell.workspace.snapshot import SnapshotId, SnapshotStore

if TYPE_CHECKING:
    from warmcell.workspace.transfer import Uploaded
    from warmcell.workspace.watching import FileWatch

AnyPath = str | os.PathLike[str]


class Workspace:
    """The work directory of one sandbox and its mounts. Safe to use from several threads; `close` comes last.

    Without `work_dir` the directory is private (mode 0700) and goes away with `close`, at the latest when the
    interpreter ends. A mount at "/work" takes the place of the work directory. `disk_mb` bounds what the methods here
    add to all writable directories together. `work_path` is "/work", or "host": guests see the directory where it is.
    """

    def __init__(
        self,
        work_dir: AnyPath | None = None,
        mounts: Sequence[MountPoint] = (),
        *,
        track_changes: bool = True,
        disk_mb: int | None = None,
        work_path: str = WORK,
    ) -> None:
        stand_in = next((mount for mount in mounts if mount.guest_path == WORK), None)
        if stand_in is not None and work_dir is not None:
            raise InvalidRequest("there is a work_dir already", field="mounts")
        self._cleanup: weakref.finalize[[], Workspace] | None = None
        if stand_in is None and work_dir is None:
            private = PrivateDirectory("work")
            work_dir = private.path
            self._cleanup = weakref.finalize(self, private.close)
        elif work_dir is not None:
            work_dir = host_path("work_dir", work_dir)
        host = stand_in.host if stand_in is not None else work_dir
        assert host is not None
        quota = None if disk_mb is None else Quota(disk_mb)
        is_writable = stand_in is None or stand_in.writable
        root = Root(host, quota=quota)
        try:
            self.guest_path = guest_work_path(work_path, root.path)
        except BaseException:
            root.close()
            self.discard()
            raise
        work = Place(split_guest_absolute(self.guest_path), root, is_writable)
        self._places = Places(work, [_place(mount, quota) for mount in mounts if mount is not stand_in])
        if is_writable and self._cleanup is None:  # what is private goes away; nobody hands on a path into it
            note_writable(work.root.path)
        self._begin_lock = threading.Lock()
        self._before: State | LimitExceeded | None = None if track_changes else _untracked()
        self._snapshots: SnapshotStore | None = None

    @property
    def host_path(self) -> str:
        """Where the work directory is on the host."""
        return self._places.work.root.path

    @property
    def is_writable(self) -> bool:
        return self._places.work.is_writable

    @property
    def has_begun(self) -> bool:
        """Whether `begin` has nothing left to do."""
        return self._before is not None or not self.is_writable

    def begin(self) -> None:
        """Records the state that `diff` compares with. Called before anything can change it; the first call counts."""
        with self._begin_lock:
            if not self.has_begun:
                try:
                    self._before = diff.record(self._places.work.root)
                except LimitExceeded as error:
                    # A tree too large to hash is no reason not to work in it: only `diff` has to say no.
                    self._before = error

    def close(self) -> None:
        """Lets go of everything and removes what is private. May be called twice."""
        self._places.close()
        if self._snapshots is not None:
            self._snapshots.close()
        self.discard()

    def discard(self) -> None:
        """Removes what is private."""
        if self._cleanup is not None:
            self._cleanup()

    def guest_cwd(self, path: AnyPath | None = None) -> str:
        """The absolute guest path of a directory to start in. It must exist and be reached without links."""
        place, parts = self._places.find("." if path is None else path)
        with place.root.directory(parts):
            return place.guest_path(parts)

    def standing_cwd(self, path: AnyPath | None = None) -> str | None:
        """The same without looking, for what stands as long as the sandbox: the work directory, and mounts."""
        place, parts = self._places.find("." if path is None else path)
        return None if parts else place.guest_path(())

    def watch(self, path: AnyPath = ".", *, recursive: bool = False) -> FileWatch:
        """Events of what is in a directory, and with `recursive` of all below it, from now on."""
        from warmcell.workspace.watching import FileWatch

        place, parts = self._places.find(path)
        prefix = "" if place is self._places.work else place.guest_path(())
        return FileWatch(place.root, parts, prefix, recursive=bool(recursive))

    def read_file(self, path: AnyPath, *, max_bytes: int = files.MAX_FILE_BYTES) -> bytes:
        """The content of a file. Larger than `max_bytes` (64 MiB) is `LimitExceeded`, before anything is read."""
        return files.read_file(*self._places.find_readable(path), check_limit("max_bytes", max_bytes))

    def read_text(self, path: AnyPath, *, encoding: str = "utf-8", max_bytes: int = files.MAX_FILE_BYTES) -> str:
        """The content of a file as text; bytes that are not valid in the encoding become U+FFFD."""
        return self.read_file(path, max_bytes=max_bytes).decode(encoding, "replace")

    def write_file(self, path: AnyPath, data: str | bytes, *, parents: bool = True) -> None:
        """Puts `data` at the path in one step, making directories on the way unless `parents` is false."""
        root, parts = self._places.find_writable(path)
        files.write_file(root, parts, _as_bytes("data", data), parents=parents)

    def list_dir(self, path: AnyPath = ".", *, max_entries: int = files.MAX_LIST_ENTRIES) -> list[DirEntry]:
        """The entries of a directory, sorted by name. More than `max_entries` (10,000) is `LimitExceeded`."""
        return files.list_dir(*self._places.find_readable(path), check_limit("max_entries", max_entries))

    def stat(self, path: AnyPath) -> FileStat:
        """What is at the path: a file or a directory. Links and special files are `PathTraversal`."""
        return files.stat_path(*self._places.find_readable(path))

    def exists(self, path: AnyPath) -> bool:
        """Whether a file or directory is at the path. A path that leads outside is still an error."""
        try:
            return bool(self.stat(path))
        except FileNotFoundError:
            return False

    def remove(self, path: AnyPath, *, recursive: bool = True) -> None:
        """Removes a file, or a directory with all that is in it (with `recursive=False`, only an empty one)."""
        remove(*self._places.find_writable(path), recursive=recursive)

    def mkdir(self, path: AnyPath, *, parents: bool = False) -> None:
        """Makes a directory. With `parents`, also those on the way, and one that exists is fine."""
        files.make_dir(*self._places.find_writable(path), parents=parents)

    def upload(
        self,
        source: bytes | AnyPath,
        path: AnyPath | None = None,
        *,
        extract: bool = False,
        executable: bool | None = None,
        limits: ArchiveLimits | None = None,
    ) -> Uploaded:
        """Brings something in: bytes, or a file or directory of the host, which is named by the caller, never a model.

        Bytes become the file `path`, a program with `executable`. A host file becomes `path`, or goes into it when it
        is a directory; the content of a host directory goes beneath `path`. With `extract`, the source is a tar or zip
        archive, unpacked beneath `path`: all of it, or, when anything in it is not a plain file or directory inside,
        nothing (`ArchiveRejected`).
        """
        from warmcell.workspace import transfer  # archives cost a start that most sandboxes never need

        limits = limits or ArchiveLimits()
        if extract:
            root, parts = self._places.find_writable("." if path is None else path)
            return transfer.upload_archive(
                root, parts, source if isinstance(source, bytes) else _host_source(source), limits
            )
        if isinstance(source, bytes):
            if path is None:
                raise InvalidRequest("bytes need a name in the workspace", field="path", hint="or pass extract=True")
            return transfer.upload_bytes(*self._places.find_writable(path), source, limits, executable=executable)
        root, parts = self._places.find_writable("." if path is None else path)
        return transfer.upload_path(root, parts, _host_source(source), limits)

    def download(self, path: AnyPath = ".", *, max_bytes: int = files.MAX_FILE_BYTES) -> bytes:
        """A file's content, or a directory as tar bytes. Links and special files are left out of the tar."""
        from warmcell.workspace import transfer

        return transfer.download(*self._places.find_readable(path), check_limit("max_bytes", max_bytes))

    def apply_patch(self, patch: str | bytes, path: AnyPath = ".") -> list[FsChange]:
        """Applies a unified diff or a `*** Begin Patch` beneath `path`, all of it or, with `PatchRejected`, nothing."""
        from warmcell.workspace.patch.apply import apply_patch

        _as_bytes("patch", patch, check_only=True)
        return apply_patch(*self._places.find_writable(path), patch)

    def diff(self) -> list[FsChange]:
        """What was created, modified and deleted in the work directory since the sandbox was made, by content.

        Or since `mark`, where that was called.
        """
        before = self._state_before()
        return [] if before is None else diff.changes_since(before, self._places.work.root)

    def read_before(self, path: AnyPath) -> bytes:
        """What was in a file of the work directory in the state that `diff` compares with; small ones are kept."""
        place, parts = self._places.find(path)
        before = self._state_before()
        if before is None or place is not self._places.work:
            return self.read_file(path)  # nobody could have changed it, or it is not compared
        return diff.content_before(before, parts)

    def mark(self) -> None:
        """From now on `diff` compares with the work directory as it is now."""
        self._state_before()
        with self._begin_lock:
            if self.is_writable:
                self._before = diff.record(self._places.work.root)

    def _state_before(self) -> State | None:
        """None where nothing can change."""
        self.begin()
        if isinstance(self._before, LimitExceeded):
            raise self._before
        return self._before

    def snapshot(self) -> SnapshotId:
        """Copies the work directory aside. The copy lives as long as the sandbox does."""
        return self._store().take(self._places.work.root)

    def restore(self, snapshot: str) -> None:
        """Puts the work directory back to a snapshot; what was made since is removed."""
        root, _ = self._places.find_writable(".")
        self._store().restore(snapshot, root)

    def copy_to(self, other: Workspace, snapshot: str | None = None) -> None:
        """Fills another workspace, a new one, from this one or a snapshot of it. What is mounted is not copied."""
        if other._cleanup is None:
            return
        target, _ = other._places.find_writable(".")
        if snapshot is None:
            copy_tree(self._places.work.root, target)
        else:
            self._store().restore(snapshot, target)

    def _store(self) -> SnapshotStore:
        with self._begin_lock:
            self._snapshots = self._snapshots or SnapshotStore()
            return self._snapshots


def _place(mount: MountPoint, quota: Quota | None) -> Place:
    if mount.writable:
        note_writable(mount.host)
    return Place(split_guest_absolute(mount.guest_path), Root(mount.host, quota=quota), mount.writable)


def _host_source(path: AnyPath) -> Path:
    return Path(host_path("source", path))


def _untracked() -> LimitExceeded:
    hint = "create the Sandbox with track_changes=True"
    return LimitExceeded(WORK, "is not tracked for changes", limit=0, hint=hint)


def _as_bytes(name: str, data: str | bytes, *, check_only: bool = False) -> bytes:
    if isinstance(data, bytes):
        return data
    if not isinstance(data, str):
        raise InvalidRequest(f"must be text or bytes, not {type(data).__name__}", field=name)
    try:
        return b"" if check_only else data.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("must be valid Unicode (it holds a lone surrogate)", field=name) from None
