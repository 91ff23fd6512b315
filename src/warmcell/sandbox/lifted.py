"""LiftedSandbox: what a sandbox is for blocking code, whoever answers. Nothing is written twice: each method is the
asynchronous one of the same name, lifted through the portal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from warmcell.backends.output_callbacks import OnText, Texts, call_heard, refuse_coroutine
from warmcell.lifetime.portal import portal
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.processes import AsyncProcess, Process, PtySize
from warmcell.workspace.workspace import AnyPath

if TYPE_CHECKING:
    from warmcell.core.types import BackendCapabilities, EffectiveLimits
    from warmcell.sandbox.ports import ExposedPort
    from warmcell.sandbox.session import AsyncSession, Session
    from warmcell.sandbox.tools.toolset import Toolset
    from warmcell.sandbox.watches import AsyncWatch, Watch

P = ParamSpec("P")
T = TypeVar("T")
_CALLBACKS = frozenset({"on_stdout", "on_stderr"})


def _blocking(
    method: Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[LiftedSandbox, P], T]:
    """A method of `AsyncSandbox`, found by its name in whatever answers, as a blocking one."""

    @functools.wraps(method)
    def call(self: LiftedSandbox, /, *args: P.args, **kwargs: P.kwargs) -> T:
        lifted: Callable[P, Coroutine[Any, Any, T]] = getattr(self._async, method.__name__)
        return portal.call(lifted, *args, **kwargs)

    return call


def _heard(
    method: Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[LiftedSandbox, P], T]:
    """The same for a method with callbacks: they are called by the thread that called the method."""

    @functools.wraps(method)
    def call(self: LiftedSandbox, /, *args: P.args, **kwargs: P.kwargs) -> T:
        lifted: Callable[P, Coroutine[Any, Any, T]] = getattr(self._async, method.__name__)
        if not _CALLBACKS & kwargs.keys():
            return portal.call(lifted, *args, **kwargs)
        callbacks: dict[str, Any] = {name: kwargs[name] for name in _CALLBACKS & kwargs.keys()}
        others = {name: value for name, value in kwargs.items() if name not in callbacks}
        return call_heard(lifted, callbacks, *args, **others)

    return call


class LiftedSandbox:
    """The methods of `Sandbox`, over an `AsyncSandbox` or what has its methods. Safe to use from several threads."""

    _async: AsyncSandbox

    @property
    def id(self) -> str:
        """128 random bits in hexadecimal."""
        return self._async.id

    @property
    def timeout(self) -> float:
        """Seconds that a run may take which says nothing else."""
        return self._async.timeout

    @property
    def limits(self) -> EffectiveLimits:
        """What holds for each run, and for the live cage as a whole."""
        return self._async.limits

    exec = _heard(AsyncSandbox.exec)
    sh = _heard(AsyncSandbox.sh)
    run = _heard(AsyncSandbox.run)
    exec_python = _heard(AsyncSandbox.exec_python)
    exec_js = _heard(AsyncSandbox.exec_js)
    available_tools = _blocking(AsyncSandbox.available_tools)
    fetch = _blocking(AsyncSandbox.fetch)
    install = _blocking(AsyncSandbox.install)
    read_file = _blocking(AsyncSandbox.read_file)
    read_text = _blocking(AsyncSandbox.read_text)
    write_file = _blocking(AsyncSandbox.write_file)
    list_dir = _blocking(AsyncSandbox.list_dir)
    stat = _blocking(AsyncSandbox.stat)
    exists = _blocking(AsyncSandbox.exists)
    remove = _blocking(AsyncSandbox.remove)
    mkdir = _blocking(AsyncSandbox.mkdir)
    upload = _blocking(AsyncSandbox.upload)
    download = _blocking(AsyncSandbox.download)
    apply_patch = _blocking(AsyncSandbox.apply_patch)
    diff = _blocking(AsyncSandbox.diff)
    read_before = _blocking(AsyncSandbox.read_before)
    mark = _blocking(AsyncSandbox.mark)
    snapshot = _blocking(AsyncSandbox.snapshot)
    restore = _blocking(AsyncSandbox.restore)
    destroy = _blocking(AsyncSandbox.destroy)

    def expose(self, port: int, host_port: int = 0) -> ExposedPort:
        """Carries connections to a port of the host's loopback (`host_port`, or any) to that port in the live cage.

        Whether anybody listens there is found by each connection. Nothing but this port can be reached through it.
        """
        from warmcell.sandbox.ports import ExposedPort

        return ExposedPort(portal.call(self._async.expose, port, host_port))

    def watch(self, path: AnyPath = ".", *, recursive: bool = False) -> Watch:
        """What happens to files from now on, as an iterator of `FileEvent`s; it ends with `close` or the sandbox.

        Of the names in one directory, or with `recursive` of all below it. Links are never followed.
        """
        from warmcell.sandbox.watches import Watch

        async def begun() -> AsyncWatch:
            return await self._async.watch(path, recursive=recursive).__aenter__()

        return Watch(portal.call(begun))

    def capabilities(self) -> BackendCapabilities:
        """What this sandbox can run on this host, and what really holds in it."""
        return self._async.capabilities()

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
        from warmcell.sandbox.tools.toolset import make_toolset

        tools = self._async.tools(max_text=max_text, languages=languages, stateful=stateful, max_timeout=max_timeout)
        return make_toolset(tools.definitions, functools.partial(portal.call, tools.call), is_async=False)

    processes = _blocking(AsyncSandbox.processes)

    def spawn(
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
    ) -> Process:
        """As `AsyncSandbox.spawn`. Callbacks are called by a thread of their own, while the process runs."""
        Texts(on_stdout, on_stderr)  # what cannot be called is refused before anything runs
        refuse_coroutine("on_stdout", on_stdout)
        refuse_coroutine("on_stderr", on_stderr)
        is_heard = on_stdout is not None or on_stderr is not None
        started = self._start(command, is_heard, cwd=cwd, env=env, pty=pty, stdin=stdin, timeout=timeout)
        return self._heard_process(started, on_stdout, on_stderr)

    def attach(self, pid: int, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None) -> Process:
        """As `AsyncSandbox.attach`."""
        return self._heard_process(portal.call(self._async.attach, pid), on_stdout, on_stderr)

    def session(
        self, language: str = "python", *, cwd: AnyPath | None = None, env: Mapping[str, str] | None = None
    ) -> Session:
        """An interpreter that remembers: `"python"`, `"javascript"`, `"typescript"` or `"command"` (bash).

        It ends with the sandbox.
        """

        async def opened() -> AsyncSession:
            return await self._async.session(language, cwd=cwd, env=env)

        return self._session(portal.call(opened))

    def fork(self, snapshot: str | None = None) -> Self:
        """A new sandbox with the same rules and a private copy of this work directory, or of a snapshot of it."""
        return self._around(portal.call(self._async.fork, snapshot))

    def _around(self, sandbox: AsyncSandbox) -> Self:
        """Another one of this kind: a fork, or the sandbox of a session's branch."""
        made = object.__new__(type(self))
        made._async = sandbox
        return made

    def _start(self, command: str | Sequence[str], is_heard: bool, **options: Any) -> AsyncProcess:
        return portal.call(self._async._start_process, command, is_heard=is_heard, **options)

    def _process(self, started: AsyncProcess) -> Process:
        return Process(started)

    def _session(self, opened: AsyncSession) -> Session:
        from warmcell.sandbox.session import Session

        return Session(opened, self)

    def _heard_process(self, started: AsyncProcess, on_stdout: OnText | None, on_stderr: OnText | None) -> Process:
        made = self._process(started)
        if on_stdout is not None or on_stderr is not None:
            made.hear(on_stdout, on_stderr)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return repr(self._async).replace("Async", "", 1)
