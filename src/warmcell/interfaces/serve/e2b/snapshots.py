"""E2B's snapshots and forks, of files only: copies of a sandbox's home that new sandboxes start with."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.core.light import on_error
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry, SandboxNotFound
from warmcell.interfaces.serve.saved_state import SNAPSHOTS
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.state_homes import Home, StateHome
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.usage import directory_bytes
from warmcell.lifetime.threads import in_thread
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.root import Quota, Root

_log = logging.getLogger("warmcell.serve")
PREFIX = "snapshot-"


class Snapshot:
    """A copy of a home. `source` is the id of the sandbox that it was taken from."""

    def __init__(self, identity: str, tenant_id: str, source: str, names: list[str], home: Home) -> None:
        self.id, self.tenant_id, self.source, self.names, self.home = identity, tenant_id, source, names, home

    def plain(self) -> dict[str, Any]:
        return {"snapshotID": self.id, "names": self.names}


class Snapshots:
    """The snapshots of all tenants; each sees its own. They last as long as the server, or its `--state`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._all: dict[str, Snapshot] = {}
        service.on_close.append(lambda: self._remove_all({snapshot.tenant_id for snapshot in self._all.values()}))
        service.on_revoked.append(self._remove_all)

    def load(self) -> None:
        """Restore the snapshots of the previous server."""
        state = self._service.saved
        for document in [] if state is None else state.documents(SNAPSHOTS):
            home = None if state is None else state.find_copy(document.get("home"))
            names = document.get("names") or []
            if home is None or not isinstance(names, list):
                _log.warning("cannot restore snapshot %s: its files or names are missing", document["id"])
            else:
                names = list(map(str, names))
                tenant, source = str(document.get("tenant")), str(document.get("source"))
                self._all[document["id"]] = Snapshot(document["id"], tenant, source, names, home)
                self._service.snapshots.add(tenant)

    async def take(self, tenant: Tenant, source: str, home: str, name: str | None) -> Snapshot:
        if not self._service.snapshots.take(tenant.id, tenant.sandboxes):
            raise HttpError(429, f"this token already has {tenant.sandboxes} snapshots; remove one")
        with on_error(lambda: self._service.snapshots.release(tenant.id)):
            copy = await self._copy(home, tenant)
            made = Snapshot(PREFIX + secrets.token_hex(16), tenant.id, source, [name] if name else [], copy)
            async with on_error(lambda: self._delete(made)):
                if self._service.sandboxes.find_any(source) is None:
                    raise _sandbox_removed()
                await in_thread(lambda: self._save(made))
        self._all[made.id] = made
        return made

    async def _copy(self, home: str, tenant: Tenant) -> Home:
        state = self._service.saved
        if state is None or not state.is_encrypted:
            return await copy_home(self._service, home, tenant)

        def keep() -> StateHome:
            with Quota(max(1, tenant.disk_mb)).charge(".", directory_bytes(home)):
                return state.keep_copy(home)

        return await in_thread(keep, discard=lambda made: made.close())

    def _save(self, snapshot: Snapshot) -> None:
        state = self._service.saved
        if state is not None and isinstance(snapshot.home, StateHome):
            names = {"tenant": snapshot.tenant_id, "source": snapshot.source, "names": snapshot.names}
            document = {"id": snapshot.id, "home": snapshot.home.name, "created": time.time(), **names}
            state.put(SNAPSHOTS, snapshot.id, document, is_durable=True)

    def of(self, tenant: Tenant) -> list[Snapshot]:
        return [snapshot for snapshot in self._all.values() if snapshot.tenant_id == tenant.id]

    def find(self, tenant: Tenant, name: str) -> Snapshot | None:
        """Find a snapshot by id or name, without the default tag. Of several with one name, the last."""
        plain = name.removesuffix(":default")
        return next((item for item in reversed(self.of(tenant)) if plain == item.id or plain in item.names), None)

    def has(self, snapshot: Snapshot) -> bool:
        return self._all.get(snapshot.id) is snapshot

    async def remove(self, snapshot: Snapshot) -> None:
        if self._all.pop(snapshot.id, None) is not None:
            self._service.snapshots.release(snapshot.tenant_id)
            await self._delete(snapshot)

    async def _delete(self, snapshot: Snapshot) -> None:
        if self._service.saved is not None:
            self._service.saved.remove(SNAPSHOTS, snapshot.id)
        await in_thread(snapshot.home.close)

    async def _remove_all(self, tenants: set[str]) -> None:
        for snapshot in list(self._all.values()):
            if snapshot.tenant_id in tenants:
                await self.remove(snapshot)


def snapshots_of(service: Service) -> Snapshots:
    return service.state.get(Snapshots, lambda: Snapshots(service))


async def copy_home(service: Service, home: str | Home, tenant: Tenant, *, is_saved: bool = True) -> Home:
    """Copy a home, within the tenant's disk quota. With `is_saved` the copy lasts as long as the state."""

    def copy() -> Home:
        made = service.make_home() if is_saved else PrivateDirectory("work")
        with on_error(made.close), Root(made.path, quota=Quota(max(1, tenant.disk_mb))) as target:
            if isinstance(home, StateHome):
                home.copy_to(target)
            else:
                with Root(home if isinstance(home, str) else home.path) as root:
                    copy_tree(root, target)
        return made

    return await in_thread(copy, discard=lambda made: made.close())


# A copy passes over what is missing. So it is whole only if what was copied is still registered when it has ended: the
# files are removed after that.


async def copy_snapshot(service: Service, snapshot: Snapshot, tenant: Tenant) -> Home:
    """Copy the files of a snapshot. Raises `HttpError` 409 if it is removed meanwhile."""
    gone = HttpError(409, "the snapshot was removed meanwhile")
    return await _copy_whole(service, snapshot.home, tenant, lambda: snapshots_of(service).has(snapshot), gone)


async def copy_sandbox(service: Service, entry: SandboxEntry, tenant: Tenant) -> Home:
    """Copy the home of a sandbox. Raises `SandboxNotFound` if it is removed meanwhile."""
    is_there = lambda: service.sandboxes.find_any(entry.id) is entry  # noqa: E731
    return await _copy_whole(service, entry.sandbox.work_dir, tenant, is_there, _sandbox_removed())


async def _copy_whole(
    service: Service, home: str | Home, tenant: Tenant, is_there: Callable[[], bool], gone: Exception
) -> Home:
    try:
        made = await copy_home(service, home, tenant)
    except SandboxError:
        if is_there():
            raise
        raise gone from None
    async with on_error(lambda: in_thread(made.close)):
        if not is_there():
            raise gone
    return made


def _sandbox_removed() -> SandboxNotFound:
    return SandboxNotFound("the sandbox was removed while its files were copied")
