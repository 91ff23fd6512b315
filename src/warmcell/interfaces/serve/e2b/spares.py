"""A sandbox made ahead, its cage standing: what a client would wait for is there before it asks.

Nobody has been in it, and nobody's name is on it. It is for who asks for nothing special, and the next is made as soon
as one was asked for; a server that nobody asks has none. It also keeps alive what all such sandboxes are forked from.
"""

from __future__ import annotations

import asyncio
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.e2b.box import HOME
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread
from warmcell.policy.places import WORKSPACE_DIR
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.workspace.mount_points import MountPoint
from warmcell.workspace.private_directory import PrivateDirectory

#: Some clients work in the last unasked. They would make it themselves, and no guest makes directories at `/`. These
#: names are everybody's, so that all such sandboxes are forks of one zygote.
PLACES = (HOME, WORKSPACE_DIR)
ENVIRONMENT = {"HOME": HOME, "USER": "user", "LOGNAME": "user", "E2B_SANDBOX": "true"}


class Housed:
    """A sandbox and the home that it shows. `limits` is by what it was bounded: for others it is of no use."""

    def __init__(
        self,
        service: Service,
        tenant: Tenant,
        home: PrivateDirectory,
        env: dict[str, str],
        *,
        is_offline: bool = False,
    ) -> None:
        self.home, self.limits = home, _limits(service, tenant)
        mounts = [MountPoint(home.path, place, writable=True) for place in PLACES]
        options: dict[str, Any] = {"work_dir": home.path, "mounts": mounts}
        try:
            self.sandbox: AsyncSandbox = service.make_sandbox(
                tenant, env=ENVIRONMENT | env, track_changes=False, is_offline=is_offline, **options
            )
        except BaseException:
            home.close()
            raise

    async def destroy(self) -> None:
        try:
            await self.sandbox.destroy()
        finally:
            await in_thread(self.home.close)


def _limits(service: Service, tenant: Tenant) -> tuple[object, ...]:
    return service.policy, tenant.disk_mb


class Spares:
    """One, in `service.extras`. Belongs to the server's event loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ready: Housed | None = None
        self._making: asyncio.Task[None] | None = None
        service.on_close.append(self.aclose)

    def take(self, tenant: Tenant) -> Housed | None:
        """The one that is there, if it is as this tenant's would be. Another is made in its place."""
        found, self._ready = self._ready, None
        is_good = found is not None and found.limits == _limits(self._service, tenant)
        if self._making is None and not self._service.is_draining:
            self._making = asyncio.ensure_future(self._make(tenant, None if is_good else found))
        return found if is_good else None

    async def _make(self, tenant: Tenant, useless: Housed | None) -> None:
        if useless is not None:
            await useless.destroy()
        made = None
        try:
            made = Housed(self._service, tenant, PrivateDirectory("work"), {})
            # The first program takes longer than all others: it finds cage and agent as they start.
            await (await made.sandbox.spawn(["true"], stdin=False)).wait()
            self._ready, made = made, None
        except SandboxError:
            return  # whoever asks next hears why
        finally:
            self._making = None
            if made is not None:
                await made.destroy()

    async def aclose(self) -> None:
        while self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        if self._ready is not None:
            await self._ready.destroy()


def spares_of(service: Service) -> Spares:
    found: Spares | None = service.extras.get("e2b spares")
    if found is None:
        found = service.extras["e2b spares"] = Spares(service)
    return found
