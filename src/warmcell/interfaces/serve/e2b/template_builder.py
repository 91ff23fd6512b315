"""TemplateBuilds: the builds that this server carries out, one at a time for each tenant.

The start and ready commands of a template are tried at the end of its build, and run in every sandbox made from it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.core.light import on_error
from warmcell.core.records import replace
from warmcell.core.timestamps import rfc3339
from warmcell.images import Image
from warmcell.interfaces.serve.e2b.snapshots import copy_home
from warmcell.interfaces.serve.e2b.spares import PreparedSandbox
from warmcell.interfaces.serve.e2b.template_build import (
    BASE,
    FINALIZE,
    BuildCancelled,
    Cancellation,
    StartBuild,
    TemplateBuild,
    TemplateFailed,
    copy_home_of,
)
from warmcell.interfaces.serve.e2b.template_records import (
    BUILDING,
    READY,
    WAITING,
    Build,
    Template,
    TemplateRecords,
    Uploads,
)
from warmcell.interfaces.serve.responses import HttpError, public_message
from warmcell.interfaces.serve.run_places import TEMPLATE_HOST, ImageChoice
from warmcell.interfaces.serve.server_limits import server_policy
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.state_homes import Home
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import cancel_and_wait, in_thread
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.processes import AsyncProcess
from warmcell.workspace.remove import remove_directory

_log = logging.getLogger("warmcell.serve")
#: How long a build may take, including its wait for others.
BUILD_SECONDS = 3600.0
#: Builds at a time, of all tenants.
MAX_BUILDS = 4
#: A build's log has at most so many entries, and so many characters. A status request reads all of it.
MAX_LOG, MAX_LOG_CHARACTERS = 20_000, 4 << 20
#: The image of E2B's base template. Operators import one under this name.
BASE_IMAGE, BASE_TEMPLATES = "e2bdev/base", ("base", "code-interpreter-v1", "code-interpreter")
#: How long the ready command may take to succeed: in a build, and for a new sandbox, which goes on without it then.
TRY_SECONDS, READY_SECONDS = 300.0, 20.0
#: Between two attempts.
_PAUSE_SECONDS = 0.5
_SHELL = ("/bin/bash", "-l", "-c")


async def run_start_command(
    service: Service, tenant: Tenant, sandbox: AsyncSandbox, build: Build
) -> AsyncProcess | None:
    """Start the template's start command; return its process, or None if the template has none.

    It counts as a process of the tenant. Raises `HttpError` 429 if the tenant has as many as it may have.
    """
    if not build.start_command:
        return None
    argv = [*_SHELL, build.start_command]
    return await service.start_process(tenant, lambda: sandbox.spawn(argv, stdin=False))


async def is_ready(sandbox: AsyncSandbox, build: Build, seconds: float) -> bool:
    """Repeat the ready command until it succeeds; return False if it did not within `seconds`."""
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
    """Copy the template's /home/user for a new sandbox. Raises `HttpError` 409 if the build is gone meanwhile."""
    records = builds_of(service).records(tenant)
    gone = HttpError(409, "the template was built again or removed meanwhile; try again")
    try:
        made = await copy_home(service, records.place_of(build.id, "home"), tenant, is_saved=is_saved)
    except SandboxError:
        if await in_thread(partial(records.has_build, build.id)):
            raise
        raise gone from None
    async with on_error(lambda: in_thread(made.close)):
        if not await in_thread(partial(records.has_build, build.id)):  # then its files went during the copy
            raise gone
    return made


class BuildLog:
    """Collects entries in the build's thread, and writes some at a time."""

    def __init__(self, records: TemplateRecords, build: str) -> None:
        self._records, self._build = records, build
        self._lock = threading.Lock()
        self._pending: list[dict[str, Any]] = []
        self._count, self._characters, self._written = 0, 0, 0.0
        self._is_full = False

    def add(self, message: str, level: str = "info", step: str = "") -> None:
        with self._lock:
            if self._is_full:
                return
            self._count, self._characters = self._count + 1, self._characters + len(message)
            self._is_full = self._count == MAX_LOG or self._characters > MAX_LOG_CHARACTERS
            last = "the log is full" if self._is_full else message
            entry = {"timestamp": rfc3339(time.time()), "message": last, "level": level, "step": step}
            self._pending.append(entry)
            if time.monotonic() - self._written < 0.1:
                return
        self.flush()

    def flush(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
            self._written = time.monotonic()
            if pending:
                self._records.append_log(self._build, pending)


class TemplateBuilds:
    """Belongs to the server's event loop. Builds end with their token, and with the server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.store = service.images.store
        self.uploads = Uploads(self.store.path)
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._slots = asyncio.Semaphore(MAX_BUILDS)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        service.on_close.append(lambda: cancel_and_wait(*(task for _, task in self._tasks.values())))
        service.on_revoked.append(self._cancel_all)

    def records(self, tenant: Tenant) -> TemplateRecords:
        return TemplateRecords(self.store.path, tenant.id)

    async def find(self, tenant: Tenant, name: str) -> tuple[Template, Build, Image] | None:
        """Find the build and the image of a name with its tag; None if the tenant has no such template."""
        found = await in_thread(partial(self.records(tenant).find, name))
        if found is None:
            return None
        build = found.build_of(name.partition(":")[2] or "default")
        if build is None or build.status != READY:
            raise HttpError(400, f"the template '{name[:80]}' has no finished build with this tag")
        return found, build, await in_thread(partial(self.store.get, build.digest))

    async def find_again(self, tenant: Tenant, name: str, build_id: str) -> tuple[Build, Image]:
        """Find the build that a saved sandbox was made of; if it was replaced, the one that the name refers to now."""
        template = await in_thread(partial(self.records(tenant).find, name))
        build = None if template is None else template.builds.get(build_id)
        if build is not None and build.status == READY:
            return build, await in_thread(partial(self.store.get, build.digest))
        found = await self.find(tenant, name)
        if found is None:
            raise HttpError(404, f"its template '{name[:80]}' was removed")
        return found[1], found[2]

    async def start(self, tenant: Tenant, identity: str, build: str, start_request: StartBuild) -> None:
        """Start the build and return. Raises 409 if it was started before."""
        records = self.records(tenant)
        base, is_template = await self._find_base(tenant, start_request)

        def begin() -> Template:
            with records.change(identity) as template:
                if build not in template.builds:
                    raise HttpError(404, "build not found")
                if template.builds[build].status != WAITING or build in self._tasks:
                    raise HttpError(409, "the build was started before")
                begun = template.builds[build]
                begun.status, begun.updated = BUILDING, time.time()
                begun.start_command, begun.ready_command = start_request.startCmd or "", start_request.readyCmd or ""
            return template

        carrying = records.carry_out(build)
        await in_thread(carrying.__enter__)
        async with on_error(lambda: in_thread(partial(carrying.__exit__, None, None, None))):
            template = await in_thread(begin)
        work = self._carry_out(tenant, identity, template.builds[build], start_request, base, is_template)
        task = asyncio.ensure_future(work)
        self._tasks[build] = (tenant.id, task)

        def on_end(_: object) -> None:
            del self._tasks[build]
            carrying.__exit__(None, None, None)

        task.add_done_callback(on_end)

    async def _find_base(self, tenant: Tenant, start_request: StartBuild) -> tuple[Image | TemplateFailed, bool]:
        """A base that does not exist is an error of the build, not of the request that starts it."""
        try:
            if start_request.fromTemplate and start_request.fromTemplate not in BASE_TEMPLATES:
                found = await self.find(tenant, start_request.fromTemplate)
                if found is None:
                    raise TemplateFailed(BASE, f"template '{start_request.fromTemplate[:80]}' not found")
                return found[2], True
            choice = await self._service.images.find(start_request.fromImage or BASE_IMAGE)
            assert choice is not None
            return choice.image, False
        except TemplateFailed as error:
            return error, False
        except HttpError as error:
            return TemplateFailed(BASE, error.message), False
        except SandboxError as error:
            return TemplateFailed(BASE, str(error)), False

    async def _carry_out(
        self,
        tenant: Tenant,
        identity: str,
        build: Build,
        start_request: StartBuild,
        base: Image | TemplateFailed,
        is_template: bool,
    ) -> None:
        records, log = self.records(tenant), BuildLog(self.records(tenant), build.id)
        digest, message, step = "", "", ""
        try:
            async with asyncio.timeout(BUILD_SECONDS), self._turns[tenant.id], self._slots:
                if isinstance(base, TemplateFailed):
                    raise base
                image = await self._build(tenant, build, start_request, base, is_template, log)
                await self._try(tenant, build, image)
            digest = image.digest
        except TemplateFailed as error:
            message, step = error.message, error.step
        except HttpError as error:  # only trying its commands raises one
            message, step = error.message, FINALIZE
        except SandboxError as error:
            message = public_message(error)
        except TimeoutError:
            message = f"the build did not finish within {BUILD_SECONDS:g} s"
        except asyncio.CancelledError:
            message = "the build was cancelled"
        except Exception as error:
            _log.exception("a template build failed with an internal error")
            message = f"internal server error ({type(error).__name__})"
        if message:
            log.add(message, "error", step)
        await in_thread(log.flush)
        if not digest:
            await in_thread(partial(self._remove_files, tenant, build.id))
        with suppress(HttpError):  # the template was removed meanwhile
            end = partial(records.end_build, identity, build.id, digest=digest, message=message, step=step)
            await in_thread(end)
        await self.remove_leftovers(tenant)

    async def _build(
        self, tenant: Tenant, build: Build, start_request: StartBuild, base: Image, is_template: bool, log: BuildLog
    ) -> Image:
        policy = server_policy(self._service.policy)
        policy = replace(policy, allowed_paths=(), gpus=None, allow_process_spawn=True)
        cancellation, records = Cancellation(), self.records(tenant)
        most_mb = max(1, tenant.disk_mb)
        work = TemplateBuild(self.store, self.uploads, tenant.id, start_request, policy, most_mb, cancellation, log.add)
        name = image_name(tenant, build.id)

        def carry_out() -> Image:
            with self.store.lease(base):
                image = work.run(base, name, is_template=is_template)
                copy_home_of(image, records.place_of(build.id, "home"), most_mb, cancellation.check)
                return image

        try:
            return await in_thread(carry_out, cancellation.cancel)
        except BuildCancelled:
            raise asyncio.CancelledError from None

    async def _try(self, tenant: Tenant, build: Build, image: Image) -> None:
        """Try the commands of a build. It fails if its start command fails or never gets ready. The sandbox counts."""
        if not (build.start_command or build.ready_command):
            return
        with self._service.sandboxes.reserve(tenant):
            home = await copy_template_home(self._service, tenant, build, is_saved=False)
            prepared = PreparedSandbox(self._service, tenant, home, {}, image=ImageChoice(image))
            try:
                started = await run_start_command(self._service, tenant, prepared.sandbox, build)
                is_up = await is_ready(prepared.sandbox, build, TRY_SECONDS)
                if started is not None and not started.is_running and (status := (await started.wait()).exit_code):
                    raise TemplateFailed(FINALIZE, f"the start command failed: exit status {status}")
                if not is_up:
                    raise TemplateFailed(FINALIZE, f"the ready command did not succeed within {TRY_SECONDS:g} s")
            except SandboxError as error:
                raise TemplateFailed(FINALIZE, error.message) from None
            finally:
                await prepared.destroy()

    async def remove_leftovers(self, tenant: Tenant) -> None:
        """Remove files and images of builds that no template has."""

        def remove() -> None:
            for build in self.records(tenant).remove_leftovers():
                self._remove_files(tenant, build)

        await in_thread(remove)

    def _remove_files(self, tenant: Tenant, build: str) -> None:
        remove_directory(self.records(tenant).place_of(build, "home"))
        with suppress(SandboxError, FileNotFoundError):  # it has no image, or another worker was faster
            self.store.remove(image_name(tenant, build))

    async def cancel(self, build: str) -> None:
        if build in self._tasks:
            await cancel_and_wait(self._tasks[build][1])

    async def _cancel_all(self, tenants: set[str]) -> None:
        for owner, task in list(self._tasks.values()):
            if owner in tenants:
                await cancel_and_wait(task)


def image_name(tenant: Tenant, build: str) -> str:
    """The name of a build's image in the store. The tenant's id may be any text, so it is hashed."""
    return f"{TEMPLATE_HOST}/{hashlib.sha256(tenant.id.encode()).hexdigest()[:32]}/{build}:latest"


def builds_of(service: Service) -> TemplateBuilds:
    return service.state.get(TemplateBuilds, lambda: TemplateBuilds(service))
