"""AsyncSandboxBase: the methods of every asynchronous sandbox, wherever it runs.

Arguments are checked and documented here; a driver (`sandbox/interface.py`) does the work. `AsyncSandbox` adds the
driver of this host, `AsyncClient.sandbox` that of a server, `BlockingBase` the blocking form of the same methods.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from warmcell.backends.output_callbacks import Follow, OnText, Texts, following
from warmcell.core.errors import InvalidRequest
from warmcell.core.light import on_error
from warmcell.core.types import (
    BackendCapabilities,
    Connection,
    EffectiveLimits,
    ExecRequest,
    ExecResult,
    Language,
    check_env,
    check_text,
    check_timeout,
)
from warmcell.lifetime.threads import running_loop
from warmcell.sandbox.interface import ProcessInfo, PtySize, RunOptions, SandboxDriver
from warmcell.sandbox.ports import AsyncExposedPort, check_port
from warmcell.sandbox.processes import AsyncProcess
from warmcell.sandbox.request_checks import check_argv, check_manager, check_pid, check_spawn
from warmcell.sandbox.session import AsyncSession, SessionStart
from warmcell.sandbox.signatures import same_arguments
from warmcell.sandbox.watches import AsyncWatch
from warmcell.workspace.workspace import AnyPath, Workspace

if TYPE_CHECKING:
    from warmcell.net import FetchPolicy, FetchRequest, FetchResponse
    from warmcell.policy.model import NetworkRule, SandboxPolicy
    from warmcell.sandbox.tools.toolset import Toolset

P = ParamSpec("P")
T = TypeVar("T")


def _file_method(
    method: Callable[Concatenate[Workspace, P], T],
) -> Callable[Concatenate[AsyncSandboxBase, P], Coroutine[Any, Any, T]]:
    """A blocking method of `Workspace` as a method here."""

    @functools.wraps(method)
    async def call(self: AsyncSandboxBase, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._driver.files.call(method, *args, **kwargs)

    return call


class AsyncSandboxBase:
    """A work directory, a place that runs things in it, and rules that are fixed from the start.

    Runs of one sandbox may overlap: each has a cage or an instance of its own and shares only the files. Use it from
    one event loop. `aclose` and `destroy` end what is running (it raises `SandboxDestroyed`), remove what is private
    and may be called twice; every other method raises `SandboxDestroyed` afterwards.
    """

    _driver: SandboxDriver

    @classmethod
    def _with_driver(cls, driver: SandboxDriver) -> Self:
        sandbox = object.__new__(cls)
        sandbox._driver = driver
        return sandbox

    @property
    def id(self) -> str:
        """128 random bits in hexadecimal."""
        return self._driver.id

    @property
    def timeout(self) -> float:
        """Seconds, for runs that give no timeout of their own."""
        return self._driver.timeout

    @property
    def limits(self) -> EffectiveLimits:
        """The limits of each run, and of the live cage as a whole."""
        return self._driver.limits

    def capabilities(self) -> BackendCapabilities:
        """The languages that this sandbox can run, and what is really enforced in it."""
        self._driver.check_open()
        return self._driver.capabilities()

    async def start(self) -> None:
        """Records the state that `diff` compares with. Entering the context does it, and so does the first call."""
        await self._driver.start()

    # ---- runs ----

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
        """Runs one command, without a shell. `CommandNotFound` if the sandbox does not have it.

        `on_stdout` and `on_stderr` get text as it arrives, here and in every other run; they may be coroutine
        functions. One that raises ends the run.
        """
        argv = check_argv(command, args)
        options = self._run_options(stdin, timeout, following(on_stdout, on_stderr))
        return await self._driver.runs.command(argv, cwd, options)

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
        """Runs a shell script in the work directory. Only files are kept from one call to the next."""
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
        """`sh` for callers that need bytes: `follow` consumes the events of the run and returns its result."""
        ExecRequest(Language.COMMAND, check_text("script", script), 1.0)
        return await self._driver.runs.script(script, cwd, self._run_options(stdin, timeout, follow))

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
        options = self._run_options(stdin, timeout, following(on_stdout, on_stderr))
        return await self._driver.runs.code(code, language, options)

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

    @same_arguments(exec_python)
    async def exec_js(self, code: str, **options: Any) -> ExecResult:
        """Runs JavaScript code in the work directory."""
        return await self.run(code, "javascript", **options)

    def _run_options(self, stdin: str | bytes | None, timeout: float | None, follow: Follow | None) -> RunOptions:
        seconds = self.timeout if timeout is None else check_timeout(timeout)
        if stdin is not None and not isinstance(stdin, str | bytes):
            raise InvalidRequest(f"must be text or bytes, not {type(stdin).__name__}", field="stdin")
        return RunOptions(stdin=stdin, timeout=seconds, follow=follow)

    async def available_tools(self) -> list[str]:
        """The commands that `exec` and `sh` find by name in this sandbox, sorted."""
        self._driver.check_open()
        return await self._driver.available_tools()

    async def install(self, *packages: str, manager: str = "pip") -> None:
        """Installs packages for this sandbox, from where pip or npm (`manager`) is configured to get them.

        Names with versions ("pandas", "numpy>=2"; "lodash@^4"); wheels only, and no scripts of packages are run. Later
        runs find them, and so do sessions and processes of a live cage that starts later: raises `SessionBusy` if one
        runs when the install begins or ends. Downloads are cached for other sandboxes of this user.
        """
        self._driver.check_open()
        await self._driver.install(packages, check_manager(manager))

    def tools(
        self,
        *,
        max_text: int = 30_000,
        languages: Sequence[str] | None = None,
        stateful: bool = True,
        max_timeout: int = 300,
    ) -> Toolset:
        """Tools for a model, as callables with JSON schemas: code, commands, files, patches (docs/tools.md).

        `max_text` caps what a model sees of each stream; `languages` restricts what it may run. With `stateful`,
        variables stay from one `run_code` to the next, in the languages that have sessions. `max_timeout` is the
        longest timeout that a call may ask for, in seconds.
        """
        from warmcell.sandbox.tools.toolset import ToolCalls, make_toolset

        self._driver.check_open()
        stateful_languages = self._driver.session_languages if stateful else ()
        calls = ToolCalls(self, max_text, languages, stateful_languages, max_timeout)
        return make_toolset(calls.definitions, calls.answer, is_async=True)

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        """Fetches a URL by the rules of `fetch_policy`; without one, `NetworkingDisabled`."""
        self._driver.check_open()
        return await self._driver.fetch(request)

    async def update_network(self, policy_or_rules: SandboxPolicy | FetchPolicy | Iterable[NetworkRule | str]) -> None:
        """Changes what the sandbox may reach: never more than what it was made with, and until the next update.

        A list may hold names ("example.com", "*.example.com:443"); an empty one allows nothing. Open connections that
        are no longer allowed are closed before it returns. To go back, pass the policy that the sandbox was made with.
        Raises `PolicyViolation` for a host that this policy does not name.
        """
        self._driver.check_open()
        await self._driver.update_network(policy_or_rules)

    async def connections(self) -> list[Connection]:
        """The last 1,000 tunnels, HTTP requests and fetches, allowed or refused, oldest first."""
        return await self._driver.connections()

    # ---- files ----

    read_file = _file_method(Workspace.read_file)
    read_text = _file_method(Workspace.read_text)
    write_file = _file_method(Workspace.write_file)
    list_dir = _file_method(Workspace.list_dir)
    stat = _file_method(Workspace.stat)
    exists = _file_method(Workspace.exists)
    remove = _file_method(Workspace.remove)
    mkdir = _file_method(Workspace.mkdir)
    upload = _file_method(Workspace.upload)
    download = _file_method(Workspace.download)
    apply_patch = _file_method(Workspace.apply_patch)
    diff = _file_method(Workspace.diff)
    read_before = _file_method(Workspace.read_before)
    mark = _file_method(Workspace.mark)
    snapshot = _file_method(Workspace.snapshot)
    restore = _file_method(Workspace.restore)

    def watch(self, path: AnyPath = ".", *, recursive: bool = False) -> AsyncWatch:
        """Changes to files from now on, as an iterator of `FileEvent`s; it ends with `aclose` or the sandbox.

        Of the entries of one directory, or with `recursive` of everything below it. Links are never followed.
        """
        return AsyncWatch(self._driver.files.watch(path, bool(recursive)))

    # ---- what lives between two calls ----

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        pty: PtySize | None = None,
        stdin: bool = True,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> AsyncProcess:
        """Starts a program in the live cage and leaves it running: text is for the shell, a list is a program.

        `pty` gives it a terminal, whose output is all stdout. `stdin=False`: it reads nothing. After `timeout` seconds
        its tree is killed. If the program does not exist, it ends with 127.
        """
        texts = _texts(on_stdout, on_stderr)
        process = await self._start_process(
            command, cwd=cwd, env=env, pty=pty, stdin=stdin, timeout=timeout, is_followed=texts is not None
        )
        if texts is not None:
            process.start_callbacks(texts)
        return process

    async def _start_process(
        self, command: str | Sequence[str], *, is_followed: bool = False, **options: Any
    ) -> AsyncProcess:
        """`spawn` without callbacks. With `is_followed` no output is discarded before the caller follows it."""
        return AsyncProcess(await self._driver.live.spawn(check_spawn(command, is_followed, **options)))

    async def processes(self) -> list[ProcessInfo]:
        """The processes that `spawn` started and that still run, and the last hundred that ended; oldest first."""
        return await self._driver.live.processes()

    async def attach(
        self, pid: int, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None
    ) -> AsyncProcess:
        """A process by its pid. `output()` and the callbacks get the output still kept, then new output."""
        process = AsyncProcess(await self._driver.live.attach(check_pid(pid)))
        if (texts := _texts(on_stdout, on_stderr)) is not None:
            process.start_callbacks(texts)
        return process

    def session(
        self, language: str = "python", *, cwd: AnyPath | None = None, env: Mapping[str, str] | None = None
    ) -> SessionStart[Self]:
        """An interpreter that keeps its state: `"python"`, `"javascript"`, `"typescript"` or `"command"` (bash).

        `await` it, or use it with `async with`. It runs in the sandbox's live cage, and ends with the sandbox.
        """

        async def start() -> AsyncSession[Self]:
            driver = await self._driver.live.open_session(language, cwd, check_env(env or {}))
            return AsyncSession(self, driver)

        return SessionStart(start)

    async def expose(self, port: int, host_port: int = 0, *, wait: float | None = None) -> AsyncExposedPort:
        """Forwards a port of this host's loopback (`host_port`, or any free one) to that port in the live cage.

        `wait`: seconds to wait until a program listens there; `ExecutionFailed` if none does. Without it nothing is
        checked, and connections are reset until one listens. Nothing else becomes reachable.
        """
        guest_port = check_port("port", port, 1)
        seconds = None if wait is None else check_timeout(wait, "wait")
        driver = await self._driver.live.expose(guest_port, check_port("host_port", host_port, 0))
        exposed = AsyncExposedPort(driver, guest_port)
        if seconds is not None:
            await exposed._wait_for_listener(seconds)
        return exposed

    # ---- forks and the end ----

    async def fork(self, snapshot: str | None = None) -> Self:
        """A new sandbox with the same rules and a private copy of this work directory, or of a snapshot of it."""
        return self._with_driver(await self._driver.fork(snapshot))

    async def destroy(self) -> None:
        """Ends every run, closes the backend and removes the private work directory and all snapshots."""
        await self._driver.close()

    async def aclose(self) -> None:
        """The same as `destroy`."""
        await self.destroy()

    async def __aenter__(self) -> Self:
        running_loop()  # under others than asyncio, neither of the two works
        async with on_error(self.destroy):  # `__aexit__` is not called then
            await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destroy()

    def __repr__(self) -> str:
        state = "destroyed" if self._driver.is_closed else self._driver.place
        return f"<{type(self).__name__} {self.id[:8]} {state}>"


def _texts(on_stdout: OnText | None, on_stderr: OnText | None) -> Texts | None:
    return None if on_stdout is None and on_stderr is None else Texts(on_stdout, on_stderr)
