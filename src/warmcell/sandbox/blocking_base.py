"""BlockingBase: the methods of every blocking sandbox, derived from the asynchronous ones."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Self

from warmcell.backends.output_callbacks import OnText, Texts, refuse_coroutine
from warmcell.core.light import on_error
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.async_base import AsyncSandboxBase
from warmcell.sandbox.ports import AsyncExposedPort, ExposedPort
from warmcell.sandbox.processes import AsyncProcess, Process
from warmcell.sandbox.session import AsyncSession, Session
from warmcell.sandbox.signatures import blocking, same_arguments
from warmcell.sandbox.watches import AsyncWatch, Watch

if TYPE_CHECKING:
    from warmcell.core.types import BackendCapabilities, EffectiveLimits
    from warmcell.sandbox.tools.toolset import Toolset


class BlockingBase:
    """The methods of `Sandbox`, over any asynchronous sandbox. Safe to use from several threads."""

    _async: AsyncSandboxBase

    @property
    def id(self) -> str:
        """128 random bits in hexadecimal."""
        return self._async.id

    @property
    def timeout(self) -> float:
        """Seconds, for runs that give no timeout of their own."""
        return self._async.timeout

    @property
    def limits(self) -> EffectiveLimits:
        """The limits of each run, and of the live cage as a whole."""
        return self._async.limits

    exec = blocking(AsyncSandboxBase.exec)
    sh = blocking(AsyncSandboxBase.sh)
    run = blocking(AsyncSandboxBase.run)
    exec_python = blocking(AsyncSandboxBase.exec_python)
    exec_js = blocking(AsyncSandboxBase.exec_js)
    available_tools = blocking(AsyncSandboxBase.available_tools)
    fetch = blocking(AsyncSandboxBase.fetch)
    install = blocking(AsyncSandboxBase.install)
    update_network = blocking(AsyncSandboxBase.update_network)
    connections = blocking(AsyncSandboxBase.connections)
    read_file = blocking(AsyncSandboxBase.read_file)
    read_text = blocking(AsyncSandboxBase.read_text)
    write_file = blocking(AsyncSandboxBase.write_file)
    list_dir = blocking(AsyncSandboxBase.list_dir)
    stat = blocking(AsyncSandboxBase.stat)
    exists = blocking(AsyncSandboxBase.exists)
    remove = blocking(AsyncSandboxBase.remove)
    mkdir = blocking(AsyncSandboxBase.mkdir)
    upload = blocking(AsyncSandboxBase.upload)
    download = blocking(AsyncSandboxBase.download)
    apply_patch = blocking(AsyncSandboxBase.apply_patch)
    diff = blocking(AsyncSandboxBase.diff)
    read_before = blocking(AsyncSandboxBase.read_before)
    mark = blocking(AsyncSandboxBase.mark)
    snapshot = blocking(AsyncSandboxBase.snapshot)
    restore = blocking(AsyncSandboxBase.restore)
    processes = blocking(AsyncSandboxBase.processes)
    destroy = blocking(AsyncSandboxBase.destroy)

    def close(self) -> None:
        """The same as `destroy`."""
        self.destroy()

    def capabilities(self) -> BackendCapabilities:
        """The languages that this sandbox can run, and what is really enforced in it."""
        return self._async.capabilities()

    @same_arguments(AsyncSandboxBase.tools)
    def tools(self, **options: Any) -> Toolset:
        from warmcell.sandbox.tools.toolset import make_toolset

        tools = self._async.tools(**options)
        return make_toolset(tools.definitions, functools.partial(portal.call, tools.call), is_async=False)

    @same_arguments(AsyncSandboxBase.watch)
    def watch(self, *args: Any, **kwargs: Any) -> Watch:
        async def begin() -> AsyncWatch:
            make = functools.partial(self._async.watch, *args, **kwargs)
            # A tree may be large, and all other blocking sandboxes have this loop.
            made = await in_thread(make) if kwargs.get("recursive") else make()
            return await made.__aenter__()

        return Watch(portal.make(AsyncWatch.aclose, begin))

    @same_arguments(AsyncSandboxBase.expose)
    def expose(self, *args: Any, **kwargs: Any) -> ExposedPort:
        return ExposedPort(portal.make(AsyncExposedPort.aclose, self._async.expose, *args, **kwargs))

    @same_arguments(AsyncSandboxBase.spawn)
    def spawn(
        self, command: Any, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None, **options: Any
    ) -> Process:
        Texts(on_stdout, on_stderr)  # refuses what cannot be called before anything runs
        refuse_coroutine("on_stdout", on_stdout)
        refuse_coroutine("on_stderr", on_stderr)
        options["is_followed"] = on_stdout is not None or on_stderr is not None
        started = portal.make(AsyncProcess.kill, self._async._start_process, command, **options)
        with on_error(lambda: portal.call(started.kill)):  # the callbacks need a thread
            return _process(started, on_stdout, on_stderr)

    @same_arguments(AsyncSandboxBase.attach)
    def attach(self, pid: int, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None) -> Process:
        return _process(portal.call(self._async.attach, pid), on_stdout, on_stderr)

    @same_arguments(AsyncSandboxBase.session)
    def session(self, *args: Any, **kwargs: Any) -> Session[Self]:
        async def start() -> AsyncSession[Any]:
            return await self._async.session(*args, **kwargs)

        return Session(portal.make(AsyncSession.close, start), self)

    def fork(self, snapshot: str | None = None) -> Self:
        """A new sandbox with the same rules and a private copy of this work directory, or of a snapshot of it."""
        return self._wrap(portal.make(AsyncSandboxBase.destroy, self._async.fork, snapshot))

    @classmethod
    def _wrap(cls, sandbox: AsyncSandboxBase) -> Self:
        wrapped = object.__new__(cls)
        wrapped._async = sandbox
        return wrapped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return repr(self._async).replace("Async", "", 1)


def _process(started: AsyncProcess, on_stdout: OnText | None, on_stderr: OnText | None) -> Process:
    process = Process(started)
    if on_stdout is not None or on_stderr is not None:
        process.start_callbacks(on_stdout, on_stderr)
    return process
