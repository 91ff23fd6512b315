"""LiveCage: a cell that stays, whose guest is the agent. Programs come and go; its limits hold for all of them."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import Any

from warmcell.backends.process.live_denials import LiveDenials
from warmcell.backends.process.live_ends import IDLE, CageEnd, Ending, end_of, refusal
from warmcell.backends.process.started_programs import StartedProgram, Starting
from warmcell.backends.process.world import World
from warmcell.core.errors import (
    InvalidRequest,
    SandboxError,
    SessionEnded,
)
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.ownership import own_until_exit
from warmcell.lifetime.threads import in_thread
from warmcell.policy.places import CODE_DIR, WORK_DIR
from warmcell.runner.cell import Cell, CellLost
from warmcell.sessions.conversation import Conversation, ConversationOver, Message
from warmcell.sessions.frames import FrameTooLong
from warmcell.sessions.loop import READ, Loop

_ANSWER_SECONDS = 60.0
_LAST_WORDS_MS = 10_000
_MOST_LAST_WORDS = 4096
_MOST_PEAK = 1 << 62
_FORGED = "something in it spoke in the agent's name"


class LiveCage:
    """Made by `live_making.begun`. Safe from many threads. `ended` is set, once, when nothing of it is left.

    It ends with `close`, with this process, when its agent does, or at a limit. In a fork it has ended.
    """

    def __init__(
        self,
        cell: Cell,
        control: socket.socket,
        world: World,
        env: Mapping[str, str],
        cleanup: ExitStack,
        denials: LiveDenials,
        idle_timeout: float | None = None,
    ) -> None:
        self._cell = cell
        #: The agent's own process as this host numbers it, or did.
        self.pid = cell.guest_pid
        self._env = dict(env)
        self._cleanup = cleanup
        self._denials = denials
        self.world = world
        self.ended: Future[CageEnd] = Future()
        self.ended.set_running_or_notify_cancel()
        self._programs: dict[int, StartedProgram] = {}
        self._marks, self._code_dirs = count(1), count(1)
        self._last_words = bytearray()
        self._is_closing = False
        self._is_ready = False
        self._idle_timeout = idle_timeout
        #: How often it was asked for something: whoever wants to end an idle one looks whether this has changed.
        self._calls = 0
        self.loop = Loop("warmcell-live")
        self._conversation = Conversation(self.loop, control, self._heard, self._over)
        for descriptor in (cell.stdout, cell.stderr):
            self.loop.watch(descriptor, READ, lambda descriptor=descriptor: self._keep_last_words(descriptor))  # type: ignore[misc]
        self.loop.watch(cell.status.fileno(), READ, self._hear_denials)
        self.loop.watch(cell.pidfd, READ, lambda: self._conversation.end(""))
        self._begin_idling()
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
        """Whether it has ended for want of anything to do."""
        return self.ended.done() and self.ended.result().reason == IDLE

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a program of this cage finds in its environment."""
        return {**self._env, **(env or {})}

    def start(self, argv: Sequence[str] | None = None, **options: Any) -> StartedProgram:
        """`begin_starting` for who can wait: blocks until it was started."""
        starting = self.begin_starting(argv, **options)
        return self._started(starting, self._await(starting.answer))

    async def start_soon(self, argv: Sequence[str], **options: Any) -> StartedProgram:
        """The same for event loops. Who is cancelled meanwhile leaves nothing running."""
        starting = self.begin_starting(argv, **options)
        try:
            await _settled(starting.answer, _ANSWER_SECONDS)
        except asyncio.CancelledError:
            starting.answer.add_done_callback(lambda _: starting.kill_soon())
            raise
        if starting.answer.done() and starting.answer.exception() is None:
            return self._started(starting, starting.answer.result())
        return self._started(starting, await in_thread(lambda: self._await(starting.answer, 0)))  # which says why

    def begin_starting(
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
    ) -> Starting:
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
            contents = [sent.opened(partial(_memory_file, content)) for content in (files or {}).values()]
            answer = self._ask(
                "start", [*descriptors, *contents], lambda answer: self._begun(answer, mark, began, started), **fields
            )
            sent.close()
        return Starting(answer, started, cwd)

    def _started(self, starting: Starting, answer: Message) -> StartedProgram:
        if "error" in answer:
            raise refusal(answer, starting.cwd)
        if not starting.started:
            raise self._why_over()
        return starting.started[0]

    def new_code_dir(self) -> str:
        """A place in the cage for files of one program."""
        return f"{CODE_DIR}/runs/{next(self._code_dirs)}"

    def connect(self, port: int) -> socket.socket:
        """A connection to that port of the cage's own loopback; `ConnectionError` where nobody takes it."""
        with Descriptors() as owned:
            ours, theirs = owned.socketpair(socket.SOCK_STREAM)
            answer = self._answer("connect", [theirs], port=port)
            owned.close_only(theirs)
            if "error" in answer:
                owned.close()
                raise ConnectionRefusedError(answer.get("errno", 0), f"nobody listens on port {port} in the sandbox")
            return socket.socket(fileno=owned.give(ours.detach()))

    def begin_connecting(self, port: int) -> tuple[socket.socket, Future[Message]]:
        """`connect` for who cannot wait: our end, and the answer, which has an "error" where nobody takes it."""
        self._calls += 1
        with Descriptors() as owned:
            ours, theirs = owned.socketpair(socket.SOCK_STREAM)
            answer = self._conversation.ask("connect", [theirs], port=port)
            owned.close_only(theirs)
            return socket.socket(fileno=owned.give(ours.detach())), answer

    def ask_of(self, pid: int, op: str, **fields: Any) -> None:
        """Something about a program that may have ended by now."""
        self._answer(op, pid=pid, **fields)

    def ask_soon(self, pid: int, op: str, **fields: Any) -> None:
        """The same without waiting: what comes of it is seen by its end."""
        self._conversation.ask(op, pid=pid, **fields)

    def close(self) -> None:
        """Ends everything in it and waits until it is gone."""
        self._is_closing = True
        self.loop.call(lambda: self._conversation.end("it was closed"))
        self.loop.join()

    def abandon(self) -> None:
        """In a fork: the original's cell goes on, and this copy has none."""
        self._is_closing = True
        self._programs = {}

    def _answer(self, op: str, descriptors: Sequence[int] = (), **fields: Any) -> Message:
        return self._await(self._ask(op, descriptors, **fields))

    def _ask(
        self,
        op: str,
        descriptors: Sequence[int] = (),
        on_answer: Callable[[Message], None] | None = None,
        **fields: Any,
    ) -> Future[Message]:
        self._calls += 1
        try:
            return self._conversation.ask(op, descriptors, on_answer, **fields)
        except FrameTooLong as error:
            raise InvalidRequest(f"too much for one message: {error}", field="env or args") from None

    def _await(self, answer: Future[Message], seconds: float | None = None) -> Message:
        if self.loop.is_own_thread():
            raise RuntimeError("the live cage's own thread cannot wait for it")
        try:
            return answer.result(_ANSWER_SECONDS if seconds is None else seconds)
        except ConversationOver:
            raise self._why_over() from None
        except NoAnswer:
            self.close()
            raise SessionEnded(f"its agent did not answer for {_ANSWER_SECONDS:g} s") from None

    def _why_over(self) -> SandboxError:
        if self._is_closing and not self.ended.done():
            return SessionEnded("it was closed")
        return self.ended.result(_ANSWER_SECONDS).error()

    # ---- in the loop's thread ----

    def _begun(self, answer: Message, mark: str, began: float, started: list[StartedProgram]) -> None:
        """Remembered before its end can be told."""
        pid, failure = answer.get("pid"), answer.get("errno")
        if "error" in answer:
            return
        if not isinstance(pid, int) or not isinstance(failure, int) or pid <= 1 or pid in self._programs:
            self._conversation.end(_FORGED)
            return
        started.append(StartedProgram(self, pid, failure, mark, began))
        self._programs[pid] = started[0]

    def _begin_idling(self) -> None:
        """When nothing runs: unless something is asked for meanwhile, it ends after its time."""
        if self._idle_timeout is None or self._programs:
            return
        calls = self._calls

        def look() -> None:
            if self._programs:
                return
            if self._calls == calls:
                self._conversation.end(IDLE)
            else:
                self._begin_idling()

        self.loop.call_later(self._idle_timeout, look)

    def _heard(self, message: Message) -> None:
        if message == {"event": "ready"} and not self._is_ready:
            self._is_ready = True
            self._cell.has_begun()
            return
        pid, status, cpu, peak = (message.get(name) for name in ("pid", "status", "cpu", "peak"))
        program = self._programs.pop(pid, None) if isinstance(pid, int) else None
        is_sound = isinstance(status, int) and isinstance(peak, int) and _is_seconds(cpu)
        if program is None or not is_sound:
            self._programs.update({program.pid: program} if program else {})
            self._conversation.end(_FORGED)
        else:
            self._begin_idling()
            self._hear_denials()
            program.denials = self._denials.since(program.began)
            program.ended.set_result(Ending(status & 0xFFFF, float(cpu), min(max(0, peak), _MOST_PEAK)))  # type: ignore[operator, arg-type, type-var]

    def _hear_denials(self) -> None:
        """What was refused is told before the guest goes on, and so before its end is."""
        status = select.poll()
        status.register(self._cell.status, select.POLLIN)
        try:
            while self._cell.report is None and status.poll(0):
                self._cell.hear()
        except (CellLost, SandboxError, OSError):
            self.loop.forget(self._cell.status.fileno())
        if self._cell.report is not None:
            self.loop.forget(self._cell.status.fileno())

    def _keep_last_words(self, descriptor: int) -> None:
        """The agent says nothing there, unless it fails."""
        with suppress(BlockingIOError):
            data = os.read(descriptor, _MOST_LAST_WORDS)
            if not data:
                self.loop.forget(descriptor)
            self._last_words += data
            del self._last_words[:-_MOST_LAST_WORDS]

    def _over(self, reason: str) -> None:
        """Whatever the cause, from here the cell is ended, and everybody is told when it is gone."""
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
        report = self._report()
        with suppress(OSError):  # without descriptors it cannot be said what the cell used
            cell.close()
        self._cleanup.close()
        if not reason and cell.group_usage is not None and cell.group_usage.memory_kills:
            report = {**report, "verdict": "memory"}
        return end_of(report, reason, self._last_words.decode("utf-8", "replace").strip())

    def _report(self) -> dict[str, Any]:
        """Whoever reaped the agent says a moment later how it ended."""
        poll = select.poll()
        poll.register(self._cell.status, select.POLLIN)
        with suppress(CellLost, SandboxError, OSError):
            while self._cell.report is None and poll.poll(_LAST_WORDS_MS):
                self._cell.hear()
        return self._cell.report or {}


async def _settled(answer: Future[Message], seconds: float) -> None:
    """Until it is there, or so long. Cancelling who waits is not told to the answer, which others wait for."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    def tell(_: Future[Message]) -> None:
        with suppress(RuntimeError):  # the event loop is gone, and whoever waited with it
            loop.call_soon_threadsafe(wake)

    patience = loop.call_later(seconds, wake)
    answer.add_done_callback(tell)
    try:
        await waiting
    finally:
        patience.cancel()


def _memory_file(content: bytes) -> int:
    """A descriptor to read it from, which nobody else has."""
    descriptor = os.memfd_create("warmcell", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1e12
