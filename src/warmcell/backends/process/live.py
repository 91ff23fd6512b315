"""LiveCage: a cell with the agent as its guest, in which programs are started. Its limits hold for all of them."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from warmcell.backends.process.cell_template import CellTemplate
from warmcell.backends.process.idle_timer import IdleTimer
from warmcell.backends.process.started_programs import (
    IDLE,
    OVER_MEMORY,
    CageEnd,
    LiveDenials,
    MemoryKills,
    PendingStart,
    StartedProgram,
    cage_end_from,
    exit_from,
    start_error,
)
from warmcell.core.errors import InvalidRequest, SandboxError, SessionEnded
from warmcell.core.light import on_error
from warmcell.core.types import MIB, Denial
from warmcell.guest.live.frames import FrameTooLong
from warmcell.lifetime.descriptors import Descriptors, open_memory_file
from warmcell.lifetime.ownership import Lock, own_until_exit
from warmcell.lifetime.threads import in_thread, wait_for_future
from warmcell.policy.places import CODE_DIR, WORK_DIR
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.guest_memory import guest_memory
from warmcell.sessions.agent_channel import AgentChannel, ChannelClosed, Message
from warmcell.sessions.loop import READ, Loop

if TYPE_CHECKING:
    from warmcell.runner.starvation import GuestClock

#: How long the agent may take to start a program, and for any other request. Then its cage is ended from outside.
_START_SECONDS, _GRACE_SECONDS = 60.0, 5.0
#: How long the end of a cage may take, and of that the manager's report, which an overloaded host may delay.
_END_SECONDS, _REPORT_MS = 60.0, 45_000
_MOST_LAST_WORDS = 4096
_FORGED, _NO_ANSWER = "its agent sent an invalid message", "its agent did not answer for {:g} s"


class LiveCage:
    """Made by `live_start.create_live_cage`. Safe from many threads. `ended` is set, once, when nothing of it is left.

    It ends with `close`, with this process, when its agent does, or at a limit. In a fork it has ended.
    """

    def __init__(
        self,
        cell: Cell,
        control: socket.socket,
        template: CellTemplate,
        env: Mapping[str, str],
        cleanup: ExitStack,
        denials: LiveDenials,
        idle_timeout: float | None = None,
    ) -> None:
        self._cell = cell
        #: The agent's pid on the host.
        self.pid = cell.guest_pid
        self._env = dict(env)
        self._cleanup = cleanup
        self._denials = denials
        self.memory_kills = MemoryKills(cell).count
        #: Held while the cell's status is read, which also callers do.
        self._status_lock = Lock()
        self.template = template
        self.ended: Future[CageEnd] = Future()
        self.ended.set_running_or_notify_cancel()
        self._programs: dict[int, StartedProgram] = {}
        self._marks, self._code_dirs = count(1), count(1)
        self._last_words = bytearray()
        self._is_closing = self._is_ready = False
        self.loop = Loop("warmcell-live")
        self._channel = AgentChannel(self.loop, control, self._on_event, self._on_closed)
        self._idle = IdleTimer(self.loop, idle_timeout, self._is_busy, lambda: self._channel.end(IDLE))
        for descriptor in (cell.stdout, cell.stderr):
            self.loop.watch(descriptor, READ, lambda descriptor=descriptor: self._keep_last_words(descriptor))  # type: ignore[misc]
        self.loop.watch(cell.status.fileno(), READ, self._receive_denials)
        self.loop.watch(cell.pidfd, READ, lambda: self._channel.end(""))
        self._idle.start()
        self.loop.start()
        own_until_exit(self)

    @property
    def is_alive(self) -> bool:
        return not self._is_closing and not self.ended.done()

    @property
    def has_programs(self) -> bool:
        return bool(self._programs)

    @property
    def was_idle(self) -> bool:
        """Whether it ended because it was idle."""
        return self.ended.done() and self.ended.result().reason == IDLE

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a program in this cage."""
        return {**self._env, **(env or {})}

    def start(self, argv: Sequence[str] | None = None, **options: Any) -> StartedProgram:
        """Starts a program or worker and blocks until it runs."""
        starting = self.request_start(argv, **options)
        return self._program_from(starting, self._await(starting.answer, _START_SECONDS))

    async def start_async(self, argv: Sequence[str], **options: Any) -> StartedProgram:
        """`start` for event loops. Cancelling it leaves nothing running."""
        starting = self.request_start(argv, **options)
        try:
            await wait_for_future(starting.answer, _START_SECONDS)
        except asyncio.CancelledError:
            starting.answer.add_done_callback(lambda _: starting.kill_soon())
            raise
        if not starting.answer.done() or starting.answer.exception() is not None:
            await in_thread(lambda: self._await(starting.answer, 0))  # raises the reason
        return self._program_from(starting, starting.answer.result())

    def request_start(
        self,
        argv: Sequence[str] | None = None,
        *,
        worker: str | None = None,
        cwd: str = WORK_DIR,
        env: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        pty: tuple[int, int] | None = None,
        files: Mapping[str, bytes] | None = None,
        code_dir: str = "",
    ) -> PendingStart:
        """A program, or a worker of ours: `guest/live/<worker>.py`, whose `main()` runs in a fork of the agent.

        `descriptors` become its 0, 1, 2 and so on: the guest's ends of what the caller made, and keeps or closes. With
        `pty` (columns, rows) there are two, for what is typed and what is shown. `files` are there while it runs, in
        `code_dir`, which is one of `new_code_dir()`.
        """
        mark, began = str(next(self._marks)), time.monotonic()
        fields: dict[str, Any] = {"cwd": cwd, "env": self.environment(env), "mark": mark}
        fields.update({"worker": worker} if worker else {"argv": list(argv or ())})
        if pty is not None:
            fields["pty"] = list(pty)
        if files:
            fields.update(files=list(files), code_dir=code_dir)
        started: list[StartedProgram] = []
        with Descriptors() as sent:
            contents = [sent.open(partial(open_memory_file, content)) for content in (files or {}).values()]
            answer = self._ask(
                "start",
                [*descriptors, *contents],
                lambda answer: self._register(answer, mark, began, started),
                **fields,
            )
            sent.close()
        return PendingStart(answer, started, cwd)

    def _program_from(self, starting: PendingStart, answer: Message) -> StartedProgram:
        if "error" in answer:
            raise start_error(answer, starting.cwd)
        if not starting.started:
            raise self._end_error()
        return starting.started[0]

    def new_code_dir(self) -> str:
        """A place in the cage for files of one program."""
        return f"{CODE_DIR}/runs/{next(self._code_dirs)}"

    def connect(self, port: int) -> socket.socket:
        """Connects to a port on the cage's own loopback; `ConnectionRefusedError` if nothing accepts it there."""
        ours, connected = self.connect_async(port)
        with on_error(ours.close):
            # No fault of the agent's: a program whose queue of connections is full makes it wait.
            if not wait([connected], _GRACE_SECONDS).done:
                raise ConnectionRefusedError(f"the program on port {port} in the sandbox accepts no more connections")
            answer = self._await(connected)
            if "error" in answer:
                raise ConnectionRefusedError(answer.get("errno", 0), f"nothing listens on port {port} in the sandbox")
        return ours

    def connect_async(self, port: int) -> tuple[socket.socket, Future[Message]]:
        """`connect` without waiting: returns our end and the answer, which has "error" if nothing listens."""
        self._idle.calls += 1
        with Descriptors() as owned:
            ours, theirs = owned.socketpair(socket.SOCK_STREAM)
            answer = self._channel.ask("connect", [theirs], port=port)
            owned.close_only(theirs)
            return socket.socket(fileno=owned.give(ours.detach())), answer

    def request(self, pid: int, op: str, **fields: Any) -> Message:
        """Sends the agent a request about a program, which may have ended, and waits for the answer."""
        return self._await(self._ask(op, pid=pid, **fields))

    async def request_async(self, pid: int, op: str, **fields: Any) -> Message:
        """`request` for event loops: may be cancelled at any moment."""
        return await self._answer_async(op, pid=pid, **fields)

    async def pause(self, spared: Sequence[int] = ()) -> None:
        """Stops everything in it but the agent and the programs with these pids."""
        await self._answer_async("pause_all", spared=list(spared))

    async def resume(self) -> None:
        await self._answer_async("resume_all")

    async def _answer_async(self, op: str, **fields: Any) -> Message:
        answer = self._ask(op, **fields)
        await wait_for_future(answer, _GRACE_SECONDS)
        if not answer.done():
            self.end_soon(_NO_ANSWER.format(_GRACE_SECONDS))
            await wait_for_future(self.ended, _END_SECONDS)  # `_end_error` would block the event loop for that time
            raise self._end_error()
        if isinstance(answer.exception(), ChannelClosed):
            await wait_for_future(self.ended, _END_SECONDS)
            raise self._end_error()
        return answer.result()

    def send(self, pid: int, op: str, **fields: Any) -> Future[Message]:
        """`request` without waiting for the answer."""
        return self._channel.ask(op, pid=pid, **fields)

    def end_soon(self, reason: str) -> None:
        """Ends the cage and everything in it from outside, without waiting for it."""
        self.loop.call(lambda: self._channel.end(reason))

    def close(self) -> None:
        """Ends everything in it and waits until it is gone."""
        self._is_closing = True
        self.loop.call(lambda: self._channel.end("it was closed"))
        self.loop.join()

    def abandon(self) -> None:
        """In a fork: the original's cell goes on, and this copy has none."""
        self._is_closing = True
        self._programs = {}

    def _ask(
        self,
        op: str,
        descriptors: Sequence[int] = (),
        on_answer: Callable[[Message], None] | None = None,
        **fields: Any,
    ) -> Future[Message]:
        self._idle.calls += 1
        try:
            return self._channel.ask(op, descriptors, on_answer, **fields)
        except FrameTooLong as error:
            raise InvalidRequest(f"too large for one message: {error}", field="env or args") from None

    def _await(self, answer: Future[Message], seconds: float = _GRACE_SECONDS) -> Message:
        """The answer. An agent that does not give one in time is ended with its cage."""
        if self.loop.is_own_thread():
            raise RuntimeError("the live cage's own thread cannot wait for it")
        try:
            return answer.result(seconds)
        except ChannelClosed:
            raise self._end_error() from None
        except NoAnswer:
            reason = _NO_ANSWER.format(seconds or _START_SECONDS)
            self.end_soon(reason)
            self.loop.join()
            raise SessionEnded(reason) from None

    def _end_error(self) -> SandboxError:
        if not self.ended.done() and (self._is_closing or self.loop.is_own_thread()):
            return SessionEnded(SessionEnded.CLOSED)
        return self.ended.result(_END_SECONDS).error()

    # ---- in the loop's thread ----

    def _register(self, answer: Message, mark: str, began: float, started: list[StartedProgram]) -> None:
        """Registers the program before its exit can be reported."""
        pid, failure = answer.get("pid"), answer.get("errno")
        if "error" in answer:
            return
        if not isinstance(pid, int) or not isinstance(failure, int) or pid <= 1 or pid in self._programs:
            self._channel.end(_FORGED)
            return
        started.append(StartedProgram(self, pid, failure, mark, began))
        self._programs[pid] = started[0]

    def _is_busy(self) -> bool:
        """Whether programs run in it, or are being started: that may take longer than its idle time."""
        return bool(self._programs) or self._channel.is_awaited

    def _on_event(self, message: Message) -> None:
        if message == {"event": "ready"} and not self._is_ready:
            self._is_ready = True
            self._cell.close_start_channels()
            return
        program = self._programs.get(pid) if isinstance(pid := message.get("pid"), int) else None
        if program is not None and message.get("event") == "ending" and not program.is_ending:
            program.note_ending()
        elif program is None or (ended := exit_from(message)) is None:
            self._channel.end(_FORGED)
        else:
            del self._programs[program.pid]
            self._idle.start()
            self._receive_denials()
            program.denials = self._denials.since(program.began)
            program.ended.set_result(ended)

    def _receive_denials(self) -> None:
        """Denials are sent before the guest continues, and so before its exit is reported."""
        try:
            self._read_status()
        except (CellLost, SandboxError, OSError):
            self.loop.forget(self._cell.status.fileno())
        if self._cell.report is not None:
            self.loop.forget(self._cell.status.fileno())

    def _read_status(self) -> None:
        status = select.poll()
        with self._status_lock:
            status.register(self._cell.status, select.POLLIN)
            while self._cell.report is None and status.poll(0):
                self._cell.receive_message()

    def end_if_over_memory(self, peak: int) -> bool:
        """Ends the cage if it is over its memory limit now: a late watcher would blame the next program."""
        limit = self.template.effective.limits.memory_mb * MIB
        if self._cell.group is not None or peak <= limit:
            return False
        if guest_memory((self.pid, *self._cell.pids()), limit) <= limit:
            return False
        self.end_soon(OVER_MEMORY)
        return True

    def start_clock(self) -> GuestClock:
        from warmcell.runner.starvation import GuestClock

        return GuestClock(lambda: (self.pid, *self._cell.pids()))

    def denials_since(self, moment: float) -> list[Denial]:
        """The denials of the cage since that time. From any thread."""
        with suppress(CellLost, SandboxError, OSError, ValueError):  # the cage has ended
            self._read_status()
        return self._denials.since(moment)

    def _keep_last_words(self, descriptor: int) -> None:
        """Keeps the end of the agent's stderr, to which it writes only if it fails."""
        with suppress(BlockingIOError):
            data = os.read(descriptor, _MOST_LAST_WORDS)
            if not data:
                self.loop.forget(descriptor)
            self._last_words += data
            del self._last_words[:-_MOST_LAST_WORDS]

    def _on_closed(self, reason: str) -> None:
        """Ends the cell, whatever the reason, then completes everything that waits for it."""
        end = self._end(reason)
        self.ended.set_result(end)
        programs, self._programs = self._programs, {}
        for program in programs.values():
            program.denials = self._denials.since(program.began)
            program.ended.set_exception(end.error())
        self.loop.end()

    def _end(self, reason: str) -> CageEnd:
        cell = self._cell
        for descriptor in (cell.stdout, cell.stderr, cell.pidfd, cell.status.fileno()):
            self.loop.forget(descriptor)
        if reason:
            cell.ask_to_stop()
        elif not self._is_ready:
            cell.receive_start()
        report = self._report()
        with suppress(OSError), self._status_lock:  # OSError: no descriptors left, the usage is not read
            cell.close()
        self._cleanup.close()
        if not reason and cell.group_usage is not None and cell.group_usage.memory_kills:
            report = {**report, "verdict": "memory"}
        return cage_end_from(report, reason, self._last_words, cell.start_failure)

    def _report(self) -> dict[str, Any]:
        """The manager's report on the agent's end, which arrives shortly after the exit."""
        poll = select.poll()
        poll.register(self._cell.status, select.POLLIN)
        with suppress(CellLost, SandboxError, OSError), self._status_lock:
            while self._cell.report is None and poll.poll(_REPORT_MS):
                self._cell.receive_message()
        return self._cell.report or {}
