"""Supervisor processes: further Python interpreters that start runs, for hosts where one is the bottleneck.

Each is a child of this program with its own backend, made like the caller's. Requests and results are pickled: both
ends are ours, and guest output is only bytes in them.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence, Sized
from contextlib import aclosing, suppress
from functools import partial
from itertools import count
from typing import Any

from warmcell.backends.many import OnProgress, Requests, run_many
from warmcell.core import events
from warmcell.core.errors import BackendUnavailable, InvalidRequest, SandboxError
from warmcell.core.outcomes import Outcome
from warmcell.core.types import ExecRequest, ExecResult
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.lifetime.host_program import own_interpreter, share_machine
from warmcell.lifetime.ownership import own

#: Fewer processors than this need only one supervisor; processors per supervisor; and the fewest runs for which
#: starting another is worth it.
_FEWEST_PROCESSORS, _PROCESSORS_EACH, _FEWEST_RUNS = 8, 2, 200
_MOST = 64
#: Programs that a supervisor keeps built.
_MOST_PROGRAMS = 32
_LENGTH = struct.Struct("!Q")
_END_SECONDS = 10.0
_FIRST_RUN = ExecRequest("python", "pass", 60)
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    " from warmcell.backends.supervisors import serve; serve(int(sys.argv[1]))"
)
#: Makes a backend in another process; can be pickled.
Recipe = Callable[[], Any]


def choose_processes(processes: object, work: object, processors: int | None = None) -> int:
    """How many supervisors to start: `processes`, or if that is None a number chosen from the processors and the work.

    `work` has a length if its size is known. With event listeners, which get runs of this process only, it is 1.
    """
    if processes is None:
        processors = len(os.sched_getaffinity(0)) if processors is None else processors
        if processors < _FEWEST_PROCESSORS or not isinstance(work, Sized) or events.listeners:
            return 1
        return max(1, min(processors // _PROCESSORS_EACH, len(work) // _FEWEST_RUNS))
    if isinstance(processes, bool) or not isinstance(processes, int) or not 1 <= processes <= _MOST:
        raise InvalidRequest(f"must be a whole number from 1 to {_MOST}", field="processes")
    return processes


def supervisors_for(backend: object, processes: object, work: object) -> Supervisors | None:
    """The supervisors for runs of this backend, not started yet; None if this process starts them itself."""
    chosen = choose_processes(processes, work)
    recipe: Recipe | None = getattr(backend, "recipe", None)
    if chosen == 1 or (recipe is None and processes is None):
        return None
    if recipe is None:
        reason = "this backend has an audit, changed rules or an implementation that only this process has"
        raise InvalidRequest(reason, field="processes", hint="processes=1")
    return Supervisors(recipe, chosen)


class Supervisors:
    """An async context manager. `execute` gives a request to the supervisor with the fewest runs in progress."""

    def __init__(self, recipe: Recipe, processes: int) -> None:
        try:
            made = pickle.dumps(recipe)
        except Exception as error:
            raise InvalidRequest(
                f"this backend cannot be made again in another process: {error}", field="processes", hint="processes=1"
            ) from None
        self._members = [_Supervisor(made) for _ in range(processes)]

    async def execute(self, request: ExecRequest) -> ExecResult:
        return await self._run(request, None)

    def runner_of(self, program: ExecRequest) -> Callable[[ExecRequest], Any]:
        """`execute` for runs of a program that each supervisor builds once; its artefact is cached."""
        return lambda request: self._run(request, program)

    async def _run(self, request: ExecRequest, program: ExecRequest | None) -> ExecResult:
        member = min(self._members, key=lambda member: len(member.waiting))
        return await member.run(request, program)

    @property
    def is_complete(self) -> bool:
        """Whether all of them are still there."""
        return all(member.is_alive for member in self._members)

    async def warm_up(self) -> None:
        """Returns when each has carried out a run."""
        await asyncio.gather(*(member.run(_FIRST_RUN, None) for member in self._members))

    async def __aenter__(self) -> Supervisors:
        try:
            for member in self._members:
                await member.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self._members:
            member.hang_up()
        for member in self._members:
            await member.join()


def run_many_of(
    backend: Any,
    requests: Requests,
    concurrency: int | None,
    processes: int | None,
    on_progress: OnProgress | None = None,
) -> AsyncIterator[Outcome]:
    """`run_many` of every backend: outcomes as they finish, see `backends.many`.

    `processes`: how many Python processes start the runs (None: from the processors and the number of requests).
    """
    supervisors = supervisors_for(backend, processes, requests)
    if supervisors is None:
        return run_many(backend.execute, requests, concurrency, on_progress)
    return _run_many_on(supervisors, requests, concurrency, on_progress)


async def _run_many_on(
    supervisors: Supervisors, requests: Requests, concurrency: int | None, on_progress: OnProgress | None
) -> AsyncIterator[Outcome]:
    runs = run_many(supervisors.execute, requests, concurrency, on_progress)
    async with supervisors, aclosing(runs) as outcomes:  # type: ignore[type-var]
        async for outcome in outcomes:
            yield outcome


class _Supervisor:
    """The caller's end of one supervisor."""

    def __init__(self, recipe: bytes) -> None:
        self._recipe = recipe
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        self._numbers = count()
        self.waiting: dict[int, asyncio.Future[ExecResult]] = {}
        own(self)

    async def start(self) -> None:
        import json

        try:
            with Descriptors() as owned:
                ours, theirs = owned.socketpair(socket.SOCK_STREAM)
                command = [own_interpreter(), "-c", _BOOT, str(theirs), json.dumps(sys.path)]
                # Its own session: Ctrl-C is for the caller, which then cancels the runs.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs], start_new_session=True
                )
                owned.close_only(theirs)
                connection = socket.socket(fileno=owned.give(ours.detach()))
        except OSError as error:
            raise host_failure(error, "start a supervisor process") from error
        connection.setblocking(False)
        self._connection = connection
        reader, self._writer = await asyncio.open_connection(sock=connection)
        self._writer.write(_frame(self._recipe))
        self._listening = asyncio.create_task(self._listen(reader))

    @property
    def is_alive(self) -> bool:
        return self._listening is not None and not self._listening.done()

    def abandon(self) -> None:
        """In a fork: closes its copy of the connection, so that the supervisor notices the end of the other process."""
        if self._connection is not None and self._connection.fileno() >= 0:
            os.close(self._connection.detach())

    async def run(self, request: ExecRequest, program: ExecRequest | None) -> ExecResult:
        """Cancelling it ends the run before the cancellation is raised."""
        if self._writer is None or not self.is_alive:
            raise _death()
        number = next(self._numbers)
        answer = self.waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(_frame(pickle.dumps((number, request, program))))
            await self._writer.drain()
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._writer.write(_frame(pickle.dumps((number, None, None))))
            done, _ = await asyncio.wait([answer], timeout=_END_SECONDS)
            if done:
                answer.exception()  # retrieved, so that asyncio does not log it
            else:
                self._kill()
            raise
        except OSError:
            raise _death() from None
        finally:
            self.waiting.pop(number, None)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, result, error = pickle.loads(await _read(reader))  # noqa: S301  # of our own process
                answer = self.waiting.get(number)
                if answer is None or answer.done():
                    continue
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(error)
        except (asyncio.IncompleteReadError, OSError):
            for answer in self.waiting.values():
                if not answer.done():
                    answer.set_exception(_death())

    def hang_up(self) -> None:
        """Closes the connection; the supervisor then ends its runs and exits."""
        if self._writer is not None:
            self._writer.close()

    async def join(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        process = self._process
        if process is None:
            return
        for _ in range(int(_END_SECONDS / 0.02)):
            if process.poll() is not None:
                return
            await asyncio.sleep(0.02)
        self._kill()
        process.wait()

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)


def _death() -> SandboxError:
    return BackendUnavailable("a supervisor process died", hint="run it again; its log says why")


def _frame(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


async def _read(reader: asyncio.StreamReader) -> bytes:
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(size)


# ---- in the supervisor process ----


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
            with suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    self._take(*pickle.loads(await _read(reader)))  # noqa: S301
            await self._end()

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
        self._writer.write(_frame(pickle.dumps((number, result, error))))

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

    async def _end(self) -> None:
        builds = [built.task for built in self._programs.values()]
        tasks: Sequence[asyncio.Task[Any]] = [*self._tasks.values(), *builds]
        for task in tasks:
            task.cancel()
        if tasks:
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
