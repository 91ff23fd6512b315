"""The start and ready commands of a template: tried at the end of its build, and run in every sandbox made from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from warmcell.core.errors import SandboxError
from warmcell.images import Image
from warmcell.interfaces.serve.e2b.snapshots import copy_home
from warmcell.interfaces.serve.e2b.spares import PreparedSandbox
from warmcell.interfaces.serve.e2b.template_build import FINALIZE, TemplateFailed
from warmcell.interfaces.serve.e2b.template_builder import builds_of
from warmcell.interfaces.serve.e2b.template_records import Build
from warmcell.interfaces.serve.run_places import ImageChoice
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.state_homes import Home
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.processes import AsyncProcess

#: How long the ready command may take to succeed: in a build, and for a new sandbox, which goes on without it then.
TRY_SECONDS, READY_SECONDS = 300.0, 20.0
#: Between two attempts.
_PAUSE_SECONDS = 0.5
_SHELL = ("/bin/bash", "-l", "-c")


async def run_start_command(sandbox: AsyncSandbox, build: Build) -> AsyncProcess | None:
    """The process of the start command, which goes on; None if the template has none."""
    return await sandbox.spawn([*_SHELL, build.start_command], stdin=False) if build.start_command else None


async def is_ready(sandbox: AsyncSandbox, build: Build, seconds: float) -> bool:
    """Whether the ready command, tried again and again, has succeeded in time."""
    if not build.ready_command:
        return True
    try:
        async with asyncio.timeout(seconds):
            while True:
                attempt = await sandbox.spawn([*_SHELL, build.ready_command], stdin=False)
                try:
                    if (await attempt.wait()).exit_code == 0:
                        return True
                finally:
                    attempt.local.kill_soon()
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        return False


async def copy_template_home(service: Service, tenant: Tenant, build: Build, *, is_saved: bool = True) -> Home:
    """What sandboxes of the template find in /home/user."""
    source = builds_of(service).records(tenant).place_of(build.id, "home")
    return await copy_home(service, source, tenant, is_saved=is_saved)


def trial_of(service: Service, tenant: Tenant) -> Callable[[Build, Image], Awaitable[None]]:
    """Tries a build that has commands. A start command that fails at once, or never gets ready, fails the build."""

    async def attempt(build: Build, image: Image) -> None:
        if not (build.start_command or build.ready_command):
            return
        with service.sandboxes.reserve(tenant):
            home = await copy_template_home(service, tenant, build, is_saved=False)
        prepared = PreparedSandbox(service, tenant, home, {}, image=ImageChoice(image))
        try:
            started = await run_start_command(prepared.sandbox, build)
            is_up = await is_ready(prepared.sandbox, build, TRY_SECONDS)
            if started is not None and not started.is_running and (status := (await started.wait()).exit_code):
                raise TemplateFailed(FINALIZE, f"the start command failed: exit status {status}")
            if not is_up:
                raise TemplateFailed(FINALIZE, f"the ready command did not succeed within {TRY_SECONDS:g} s")
        except SandboxError as error:
            raise TemplateFailed(FINALIZE, error.message) from None
        finally:
            await prepared.destroy()

    return attempt
