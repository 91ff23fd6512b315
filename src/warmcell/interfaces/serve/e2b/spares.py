"""Sandboxes made ahead, their cages standing: what a client would wait for is there before it asks.

Nobody has been in them, and nobody's name is on them. They are for who asks for nothing special, and others are made
when some were asked for; a server that nobody asks has none. They also keep alive what such sandboxes are forked from.
"""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.collecting import keep_what_is_loaded
from warmcell.interfaces.serve.e2b.box import HOME
from warmcell.interfaces.serve.e2b.starts import starts_of
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

#: What one takes of the machine, and of what this process may have open; generously.
_KB, _DESCRIPTORS = 8 << 10, 16
#: All of them may take so much of either: one part in so many.
_SHARE = 8
#: Each is asked while it waits whether anything has run in it, which takes a ten-thousandth of a processor.
_MOST = 64
#: None is made while some are asked for or start programs: it would take the processors from their first commands.
_QUIET_SECONDS, _MOST_QUIET_SECONDS = 0.05, 0.5
#: What nobody needed for so long goes.
_IDLE_SECONDS = 10.0


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
    """One, in `service.extras`. Belongs to the server's event loop.

    As many are wanted as were missed when they were asked for, and fewer again when some were never needed.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._most = most_spares(service.settings.spares, service.settings.workers)
        self._wanted = min(1, self._most)
        self._ready: list[Housed] = []
        #: Being ended: whoever is cancelled meanwhile leaves the rest to `aclose`.
        self._leaving: list[Housed] = []
        #: The fewest that were ready since somebody last looked.
        self._lowest = 0
        self._last_asked = 0.0
        self._has_made = False
        self._making: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        service.on_close.append(self.aclose)

    def take(self, tenant: Tenant) -> Housed | None:
        """One that is as this tenant's would be, if there is one. Others are made in its place."""
        loop, limits = asyncio.get_running_loop(), _limits(self._service, tenant)
        found = next((housed for housed in self._ready if housed.limits == limits), None)
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
        """Until there are as many as are wanted, one after another."""
        try:
            await self._quiet()
            await self._drop(self._useless_to(tenant))
            while len(self._ready) < self._wanted and not self._service.is_draining:
                self._ready.append(await self._made(tenant))
                await self._quiet()
            await self._drop(self._ready[self._wanted :])
        except SandboxError:
            return  # whoever asks next hears why
        finally:
            self._making = None

    def _useless_to(self, tenant: Tenant) -> list[Housed]:
        """Those of a policy that is no more; and where all are others', the oldest."""
        stale = [housed for housed in self._ready if housed.limits[0] != self._service.policy]
        is_full = len(self._ready) - len(stale) >= self._wanted
        limits = _limits(self._service, tenant)
        if is_full and not any(housed.limits == limits for housed in self._ready):
            return [*stale, *(housed for housed in self._ready[:1] if housed not in stale)]
        return stale

    async def _quiet(self) -> None:
        """Until nobody has asked for a moment, and all programs have started; but not for ever."""
        loop, starts = asyncio.get_running_loop(), starts_of(self._service)
        latest = loop.time() + _MOST_QUIET_SECONDS
        while (now := loop.time()) < latest:
            pause = self._last_asked + _QUIET_SECONDS - now
            if pause <= 0 and starts.is_idle:
                return
            await asyncio.sleep(min(latest - now, pause if pause > 0 else _QUIET_SECONDS))

    async def _made(self, tenant: Tenant) -> Housed:
        made = Housed(self._service, tenant, PrivateDirectory("work"), {})
        try:
            # The first program takes longer than all others: it finds cage and agent as they start.
            await (await made.sandbox.spawn(["true"], stdin=False)).wait()
        except BaseException:
            await made.destroy()
            raise
        if not self._has_made:
            self._has_made = True
            keep_what_is_loaded()  # what a first sandbox needs is loaded when it is made
        return made

    async def _drop(self, useless: list[Housed]) -> None:
        for housed in useless:
            self._ready.remove(housed)
            self._leaving.append(housed)
            await housed.destroy()
            self._leaving.remove(housed)

    def _look(self, tenant: Tenant) -> None:
        """Of those that nobody needed since the last time, half are enough, and at last one."""
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
        self._ready += self._leaving
        self._leaving = []
        await self._drop(list(self._ready))


def most_spares(asked: int | None, workers: int) -> int:
    """Of one worker. What was not said is by what the machine has, and by what this process may open."""
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
    found: Spares | None = service.extras.get("e2b spares")
    if found is None:
        found = service.extras["e2b spares"] = Spares(service)
    return found
