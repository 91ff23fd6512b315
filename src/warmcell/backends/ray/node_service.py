"""NodeService: the node's end. Carries out the requests of one program with a backend of this host.

Messages come and go in batches. They are pickled: both ends are ours, and guest output is only bytes in them.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import cache, partial
from importlib import import_module
from typing import Any

from warmcell.backends.ray.direct_connection import Carrier, Connection, Window
from warmcell.backends.ray.placement import NodeFacts
from warmcell.backends.ray.stored_images import StoredImages
from warmcell.core.errors import ExecutionFailed, SandboxError
from warmcell.core.output_events import OutputEvent, ResultEvent, StreamEvent
from warmcell.core.records import replace
from warmcell.core.types import BackendCapabilities, ExecRequest, ExecResult
from warmcell.lifetime.threads import in_thread

#: An empty batch after so long shows that the node is alive.
TAKE_SECONDS = 10.0
_MOST_MESSAGES = 512
#: Requests whose results may wait for others.
_OF_BATCHES = ("batch_run", "batch_program_run")
#: Servers that tunnels lead to: the one of `Sandbox(backend="ray")`, and the one of `warmcell serve --ray`.
SANDBOXES, FRONT = "sandboxes", "front"
_SERVERS = {SANDBOXES: "warmcell.interfaces.serve.node_server", FRONT: "warmcell.interfaces.serve.cluster.node_server"}
#: How long a result waits for others.
_HOLD_SECONDS = 0.2


class _Line:
    """Runs of which as many run at a time."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.places = at_once, asyncio.Semaphore(at_once)
        self.waiting = self.running = 0

    @property
    def has_enough(self) -> bool:
        """Whether the node stays busy with it for a while."""
        return self.waiting > self.at_once


class BatchRuns:
    """Runs of batches. A few run at a time, and others wait here, so that the node has work while results and the next
    requests travel, many in one call: a call of Ray costs more than a run's own messages.
    """

    def __init__(self) -> None:
        #: By how many run at a time.
        self._lines: dict[int, _Line] = {}
        #: Set when what goes out must not wait: it is not only results of batches, or the node has little left to do.
        self.has_urgent = asyncio.Event()

    async def run(self, execute: Callable[[], Awaitable[ExecResult]], at_once: int) -> ExecResult:
        """`at_once` follows from the node's processors and the kind of the batch."""
        line = self._lines.get(at_once)
        if line is None:
            line = self._lines[at_once] = _Line(at_once)
        waited = await self._wait_for_place(line)
        line.running += 1
        try:
            result = await execute()
        finally:
            line.running -= 1
            line.places.release()
        return replace(result, queued=result.queued + waited)

    async def _wait_for_place(self, line: _Line) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        line.waiting += 1
        try:
            await line.places.acquire()
        finally:
            line.waiting -= 1
            if line.waiting == line.at_once:
                self.has_urgent.set()
        return loop.time() - began

    async def hold_results(self) -> None:
        """Lets results of batches wait for others, while enough runs wait here to keep the node busy."""
        active = [line for line in self._lines.values() if line.waiting or line.running]
        if active and all(line.has_enough for line in active):
            with suppress(TimeoutError):
                async with asyncio.timeout(_HOLD_SECONDS):
                    await self.has_urgent.wait()


@cache
def own_version() -> str:
    """Of this installation: both ends of a link must have the same."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("warmcell")
    except PackageNotFoundError:  # used from a checkout that is not installed
        return "unknown"


async def _await_shared(tasks: dict[str, Any], key: str) -> Any:
    """The result of a task that several requests await. If it failed, the next request tries again."""
    task = tasks[key]
    try:
        return await asyncio.shield(task)
    except Exception:
        if tasks.get(key) is task:  # and not a later attempt
            del tasks[key]
        raise


class NodeService:
    """For one caller, on one event loop."""

    def __init__(self, make_backend: Callable[[], Any]) -> None:
        self._backend = make_backend()
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._windows: dict[int, Window] = {}
        self._carriers: dict[int, Carrier] = {}
        #: Messages of tunnels that are being connected.
        self._early: dict[int, list[tuple[Any, ...]]] = {}
        #: By name: servers for tunnels.
        self._servers: dict[str, asyncio.Task[Any]] = {}
        self._programs: dict[str, asyncio.Task[Any]] = {}
        self._outgoing: list[bytes] = []
        self._has_outgoing = asyncio.Event()
        self._batches = BatchRuns()
        self.images = StoredImages()

    async def start(self) -> NodeFacts:
        """Raises what keeps this host from running anything."""
        found = await in_thread(self._backend.capabilities)
        # Versions are asked one by one: some toolchains take seconds to answer.
        plain = BackendCapabilities(
            found.supported_languages, found.isolation_class, found.enforced_limits, found.network
        )
        return NodeFacts(os.getpid(), own_version(), self._backend.config.most_at_once, plain)

    async def serve(self, connection: Connection) -> None:
        """Carries the messages of both directions, until the connection ends."""
        sending = asyncio.ensure_future(self._send_all(connection))
        sending.add_done_callback(lambda _: connection.close())
        try:
            while True:
                self.submit(await connection.receive())
        finally:
            sending.cancel()

    async def _send_all(self, connection: Connection) -> None:
        """Until the node is lost: when its raylet has died, Ray kills the children of this process and then itself, and
        what the cages report meanwhile must not reach the program.
        """
        raylet = os.getppid()
        with suppress(ConnectionError):  # the other direction ends, too
            while True:
                batch = await self.take()
                if os.getppid() != raylet:
                    return
                await connection.send(batch)

    def submit(self, payload: bytes) -> None:
        for number, message in pickle.loads(payload):  # noqa: S301  # of the program that started us
            try:
                kind, *values = pickle.loads(message)  # noqa: S301
            except Exception as error:  # it has something of a module that this host does not have
                self._send(number, "failed", ExecutionFailed(f"the node cannot read the request: {error}"))
            else:
                self._begin(number, kind, *values)

    def _begin(self, number: int, kind: str, *values: Any) -> None:
        if kind == "cancel":
            if number in self._tasks:
                self._tasks[number].cancel()
        elif kind in ("credit", "data", "eof"):
            self._pass_on(number, kind, values)
        elif kind == "release":
            self._release(*values)
        else:
            task = self._tasks[number] = asyncio.create_task(getattr(self, f"_{kind}")(number, *values))
            # A callback, because a task that is cancelled before its first step runs none of its own code.
            task.add_done_callback(partial(self._finish, number, kind in _OF_BATCHES))

    async def take(self) -> bytes:
        """Waits for messages; empty after a while without any."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TAKE_SECONDS):
                await self._has_outgoing.wait()
                await self._batches.hold_results()
        batch, self._outgoing = self._outgoing[:_MOST_MESSAGES], self._outgoing[_MOST_MESSAGES:]
        if not self._outgoing:
            self._has_outgoing.clear()
            self._batches.has_urgent.clear()
        return pickle.dumps(batch)

    async def close(self) -> None:
        """Ends everything."""
        for task in self._programs.values():
            task.cancel()
        for server in list(self._servers.values()):
            with suppress(Exception):  # it did not start, and its caller has the error
                await (await server).close()
        await in_thread(self.images.close)
        await self._backend.aclose()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def _send(self, number: int, *message: Any, is_urgent: bool = True) -> None:
        try:
            data = pickle.dumps((number, *message))
        except Exception as error:  # the caller waits for an answer
            failure = ExecutionFailed(f"the node's answer cannot be sent: {error}")
            data = pickle.dumps((number, "failed", failure))
        self._outgoing.append(data)
        self._has_outgoing.set()
        if is_urgent:
            self._batches.has_urgent.set()

    def _finish(self, number: int, is_of_batch: bool, task: asyncio.Task[Any]) -> None:
        del self._tasks[number]
        for table in (self._windows, self._carriers, self._early):
            table.pop(number, None)
        if task.cancelled():
            self._send(number, "failed", asyncio.CancelledError())
        elif (error := task.exception()) is None:
            self._send(number, "done", task.result(), is_urgent=not is_of_batch)
        else:
            self._send(number, "failed", _portable(error), is_urgent=not is_of_batch)

    # ---- requests ----

    async def _run(self, number: int, request: ExecRequest, is_streamed: bool) -> Any:
        if not is_streamed:
            return await self._backend.execute(request)
        return await self._follow(number, self._backend.stream(request))

    async def _batch_run(self, number: int, request: ExecRequest, at_once: int) -> Any:
        return await self._batches.run(partial(self._backend.execute, request), at_once)

    async def _build(self, number: int, key: str, definition: ExecRequest) -> None:
        await self._program(key, definition)

    async def _program_run(
        self, number: int, key: str, definition: ExecRequest | None, arguments: tuple[Any, ...], is_streamed: bool
    ) -> Any:
        """`definition` comes with the first runs of the program on this node."""
        program = await self._program(key, definition)
        stdin, args, timeout, limits = arguments
        if not is_streamed:
            return await program.run(stdin, args, timeout, limits=limits)
        return await self._follow(number, program.stream(stdin, args, timeout, limits=limits))

    async def _batch_program_run(
        self, number: int, key: str, definition: ExecRequest | None, arguments: tuple[Any, ...], at_once: int
    ) -> Any:
        """The program is built before the run waits for its place: later runs come without the definition."""
        program = await self._program(key, definition)
        stdin, args, timeout, limits = arguments
        return await self._batches.run(partial(program.run, stdin, args, timeout, limits=limits), at_once)

    async def _ask_images(self, number: int, method: str, *values: Any) -> Any:
        return await in_thread(lambda: getattr(self.images, method)(*values))

    # ---- sandboxes ----

    async def _sandbox(self, number: int, settings: Any) -> Any:
        """Makes a sandbox on this host; it is used through the server behind `_tunnel`."""
        return await (await self._find_server(SANDBOXES)).add_sandbox(settings)

    async def _open_server(self, number: int, name: str, definition: Any) -> None:
        """Starts a server with a definition of its caller; the node's own server of sandboxes needs none."""
        await self._find_server(name, definition)

    async def _ask_server(self, number: int, name: str, method: str, *values: Any) -> Any:
        return await getattr(await self._find_server(name), method)(*values)

    async def _tunnel(self, number: int, name: str) -> None:
        self._early.setdefault(number, [])
        path = (await self._find_server(name)).path
        carrier = Carrier(*await asyncio.open_unix_connection(path), partial(self._send, number))
        for message in self._early.pop(number):
            carrier.receive(*message)
        self._carriers[number] = carrier
        await carrier.run()

    def _pass_on(self, number: int, kind: str, values: tuple[Any, ...]) -> None:
        if number in self._windows:
            self._windows[number].add(*values)
        elif number in self._carriers:
            self._carriers[number].receive(kind, *values)
        elif number in self._tasks:
            self._early.setdefault(number, []).append((kind, *values))

    async def _find_server(self, name: str, definition: Any = None) -> Any:
        """Started at its first use. By name: servers are in a room above this one."""
        if name not in self._servers:
            make = import_module(_SERVERS[name]).start_server
            self._servers[name] = asyncio.ensure_future(make(definition or self._backend.config))
        return await _await_shared(self._servers, name)

    async def _examine(self, number: int) -> Any:
        """Attacks the cage on this host, as `warmcell doctor` does. By name: it is in a room above this one."""
        return await in_thread(import_module("warmcell.diagnosis.doctor").examine)

    async def _version(self, number: int, language: str) -> str:
        versions = (await in_thread(self._backend.capabilities)).versions
        return str(await in_thread(lambda: versions[language]))

    async def _program(self, key: str, definition: ExecRequest | None) -> Any:
        if key not in self._programs:
            if definition is None:
                raise ExecutionFailed("the node no longer has the program", hint="build it again")
            self._programs[key] = asyncio.create_task(self._backend.build(definition))
        return await _await_shared(self._programs, key)

    def _release(self, key: str) -> None:
        building = self._programs.pop(key, None)
        if building is not None:
            building.add_done_callback(_close_program)

    async def _follow(self, number: int, events: AsyncIterator[StreamEvent]) -> Any:
        window = self._windows[number] = Window()
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, ResultEvent):
                    return event.result
                assert isinstance(event, OutputEvent)
                await window.take(len(event.data))
                self._send(number, "output", event.stream, event.data)
        raise ExecutionFailed("the stream ended without a result")


def _portable(error: BaseException) -> BaseException:
    """The error without its traceback; one that the caller may not know as an error of ours."""
    if isinstance(error, SandboxError):
        return error.with_traceback(None)
    return ExecutionFailed(f"the node failed: {type(error).__name__}: {error}")


def _close_program(building: asyncio.Task[Any]) -> None:
    if not building.cancelled() and building.exception() is None:
        building.result().close()
