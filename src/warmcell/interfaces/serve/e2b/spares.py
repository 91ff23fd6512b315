"""Spares: sandboxes made ahead, with running cages, so that clients do not wait for them.

They are unused and belong to no tenant. Requests without special options get them, and new ones are made when some were
taken; an idle server has none. They also keep alive the zygote that such sandboxes are forked from.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warmcell.core import events
from warmcell.core.errors import SandboxError
from warmcell.core.types import Limits
from warmcell.interfaces.serve.e2b.box import HOME
from warmcell.interfaces.serve.e2b.starts import starts_of
from warmcell.interfaces.serve.e2b.volumes import Volume
from warmcell.interfaces.serve.garbage_collection import freeze_loaded_objects
from warmcell.interfaces.serve.image_access import ImageChoice
from warmcell.interfaces.serve.saved_state import Home
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread
from warmcell.policy.places import WORKSPACE_DIR
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.workspace.mount_points import MountPoint

#: Some clients expect the second one; they would make it themselves, but a guest cannot make directories at `/`. All
#: sandboxes have the same places and so are forks of one zygote.
PLACES = (HOME, WORKSPACE_DIR)
ENVIRONMENT = {"HOME": HOME, "USER": "user", "LOGNAME": "user", "E2B_SANDBOX": "true"}

#: Memory and descriptors that one takes at most.
_KB, _DESCRIPTORS = 8 << 10, 16
#: All of them may take this fraction of either: one in `_SHARE`.
_SHARE = 8
#: Each is checked for activity while it waits, which takes a ten-thousandth of a processor.
_MOST = 64
#: None is made while sandboxes are requested or start programs: it would slow down their first commands.
_QUIET_SECONDS, _MOST_QUIET_SECONDS = 0.05, 0.5
#: How long an unneeded one is kept.
_IDLE_SECONDS = 10.0


class PreparedSandbox:
    """A sandbox and its home. `limits` are those it was made with: only requests with the same can use it."""

    def __init__(
        self,
        service: Service,
        tenant: Tenant,
        home: Home,
        env: dict[str, str],
        *,
        is_offline: bool = False,
        mounts: Sequence[MountPoint] = (),
        image: ImageChoice | None = None,
        disk_mb: int | None = None,
    ) -> None:
        """In an image, the rest of its root is the image's own. `disk_mb`: what it may write, if less than usual."""
        self.home, self.limits, self.image = home, _limits(service, tenant), image
        #: Of events of its cage: known when it is handed out.
        self.annotations: dict[str, Any] = {}
        #: Those that are mounted; counted while it exists.
        self.volumes: list[Volume] = []
        #: Of a template.
        self.build_id = ""
        homes = [MountPoint(home.path, place, writable=True) for place in (PLACES if image is None else (HOME,))]
        limits = None if disk_mb is None else Limits(disk_mb=disk_mb)
        options: dict[str, Any] = {"limits": limits, "work_dir": home.path, "mounts": [*homes, *mounts], "image": image}
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
    """One, in `service.state`. Belongs to the server's event loop.

    It keeps as many as were missing when they were requested, and fewer again when some are not needed.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._most = most_spares(service.settings.spares, service.settings.workers)
        self._wanted = min(1, self._most)
        self._ready: list[PreparedSandbox] = []
        #: Being destroyed. `aclose` finishes what a cancelled task left.
        self._ending: list[PreparedSandbox] = []
        #: The fewest that were ready since the last check.
        self._lowest = 0
        self._last_asked = 0.0
        self._has_made = False
        self._making: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        service.on_close.append(self.aclose)

    def take(self, tenant: Tenant) -> PreparedSandbox | None:
        """One with this tenant's limits, or None. Starts to make others in its place."""
        loop, limits = asyncio.get_running_loop(), _limits(self._service, tenant)
        found = next((spare for spare in self._ready if spare.limits == limits), None)
        if found is not None:
            self._ready.remove(found)
        elif self._last_asked:
            self._wanted = min(self._most, self._wanted + 1)
        self._lowest = min(self._lowest, len(self._ready))
        self._last_asked = loop.time()
        if self._making is None and not self._service.is_draining:
            self._making = asyncio.ensure_future(self._make(tenant))
        if self._looking is None:
            self._looking = loop.call_later(_IDLE_SECONDS, self._look, tenant)
        return found

    async def _make(self, tenant: Tenant) -> None:
        """Make as many as are wanted, one after another."""
        try:
            await self._wait_until_quiet()
            await self._drop(self._useless_to(tenant))
            while len(self._ready) < self._wanted and not self._service.is_draining:
                self._ready.append(await self._make_one(tenant))
                await self._wait_until_quiet()
            await self._drop(self._ready[self._wanted :])
        except SandboxError:
            return  # the next request meets the same error and reports it
        finally:
            self._making = None

    def _useless_to(self, tenant: Tenant) -> list[PreparedSandbox]:
        """Those of an old policy; if all are for other limits, also the oldest."""
        stale = [spare for spare in self._ready if spare.limits[0] != self._service.policy]
        is_full = len(self._ready) - len(stale) >= self._wanted
        limits = _limits(self._service, tenant)
        if is_full and not any(spare.limits == limits for spare in self._ready):
            return [*stale, *(spare for spare in self._ready[:1] if spare not in stale)]
        return stale

    async def _wait_until_quiet(self) -> None:
        """Wait until no sandbox was requested for a moment and all programs have started, within a bound."""
        loop, starts = asyncio.get_running_loop(), starts_of(self._service)
        latest = loop.time() + _MOST_QUIET_SECONDS
        while (now := loop.time()) < latest:
            pause = self._last_asked + _QUIET_SECONDS - now
            if pause <= 0 and starts.is_idle:
                return
            await asyncio.sleep(min(latest - now, pause if pause > 0 else _QUIET_SECONDS))

    async def _make_one(self, tenant: Tenant) -> PreparedSandbox:
        made = PreparedSandbox(self._service, tenant, self._service.make_home(), {})
        try:
            # The first program takes longer than others: cage and agent start with it.
            with events.annotate(made.annotations):
                await (await made.sandbox.spawn(["true"], stdin=False)).wait()
        except BaseException:
            await made.destroy()
            raise
        if not self._has_made:
            self._has_made = True
            freeze_loaded_objects()  # making the first one has loaded everything that is needed
        return made

    async def _drop(self, useless: list[PreparedSandbox]) -> None:
        for spare in useless:
            self._ready.remove(spare)
            self._ending.append(spare)
            await spare.destroy()
            self._ending.remove(spare)

    def _look(self, tenant: Tenant) -> None:
        """Halve the number of those that were not needed since the last check, down to one."""
        self._wanted = max(min(1, self._most), self._wanted - (self._lowest + 1) // 2)
        self._lowest, self._looking = min(len(self._ready), self._wanted), None
        if self._service.is_draining or max(self._wanted, len(self._ready)) <= 1:
            return
        self._looking = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._look, tenant)
        if self._making is None:
            self._making = asyncio.ensure_future(self._make(tenant))

    async def aclose(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        while self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        self._ready += self._ending
        self._ending = []
        await self._drop(list(self._ready))


def most_spares(asked: int | None, workers: int) -> int:
    """The number for one worker. The default depends on the free memory and the limit on descriptors."""
    if asked is not None:
        return -(-asked // workers)
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    by_descriptors = _MOST if descriptors == resource.RLIM_INFINITY else descriptors // _SHARE // _DESCRIPTORS
    return max(1, min(_MOST // workers, _available_kb() // _SHARE // _KB // workers, by_descriptors))


def _available_kb() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)


def spares_of(service: Service) -> Spares:
    return service.state.get(Spares, lambda: Spares(service))
