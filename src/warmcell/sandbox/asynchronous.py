"""AsyncSandbox: the one object that an agent holds. Files, commands, code and fetches over one work directory.

Its files are in `filing`, what lives between two calls in `living`, its runs in `running`; here it begins and ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from warmcell.core import events
from warmcell.core.errors import NetworkingDisabled
from warmcell.core.types import (
    BackendCapabilities,
    EffectiveLimits,
    Limits,
    check_env,
    check_timeout,
)
from warmcell.lifetime.threads import in_thread
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import effective_limits
from warmcell.sandbox.backend_adapters import Guest, GuestFactory, make_guest, no_live_cage
from warmcell.sandbox.guest_config import GuestConfig, check_process_settings, with_limits
from warmcell.sandbox.opening import session_languages
from warmcell.sandbox.operations import Operations
from warmcell.sandbox.running import RunningSandbox
from warmcell.sandbox.session_fork import check_forkable
from warmcell.workspace.mount_points import WORK, MountPoint, check_mounts
from warmcell.workspace.workspace import AnyPath, Workspace

if TYPE_CHECKING:
    from warmcell.core.contracts import SandboxBackend, SandboxEnforcer
    from warmcell.languages.config import ProcessConfig
    from warmcell.net import FetchPolicy, FetchRequest, FetchResponse, SafeClient
    from warmcell.sandbox.packages import Packages
    from warmcell.sandbox.tools.toolset import Toolset


class AsyncSandbox(RunningSandbox):
    """A work directory, a backend that runs things in it, and rules that are fixed from here on.

    Runs of one sandbox may overlap: each has a cage or an instance of its own and shares only the files. Use it from
    one event loop. `destroy` ends what is running (it raises `SandboxDestroyed`), removes what is private, and may be
    called twice; every other method raises `SandboxDestroyed` afterwards. `guest_factory` is the seam for tests.

    `backend` is a name, or a `ProcessBackend` whose configuration, enforcer and policy are to hold here too.
    With `live`, exec, sh and run go into the live cage of `spawn` too, and share its processes, /tmp and loopback.
    `work_path="host"` shows the work directory where it is on the host, so that absolute paths in it are true. With
    `forkable`, its Python sessions can be forked.
    """

    def __init__(
        self,
        work_dir: AnyPath | None = None,
        *,
        backend: str | SandboxBackend = "process",
        mounts: Sequence[MountPoint] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        memory_limit_mb: int | None = None,
        fuel: int | None = None,
        fetch_policy: FetchPolicy | None = None,
        policy: SandboxPolicy | None = None,
        config: ProcessConfig | None = None,
        enforcer: str | SandboxEnforcer = "auto",
        limits: Limits | None = None,
        live: bool = False,
        idle_timeout: float | None = None,
        work_path: str = WORK,
        forkable: bool = False,
        track_changes: bool = True,
        guest_factory: GuestFactory = make_guest,
    ) -> None:
        super().__init__()
        check_process_settings(config, enforcer)
        policy = with_limits(policy, limits)
        self.id = secrets.token_hex(16)
        self._settings: dict[str, Any] = {
            "backend": backend,
            "mounts": check_mounts(mounts),
            "env": check_env({} if env is None else env),
            "timeout": check_timeout(timeout),
            "memory_limit_mb": _memory_limit(memory_limit_mb),
            "fuel": fuel,
            "fetch_policy": fetch_policy,
            "policy": policy,
            "config": config,
            "enforcer": enforcer,
            "live": bool(live),
            "idle_timeout": None if idle_timeout is None else check_timeout(idle_timeout, "idle_timeout"),
            "work_path": work_path,
            "forkable": check_forkable(forkable, work_path),
            "track_changes": track_changes,
            "guest_factory": guest_factory,
        }
        self._operations = Operations()
        self._ending: asyncio.Task[None] | None = None
        self._client: SafeClient | None = None
        self._packages: Packages | None = None
        self._former_guests: list[Guest] = []
        disk_mb = effective_limits(policy or SandboxPolicy()).disk_mb
        self._workspace = Workspace(
            work_dir, self._settings["mounts"], track_changes=track_changes, disk_mb=disk_mb, work_path=work_path
        )
        try:
            self._guest = guest_factory(backend, self._guest_config())
            if live and not getattr(self._guest, "has_live_cage", False):
                raise no_live_cage(self._backend_name)
        except BaseException:
            self._workspace.close()
            raise
        if events.listeners:
            events.emit("sandbox.made", self.id, {"backend": self._backend_name})

    @property
    def _backend_name(self) -> str:
        backend = self._settings["backend"]
        return backend if isinstance(backend, str) else backend.name

    @property
    def timeout(self) -> float:
        """Seconds that a run may take which says nothing else."""
        return float(self._settings["timeout"])

    @property
    def limits(self) -> EffectiveLimits:
        """What holds for each run, and for the live cage as a whole."""
        settings = self._settings
        return effective_limits(settings["policy"] or SandboxPolicy(), memory_mb=settings["memory_limit_mb"])

    @property
    def work_dir(self) -> str:
        """Where the work directory is on the host."""
        return self._workspace.host_path

    async def install(self, *packages: str, manager: str = "pip") -> None:
        """Packages for this sandbox, from where pip or npm (`manager`) is configured to get them on this host.

        Names with versions ("pandas", "numpy>=2"; "lodash@^4"); wheels only, and no scripts of packages are run. Runs
        that begin afterwards find them, sessions and processes of a live cage that begins afterwards too. Downloads are
        kept for other sandboxes of this user.
        """
        from warmcell.sandbox.installing import checked_manager, install

        self._operations.check_open()
        await install(self, checked_manager(manager), packages)

    async def _use_packages(self, packages: Packages) -> None:
        """What was made for the sandbox as it was goes when the last run in it has ended."""
        self._packages = packages
        before, self._guest = (
            self._guest,
            self._settings["guest_factory"](self._settings["backend"], self._guest_config()),
        )
        live, self._live, self._live_runs = self._live, None, None
        if live is not None:
            await live.aclose()
        self._former_guests.append(before)
        if not self._operations.is_busy:
            while self._former_guests:
                await self._former_guests.pop().aclose()

    async def available_tools(self) -> list[str]:
        """The commands that `exec` and `sh` find by their names in this sandbox, sorted."""
        await self.start()
        return await self._operations.run(self._guest.tools())

    def capabilities(self) -> BackendCapabilities:
        """What this sandbox can run on this host, and what really holds in it."""
        self._operations.check_open()
        return self._guest.capabilities()

    def tools(
        self,
        *,
        max_text: int = 30_000,
        languages: Sequence[str] | None = None,
        stateful: bool = True,
        max_timeout: int = 300,
    ) -> Toolset:
        """Tools for a model, as callables with JSON schemas: code, commands, files, patches (docs/tools.md).

        `max_text` caps what a model sees of each stream; `languages` narrows what it may run. With `stateful`,
        variables stay from one `run_code` to the next, in the languages that have sessions. `max_timeout` is the most
        seconds that a call may ask for.
        """
        from warmcell.sandbox.tools.toolset import ToolCalls, make_toolset

        self._operations.check_open()
        remembering = session_languages(self._guest) if stateful else ()
        has_ports = bool(remembering)  # what listens must still run after the call that started it
        calls = ToolCalls(self, self._settings["timeout"], max_text, languages, remembering, has_ports, max_timeout)
        return make_toolset(calls.definitions, calls.answer, is_async=True)

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        """Fetches a URL by the rules of `fetch_policy`; without one, `NetworkingDisabled`."""
        self._operations.check_open()
        client = self._fetch_client()
        if client is None:
            raise NetworkingDisabled
        return await self._operations.run(client.fetch(request))

    async def fork(self, snapshot: str | None = None) -> AsyncSandbox:
        """A new sandbox with the same rules and a private copy of this work directory, or of a snapshot of it."""
        child = await self._sibling()
        try:
            await self._on_disk(lambda: self._workspace.copy_to(child._workspace, snapshot))
            await child.start()
        except BaseException:
            await child.destroy()
            raise
        return child

    async def _sibling(self) -> AsyncSandbox:
        """A new sandbox with the same rules and packages, and no files yet."""
        self._operations.check_open()
        child = AsyncSandbox(**self._settings)
        if self._packages is not None:
            await child._use_packages(self._packages)
        return child

    async def destroy(self) -> None:
        """Ends every run, closes the backend and removes the private work directory and all snapshots."""
        self._operations.is_closed = True
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ending)

    async def __aenter__(self) -> AsyncSandbox:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destroy()

    def __repr__(self) -> str:
        state = "destroyed" if self._operations.is_closed else self._backend_name
        return f"<{type(self).__name__} {self.id[:8]} {state}>"

    async def _end(self) -> None:
        await self._end_doors()
        await self._operations.close()
        try:
            await self._end_living()
            for guest in (*self._former_guests, self._guest):
                await guest.aclose()
            self._packages = None
        finally:
            await in_thread(self._workspace.close)
            if events.listeners:
                events.emit("sandbox.gone", self.id, {"backend": self._backend_name})

    def _guest_config(self) -> GuestConfig:
        settings = self._settings
        return GuestConfig(
            work_dir=self._workspace.host_path,
            is_work_writable=self._workspace.is_writable,
            mounts=settings["mounts"],
            env=settings["env"],
            memory_limit_mb=settings["memory_limit_mb"],
            fuel=settings["fuel"],
            policy=settings["policy"],
            fetch=self._fetch_json if settings["fetch_policy"] is not None else None,
            fetch_policy=settings["fetch_policy"],
            process_config=settings["config"],
            enforcer=settings["enforcer"],
            idle_timeout=settings["idle_timeout"],
            work_path=self._workspace.guest_path,
            packages=None if self._packages is None else self._packages.path,
        )

    def _fetch_client(self) -> SafeClient | None:
        if self._client is None and self._settings["fetch_policy"] is not None:
            from warmcell.net import SafeClient

            self._client = SafeClient(self._settings["fetch_policy"])
        return self._client

    async def _fetch_json(self, request: bytes) -> bytes:
        from warmcell.net import handle_fetch_json

        return await handle_fetch_json(self._fetch_client(), request)


def _memory_limit(value: int | None) -> int | None:
    return Limits(memory_mb=value).memory_mb
