"""LocalProcess: one program of the live cage, for an event loop, and how it is started with pipes or a terminal."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import ExecutionTimeout, InvalidRequest, SessionEnded
from warmcell.core.light import Closing
from warmcell.core.output_events import OutputEvent
from warmcell.core.types import ExecResult
from warmcell.lifetime.descriptors import Descriptors
from warmcell.sandbox.interface import ProcessInfo, PtySize
from warmcell.sandbox.local.operations import Operations
from warmcell.sessions.processes import KILL_SECONDS, LiveProcess, Streams, result_of
from warmcell.sessions.streams import Input, InputClosed, Output, Ring

if TYPE_CHECKING:
    from warmcell.backends.process.live import LiveCage

_CAGE_END_SECONDS = 30.0
_MOST_JOINED = 1 << 16
#: Kept of each stream of a process, for callers that look later.
_RING_BYTES = 1 << 20
RingFactory = Callable[[], Ring]
#: A command line, or a function that makes one from the directory of its files.
Argv = Sequence[str] | Callable[[str], Sequence[str]]


class LocalProcess:
    def __init__(self, process: LiveProcess, operations: Operations) -> None:
        self._process, self._operations = process, operations

    @property
    def info(self) -> ProcessInfo:
        process = self._process
        return ProcessInfo(process.pid, process.command, process.cwd, process.is_running, process.exit_code)

    @property
    def exit_future(self) -> Future[Any]:
        """Done when the process has ended, in a thread of its own."""
        return self._process.finished

    async def refresh(self) -> ProcessInfo:
        return self.info

    def refresh_blocking(self) -> ProcessInfo:
        return self.info

    @property
    def start_failure(self) -> int:
        """exec's errno if the program could not be executed, else 0."""
        return self._process.program.failure

    async def write(self, data: bytes) -> None:
        async def write() -> None:
            try:
                await asyncio.wrap_future(self._process.input.write(data))
            except InputClosed:
                raise InvalidRequest(
                    "the process no longer reads its stdin", field="data", hint="check is_running"
                ) from None

        await self._operations.run(write())

    async def close_stdin(self) -> None:
        self._operations.check_open()
        self._process.input.end()

    async def resize(self, size: PtySize) -> None:
        if len(self._process.outputs) != 1:
            raise InvalidRequest("the process has no terminal", field="cols", hint="spawn(pty=PtySize(80, 24))")
        await self._if_running(self._process.program.resize(size.cols, size.rows))

    async def signal(self, number: int) -> None:
        await self._if_running(self._process.signal(number))

    async def _if_running(self, request: Coroutine[Any, Any, None]) -> None:
        if not self._process.is_running:
            request.close()
            self._operations.check_open()
            return
        await self._operations.run(request)

    async def kill(self) -> None:
        self._operations.check_open()
        with suppress(SessionEnded):  # its cage has ended, and everything in it
            await self._operations.run(self._process.kill())
        await self._operations.run(self._wait_for_end())

    async def _wait_for_end(self) -> None:
        """Ends the cage if the process is still running: its agent did not kill it."""
        finished = [self._join_finished()]
        # Not `wait_for`: it loses a cancellation that arrives together with the result.
        _, running = await asyncio.wait(finished, timeout=KILL_SECONDS)
        if running:
            self._process.program.end_cage(f"a killed program was still running after {KILL_SECONDS:g} s")
            await asyncio.wait(finished, timeout=_CAGE_END_SECONDS)

    def _join_finished(self) -> asyncio.Future[Any]:
        """One future for all callers on this event loop. They must not cancel it."""
        process, loop = self._process, asyncio.get_running_loop()
        if process.awaited is None or process.awaited.get_loop() is not loop:
            process.awaited = asyncio.wrap_future(process.finished)
        return process.awaited

    async def kill_quietly(self) -> None:
        self.kill_soon()

    def kill_soon(self) -> None:
        """`kill` without waiting for the end."""
        self._process.kill_soon()

    async def wait(self, callbacks: asyncio.Future[None] | None = None) -> ExecResult:
        async def wait() -> None:
            if not self._process.finished.done():  # else no timeout must come before the result
                await asyncio.shield(self._join_finished())
            if callbacks is not None:
                await asyncio.shield(callbacks)

        await self._operations.run(wait())
        return self.result()

    def result(self) -> ExecResult:
        """The result of a process that has ended; raises as `wait` does."""
        process = self._process
        result = result_of(process)
        if process.timed_out is not None:
            raise ExecutionTimeout(process.timed_out, result)
        if process.outcome is not None and process.outcome.error is not None:
            raise process.program.why_ended(result)
        return result

    async def output(self) -> AsyncGenerator[OutputEvent]:
        async with aclosing(self.output_since({})) as events:
            async for _, event in events:
                yield event

    async def output_since(self, received: Mapping[str, int]) -> AsyncGenerator[tuple[int, OutputEvent]]:
        """Output after the first `received` bytes of each stream; each piece with the position at its end."""
        positions: dict[str, int] = {}
        with self.follow() as follower:
            is_last = False
            while not is_last:
                events, is_last = await follower.take()
                for event in _join(events):
                    start = positions.get(event.stream, follower.starts[event.stream])
                    positions[event.stream] = start + len(event.data)
                    fresh = event.data[max(0, received.get(event.stream, 0) - start) :]
                    if fresh:
                        yield positions[event.stream], OutputEvent(event.stream, fresh)

    def totals(self) -> dict[str, int]:
        """By stream: the number of bytes printed so far."""
        return {output.name: output.ring.total for output in self._process.outputs}

    def follow(self) -> LoopFollower:
        """The output, all that is available at a time. Use it with `with`."""
        self._operations.check_open()
        return LoopFollower(self._process)

    def output_blocking(self) -> Iterator[OutputEvent]:
        self._operations.check_open()
        return self._iterate_output()

    def _iterate_output(self) -> Iterator[OutputEvent]:
        is_ready = threading.Event()
        follower = self._process.follow(is_ready.set)
        try:
            is_last = False
            while not is_last:
                is_ready.wait()
                is_ready.clear()
                events, is_last = follower.take()
                yield from events
        finally:  # the garbage collector may run this: it must not block
            self._process.unfollow(follower)


def _join(events: Iterable[OutputEvent]) -> Iterator[OutputEvent]:
    """Small pieces of one stream in a row as one: a reader that is behind gets fewer."""
    for stream, pieces in groupby(events, lambda event: event.stream):
        joined = bytearray()
        for piece in pieces:
            if joined and len(joined) + len(piece.data) > _MOST_JOINED:
                yield OutputEvent(stream, bytes(joined))
                joined.clear()
            joined += piece.data
        yield OutputEvent(stream, bytes(joined))


class LoopFollower(Closing):
    """Follows the output of a process from an event loop."""

    def __init__(self, process: LiveProcess) -> None:
        self._process, self._loop = process, asyncio.get_running_loop()
        self._is_ready = asyncio.Event()
        self._is_woken = False
        self._follower = process.follow(self._wake)

    def close(self) -> None:
        self._process.unfollow(self._follower)

    @property
    def starts(self) -> Mapping[str, int]:
        """By stream: the position of the first byte that is still kept."""
        return self._follower.starts

    async def take(self, timeout: float | None = None) -> tuple[list[OutputEvent], bool]:
        """Waits for output, at most `timeout` seconds, and returns all there is and whether it was the last.

        After the last, the process has ended and has a `result`.
        """
        timer = None if timeout is None else self._loop.call_later(timeout, self._is_ready.set)
        try:
            await self._is_ready.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._is_ready.clear()
        self._is_woken = False  # before the events are taken, so that later ones wake again
        return self._follower.take()

    def _wake(self) -> None:
        """Called by the cage's loop. Wakes once per `take`, since each wake-up costs both loops an iteration."""
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the event loop was closed
                self._loop.call_soon_threadsafe(self._is_ready.set)


def make_ring() -> Ring:
    return Ring(_RING_BYTES)


async def start_program(
    cage: LiveCage,
    argv: Argv,
    cwd: str,
    command: str,
    env: Mapping[str, str] | None,
    pty: PtySize | None,
    stdin: bool,
    ring: RingFactory,
    files: Mapping[str, bytes] | None,
    worker: str | None = None,
    joins_output: bool = False,
) -> LiveProcess:
    """The host creates the pipes and gives the guest their other ends: no open file description is shared.

    `worker` names a worker of ours to start in place of the command line. With `joins_output` stderr is stdout's pipe:
    only then is the order of what was written to the two certain.
    """
    with Descriptors() as owned, Descriptors() as theirs:
        if pty is not None:
            streams, ends = _terminal_streams(cage, owned, theirs, ring)
        else:
            streams, ends = _plain_streams(cage, owned, theirs, ring, stdin, joins_output)
        size = None if pty is None else (pty.cols, pty.rows)
        place = cage.new_code_dir() if callable(argv) else ""
        words = argv(place) if callable(argv) else argv
        program = await cage.start_async(
            words, cwd=cwd, env=env, descriptors=ends, pty=size, files=files, code_dir=place, worker=worker
        )
        theirs.close()
    return LiveProcess(cage.loop, program, command or " ".join(words), cwd, streams)


def _pipe(owned: Descriptors, theirs: Descriptors, *, inward: bool) -> tuple[int, int]:
    """Our end, which never blocks, and theirs."""
    reader, writer = owned.pipe()
    ours, other = (writer, reader) if inward else (reader, writer)
    theirs.take([owned.give(other)])
    os.set_blocking(ours, False)
    return ours, other


def _plain_streams(
    cage: LiveCage, owned: Descriptors, theirs: Descriptors, ring: RingFactory, stdin: bool, joins_output: bool
) -> tuple[Streams, list[int]]:
    if stdin:
        ours_in, their_in = _pipe(owned, theirs, inward=True)
    else:
        ours_in, their_in = -1, theirs.open(lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    out, their_out = _pipe(owned, theirs, inward=False)
    outputs, their_error = [Output(cage.loop, "stdout", out, owned, ring())], their_out
    if not joins_output:
        error, their_error = _pipe(owned, theirs, inward=False)
        outputs.append(Output(cage.loop, "stderr", error, owned, ring()))
    return Streams(Input(cage.loop, ours_in, owned), outputs, owned), [their_in, their_out, their_error]


def _terminal_streams(
    cage: LiveCage, owned: Descriptors, theirs: Descriptors, ring: RingFactory
) -> tuple[Streams, list[int]]:
    ours_in, their_in = _pipe(owned, theirs, inward=True)
    out, their_out = _pipe(owned, theirs, inward=False)
    output = Output(cage.loop, "stdout", out, owned, ring())
    return Streams(Input(cage.loop, ours_in, owned), [output], owned), [their_in, their_out]
