"""What a supervisor process does: it runs requests of the program that started it, until that disconnects."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from warmcell.backends.supervisor_process import LENGTH, READY, Recipe, frame
from warmcell.core.errors import BackendUnavailable, SandboxError
from warmcell.core.types import ExecRequest, ExecResult
from warmcell.lifetime.host_program import share_machine

#: Programs that are kept built.
_MOST_PROGRAMS = 32
_FIRST_RUN = ExecRequest("python", "pass", 60)


def serve(descriptor: int) -> None:
    """Serves requests until the caller disconnects."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    share_machine()
    asyncio.run(_Service(socket.socket(fileno=descriptor)).run())


class _Service:
    """Runs requests side by side, and builds each program once."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._tasks: dict[int, asyncio.Task[ExecResult]] = {}
        self._programs: OrderedDict[bytes, _BuiltProgram] = OrderedDict()
        self._backend: Any = None

    async def run(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._connection)
        make: Recipe = pickle.loads(await _read(reader))  # noqa: S301  # of the program that started us
        async with make() as self._backend:
            first = asyncio.create_task(self._warm_up())
            with suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    self._take(*pickle.loads(await _read(reader)))  # noqa: S301
            await self._end(first)

    async def _warm_up(self) -> None:
        """Carries out a run, so that the next one finds everything started, and tells the program."""
        with suppress(SandboxError):  # the program's own runs will report it
            await self._backend.execute(_FIRST_RUN)
        self._writer.write(frame(pickle.dumps((READY, None, None))))

    def _take(self, number: int, request: ExecRequest | None, program: ExecRequest | None) -> None:
        if request is not None:
            task = self._tasks[number] = asyncio.create_task(self._execute(request, program))
            # A callback, because a task that is cancelled before its first step runs none of its own code.
            task.add_done_callback(partial(self._answer, number))
        elif number in self._tasks:
            self._tasks[number].cancel()

    def _answer(self, number: int, task: asyncio.Task[ExecResult]) -> None:
        del self._tasks[number]
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        result = task.result() if error is None else None
        if isinstance(error, (SandboxError, asyncio.CancelledError)):
            error = error.with_traceback(None)
        elif error is not None:
            error = BackendUnavailable(f"a supervisor process failed: {type(error).__name__}: {error}")
        self._writer.write(frame(pickle.dumps((number, result, error))))

    async def _execute(self, request: ExecRequest, program: ExecRequest | None) -> ExecResult:
        if program is None:
            return await self._backend.execute(request)  # type: ignore[no-any-return]
        key = pickle.dumps(program)
        if key not in self._programs:
            self._programs[key] = _BuiltProgram(asyncio.create_task(self._backend.build(program)))
        self._programs.move_to_end(key)
        built = self._programs[key]
        built.users += 1
        try:
            made = await asyncio.shield(built.task)
            return await made.run(request.stdin, request.args, request.timeout, limits=request.limits)  # type: ignore[no-any-return]
        finally:
            built.users -= 1
            await self._close_idle()

    async def _close_idle(self) -> None:
        """Keeps the programs that were used last: an evaluation has one for each of a million samples."""
        idle = [key for key, built in self._programs.items() if built.is_idle]
        for key in idle[: max(0, len(self._programs) - _MOST_PROGRAMS)]:
            await self._programs.pop(key).aclose()

    async def _end(self, first: asyncio.Task[None]) -> None:
        builds = [built.task for built in self._programs.values()]
        tasks: Sequence[asyncio.Task[Any]] = [first, *self._tasks.values(), *builds]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for built in self._programs.values():
            await built.aclose()


class _BuiltProgram:
    """A build, in progress or done, and how many runs use it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.users = 0

    @property
    def is_idle(self) -> bool:
        return self.task.done() and not self.users

    async def aclose(self) -> None:
        if not self.task.cancelled() and self.task.exception() is None:
            await self.task.result().aclose()


async def _read(reader: asyncio.StreamReader) -> bytes:
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return await reader.readexactly(size)
