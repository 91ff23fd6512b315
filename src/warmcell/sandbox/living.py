"""The part of a sandbox that lives between two calls: processes, sessions, ports and watches over one live cage."""

from __future__ import annotations

import functools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from warmcell.backends.output_callbacks import OnText, Texts
from warmcell.core.errors import SandboxDestroyed
from warmcell.core.types import EffectiveLimits, ExecResult, check_env
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.backend_adapters import Guest, ProcessGuest, language_for, no_live_cage
from warmcell.sandbox.filing import FilingSandbox
from warmcell.sandbox.guest_config import Job
from warmcell.sandbox.opening import Opening, session_language, session_starter
from warmcell.workspace.workspace import AnyPath

if TYPE_CHECKING:
    import socket

    from warmcell.backends.process.live import LiveCage
    from warmcell.sandbox.asynchronous import AsyncSandbox
    from warmcell.sandbox.live import LiveSide
    from warmcell.sandbox.live_runs import LiveRuns
    from warmcell.sandbox.ports import AsyncExposedPort
    from warmcell.sandbox.processes import AsyncProcess, ProcessInfo, PtySize
    from warmcell.sandbox.session import AsyncSession
    from warmcell.sandbox.watches import AsyncWatch
    from warmcell.sessions.image import SessionImage


class Door(Protocol):
    """Closed when the sandbox ends, and by whoever has it."""

    async def aclose(self) -> None: ...


class LivingSandbox(FilingSandbox, ABC):
    """What `AsyncSandbox` is made of beside files and runs. The live cage begins with the first that needs it."""

    _settings: dict[str, Any]
    _guest: Guest

    def __init__(self) -> None:
        #: Held until they are closed: one that its caller forgets still has a process and descriptors.
        self._sessions: set[AsyncSession] = set()
        self._live: LiveSide | None = None
        self._live_runs: LiveRuns | None = None
        #: What ends with the sandbox and is no operation: exposed ports, and watches as long as somebody has them.
        self._watches: weakref.WeakSet[Door] = weakref.WeakSet()
        self._ports: set[Door] = set()

    @property
    @abstractmethod
    def limits(self) -> EffectiveLimits: ...

    @property
    @abstractmethod
    def _backend_name(self) -> str: ...

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
        its tree is killed. A program that is not there ends with 127.
        """
        texts = Texts(on_stdout, on_stderr) if on_stdout is not None or on_stderr is not None else None
        process = await self._start_process(
            command, cwd=cwd, env=env, pty=pty, stdin=stdin, timeout=timeout, is_heard=texts is not None
        )
        if texts is not None:
            process.hear(texts)
        return process

    async def _start_process(
        self,
        command: str | Sequence[str],
        *,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        pty: PtySize | None = None,
        stdin: bool = True,
        timeout: float | None = None,
        is_heard: bool = False,
    ) -> AsyncProcess:
        """`spawn`. Of one that `is_heard` nothing is lost until somebody follows its output, and somebody has to."""
        from warmcell.sandbox.live import checked_command, checked_options

        argv, line = checked_command(command)
        variables, size, seconds = checked_options(env, pty, timeout)

        async def start() -> AsyncProcess:
            directory = await self._guest_cwd(cwd)
            return await self._live_side().start(
                argv, directory, command=line, env=variables, pty=size, stdin=stdin, timeout=seconds, is_heard=is_heard
            )

        return await self._operations.run(start())

    async def spawn_code(
        self, code: str, language: str = "python", *, timeout: float, pty: PtySize | None = None
    ) -> AsyncProcess | ExecResult:
        """`spawn` for source text; the result of its build where that failed."""
        from warmcell.sandbox.live import checked_options

        _, size, seconds = checked_options(None, pty, timeout)
        assert seconds is not None

        async def start() -> AsyncProcess | ExecResult:
            job = Job(await self._guest_cwd(None), None, seconds)
            return await self._runs_in_cage().begin_code(
                code, language_for(self._backend_name, language), job, pty=size
            )

        return await self._operations.run(start())

    async def processes(self) -> list[ProcessInfo]:
        """What `spawn` started and still runs, and the last hundred that have ended; the oldest first."""
        self._operations.check_open()
        return self._live_side().list()

    async def attach(
        self, pid: int, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None
    ) -> AsyncProcess:
        """A process by its pid. `output()` and the callbacks get what is still kept of its output, then what comes."""
        self._operations.check_open()
        process = self._live_side().find(pid)
        if on_stdout is not None or on_stderr is not None:
            process.hear(Texts(on_stdout, on_stderr))
        return process

    async def _live_cage(self) -> LiveCage:
        """For what else lives there: the cage of this sandbox that stays, made now if there is none."""
        await self.start()
        return await self._operations.run(self._live_side().cage())

    def _ways(self) -> Guest | LiveRuns:
        """How things are run here: each in a cage of its own, or all in the live one."""
        return self._runs_in_cage() if self._settings["live"] else self._guest

    def _runs_in_cage(self) -> LiveRuns:
        if self._live_runs is None:
            from warmcell.sandbox.live_runs import LiveRuns

            if not isinstance(self._guest, ProcessGuest):
                raise no_live_cage(self._backend_name)
            output_bytes = self.limits.output_bytes
            self._live_runs = LiveRuns(self._guest, self._live_side(), output_bytes)
        return self._live_runs

    def _live_side(self) -> LiveSide:
        if self._live is None:
            from warmcell.sandbox.live import LiveSide

            open_cage = getattr(self._guest, "live_cage", None)
            if open_cage is None:
                raise no_live_cage(self._backend_name)
            self._live = LiveSide(open_cage, self._operations, self.id)
        return self._live

    def session(
        self, language: str = "python", *, cwd: AnyPath | None = None, env: Mapping[str, str] | None = None
    ) -> Opening:
        """An interpreter that remembers: `"python"`, `"javascript"`, `"typescript"` or `"command"` (bash).

        `await` it, or use it with `async with`. It lives in the sandbox's live cage, and ends with the sandbox.
        """
        return Opening(lambda: self._operations.run(self._open_session(language, cwd, env)))

    async def _open_session(
        self,
        language: str,
        cwd: AnyPath | None,
        env: Mapping[str, str] | None,
        image: SessionImage | None = None,
    ) -> AsyncSession:
        from warmcell.sandbox.live_events import tell_of_session
        from warmcell.sandbox.session import AsyncSession

        name = session_language(self._backend_name, language)
        directory = await self._guest_cwd(cwd)
        own_env = check_env(env or {})
        is_forkable = self._settings["forkable"] and name == "python"
        starter = session_starter(
            self._live_cage, name, self._settings["config"], directory, own_env, is_forkable=is_forkable
        )
        start = await starter()
        begin = start if image is None else functools.partial(start, image=image.sealed())
        worker = await in_thread(begin, discard=lambda worker: worker.close())
        whole, cells = cast("AsyncSandbox", self), image.cells if image else 0
        session = AsyncSession(
            whole, name, own_env, starter, worker, self._settings["timeout"], self.limits.output_bytes, cells
        )
        self._sessions = {other for other in self._sessions if not other.is_closed} | {session}
        tell_of_session(self.id, session)
        return session

    async def expose(self, port: int, host_port: int = 0) -> AsyncExposedPort:
        """Carries connections to a port of the host's loopback (`host_port`, or any) to that port in the live cage.

        Whether anybody listens there is found by each connection. Nothing but this port can be reached through it.
        """
        from warmcell.sandbox.ports import AsyncExposedPort, checked_port, listening

        guest_port, host_port = checked_port("port", port, 1), checked_port("host_port", host_port, 0)
        cage = await self._live_cage()
        most = cage.world.effective.limits.open_files // 3  # each takes two of the agent's
        begin = functools.partial(listening, self._current_cage, guest_port, host_port, most)
        listener = await self._operations.run(in_thread(begin, discard=lambda listener: listener.close()))
        made = AsyncExposedPort(listener, guest_port, self._ports.discard)
        self._ports.add(made)
        return made

    async def connect(self, port: int) -> socket.socket:
        """One connection to that port in the live cage, the caller's to close; `ConnectionError` if nobody listens."""
        from warmcell.sandbox.ports import checked_port

        guest_port, cage = checked_port("port", port, 1), await self._live_cage()
        begin = functools.partial(cage.connect, guest_port)
        return await self._operations.run(in_thread(begin, discard=lambda made: made.close()))

    def _current_cage(self) -> LiveCage | None:
        """From any thread."""
        live = self._live
        return None if live is None else live.current()

    def watch(self, path: AnyPath = ".", *, recursive: bool = False) -> AsyncWatch:
        """What happens to files from now on, as an iterator of `FileEvent`s; it ends with `close` or the sandbox.

        Of the names in one directory, or with `recursive` of all below it. Links are never followed.
        """
        from warmcell.sandbox.watches import AsyncWatch

        self._operations.check_open()
        made = AsyncWatch(self._workspace.watch(path, recursive=recursive))
        self._watches.add(made)
        return made

    async def _end_doors(self) -> None:
        """Before the runs are ended: what lets others in."""
        for door in (*self._watches, *self._ports):
            await door.aclose()

    async def _end_living(self) -> None:
        for session in tuple(self._sessions):
            await session._end(SandboxDestroyed())
        if self._live is not None:
            await self._live.aclose()
