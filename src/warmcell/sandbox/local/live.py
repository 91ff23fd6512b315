"""LocalLive: the live cage of a sandbox, and the processes, sessions and ports in it.

The cage is made when it is first needed, and again after it ended.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from warmcell.core import events
from warmcell.core.errors import InvalidRequest, SandboxDestroyed, SessionEnded
from warmcell.languages.config import ProcessConfig
from warmcell.languages.shell import find_shell
from warmcell.lifetime.descriptors import host_failure, is_exhaustion
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.interface import ProcessInfo, PtySize, SpawnOptions
from warmcell.sandbox.local.context import SandboxContext
from warmcell.sandbox.local.guests import no_live_cage
from warmcell.sandbox.local.process import Argv, LocalProcess, RingFactory, make_ring, start_program
from warmcell.sandbox.local.session import (
    ForkSession,
    LocalSession,
    Starter,
    TakeCheckpoint,
    session_language,
    start_in_cage,
)
from warmcell.sessions.interpreter import Interpreter
from warmcell.sessions.ports import MOST_CONNECTIONS, PortListener
from warmcell.sessions.processes import LiveProcess, ProcessTable, call_once
from warmcell.workspace.workspace import AnyPath

if TYPE_CHECKING:
    from warmcell.backends.process.live import LiveCage
    from warmcell.sessions.exchange import Worker
    from warmcell.sessions.image import SessionImage


_ATTEMPTS = 3


class LocalLive:
    """Belongs to one sandbox, and to its event loop. `fork_session` forks a session into a new sandbox."""

    def __init__(self, context: SandboxContext, fork_session: ForkSession, take_checkpoint: TakeCheckpoint) -> None:
        self._context, self._operations = context, context.operations
        self._fork_session, self._take_checkpoint = fork_session, take_checkpoint
        #: Whether Python sessions can write their images, for a fork or for a later program.
        self.has_session_images = context.settings.forkable
        self._cage: LiveCage | None = None
        self._lock = asyncio.Lock()
        #: Number of programs and cages that are being started.
        self._starts = 0
        self._table = ProcessTable()
        #: Held until they are closed: a session that its caller forgets still has a process and descriptors.
        self._sessions: set[LocalSession] = set()
        self._ports: set[LocalPort] = set()

    # ---- the cage ----

    async def cage(self) -> LiveCage:
        """The current one, or a new one."""
        if (current := self.current()) is not None:
            if not _end_if_unguarded(current):
                return current
            await in_thread(current.loop.join)
        open_cage = self._cage_opener()
        with self.starting():
            return await self._replace_cage(open_cage)

    async def _replace_cage(self, open_cage: Callable[[], Awaitable[LiveCage]]) -> LiveCage:
        async with self._lock:
            if self._cage is None or not self._cage.is_alive:
                await self._end_cage()
                self._cage = await open_cage()
                loop, table = self._cage.loop, self._table
                self._cage.ended.add_done_callback(lambda _: loop.call(table.forget_pipes))
                emit_cage_events(self._context.id, self._cage)
            return self._cage

    async def start_cage(self) -> LiveCage:
        """`cage` as an operation of its own."""
        await self._context.start()
        return await self._operations.run(self.cage())

    def current(self) -> LiveCage | None:
        """The cage, if it is alive. From any thread."""
        cage = self._cage
        return cage if cage is not None and cage.is_alive else None

    @property
    def is_in_use(self) -> bool:
        """Whether processes or sessions run in the cage, or are being started."""
        cage = self.current()
        return self._starts > 0 or (cage is not None and cage.has_programs)

    @property
    def is_called_back(self) -> bool:
        """Whether the caller is a callback of a cell."""
        return any(session.interpreter.is_calling_back for session in self._sessions)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """A block that starts something in the cage, which `is_in_use` from the beginning."""
        self._starts += 1
        try:
            yield
        finally:
            self._starts -= 1

    def _cage_opener(self) -> Callable[[], Awaitable[LiveCage]]:
        open_cage: Callable[[], Awaitable[LiveCage]] | None = getattr(self._context.guest, "live_cage", None)
        if open_cage is None:
            raise no_live_cage(self._context.settings.backend_name)
        return open_cage

    async def _end_cage(self) -> None:
        cage, self._cage = self._cage, None
        if cage is not None:
            await in_thread(cage.close)

    async def reset(self) -> None:
        """Ends the cage; the next one is the current guest's."""
        async with self._lock:
            self._table = ProcessTable()
            await self._end_cage()

    async def close_ports(self) -> None:
        while self._ports:  # a call in progress may add one meanwhile
            await next(iter(self._ports)).aclose()

    async def close(self) -> None:
        for session in tuple(self._sessions):
            await session.end(SandboxDestroyed())
        async with self._lock:
            await self._end_cage()
            self._table.clear()  # its output is not kept until the next garbage collection

    # ---- processes ----

    def _shell(self) -> str:
        shell: str | None = getattr(self._context.guest, "shell", None)
        return shell or find_shell()

    async def spawn(self, options: SpawnOptions) -> LocalProcess:
        command = options.command
        argv = [self._shell(), "-c", command] if isinstance(command, str) else command
        shown = command if isinstance(command, str) else " ".join(command)

        async def start() -> LocalProcess:
            return await self.start(
                argv,
                await self._context.guest_cwd(options.cwd),
                command=shown,
                env=options.env,
                pty=options.pty,
                stdin=options.stdin,
                timeout=options.timeout,
                is_followed=options.is_followed,
            )

        return await self._operations.run(start())

    async def start(
        self,
        argv: Argv,
        cwd: str,
        *,
        command: str = "",
        env: Mapping[str, str] | None = None,
        pty: PtySize | None = None,
        stdin: bool = True,
        timeout: float | None = None,
        ring: RingFactory = make_ring,
        files: Mapping[str, bytes] | None = None,
        is_followed: bool = False,
    ) -> LocalProcess:
        """Starts a program. Tries again in a new cage if the old one ended just now because it was idle."""
        with self.starting():
            for attempt in range(_ATTEMPTS):
                cage = await self.cage()
                try:
                    process = await start_program(cage, argv, cwd, command, env, pty, stdin, ring, files)
                    self._table.add(process)
                    emit_process_events(self._context.id, process)
                    process.begin(timeout, is_followed=is_followed)
                    return LocalProcess(process, self._operations)
                except SessionEnded:
                    if attempt == _ATTEMPTS - 1 or not cage.was_idle:
                        raise
                except OSError as error:
                    raise host_failure(error, "start the process") from error
        raise AssertionError("unreachable")

    async def processes(self) -> list[ProcessInfo]:
        self._operations.check_open()
        self._cage_opener()
        return [LocalProcess(process, self._operations).info for process in self._table.all()]

    async def attach(self, pid: int) -> LocalProcess:
        self._operations.check_open()
        self._cage_opener()
        process = self._table.find(pid)
        if process is None:
            raise InvalidRequest(f"no process {pid!r} in this sandbox", field="pid", hint="processes() lists them")
        return LocalProcess(process, self._operations)

    async def pause(self, spared: Sequence[int]) -> None:
        self._operations.check_open()
        if (cage := self.current()) is not None:
            await self._operations.run(cage.pause(spared))

    async def resume(self) -> None:
        self._operations.check_open()
        if (cage := self.current()) is not None:
            await self._operations.run(cage.resume())

    # ---- sessions ----

    async def open_session(self, language: str, cwd: AnyPath | None, env: Mapping[str, str]) -> LocalSession:
        return await self._operations.run(self.start_session(language, cwd, env))

    async def start_session(
        self,
        language: str,
        cwd: AnyPath | None,
        env: Mapping[str, str],
        image: SessionImage | None = None,
        identity: str | None = None,
    ) -> LocalSession:
        """Starts an interpreter, afresh or from the image of another one, whose `identity` it may have."""
        name = session_language(self._context.settings.backend_name, language)
        find_python = getattr(self._context.guest, "session_python", None)
        python = None if find_python is None else find_python(name)
        directory = await self._context.guest_cwd(cwd)
        starter = self._make_starter(name, directory, env, python)
        with self.starting():
            worker = await start_in_cage(starter, image)
        session = LocalSession(
            name,
            None if cwd is None else os.fspath(cwd),
            env,
            starter,
            worker,
            self._context.limits.output_bytes,
            self._fork_session,
            self._take_checkpoint,
            image.cells if image else 0,
            self._check_cage,
        )
        session.interpreter.id = identity or session.id
        self._sessions = {other for other in self._sessions if not other.is_closed} | {session}
        emit_session_events(self._context.id, name, session.interpreter)
        return session

    def _check_cage(self) -> None:
        """Before each cell of a session."""
        if (cage := self.current()) is not None and (reason := _end_if_unguarded(cage)):
            raise SessionEnded(reason)

    def _make_starter(self, language: str, cwd: str, env: Mapping[str, str], python: str | None) -> Starter:
        is_forkable = self.has_session_images and language == "python"

        async def starter() -> Callable[..., Worker]:
            from warmcell.backends.process.session_worker import start

            begin = functools.partial(start, is_forkable=is_forkable, python=python)
            config = self._context.settings.config or ProcessConfig()
            begin = functools.partial(begin, await self.start_cage(), language, config, cwd, env)
            return functools.partial(start_worker, begin)

        return starter

    # ---- ports ----

    async def expose(self, port: int, host_port: int) -> LocalPort:
        cage = await self.start_cage()
        max_connections = cage.template.effective.limits.open_files // 3  # each uses two descriptors of the agent
        begin = functools.partial(listen, self.current, port, host_port, max_connections)
        listener = await self._operations.run(in_thread(begin, discard=lambda listener: listener.close()))
        exposed = LocalPort(listener, functools.partial(self.connect, port), self._ports.discard)
        self._ports.add(exposed)
        return exposed

    async def connect(self, port: int) -> socket.socket:
        cage = await self.start_cage()
        begin = functools.partial(cage.connect, port)
        return await self._operations.run(in_thread(begin, discard=lambda made: made.close()))


def _end_if_unguarded(cage: LiveCage) -> str:
    from warmcell.backends.process.started_programs import end_if_unguarded

    return end_if_unguarded(cage)


def start_worker(start: Callable[..., Worker], image: SessionImage | None = None) -> Worker:
    try:
        if image is None:
            return start()
        with image.open_reader() as descriptor:
            return start(image=descriptor)
    except OSError as error:
        if not is_exhaustion(error):
            raise
        raise host_failure(error, "start the session") from error


def listen(
    current_cage: Callable[[], LiveCage | None], guest_port: int, host_port: int, max_connections: int
) -> PortListener:
    """Each connection goes to the live cage that the sandbox has at that moment."""

    def connect() -> tuple[socket.socket, Future[dict[str, Any]]] | None:
        cage = current_cage()
        return None if cage is None else cage.connect_async(guest_port)

    return PortListener(connect, host_port, max(1, min(max_connections, MOST_CONNECTIONS)))


class LocalPort:
    def __init__(
        self,
        listener: PortListener,
        connect: Callable[[], Awaitable[socket.socket]],
        on_closed: Callable[[LocalPort], None],
    ) -> None:
        self._listener, self._connect, self._on_closed = listener, connect, on_closed
        self.port = listener.port

    async def is_answered(self) -> bool:
        try:
            (await self._connect()).close()
        except ConnectionError:
            return False
        return True

    async def aclose(self) -> None:
        await in_thread(self._listener.close)
        self._on_closed(self)


def emit_cage_events(subject: str, cage: LiveCage) -> None:
    """`live.made` now, `live.gone` when the cage ends."""

    def on_end(ended: Future[Any]) -> None:
        if events.listeners:
            events.emit("live.gone", subject, {"reason": ended.result().reason})

    if events.listeners:
        events.emit("live.made", subject, {})
    cage.ended.add_done_callback(on_end)


def emit_process_events(subject: str, process: LiveProcess) -> None:
    """`process.started` and `process.ended`. Without the command, which may contain secrets."""
    # The end is noticed in another thread, and belongs to the same tenant and run as the start.
    context, run = copy_context(), events.current_run() or None

    def on_end() -> None:
        if not events.listeners:
            return
        outcome = process.outcome
        fields = {
            "run": run,
            "pid": process.pid,
            "exit_code": process.exit_code,
            "duration": round(process.duration, 6),
            "cpu_time": round(outcome.cpu_time, 6) if outcome else 0.0,
            "peak_memory_bytes": outcome.peak_memory if outcome else 0,
            "denials": len(process.program.denials),
        }
        context.run(events.emit, "process.ended", subject, fields)

    if events.listeners:
        events.emit("process.started", subject, {"pid": process.pid})
    process.finished.add_done_callback(call_once(on_end))


def emit_session_events(sandbox: str, language: str, interpreter: Interpreter) -> None:
    """`session.made` and `session.gone`."""
    fields = {"sandbox": sandbox, "language": language}

    def on_end() -> None:
        if events.listeners:
            events.emit("session.gone", interpreter.id, fields)

    if events.listeners:
        events.emit("session.made", interpreter.id, fields)
    interpreter.on_closed = on_end
