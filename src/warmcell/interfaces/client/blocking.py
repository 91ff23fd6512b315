"""Client: `AsyncClient` for blocking code. Nothing is written twice: each method is lifted through the portal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from warmcell.backends.many import in_step
from warmcell.backends.output_callbacks import OnText, Texts, call_heard, refuse_coroutine
from warmcell.core.output_events import StreamEvent
from warmcell.core.types import BackendCapabilities, EffectiveLimits, ExecRequest, ExecResult
from warmcell.interfaces.client.asynchronous import AsyncClient as AsyncClient
from warmcell.interfaces.client.ports import RemotePort
from warmcell.interfaces.client.processes import AsyncRemoteProcess, RemoteProcess
from warmcell.interfaces.client.sandboxes import AsyncRemoteSandbox
from warmcell.interfaces.client.sessions import RemoteSession
from warmcell.interfaces.client.watches import AsyncRemoteWatch
from warmcell.lifetime.portal import portal
from warmcell.sandbox.processes import PtySize
from warmcell.sandbox.watches import Watch
from warmcell.workspace.workspace import AnyPath

if TYPE_CHECKING:
    from warmcell.sandbox.tools.toolset import Toolset

P = ParamSpec("P")
T = TypeVar("T")
_CALLBACKS = frozenset({"on_stdout", "on_stderr"})


class Client:
    """`with Client("http://127.0.0.1:8000", token) as client: client.execute(request)`. From any thread."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._async = AsyncClient(url, token)

    def execute(self, request: ExecRequest) -> ExecResult:
        """Runs it there; raises what a backend here would raise."""
        return portal.call(self._async.execute, request)

    def stream(self, request: ExecRequest) -> Iterator[StreamEvent]:
        """`OutputEvent`s as they come, last a `ResultEvent`. Leaving it ends the run."""
        return in_step(self._async.stream(request))

    def capabilities(self) -> BackendCapabilities:
        """What that host can run, and what really holds there."""
        return self._async.capabilities()

    def sandbox(self, **options: Any) -> RemoteSandbox:
        """A new `Sandbox`, over there: `env`, `timeout`, `limits`, `live`, `forkable`, `lifetime`, `metadata`."""
        return RemoteSandbox(portal.call(self._async.sandbox, **options))

    def close(self) -> None:
        portal.call(self._async.aclose)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _blocking(
    method: Callable[Concatenate[AsyncRemoteSandbox, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RemoteSandbox, P], T]:
    """A method of `AsyncRemoteSandbox` as a method of `RemoteSandbox`; callbacks are called by who called it."""

    @functools.wraps(method)
    def call(self: RemoteSandbox, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not _CALLBACKS & kwargs.keys():
            return portal.call(method, self._async, *args, **kwargs)
        callbacks: dict[str, Any] = {name: kwargs[name] for name in _CALLBACKS & kwargs.keys()}
        others = {name: value for name, value in kwargs.items() if name not in callbacks}
        return call_heard(method, callbacks, self._async, *args, **others)

    return call


class RemoteSandbox:
    """What `Sandbox` does, over there. Safe to use from several threads."""

    def __init__(self, sandbox: AsyncRemoteSandbox) -> None:
        self._async = sandbox
        self.id = sandbox.id

    @property
    def limits(self) -> EffectiveLimits:
        """What holds for each run, and for the live cage as a whole."""
        return self._async.limits

    exec = _blocking(AsyncRemoteSandbox.exec)
    sh = _blocking(AsyncRemoteSandbox.sh)
    run = _blocking(AsyncRemoteSandbox.run)
    exec_python = _blocking(AsyncRemoteSandbox.exec_python)
    exec_js = _blocking(AsyncRemoteSandbox.exec_js)
    available_tools = _blocking(AsyncRemoteSandbox.available_tools)
    fetch = _blocking(AsyncRemoteSandbox.fetch)
    install = _blocking(AsyncRemoteSandbox.install)
    read_file = _blocking(AsyncRemoteSandbox.read_file)
    read_text = _blocking(AsyncRemoteSandbox.read_text)
    write_file = _blocking(AsyncRemoteSandbox.write_file)
    list_dir = _blocking(AsyncRemoteSandbox.list_dir)
    stat = _blocking(AsyncRemoteSandbox.stat)
    exists = _blocking(AsyncRemoteSandbox.exists)
    remove = _blocking(AsyncRemoteSandbox.remove)
    mkdir = _blocking(AsyncRemoteSandbox.mkdir)
    upload = _blocking(AsyncRemoteSandbox.upload)
    download = _blocking(AsyncRemoteSandbox.download)
    apply_patch = _blocking(AsyncRemoteSandbox.apply_patch)
    diff = _blocking(AsyncRemoteSandbox.diff)
    snapshot = _blocking(AsyncRemoteSandbox.snapshot)
    restore = _blocking(AsyncRemoteSandbox.restore)
    processes = _blocking(AsyncRemoteSandbox.processes)
    destroy = _blocking(AsyncRemoteSandbox.destroy)

    def capabilities(self) -> BackendCapabilities:
        """What that host can run, and what really holds there."""
        return self._async.capabilities()

    def tools(
        self,
        *,
        max_text: int = 30_000,
        languages: Sequence[str] | None = None,
        stateful: bool = True,
        max_timeout: int = 300,
    ) -> Toolset:
        """Tools for a model, as `Sandbox.tools`."""
        from warmcell.sandbox.tools.toolset import make_toolset

        tools = self._async.tools(max_text=max_text, languages=languages, stateful=stateful, max_timeout=max_timeout)
        return make_toolset(tools.definitions, functools.partial(portal.call, tools.call), is_async=False)

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
    ) -> RemoteProcess:
        """As `Sandbox.spawn`. Callbacks are called by a thread of their own, while the process runs."""
        Texts(on_stdout, on_stderr)  # what cannot be called is refused before anything runs
        refuse_coroutine("on_stdout", on_stdout)
        refuse_coroutine("on_stderr", on_stderr)
        started = portal.call(self._async.spawn, command, cwd=cwd, env=env, pty=pty, stdin=stdin, timeout=timeout)
        return _heard(started, on_stdout, on_stderr)

    def attach(self, pid: int, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None) -> RemoteProcess:
        """As `Sandbox.attach`."""
        return _heard(portal.call(self._async.attach, pid), on_stdout, on_stderr)

    def session(
        self, language: str = "python", *, cwd: AnyPath | None = None, env: Mapping[str, str] | None = None
    ) -> RemoteSession:
        """An interpreter that remembers: `"python"`, `"javascript"` or `"command"` (bash)."""

        async def opened() -> Any:
            return await self._async.session(language, cwd=cwd, env=env)

        return RemoteSession(portal.call(opened), self)

    def expose(self, port: int, host_port: int = 0) -> RemotePort:
        """Carries connections to a port of this host's loopback to that port of the sandbox."""
        return RemotePort(portal.call(self._async.expose, port, host_port))

    def watch(self, path: AnyPath = ".", *, recursive: bool = False) -> Watch:
        """What happens to files from now on, as an iterator of `FileEvent`s."""

        async def watch() -> AsyncRemoteWatch:
            made = self._async.watch(path, recursive=recursive)
            await made.begin()
            return made

        return Watch(portal.call(watch))  # type: ignore[arg-type]

    def fork(self, snapshot: str | None = None) -> RemoteSandbox:
        """A new sandbox with the same rules and a copy of the work directory, or of a snapshot of it."""
        return RemoteSandbox(portal.call(self._async.fork, snapshot))

    def __enter__(self) -> RemoteSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncRemote", "Remote")


def _heard(process: AsyncRemoteProcess, on_stdout: OnText | None, on_stderr: OnText | None) -> RemoteProcess:
    made = RemoteProcess(process)
    if on_stdout is not None or on_stderr is not None:
        made.hear(on_stdout, on_stderr)
    return made
