"""Spares: sandboxes made ahead, with running cages, so that clients do not wait for them.

They are unused and belong to no tenant. Requests without special options get them, and new ones are made when some are
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
from warmcell.core.light import on_error
from warmcell.core.types import Limits
from warmcell.interfaces.serve.e2b.box import HOME, starts_of
from warmcell.interfaces.serve.e2b.volumes import Volume, release_volumes
from warmcell.interfaces.serve.preloading import freeze_loaded_objects
from warmcell.interfaces.serve.run_places import ImageChoice
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.state_homes import Home
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread
from warmcell.policy.places import WORKSPACE_DIR
from warmcell.pool.supply import Item, Supply
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.workspace.mount_points import MountPoint, OwnDirectory

#: Some clients expect the second one; a guest cannot make directories at `/`, so they could not make it themselves. All
#: sandboxes have the same mount points, so they are forks of one zygote.
PLACES = (HOME, WORKSPACE_DIR)
ENVIRONMENT = {"HOME": HOME, "USER": "user", "LOGNAME": "user", "E2B_SANDBOX": "true"}

#: The most memory and descriptors that one spare takes.
_KB, _DESCRIPTORS = 8 << 10, 16
#: All spares together may take one part in `_SHARE` of the free memory and descriptors.
_SHARE = 8
#: The most spares. Each is checked for activity while it waits, which takes a ten-thousandth of a processor.
_MOST = 64
#: No spare is made while sandboxes are requested or start programs: it would slow down their first commands.
_QUIET_SECONDS, _MOST_QUIET_SECONDS = 0.05, 0.5
#: How long an unneeded spare is kept.
_IDLE_SECONDS = 10.0


class PreparedSandbox:
    """A sandbox and its home, not yet handed to a client."""

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
        self.home, self.image = home, image
        #: Annotations of its cage's events, set when it is handed out.
        self.annotations: dict[str, Any] = {}
        #: The mounted volumes. Their count is released by `destroy`, or with the entry of the sandbox.
        self.volumes: list[Volume] = []
        #: The id of the build of its template; empty without one.
        self.build_id = ""
        homes = [MountPoint(home.path, place, writable=True) for place in (PLACES if image is None else (HOME,))]
        limits = None if disk_mb is None else Limits(disk_mb=disk_mb)
        options: dict[str, Any] = {"limits": limits, "mounts": [*homes, *mounts], "image": image}
        with on_error(home.close):
            self.sandbox: AsyncSandbox = service.make_sandbox(
                tenant,
                env=ENVIRONMENT | env,
                track_changes=False,
                is_offline=is_offline,
                work_dir=OwnDirectory(home.path),
                **options,
            )

    async def destroy(self) -> None:
        try:
            await self.sandbox.destroy()
        finally:
            release_volumes(self.volumes)
            await in_thread(self.home.close)


class Spares(Supply[int | None, PreparedSandbox]):
    """Spares by disk limit. There is one, in `service.state`. Belongs to the server's event loop.

    It keeps as many as were missing when they were requested, and fewer again when some are not needed.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._policy = service, service.policy
        most = max_spares(service.settings.spares, service.settings.workers)
        super().__init__(0, most, most)
        #: By disk limit: the tenant that asked last.
        self._tenants: dict[int | None, Tenant] = {}
        #: Spares to be destroyed. `aclose` finishes what a cancelled task left.
        self._ending: list[PreparedSandbox] = []
        self._last_asked = self._next_lowering = 0.0
        self._has_made = False
        self._keeping: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        service.on_close.append(self.aclose)

    def raise_target(self, target: int) -> int:
        return target + 1

    def lower_targets(self, now: float) -> None:
        """Halve the number of spares that were not needed since the last call, down to one."""
        if now < self._next_lowering:
            return
        self._next_lowering = now + _IDLE_SECONDS
        for number, demand in enumerate(reversed(self.demands.values())):
            unneeded = sum(item.since <= now - _IDLE_SECONDS for item in demand.ready)
            least = min(demand.target, int(number == 0))
            demand.target = max(least, demand.target - (unneeded + 1) // 2)

    def take(self, tenant: Tenant) -> PreparedSandbox | None:
        """Take a spare with this tenant's limits, or None. Starts to make another in its place."""
        if self._service.policy != self._policy:
            self._policy = self._service.policy
            self._ending += self.clear()
        self._tenants[tenant.disk_mb] = tenant
        self._last_asked = asyncio.get_running_loop().time()
        found = self.take_ready(tenant.disk_mb, self._last_asked)
        self._start_keeping()
        return found

    def _start_keeping(self) -> None:
        if self._keeping is None and not self._service.is_draining:
            self._keeping = asyncio.ensure_future(self._keep_spares())

    async def _keep_spares(self) -> None:
        """Make missing spares, one after another, and destroy unneeded ones. Repeats while there may be too many."""
        loop = asyncio.get_running_loop()
        try:
            await self._wait_until_quiet()
            while not self._service.is_draining:
                self._ending += self.surplus(loop.time())
                await self._destroy_ending()
                if not (wanted := self.start_making(1)):
                    break
                await self._make(wanted[0])
                await self._wait_until_quiet()
            if len(self.ready()) > 1 and (self._timer is None or self._timer.when() <= loop.time()):
                self._timer = loop.call_later(_IDLE_SECONDS, self._start_keeping)
        except SandboxError:
            return  # the next request meets the same error and reports it
        finally:
            self._keeping = None

    async def _wait_until_quiet(self) -> None:
        """Wait until no sandbox was requested for a moment and all programs have started, within a bound."""
        loop, starts = asyncio.get_running_loop(), starts_of(self._service)
        latest = loop.time() + _MOST_QUIET_SECONDS
        while (now := loop.time()) < latest:
            pause = self._last_asked + _QUIET_SECONDS - now
            if pause <= 0 and starts.is_idle:
                return
            await asyncio.sleep(min(latest - now, pause if pause > 0 else _QUIET_SECONDS))

    async def _make(self, item: Item[int | None, PreparedSandbox]) -> None:
        try:
            made = await self._make_one(self._tenants[item.key])
            if not self.finish(item, made, asyncio.get_running_loop().time()):
                self._ending.append(made)
        finally:
            self.fail(item)  # unless it is finished

    async def _make_one(self, tenant: Tenant) -> PreparedSandbox:
        made = PreparedSandbox(self._service, tenant, self._service.make_home(), {})
        async with on_error(made.destroy):
            # The first program takes longer than others: cage and agent start with it.
            with events.annotate(made.annotations):
                await (await made.sandbox.spawn(["true"], stdin=False)).wait()
        if not self._has_made:
            self._has_made = True
            freeze_loaded_objects()  # making the first one has loaded everything that is needed
        return made

    async def _destroy_ending(self) -> None:
        while self._ending:
            await self._ending[0].destroy()
            del self._ending[0]

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        self._ending += self.clear()
        await self._destroy_ending()


def max_spares(asked: int | None, workers: int) -> int:
    """The maximum for one worker. The default depends on the free memory and the limit on descriptors."""
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
