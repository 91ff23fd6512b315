"""What a sandbox's live processes are to their caller: `AsyncProcess`, `Process`, and what is said of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass

from warmcell.backends.output_callbacks import OnText, Texts
from warmcell.core.errors import ExecutionTimeout, InvalidRequest, SessionEnded
from warmcell.core.output_events import OutputEvent
from warmcell.core.types import ExecResult
from warmcell.lifetime.portal import Visits, portal
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.operations import Operations
from warmcell.sessions.processes import LiveProcess
from warmcell.sessions.results import result_of
from warmcell.sessions.streams import InputClosed

_MOST_CELLS = 65_535
_KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PtySize:
    """Columns and rows of a terminal."""

    cols: int
    rows: int

    def __post_init__(self) -> None:
        for name, value in (("cols", self.cols), ("rows", self.rows)):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_CELLS:
                raise InvalidRequest(f"must be a whole number from 1 to {_MOST_CELLS}", field=name)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One line of `processes()`. `exit_code` is None while it runs, and where it went with its cage."""

    pid: int
    command: str
    cwd: str
    is_running: bool
    exit_code: int | None


class AsyncProcess:
    """A program in the live cage. It outlives the call that started it, and ends with the sandbox at the latest."""

    def __init__(self, process: LiveProcess, operations: Operations) -> None:
        self._process, self._operations = process, operations
        #: Whoever calls back: its end is part of the process's, and so is what it raises.
        self._hearing: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int:
        """As the guest sees it."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    @property
    def info(self) -> ProcessInfo:
        process = self._process
        return ProcessInfo(process.pid, process.command, process.cwd, process.is_running, process.exit_code)

    async def write(self, data: str | bytes) -> None:
        """Gives it to the program to read; returns when the program's pipe has all of it."""
        if not isinstance(data, str | bytes):
            raise InvalidRequest(f"must be text or bytes, not {type(data).__name__}", field="data")
        raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data

        async def write() -> None:
            try:
                await asyncio.wrap_future(self._process.input.write(raw))
            except InputClosed:
                raise InvalidRequest("the process reads no more", field="data", hint="look at is_running") from None

        await self._operations.run(write())

    async def close_stdin(self) -> None:
        """The program reads what was written, and then the end."""
        self._operations.check_open()
        self._process.input.end()

    async def resize(self, cols: int, rows: int) -> None:
        """Of its terminal; the program is told by SIGWINCH."""
        size = PtySize(cols, rows)
        if len(self._process.outputs) != 1:
            raise InvalidRequest("the process has no terminal", field="cols", hint="spawn(pty=PtySize(80, 24))")
        await self._ask(lambda: self._process.program.resize(size.cols, size.rows))

    async def signal(self, number: int) -> None:
        """To the program and its process group, as a terminal would send it. Nothing happens where it has ended."""
        if not isinstance(number, int) or not 0 <= number <= 64:
            raise InvalidRequest("must be the number of a signal", field="number")
        await self._ask(lambda: self._process.program.signal(number))

    async def kill(self) -> None:
        """Ends it and everything that it started, also what it left running when it ended."""
        self._operations.check_open()
        with suppress(SessionEnded):  # everything ended with its cage
            await self._operations.run(in_thread(self._process.program.kill))

        async def gone() -> None:
            # Not `wait_for`: it forgets that it was cancelled where what it waits for is done by then.
            await asyncio.wait([asyncio.wrap_future(self._process.finished)], timeout=_KILL_SECONDS)

        await self._operations.run(gone())

    def kill_soon(self) -> None:
        """`kill` without waiting for it."""
        self._process.program.kill_soon()

    @property
    def start_failure(self) -> int:
        """exec's errno, where there was nothing to execute."""
        return self._process.program.failure

    async def _ask(self, ask: Callable[[], None]) -> None:
        if not self._process.is_running:
            self._operations.check_open()
            return
        await self._operations.run(in_thread(ask))

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """The result, when it has ended. `TimeoutError` after `timeout` seconds: the process goes on.

        Raises what ended it where that was no end of its own: `ExecutionTimeout` of `spawn(timeout=)`,
        `MemoryExceeded`, `SessionEnded`, or what a callback raised. The output is what is kept: the last of it.
        """
        return await self._operations.run(self._wait(timeout))

    async def _wait(self, timeout: float | None) -> ExecResult:
        async def ended() -> None:
            await asyncio.shield(asyncio.wrap_future(self._process.finished))
            if self._hearing is not None:
                await asyncio.shield(self._hearing)

        async with asyncio.timeout(timeout):
            await ended()
        return self.result()

    def result(self) -> ExecResult:
        """Of one that has ended; raises as `wait` does."""
        process = self._process
        result = result_of(process)
        if process.timed_out is not None:
            raise ExecutionTimeout(process.timed_out, result)
        if process.outcome is not None and process.outcome.error is not None:
            raise process.program.why_ended(result)
        return result

    async def output(self) -> AsyncIterator[OutputEvent]:
        """What is still kept, then what comes, as bytes, until the process has ended."""
        async with aclosing(self.output_since({})) as events:
            async for _, event in events:
                yield event

    async def output_since(self, heard: Mapping[str, int]) -> AsyncGenerator[tuple[int, OutputEvent]]:
        """The same without the first so many bytes of each stream; with each piece, how many there were after it."""
        positions: dict[str, int] = {}
        with self.follow() as following:
            is_last = False
            while not is_last:
                events, is_last = await following.take()
                for event in events:
                    start = positions.get(event.stream, following.starts[event.stream])
                    positions[event.stream] = start + len(event.data)
                    fresh = event.data[max(0, heard.get(event.stream, 0) - start) :]
                    if fresh:
                        yield positions[event.stream], OutputEvent(event.stream, fresh)

    def follow(self) -> Following:
        """`output` for who takes all that has come at once; to be left when it is over."""
        return Following(self.opened())

    def opened(self) -> LiveProcess:
        """What is behind it, while there is a sandbox."""
        self._operations.check_open()
        return self._process

    def hear(self, texts: Texts) -> None:
        """Calls back as output comes; what a callback raises ends the process, and is raised by `wait`."""
        self._hearing = asyncio.ensure_future(self.tell(texts))

    async def tell(self, texts: Texts) -> None:
        try:
            async for event in self.output():
                await texts.hear(event)
            await texts.finish()
        except Exception:
            self._process.program.kill_soon()
            raise

    def __repr__(self) -> str:
        state = "running" if self.is_running else f"ended with {self._process.exit_code}"
        return f"<{type(self).__name__} {self.pid} {state}>"


class Following:
    """Somebody in an event loop who hears the output of a process. Left with `with`."""

    def __init__(self, process: LiveProcess) -> None:
        self._process, self._loop = process, asyncio.get_running_loop()
        self._is_ready = asyncio.Event()
        self._is_woken = False
        self._follower = process.follow(self._wake)

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.unfollow(self._follower)

    @property
    def starts(self) -> Mapping[str, int]:
        """By stream: how many bytes had gone by before the first that it hears."""
        return self._follower.starts

    async def take(self, timeout: float | None = None) -> tuple[list[OutputEvent], bool]:
        """What has come since, when something has, or nothing after `timeout` seconds; and whether that was all.

        Then the process has ended, and `result` can be asked.
        """
        patience = None if timeout is None else self._loop.call_later(timeout, self._is_ready.set)
        try:
            await self._is_ready.wait()
        finally:
            if patience is not None:
                patience.cancel()
        self._is_ready.clear()
        self._is_woken = False  # before what is there is taken: what comes after it wakes again
        return self._follower.take()

    def _wake(self) -> None:
        """From the loop of the cage: once until it is looked, as every time costs both loops a turn."""
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the event loop is gone, and whoever listened with it
                self._loop.call_soon_threadsafe(self._is_ready.set)


class Process:
    """`AsyncProcess` for blocking code. Callbacks are called by a thread of their own."""

    def __init__(self, process: AsyncProcess) -> None:
        self._async = process

    @property
    def pid(self) -> int:
        """As the guest sees it."""
        return self._async.pid

    @property
    def is_running(self) -> bool:
        return self._async.is_running

    @property
    def info(self) -> ProcessInfo:
        return self._async.info

    def write(self, data: str | bytes) -> None:
        """Gives it to the program to read; returns when the program's pipe has all of it."""
        portal.call(self._async.write, data)

    def close_stdin(self) -> None:
        """The program reads what was written, and then the end."""
        portal.call(self._async.close_stdin)

    def resize(self, cols: int, rows: int) -> None:
        """Of its terminal; the program is told by SIGWINCH."""
        portal.call(self._async.resize, cols, rows)

    def signal(self, number: int) -> None:
        """To the program and its process group, as a terminal would send it. Nothing happens where it has ended."""
        portal.call(self._async.signal, number)

    def kill(self) -> None:
        """Ends it and everything that it started, also what it left running when it ended."""
        portal.call(self._async.kill)

    def wait(self, timeout: float | None = None) -> ExecResult:
        """As `AsyncProcess.wait`: the result, `TimeoutError` after `timeout` seconds, or what ended the process."""
        return portal.call(self._async.wait, timeout)

    def output(self) -> Iterator[OutputEvent]:
        """What is still kept, then what comes, as bytes, until the process has ended."""
        process, is_ready = self._async.opened(), threading.Event()
        follower = process.follow(is_ready.set)
        try:
            is_last = False
            while not is_last:
                is_ready.wait()
                is_ready.clear()
                events, is_last = follower.take()
                yield from events
        finally:  # whoever collects what nobody holds any more may come by here: nothing blocks
            process.unfollow(follower)

    def hear(self, on_stdout: OnText | None, on_stderr: OnText | None) -> None:
        """The callbacks run in a thread of their own, where they may block and call the sandbox."""
        visits, done = Visits(), Future[None]()
        texts = Texts(*(visits.lift(call) if callable(call) else call for call in (on_stdout, on_stderr)))

        def serve() -> None:
            try:
                portal.call_visited(visits, self._async.tell, texts)
                done.set_result(None)
            except BaseException as error:
                self._kill_unheard()
                done.set_exception(error)

        async def remember() -> None:
            self._async._hearing = asyncio.wrap_future(done)

        portal.call(remember)
        threading.Thread(target=serve, name="warmcell-output", daemon=True).start()

    def _kill_unheard(self) -> None:
        """A callback failed: nobody is told any more of what the process does."""
        self._async.kill_soon()

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncProcess", "Process")
