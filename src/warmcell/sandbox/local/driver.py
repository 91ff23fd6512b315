"""LocalSandbox: the driver of a sandbox on this host, with components for files, runs and live programs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from warmcell.core import events
from warmcell.core.errors import InvalidRequest, SandboxError, SessionBusy
from warmcell.core.light import on_error, suppress
from warmcell.core.types import BackendCapabilities, Connection, ExecRequest, ExecResult
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.cancellable import SharedClose
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.interface import PtySize, RunOptions
from warmcell.sandbox.local.context import SandboxContext
from warmcell.sandbox.local.files import LocalChanges, LocalFiles
from warmcell.sandbox.local.guests import Guest, language_for
from warmcell.sandbox.local.live import LocalLive
from warmcell.sandbox.local.live_runs import LiveRuns
from warmcell.sandbox.local.npm_packages import install_npm
from warmcell.sandbox.local.pip_packages import Installer, Packages
from warmcell.sandbox.local.process import LocalProcess
from warmcell.sandbox.local.session import session_languages
from warmcell.sandbox.local.session_copies import fork_session, take_checkpoint
from warmcell.sandbox.settings import SandboxSettings
from warmcell.workspace.workspace import AnyPath

if TYPE_CHECKING:
    from warmcell.changes.layer import ChangeLayer
    from warmcell.net import FetchRequest, FetchResponse


class LocalSandbox:
    def __init__(self, settings: SandboxSettings, parent: ChangeLayer | None = None) -> None:
        self.context = SandboxContext(settings, parent)
        self.id, self.timeout, self.limits = self.context.id, settings.timeout, self.context.limits
        self.place = settings.backend_name
        self.files = LocalFiles(self.context)
        self.changes = LocalChanges(self.context)
        self.live = LocalLive(
            self.context, functools.partial(fork_session, self), functools.partial(take_checkpoint, self)
        )
        self._live_runs = LiveRuns(self.context, self.live)
        self.runs = LocalRuns(self.context, self._live_runs)
        self._operations = self.context.operations
        self._closing = SharedClose(self._close)
        #: Held by the install in progress: each begins with the packages of the previous one.
        self._installing = asyncio.Lock()
        #: Guests that `install` replaced, with the packages that their runs may still use.
        self._former_guests: list[tuple[Guest, Packages | None]] = []
        if events.listeners:
            events.emit("sandbox.made", self.id, {"backend": self.place})

    @property
    def is_closed(self) -> bool:
        return self._operations.is_closed

    @property
    def session_languages(self) -> Sequence[str]:
        return session_languages(self.context.guest)

    def check_open(self) -> None:
        self._operations.check_open()

    def capabilities(self) -> BackendCapabilities:
        return self.context.guest.capabilities()

    async def start(self) -> None:
        await self.context.start()

    async def available_tools(self) -> list[str]:
        await self.start()
        return await self._operations.run(self.context.guest.tools())

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        return await self._operations.run(self.context.fetcher.fetch(request))

    async def update_network(self, update: object) -> None:
        await self._operations.run(self.context.network.update(update))

    async def connections(self) -> list[Connection]:
        self.check_open()
        return self.context.network.connections()

    async def spawn_code(
        self, code: str, language: str, timeout: float, pty: PtySize | None
    ) -> LocalProcess | ExecResult:
        async def start() -> LocalProcess | ExecResult:
            options = RunOptions(await self.context.guest_cwd(None), None, timeout)
            return await self._live_runs.start_code(code, language_for(self.place, language), options, pty=pty)

        return await self._operations.run(start())

    # ---- packages ----

    async def install(self, packages: Sequence[str], manager: str) -> None:
        if self.place != "process":
            hint = "use Sandbox(backend='process')"
            raise InvalidRequest("works only with the process backend", field="packages", hint=hint)
        if getattr(self.context.guest, "has_image", False):
            hint = "put them into the image, or run the image's own pip or npm in a live sandbox"
            raise InvalidRequest("cannot be installed into a sandbox with an image", field="packages", hint=hint)
        self._check_live_unused()
        await self._operations.run(self._install(packages, manager))

    async def _install(self, packages: Sequence[str], manager: str) -> None:
        async with self._installing:
            installed = await self._make_packages(packages, manager)
            self._check_live_unused()  # something may have started since
            await self._use_packages(installed)

    def _check_live_unused(self) -> None:
        if self.live.is_in_use:
            raise SessionBusy("programs in the live cage would not see the packages; install before spawn and session")

    async def _make_packages(self, packages: Sequence[str], manager: str) -> Packages:
        """Install these packages together with those of the sandbox."""
        settings, before = self.context.settings, self.context.packages
        config = getattr(settings.backend, "config", settings.config) or ProcessConfig()
        enforcer = getattr(settings.backend, "enforcer", settings.enforcer)
        weaker = getattr(settings.backend, "allow_weaker", settings.allow_weaker)
        installer = Installer(config, enforcer, self.limits.disk_mb, weaker)
        if manager == "npm":
            return await install_npm(installer, packages, before)
        return await installer.install(packages, before)

    async def use_packages(self, directory: str) -> None:
        """A copy of packages that another sandbox had installed."""
        await self._use_packages(await in_thread(lambda: Packages(directory)))

    async def _use_packages(self, packages: Packages) -> None:
        """Later runs get a new guest. The former one and its packages stay while runs may use them."""
        former = self.context.guest, self.context.packages
        self.context.packages = packages
        with on_error(lambda: setattr(self.context, "packages", former[1])):
            self.context.guest = self.context.make_guest()
        self._former_guests.append(former)
        self.context.network.attach()
        await self.live.reset()
        if not self._operations.has_others:
            while self._former_guests:
                await self._former_guests[0][0].aclose()
                del self._former_guests[0]

    # ---- forks ----

    async def fork(self, snapshot: str | None) -> LocalSandbox:
        child = await self.make_sibling()
        async with on_error(child.close):
            await self.context.on_disk(lambda: self.context.workspace.copy_to(child.context.workspace, snapshot))
            await child.start()
        return child

    async def branch(self) -> LocalSandbox:
        """A new sandbox on the same directory that starts with these changes and is then independent."""
        return await self._operations.run(self._branch())  # `close` must not remove changes that are being copied

    async def _branch(self) -> LocalSandbox:
        parent = self.changes.layer
        loop = asyncio.get_running_loop()

        def close(child: LocalSandbox) -> None:
            asyncio.run_coroutine_threadsafe(child.close(), loop).result()

        child = await in_thread(lambda: LocalSandbox(self.context.settings, parent), discard=close)
        async with on_error(child.close):
            if self.context.packages is not None:
                await child._use_packages(self.context.packages)
            child.context.network.adopt(self.context.network)
            await child.start()
        return child

    async def make_sibling(self) -> LocalSandbox:
        """A sandbox with the same settings and packages, and no files yet."""
        self.check_open()
        child = LocalSandbox(replace(self.context.settings, work_dir=None, changes=None))
        async with on_error(child.close):
            if self.context.packages is not None:
                await child._use_packages(self.context.packages)
            child.context.network.adopt(self.context.network)
            if (adopt := getattr(child.context.guest, "adopt", None)) is not None:
                adopt(self.context.guest)
        return child

    # ---- the end ----

    async def close(self) -> None:
        self._operations.is_closed = True
        if not (self._closing.is_running and self.live.is_called_back):  # else it waits for the callback to return
            await self._closing.run()

    async def _close(self) -> None:
        await self.files.close_watches()
        await self.live.close_ports()
        await self._operations.close()
        try:
            await self.live.close()
            for guest, _ in (*self._former_guests, (self.context.guest, None)):
                await guest.aclose()
            self._former_guests.clear()
            self.context.packages = None
        finally:
            await in_thread(self.context.close_files)
            if events.listeners:
                events.emit("sandbox.gone", self.id, {"backend": self.place})


class LocalRuns:
    def __init__(self, context: SandboxContext, live_runs: LiveRuns) -> None:
        self._context, self._live_runs = context, live_runs

    async def command(self, argv: Sequence[str], cwd: AnyPath | None, options: RunOptions) -> ExecResult:
        return await self._run(functools.partial(self._guest.command, argv), cwd, options)

    async def script(self, script: str, cwd: AnyPath | None, options: RunOptions) -> ExecResult:
        return await self._run(functools.partial(self._guest.script, script), cwd, options)

    async def code(self, code: str | bytes, language: str, options: RunOptions) -> ExecResult:
        name = language_for(self._context.settings.backend_name, language)
        request = ExecRequest(name, code, 1.0)
        return await self._run(functools.partial(self._guest.code, code, request.language), None, options)

    @property
    def _guest(self) -> Guest | LiveRuns:
        return self._live_runs if self._context.settings.live else self._context.guest

    async def _run(
        self, start: Callable[[RunOptions], Awaitable[ExecResult]], cwd: AnyPath | None, options: RunOptions
    ) -> ExecResult:
        async def run() -> ExecResult:
            try:
                return await start(replace(options, cwd=await self._context.guest_cwd(cwd)))
            finally:
                if self._context.layer is not None:
                    with suppress(OSError, SandboxError):  # `changes` raises it; the run ended as it did
                        await in_thread(self._context.layer.note_bases)

        return await self._context.operations.run(run())
