"""E2B's snapshots and forks, as far as files go: copies of a sandbox's home, which new sandboxes begin with."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

from warmcell.interfaces.serve.exchange import Refused
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.quota import Quota
from warmcell.workspace.root import Root

PREFIX = "snapshot-"


class Snapshot:
    """One copy. `source` is the id of the sandbox that it was taken from."""

    def __init__(self, tenant: Tenant, source: str, name: str | None, home: PrivateDirectory) -> None:
        self.id = PREFIX + secrets.token_hex(16)
        self.tenant_id, self.source, self.home = tenant.id, source, home
        self.names = [name] if name else []

    def plain(self) -> dict[str, Any]:
        return {"snapshotID": self.id, "names": self.names}


class Snapshots:
    """Of all tenants, each of whom sees its own. They live as long as the server does."""

    def __init__(self) -> None:
        self._all: dict[str, Snapshot] = {}
        #: By tenant: those that are being copied.
        self._coming: Counter[str] = Counter()

    async def take(self, tenant: Tenant, source: str, home: str, name: str | None) -> Snapshot:
        if len(self.of(tenant)) + self._coming[tenant.id] >= tenant.sandboxes:
            raise Refused(429, f"you have {tenant.sandboxes} snapshots already")
        self._coming[tenant.id] += 1
        try:
            copy = await copied(home, tenant)
        finally:
            self._coming[tenant.id] -= 1
        made = Snapshot(tenant, source, name, copy)
        self._all[made.id] = made
        return made

    def of(self, tenant: Tenant) -> list[Snapshot]:
        return [snapshot for snapshot in self._all.values() if snapshot.tenant_id == tenant.id]

    def find(self, tenant: Tenant, name: str) -> Snapshot | None:
        """By its id or its name, a tag left aside."""
        plain = name.removesuffix(":default")
        return next((item for item in self.of(tenant) if plain == item.id or plain in item.names), None)

    async def remove(self, snapshot: Snapshot) -> None:
        if self._all.pop(snapshot.id, None) is not None:
            await in_thread(snapshot.home.close)

    async def keep_only(self, tenants: set[str]) -> None:
        for snapshot in list(self._all.values()):
            if snapshot.tenant_id not in tenants:
                await self.remove(snapshot)

    async def aclose(self) -> None:
        for snapshot in list(self._all.values()):
            await self.remove(snapshot)


def snapshots_of(service: Service) -> Snapshots:
    if "e2b" not in service.extras:
        made = service.extras["e2b"] = Snapshots()
        service.on_close.append(made.aclose)
        service.on_revoked.append(made.keep_only)
    found: Snapshots = service.extras["e2b"]
    return found


async def copied(home: str, tenant: Tenant) -> PrivateDirectory:
    """A directory of its own with the same files, within the tenant's disk."""

    def copy() -> PrivateDirectory:
        made = PrivateDirectory("work")
        try:
            source, target = Root(home), Root(made.path, quota=Quota(max(1, tenant.disk_mb)))
            try:
                copy_tree(source, target)
            finally:
                source.close()
                target.close()
        except BaseException:
            made.close()
            raise
        return made

    return await in_thread(copy)
