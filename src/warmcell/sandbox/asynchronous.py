"""AsyncSandbox: the one object that an agent holds. Files, commands, code and fetches over one work directory.

Every file method is written once, in `workspace.Workspace`, and lifted into a thread here.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from warmcell.backends.output_callbacks import Follow, OnText, following
from warmcell.core import events
from warmcell.core.errors import InvalidRequest, NetworkingDisabled
from warmcell.core.types import (
    BackendCapabilities,
    EffectiveLimits,
    ExecRequest,
    ExecResult,
    Language,
    Limits,
    check_env,
    check_text,
    check_timeout,
)
from warmcell.lifetime.threads import in_thread
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import effective_limits
from warmcell.sandbox.backend_adapters import (
    Guest,
    GuestConfig,
    GuestFactory,
    Job,
    check_process_settings,
    checked_argv,
    language_for,
    make_guest,
    no_live_cage,
    with_limits,
)
from warmcell.sandbox.living import LivingSandbox
from warmcell.sandbox.opening import session_languages
from warmcell.sandbox.operations import Operations
from warmcell.sandbox.session_fork import check_forkable
from warmcell.workspace.mount_points import WORK, MountPoint, check_mounts
from warmcell.workspace.workspace import AnyPath, Workspace

if TYPE_CHECKING:
    from warmcell.core.contracts import SandboxBackend, SandboxEnforcer
    from warmcell.languages.config import ProcessConfig
    from warmcell.net import FetchPolicy, FetchRequest, FetchResponse, SafeClient
    from warmcell.sandbox.packages import Packages
    from warmcell.sandbox.tools.toolset import Toolset


P = ParamSpec("P")
T = TypeVar("T")
#: Methods of the workspace that are told as events.
_CHANGES = frozenset({"write_file", "remove", "mkdir", "upload", "apply_patch", "restore"})


def _in_thread(
    method: Callable[Concatenate[Workspace, P], T],
) -> Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]]:
    """A blocking method of the workspace as a method of `AsyncSandbox`."""

    @functools.wraps(method)
    async def call(self: AsyncSandbox, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result = await self._on_disk(functools.partial(method, self._workspace, *args, **kwargs))
        if events.listeners and method.__name__ in _CHANGES:
            events.emit("file", self.id, {"operation": method.__name__, "path": _named_path(args)})
        return result

    return call


class AsyncSandbox(LivingSandbox):
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
    def limits(self) -> EffectiveLimits:
        """What holds for each run, and for the live cage as a whole."""
        settings = self._settings
        return effective_limits(settings["policy"] or SandboxPolicy(), memory_mb=settings["memory_limit_mb"])

    @property
    def work_dir(self) -> str:
        """Where the work directory is on the host."""
        return self._workspace.host_path

    async def start(self) -> None:
        """Records the state that `diff` compares with. Entering the context does it, and so does the first call."""
        await self._on_disk(lambda: None)

    async def exec(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        cwd: AnyPath | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs one command, without a shell. `CommandNotFound` when the sandbox has none of that name.

        `on_stdout` and `on_stderr` get text as it comes, here and in all that runs something; they may be coroutine
        functions. One that raises ends the run.
        """
        argv = checked_argv(command, args)
        follow = following(on_stdout, on_stderr)
        return await self._run(functools.partial(self._ways().command, argv), cwd, stdin, timeout, follow)

    async def sh(
        self,
        script: str,
        *,
        cwd: AnyPath | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs a shell script in the work directory. Nothing but files is kept from one call to the next."""
        follow = following(on_stdout, on_stderr)
        return await self.follow_sh(script, follow, cwd=cwd, stdin=stdin, timeout=timeout)

    async def follow_sh(
        self,
        script: str,
        follow: Follow | None,
        *,
        cwd: AnyPath | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """`sh` for who wants the very bytes: `follow` goes through the events of the run and returns its result."""
        ExecRequest(Language.COMMAND, check_text("script", script), 1.0)
        return await self._run(functools.partial(self._ways().script, script), cwd, stdin, timeout, follow)

    async def run(
        self,
        code: str | bytes,
        language: str = "python",
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs source text in the work directory."""
        request = ExecRequest(language_for(self._backend_name, language), code, 1.0)
        follow = following(on_stdout, on_stderr)
        call = functools.partial(self._ways().code, code, request.language)
        return await self._run(call, None, stdin, timeout, follow)

    async def exec_python(
        self,
        code: str,
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs Python code in the work directory."""
        return await self.run(code, "python", stdin=stdin, timeout=timeout, on_stdout=on_stdout, on_stderr=on_stderr)

    async def exec_js(
        self,
        code: str,
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs JavaScript code in the work directory."""
        return await self.run(
            code, "javascript", stdin=stdin, timeout=timeout, on_stdout=on_stdout, on_stderr=on_stderr
        )

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

    read_file = _in_thread(Workspace.read_file)
    read_text = _in_thread(Workspace.read_text)
    write_file = _in_thread(Workspace.write_file)
    list_dir = _in_thread(Workspace.list_dir)
    stat = _in_thread(Workspace.stat)
    exists = _in_thread(Workspace.exists)
    remove = _in_thread(Workspace.remove)
    mkdir = _in_thread(Workspace.mkdir)
    upload = _in_thread(Workspace.upload)
    download = _in_thread(Workspace.download)
    apply_patch = _in_thread(Workspace.apply_patch)
    diff = _in_thread(Workspace.diff)
    snapshot = _in_thread(Workspace.snapshot)
    restore = _in_thread(Workspace.restore)

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

    async def _run(
        self,
        call: Callable[[Job], Awaitable[ExecResult]],
        cwd: AnyPath | None,
        stdin: str | bytes | None,
        timeout: float | None,
        follow: Follow | None,
    ) -> ExecResult:
        seconds = self._settings["timeout"] if timeout is None else check_timeout(timeout)
        if stdin is not None and not isinstance(stdin, str | bytes):
            raise InvalidRequest(f"must be text or bytes, not {type(stdin).__name__}", field="stdin")

        async def run() -> ExecResult:
            return await call(Job(await self._guest_cwd(cwd), stdin, seconds, follow))

        return await self._operations.run(run())

    async def _guest_cwd(self, cwd: AnyPath | None) -> str:
        if cwd is None and self._workspace.has_begun:
            return self._workspace.guest_path  # a thread would cost as much as a small run

        def begin_and_look() -> str:
            self._workspace.begin()
            return self._workspace.guest_cwd(cwd)

        return await in_thread(begin_and_look)

    async def _on_disk(self, work: Callable[[], T]) -> T:
        def begin_and_work() -> T:
            self._workspace.begin()
            return work()

        return await self._operations.run(in_thread(begin_and_work))

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


def _named_path(args: tuple[object, ...]) -> str | None:
    """Of a call about one file; a patch and an archive name their own."""
    first = args[0] if args else None
    return os.fspath(first) if isinstance(first, str | os.PathLike) and "\n" not in str(first) else None


def _memory_limit(value: int | None) -> int | None:
    return Limits(memory_mb=value).memory_mb
