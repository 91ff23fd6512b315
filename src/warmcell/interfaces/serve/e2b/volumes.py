"""E2B's volumes: directories of a tenant that outlast sandboxes and are mounted in them.

With `--state` the next server restores them.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from warmcell.core.light import on_error
from warmcell.core.types import MIB
from warmcell.interfaces.serve.e2b.volume_space import MountedSpace, VolumeSpace
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.saved_state import VOLUMES, remove_unused
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.own_modes import make_directory
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.local.pip_packages import is_directory
from warmcell.workspace.mount_points import MountPoint
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import Quota

_log = logging.getLogger("warmcell.serve")
PREFIX = "vol-"


class Volume:
    """`token` is the secret for its content, which clients get with the volume."""

    def __init__(self, identity: str, tenant_id: str, name: str, token: str, path: str) -> None:
        self.id, self.tenant_id, self.name, self.token, self.path = identity, tenant_id, name, token, path
        #: Sandboxes that have it mounted.
        self.users = 0
        #: Held by a request that changes files: a walk that counts half of a change would make the account wrong.
        self.changing = asyncio.Lock()
        self.space, self.mounted_space = VolumeSpace(path), MountedSpace(path)

    def plain(self) -> dict[str, Any]:
        return {"volumeID": self.id, "name": self.name}

    def has_token(self, token: str | None) -> bool:
        return hmac.compare_digest((token or "").encode(), self.token.encode())

    def prepare(self, tenant: Tenant, added: int, entries: int = 1) -> Quota:
        """The quota for a request that adds so much. Raises `LimitExceeded`. Call in a thread, holding `changing`."""
        return self.space.prepare(max(1, tenant.disk_mb), added, entries, is_mounted=self.users > 0)


class Volumes:
    """The volumes of all tenants; each sees its own."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._all: dict[str, Volume] = {}
        #: Their directory without a state; removed with the server.
        self._private: PrivateDirectory | None = None
        service.on_close.append(self._close)
        service.on_revoked.append(self._remove_all)

    def load(self) -> None:
        """Restore the volumes of the previous server. A directory without a record was being made or removed."""
        state = self._service.saved
        if state is None or self.refusal is not None:
            return
        if state.is_encrypted:
            _log.warning("volumes are not encrypted: everything in %s/%s is plain", state.path, VOLUMES)
        place = os.path.join(state.path, VOLUMES)
        for document in state.documents(VOLUMES):
            identity, path = str(document["id"]), os.path.join(place, str(document["id"]))
            if is_directory(path):
                tenant, name, token = (str(document.get(field)) for field in ("tenant", "name", "token"))
                self._all[identity] = Volume(identity, tenant, name, token, path)
        for entry in [] if state.has_unreadable else list(os.scandir(place)):  # it may be that of such a record
            if entry.name not in self._all and not entry.name.endswith(".json"):
                remove_unused(entry)

    @property
    def refusal(self) -> HttpError | None:
        """The error of a server without volumes; None if it has them."""
        state = self._service.saved
        if state is None or not state.is_encrypted or self._service.settings.plain_volumes:
            return None
        reason = "this server encrypts what it stores, and volumes, which sandboxes mount, cannot be encrypted"
        return HttpError(501, f"{reason}; its operator can allow plain ones with --plain-volumes")

    async def create(self, tenant: Tenant, name: str) -> Volume:
        if (refusal := self.refusal) is not None:
            raise refusal
        owned = self.of(tenant)
        if any(volume.name == name for volume in owned):
            raise HttpError(409, f"a volume named '{name}' exists")
        if len(owned) >= tenant.sandboxes:
            raise HttpError(429, f"this token already has {tenant.sandboxes} volumes; remove one")
        identity = PREFIX + secrets.token_hex(16) + self._service.sandboxes.suffix
        path = os.path.join(self._directory(), identity)
        made = Volume(identity, tenant.id, name, secrets.token_urlsafe(32), path)
        self._all[identity] = made  # before the first await: two requests cannot take the same name
        with on_error(lambda: self._all.pop(identity, None)):
            await in_thread(lambda: self._save(made), discard=lambda _: self._erase(made))
        if identity not in self._all:
            raise HttpError(404, "volume not found: it was removed while it was made")
        return made

    def _directory(self) -> str:
        if self._service.saved is not None:
            return os.path.join(self._service.saved.path, VOLUMES)
        if self._private is None:
            self._private = PrivateDirectory("work")
        return self._private.path

    def _save(self, volume: Volume) -> None:
        make_directory(volume.path)
        if self._service.saved is not None:
            document = {"id": volume.id, "tenant": volume.tenant_id, "name": volume.name, "token": volume.token}
            document |= {"created": str(time.time())}
            self._service.saved.put(VOLUMES, volume.id, document, is_durable=True)
        if volume.id not in self._all:  # removed meanwhile, perhaps before there was a record
            self._erase(volume)

    def _erase(self, volume: Volume) -> None:
        """Remove a volume that was given up or removed while it was made. Its record would restore it."""
        if self._service.saved is not None:
            self._service.saved.remove(VOLUMES, volume.id)
        remove_directory(volume.path)

    def of(self, tenant: Tenant) -> list[Volume]:
        return [volume for volume in self._all.values() if volume.tenant_id == tenant.id]

    def find(self, tenant: Tenant, identity: str) -> Volume:
        found = self._all.get(identity)
        if found is None or found.tenant_id != tenant.id:
            raise HttpError(404, "volume not found")
        return found

    def find_any(self, identity: str) -> Volume | None:
        """Find a volume of any tenant, for clients that present its token."""
        return self._all.get(identity)

    async def remove(self, volume: Volume) -> None:
        if volume.users:
            raise HttpError(409, f"the volume '{volume.name}' is mounted in {volume.users} sandboxes; kill them first")
        del self._all[volume.id]
        if self._service.saved is not None:
            self._service.saved.remove(VOLUMES, volume.id)
        await in_thread(lambda: remove_directory(volume.path))

    def find_mounts(self, tenant: Tenant, asked: Iterable[tuple[str, str]]) -> list[tuple[Volume, MountPoint]]:
        """Find volumes by name or id, with their mount points. Raises `HttpError` 404 for an unknown one."""
        mounts = []
        for name, path in asked:
            if (refusal := self.refusal) is not None:
                raise refusal
            found = next((volume for volume in self.of(tenant) if name in (volume.name, volume.id)), None)
            if found is None:
                raise HttpError(404, f"volume '{name[:80]}' not found")
            mounts.append((found, MountPoint(found.path, path, writable=True)))
        return mounts

    async def _remove_all(self, tenants: set[str]) -> None:
        """Remove volumes of revoked tokens, whose sandboxes have ended."""
        for volume in [volume for volume in self._all.values() if volume.tenant_id in tenants]:
            if volume.id not in self._all:  # another reload has removed it meanwhile
                continue
            volume.users = 0
            try:
                await self.remove(volume)
            except Exception:  # those of other tokens have to go too
                _log.exception("cannot remove a volume of a revoked token")

    async def _close(self) -> None:
        if self._private is not None:
            await in_thread(self._private.close)


async def remaining_space(tenant: Tenant, volumes: Sequence[Volume], *, is_new: bool) -> int | None:
    """The MB that a sandbox with these volumes may write: what the fullest has left. None without volumes.

    Raises `HttpError` 413 for a full volume in a new sandbox. A restored sandbox gets it, to be cleaned up.
    """
    rooms = []
    for volume in dict.fromkeys(volumes):  # one may be mounted at several places
        async with volume.changing:
            room = max(1, tenant.disk_mb) - await in_thread(volume.mounted_space.measure) // MIB
        if is_new and room < 1:
            raise HttpError(413, f"the volume '{volume.name}' uses all {tenant.disk_mb} MB of this token; remove files")
        rooms.append(max(1, room))
    return min(rooms, default=None)


def use_volumes(volumes: list[Volume]) -> list[Volume]:
    """Count the volumes as mounted until `release_volumes`."""
    for volume in volumes:
        volume.users += 1
        volume.space.is_shared = True
    return volumes


def release_volumes(volumes: list[Volume]) -> None:
    for volume in volumes:
        volume.users = max(0, volume.users - 1)


def volumes_of(service: Service) -> Volumes:
    return service.state.get(Volumes, lambda: Volumes(service))
