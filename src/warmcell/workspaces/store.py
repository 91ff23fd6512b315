"""WorkspaceStore: workspaces below one directory, and their snapshots there or at a URL.

work/ID/            the work directory of a workspace; a sandbox on it holds a lock on it
catalogue.db, packs/, snapshots/, staging/      see `snapshots/archive.py`
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from warmcell.core.errors import InvalidRequest, SessionBusy, SnapshotNotFound, WorkspaceNotFound
from warmcell.core.light import on_error
from warmcell.core.records import dataclass, field
from warmcell.lifetime.held_directories import HeldDirectory, find_holder, hold, user_directory, wait_to_hold
from warmcell.lifetime.own_modes import make_directories, make_directory
from warmcell.sandbox.blocking import Sandbox
from warmcell.sandbox.ports import ExposedPort
from warmcell.workspace.names import printable
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import Root
from warmcell.workspace.snapshot import SnapshotId
from warmcell.workspace.workspace import Workspace
from warmcell.workspaces.manifest import Manifest, provision
from warmcell.workspaces.snapshots.archive import SnapshotArchive, SnapshotRecord, sync_file_system
from warmcell.workspaces.snapshots.chunks import KEY_VARIABLE, parse_key
from warmcell.workspaces.snapshots.objects import UrlObjects

#: `list` holds the lock of a workspace briefly, shared, to find out whether it is running.
_PATIENCE_SECONDS = 0.5
#: How often that is waited for, while the workspace is not in use. A program on a busy host may hold it for seconds.
_MOST_WAITS = 120
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_URL = re.compile(r"[a-z][a-z0-9+.-]*::?//")


@dataclass(frozen=True, slots=True)
class WorkspaceHandle:
    """`state`: "new", "running" or "stopped"."""

    id: str
    name: str
    state: str
    created: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """`stored_bytes` is what it added to the store; the rest is shared with earlier snapshots."""

    id: SnapshotId
    name: str | None
    workspace: str
    created: float
    files: int
    total_bytes: int
    stored_bytes: int


class WorkspaceSandbox(Sandbox):
    """A sandbox on a workspace. `exposed` has the host's address of each port."""

    #: Forks of the sandbox use these defaults of the class: they do not belong to the workspace.
    on_stopped: Callable[[], object] = staticmethod(lambda: None)
    exposed: Mapping[int, ExposedPort] = {}

    def destroy(self) -> None:
        """End the sandbox, not the workspace. Takes a snapshot if the store has `snapshot_on_stop`."""
        super().destroy()
        on_stopped, self.on_stopped = self.on_stopped, lambda: None
        on_stopped()


class WorkspaceStore:
    """The workspaces of this user. Blocking, and safe to share between threads and programs.

    `url`: a directory, or an fsspec URL for the snapshots; None: below the user's data directory. `key`: 32 bytes to
    encrypt snapshots with; None: the variable WARMCELL_STORE_KEY, else no encryption. `options` are passed to
    fsspec.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        key: bytes | None = None,
        snapshot_on_stop: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if key is None and os.environ.get(KEY_VARIABLE):
            key = parse_key(os.environ[KEY_VARIABLE])
        where = os.path.join(data_place(), "workspaces") if url is None else os.fspath(url)
        objects = UrlObjects(where, dict(options or {})) if _URL.match(where) else None
        if objects is not None:
            where = os.path.join(data_place(), "remote", hashlib.sha256(where.encode()).hexdigest()[:32])
        self.path = os.path.abspath(where)
        self._snapshot_on_stop = snapshot_on_stop
        self._archive = SnapshotArchive(self.path, objects=objects, key=key)
        self._work = os.path.join(self.path, "work")
        make_directories(self._work)
        #: By workspace: sandboxes that this object started.
        self._running: dict[str, tuple[WorkspaceSandbox, HeldDirectory]] = {}

    def provision(self, manifest: Manifest | None = None, name: str | None = None) -> WorkspaceHandle:
        """Create a workspace, all or nothing. The default name is generated."""
        chosen = manifest or Manifest()
        with self._new_directory(name) as (identity, unique, path):
            provision(chosen, path)
            return self._add(identity, unique, chosen.settings(), path, "new")

    def start(self, workspace: WorkspaceHandle | str, **options: Any) -> WorkspaceSandbox:
        """Start a `Sandbox` on the workspace, with these `options`. Closing it has the effect of `stop`.

        `SessionBusy` if it is running already, in this or another program.
        """
        found = self.get(workspace)
        held = self._hold(found)
        with on_error(held.release):
            sandbox = start_sandbox(self._directory(found.id), found.settings, options)
        sandbox.on_stopped = lambda: self._finish(found, held, None)
        self._running[found.id] = sandbox, held
        return sandbox

    @contextmanager
    def use_directory(self, workspace: WorkspaceHandle | str, snapshot: bool | None = None) -> Iterator[str]:
        """The work directory, for the caller's own sandbox. Afterwards the workspace is stopped."""
        found = self.get(workspace)
        held = self._hold(found)
        try:
            yield self._directory(found.id)
        finally:
            self._finish(found, held, snapshot)

    def stop(self, workspace: WorkspaceHandle | str, snapshot: bool | None = None) -> SnapshotId | None:
        """End the sandbox that this object started. `snapshot`: whether to take one; None: by `snapshot_on_stop`."""
        found = self.get(workspace)
        running = self._running.pop(found.id, None)
        if running is None:
            return self._finish(found, self._hold(found), snapshot)
        sandbox, held = running
        on_stopped, sandbox.on_stopped = sandbox.on_stopped, lambda: None

        def undo() -> None:
            """After an interrupt, the lock must not be without an owner: another `stop` or `destroy` releases it."""
            sandbox.on_stopped, self._running[found.id] = on_stopped, (sandbox, held)

        with on_error(undo):
            sandbox.destroy()
        return self._finish(found, held, snapshot)

    def _finish(self, found: WorkspaceHandle, held: HeldDirectory, snapshot: bool | None) -> SnapshotId | None:
        self._running.pop(found.id, None)
        with held:
            self._set_state(found, "stopped")
            wanted = self._snapshot_on_stop if snapshot is None else snapshot
            return self.snapshot(found) if wanted else None

    def snapshot(self, workspace: WorkspaceHandle | str, name: str | None = None) -> SnapshotId:
        """Take a snapshot. A file that a running program is writing may be stored half written."""
        found = self.get(workspace)
        document = {"workspace": found.id, "workspace_name": found.name, "name": name, "settings": dict(found.settings)}
        if name is not None:
            _check_name(name)
        return self._archive.take(self._directory(found.id), found.id, document).id

    def resume(self, snapshot: str, name: str | None = None) -> WorkspaceHandle:
        """Create a workspace from the files and settings of a snapshot, given by id or name."""
        record = self._find_snapshot(snapshot)
        settings = record.document.get("settings")
        with self._new_directory(name) as (identity, unique, path):
            self._restore(record, path)
            return self._add(identity, unique, settings if isinstance(settings, dict) else {}, path, "stopped")

    def get(self, workspace: WorkspaceHandle | str) -> WorkspaceHandle:
        """Find a workspace by handle, id or name; `WorkspaceNotFound` if it does not exist."""
        key = workspace.id if isinstance(workspace, WorkspaceHandle) else workspace
        if isinstance(key, str):
            with self._archive.catalogue.connect() as database:
                query = "select id, name, document from workspaces where id = ? or name = ? order by id = ? desc"
                row = database.execute(query, (key, key, key)).fetchone()
            if row is not None:
                return self._handle(*row)
        raise WorkspaceNotFound(printable(str(key))[:80])

    def find_user(self, workspace: WorkspaceHandle | str) -> int | None:
        """The id of the process that uses the workspace, from /proc/locks; None if there is none."""
        return find_holder(self._directory(self.get(workspace).id))

    def list(self) -> list[WorkspaceHandle]:
        """All workspaces, oldest first."""
        with self._archive.catalogue.connect() as database:
            rows = database.execute("select id, name, document from workspaces").fetchall()
        return sorted((self._handle(*row) for row in rows), key=lambda found: found.created)

    def snapshots(self, workspace: WorkspaceHandle | str | None = None) -> tuple[SnapshotInfo, ...]:
        """The snapshots of a workspace, or all, oldest first. They outlive their workspace."""
        identity = workspace.id if isinstance(workspace, WorkspaceHandle) else workspace
        found = [_describe(record) for record in self._archive.records()]
        if identity is not None and not any(identity == info.workspace for info in found):
            identity = self.get(identity).id
        return tuple(info for info in found if identity in (None, info.workspace))

    def export(self, source: WorkspaceHandle | str, path: str | os.PathLike[str]) -> None:
        """Write a snapshot or a workspace to a new directory, or to a tar file if the path ends in .tar or .tar.gz."""
        from warmcell.workspaces.export import export_directory, is_tar

        target = os.path.abspath(os.fspath(path))
        if os.path.lexists(target):
            raise InvalidRequest(f"{target!r} exists", field="path", hint="remove it, or export to another path")
        try:
            record = None if isinstance(source, WorkspaceHandle) else self._find_snapshot(source)
        except SnapshotNotFound:
            record = None
        if record is None:
            export_directory(self._directory(self.get(source).id), target)
            return
        if not is_tar(target):
            make_directory(target)
            with on_error(lambda: remove_directory(target)):
                self._restore(record, target)
            return
        with self._new_directory(None) as (_, _, directory):
            self._restore(record, directory)
            export_directory(directory, target)
            remove_directory(directory)

    def remove(self, item: WorkspaceHandle | str) -> None:
        """Remove a workspace but not its snapshots, or a snapshot. `compact` frees the space of snapshots."""
        try:
            found = self.get(item)
        except WorkspaceNotFound:
            if isinstance(item, WorkspaceHandle):
                raise
            self._archive.remove(self._find_snapshot(item).id)
            return
        with self._hold(found):
            with self._archive.catalogue.connect() as database:
                database.execute("delete from workspaces where id = ?", (found.id,))
                database.execute("delete from scans where source = ?", (found.id,))
            remove_directory(self._directory(found.id))

    def compact(self) -> int:
        """Remove unused data, and files that killed programs left; returns the bytes freed in packs."""
        freed = self._archive.compact()
        with self._archive.lock(is_shared=False):
            known = {found.id for found in self.list()}
            for name in os.listdir(self._work):
                held = None if name in known else hold(os.path.join(self._work, name))
                if held is not None:
                    with held:
                        # Its creator may have added the row after `list`, and before it released the directory.
                        if not self._has_row(name):
                            remove_directory(held.path)
        return freed

    def _has_row(self, identity: str) -> bool:
        with self._archive.catalogue.connect() as database:
            return database.execute("select 1 from workspaces where id = ?", (identity,)).fetchone() is not None

    @contextmanager
    def _new_directory(self, name: str | None) -> Iterator[tuple[str, str, str]]:
        """Yield id, name and directory of a new workspace. The directory is removed if the body raises."""
        identity = secrets.token_hex(16)
        unique = f"workspace-{identity[:8]}" if name is None else _check_name(name)
        path = self._directory(identity)
        with self._archive.lock(is_shared=True):
            make_directory(path)
            held = hold(path)  # `compact` removes directories without a row that are not held
        try:
            with on_error(lambda: remove_directory(path)):
                yield identity, unique, path
        finally:
            if held is not None:
                held.release()

    def _restore(self, record: SnapshotRecord, directory: str) -> None:
        with Root(directory) as root:
            self._archive.restore(record.id, root)

    def _add(self, identity: str, name: str, settings: Mapping[str, Any], path: str, state: str) -> WorkspaceHandle:
        with Root(path) as root:
            sync_file_system(root.fd)
        created = time.time()
        document = {"created": created, "settings": dict(settings), "state": state}
        with self._archive.catalogue.connect() as database:
            values = (identity, name, self._seal(document))
            added = database.execute("insert or ignore into workspaces values (?, ?, ?)", values).rowcount
        if not added:
            raise InvalidRequest(f"a workspace named {name!r} exists", field="name", hint="choose another name")
        return WorkspaceHandle(identity, name, state, created, settings)

    def _handle(self, identity: str, name: str, sealed: bytes) -> WorkspaceHandle:
        document = json.loads(self._archive.open_document(bytes(sealed)))
        state = "running" if self._is_held(identity) else document["state"]
        return WorkspaceHandle(identity, name, state, document["created"], document["settings"])

    def _set_state(self, found: WorkspaceHandle, state: str) -> None:
        document = {"created": found.created, "settings": dict(found.settings), "state": state}
        with self._archive.catalogue.connect() as database:
            query = "update workspaces set document = ? where id = ?"
            database.execute(query, (self._seal(document), found.id))

    def _seal(self, document: dict[str, Any]) -> bytes:
        return self._archive.seal_document(json.dumps(document).encode("ascii"))

    def _find_snapshot(self, snapshot: str) -> SnapshotRecord:
        """Find a snapshot by id, or the latest one of that name."""
        try:
            return self._archive.get(snapshot)
        except SnapshotNotFound:
            named = [record for record in self._archive.records() if record.document.get("name") == snapshot]
            if not named or not snapshot:
                raise
            return named[-1]

    def _directory(self, identity: str) -> str:
        return os.path.join(self._work, identity)

    def _hold(self, found: WorkspaceHandle) -> HeldDirectory:
        failure = SessionBusy(f"the workspace {found.name!r} is in use", hint="stop it first")
        for _ in range(_MOST_WAITS):
            try:
                return wait_to_hold(self._directory(found.id), _PATIENCE_SECONDS, failure)
            except SessionBusy:
                if self._is_held(found.id):
                    break
        raise failure

    def _is_held(self, identity: str) -> bool:
        """Whether it is in use. A lock that is held by `list` is shared, and does not count."""
        held = hold(self._directory(identity), is_shared=True)
        if held is None:
            return True
        held.release()
        return False


def data_place() -> str:
    """The data directory of this user."""
    return os.path.join(user_directory("XDG_DATA_HOME", ".local", "share"), "warmcell")


def _describe(record: SnapshotRecord) -> SnapshotInfo:
    name, workspace = record.document.get("name"), str(record.document.get("workspace"))
    sizes = (record.files, record.total_bytes, record.stored_bytes)
    return SnapshotInfo(record.id, None if name is None else str(name), workspace, record.created, *sizes)


def _check_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or re.fullmatch(r"[0-9a-f]{32}", name):
        hint = "letters, digits, dots, dashes and underscores, at most 100"
        raise InvalidRequest(f"{printable(str(name))[:80]!r} is not a name", field="name", hint=hint)
    return name


class SharedSnapshots:
    """Snapshots of sandboxes in a `WorkspaceStore`, which can list and resume them. Blocking."""

    def __init__(self, url: str, options: Mapping[str, Any], key: bytes | None) -> None:
        self._archive = WorkspaceStore(url, options=options, key=key)._archive

    def take(self, workspace: Workspace, source: str) -> SnapshotId:
        """Take a snapshot of the sandbox `source`.

        Every file is read, and only what has changed is stored: programs of the sandbox run, and write to files through
        mappings without changing their times.
        """
        document: dict[str, Any] = {"workspace": source, "workspace_name": source, "name": None, "settings": {}}
        return self._archive.take(workspace.host_path, None, document).id

    def restore(self, workspace: Workspace, snapshot: str) -> None:
        """Replace the content of the work directory, which stays as it is if the snapshot cannot be found or locked."""
        self._archive.restore(snapshot, workspace.writable_root, is_emptied=True)


def start_sandbox(directory: str, settings: Mapping[str, Any], options: Mapping[str, Any]) -> WorkspaceSandbox:
    """Start a sandbox with the image, environment, packages and ports of the workspace; `options` take precedence."""
    env = dict(settings.get("env") or {}) | dict(options.get("env") or {})
    given: dict[str, Any] = {"image": settings.get("image"), "track_changes": False} | dict(options) | {"env": env}
    sandbox = WorkspaceSandbox(work_dir=directory, **given)
    with on_error(sandbox.destroy):
        if settings.get("packages"):
            sandbox.install(*settings["packages"])
        sandbox.exposed = {port: sandbox.expose(port) for port in settings.get("ports") or ()}
    return sandbox
