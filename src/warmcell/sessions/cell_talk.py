"""The host's side of a session: a cell goes in, and what its worker says comes out, in order and within bounds.

Nothing that a worker sends or leaves unsaid can hold the host up: every wait ends with the cell's time, and what does
not keep to the protocol ends its own session.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from math import ceil
from typing import Any

from warmcell.core.errors import ExecutionTimeout, InvalidRequest, SandboxError, SessionEnded
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.ownership import own
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.sessions.cell_events import Clear, Display, Done, Event, Piece, Question, parse
from warmcell.sessions.cell_record import StreamText
from warmcell.sessions.cell_results import CellResult
from warmcell.sessions.exchange import Exchange, Listeners, Worker
from warmcell.sessions.frames import Decoder, FrameError, encode, framed, quoted
from warmcell.sessions.image import SessionImage, not_forkable, refuse_image, skip, too_large
from warmcell.sessions.marked_stream import MarkedStream
from warmcell.sessions.printed import Add, Printed

#: How long a cell may go on after it was interrupted, and its worker after it was killed.
GRACE_SECONDS = 5.0
#: The same for one that nobody waits for any more: its caller has given it up, and is promised that it is over.
CANCEL_SECONDS = 0.6
_KILL_SECONDS = 30.0
_CHUNK = 1 << 16
#: As many characters fit into a frame however JSON spells them.
_PIECE = 64 * 1024


class CellTalk:
    """With one worker, from its start to its end. One exchange at a time; `interrupt` and `end` are for any thread."""

    def __init__(self, worker: Worker, cells: int = 0) -> None:
        """`cells`: how many it has run already, as a branch has."""
        self._worker = worker
        self._decoder = Decoder()
        self._outgoing = bytearray()
        self._cells = cells
        self._lock = threading.Lock()
        self._is_under_way = False
        self._wants_interrupt = False
        self._is_woken = False
        self._has_unsent = False
        #: What every later exchange raises; why somebody else wanted the end.
        self._ended: SandboxError | None = None
        self._wanted_end: SandboxError | None = None
        self._owned = Descriptors()
        self._wake = self._owned.opened(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[Run, Exchange], object]] = {
            worker.control.fileno(): self._hear_control,
            worker.stdout: lambda run, cell: self._printed.hear(worker.stdout, self._adding(run, cell)),
            worker.stderr: lambda run, cell: self._printed.hear(worker.stderr, self._adding(run, cell)),
            self._wake: self._hear_wish,
        }
        worker.control.setblocking(False)
        for descriptor in self._handlers:
            self._poll.register(descriptor, select.POLLIN)
        self._mark = f"\0\2{secrets.token_hex(8)}:"
        self._mark_text = f'"mark":{quoted(self._mark)}'
        self._printed = Printed(worker.stdout, worker.stderr, self._mark.encode(), self._poll.unregister)
        own(self)

    def abandon(self) -> None:
        """In a fork: the worker goes on talking to the original."""
        self._lock = threading.Lock()
        self._ended = SessionEnded("it belongs to the program that this one was forked from")
        self._is_under_way = False

    def run(self, run: Run, code: str, timeout: float, listeners: Listeners, most_bytes: int) -> CellResult:
        """Carries out one cell. What the cell raised is in its result; what ended it is raised."""
        cell = self._exchange(run, "run", _pieces(code), timeout, listeners, most_bytes)
        assert cell.done is not None
        return cell.record.result(cell.done, cell.number, cell.duration)

    def variables(self, run: Run, timeout: float) -> dict[str, str]:
        """Not counted as a cell."""
        cell = self._exchange(run, "variables", [], timeout, Listeners(), 0)
        self._cells -= 1
        assert cell.done is not None
        return cell.done.names or {}

    def fill(self, run: Run, timeout: float, image: SessionImage) -> None:
        """With all of the session; `InvalidRequest` with the worker's own reason where that cannot be had."""
        assert self._worker.image is not None
        with self._poured_into(image, self._worker.image):
            cell = self._exchange(run, "branch", [], timeout, Listeners(), 0)
        self._cells -= 1
        assert cell.done is not None
        refuse_image(cell.done.error, image)
        image.cells = self._cells

    @contextmanager
    def _poured_into(self, image: SessionImage, pipe: int) -> Iterator[None]:
        def pour(run: Run, cell: Exchange) -> None:
            if not image.take_from(pipe):
                self._poll.unregister(pipe)
            elif image.is_too_large and cell.failure is None:
                self._fail(cell, too_large(image))

        skip(pipe)
        self._handlers[pipe] = pour
        self._poll.register(pipe, select.POLLIN)
        try:
            yield
            image.take_rest(pipe)
        finally:
            del self._handlers[pipe]
            with suppress(KeyError):  # the guest closed its end
                self._poll.unregister(pipe)

    def resume(self, run: Run, timeout: float, reseed: bool) -> None:
        """Has a new worker take the place of the one whose image it was given."""
        cell = self._exchange(run, "resume", [], timeout, Listeners(), 0, reseed=reseed)
        self._cells -= 1
        assert cell.done is not None
        if cell.done.error is not None:
            raise not_forkable(cell.done.error)

    def interrupt(self) -> None:
        """Ends the cell that is under way, if one is, with its state kept."""
        with self._lock:
            if self._is_under_way:
                self._wants_interrupt = True
                self._wake_up()

    def end(self, error: SandboxError) -> None:
        """Ends the worker; `error` is what an exchange under way raises, and every later one."""
        with self._lock:
            if self._ended is None and self._wanted_end is None:
                self._wanted_end = error
        self._worker.kill()

    def close(self) -> None:
        """After `end`, when no exchange is under way."""
        if self._ended is None:
            self._ended = self._wanted_end or SessionEnded("it was closed")
        self._worker.close()
        with self._lock:
            self._owned.close()

    @property
    def ended(self) -> SandboxError | None:
        """A new one each time: a raised error carries its traceback."""
        error = self._ended or self._wanted_end
        return None if error is None else copy(error)

    # ---- an exchange ----

    def _exchange(
        self,
        run: Run,
        op: str,
        pieces: list[str],
        timeout: float,
        listeners: Listeners,
        most_bytes: int,
        **fields: object,
    ) -> Exchange:
        if (error := self.ended) is not None:
            raise error
        self._cells += 1
        cell = Exchange(self._cells, timeout, listeners, most_bytes)
        for piece in pieces[:-1]:
            self._outgoing += encode({"op": "piece", "text": piece})
        if pieces:
            self._outgoing += framed(
                f'{{"op":"{op}","cell":{cell.number},"code":{quoted(pieces[-1])},{self._mark_text}}}'
            )
        else:
            self._outgoing += encode({"op": op, "cell": cell.number, **fields})
        self._begin()
        self._printed.begin()
        try:
            with run.on_cancel(self._wake_up):
                self._converse(run, cell)
        finally:
            with self._lock:
                self._is_under_way = False
        if cell.failure is not None or cell.cause:
            self._raise_what_ended(cell)
        return cell

    def _converse(self, run: Run, cell: Exchange) -> None:
        try:
            self._send()
            while cell.done is None:
                self._take_turn(run, cell)
        finally:
            if cell.done is None and self._ended is None:  # a failure of ours: nobody knows what comes next
                self.end(SessionEnded("the host failed in the middle of a cell"))

    def _begin(self) -> None:
        with self._lock:
            self._is_under_way, self._wants_interrupt = True, False
            if self._is_woken:  # by a wish that was for the last one
                self._is_woken = False
                os.eventfd_read(self._wake)

    def _wake_up(self) -> None:
        self._is_woken = True
        os.eventfd_write(self._wake, 1)

    def _take_turn(self, run: Run, cell: Exchange) -> None:
        left = cell.deadline - time.monotonic()
        if left <= 0:
            self._be_strict(cell)
            return
        for descriptor, events in self._poll.poll(ceil(left * 1000)):
            if events & select.POLLOUT:
                self._send()
            if events & ~select.POLLOUT:
                self._handlers[descriptor](run, cell)
            if cell.done is not None:
                return

    def _be_strict(self, cell: Exchange) -> None:
        """The time is up: first it is asked, then made to stop."""
        if cell.is_killed:
            raise self._lost(cell, "it could not be ended")
        if cell.cause:
            cell.is_killed = True
            cell.deadline = time.monotonic() + _KILL_SECONDS
            self._worker.kill()
        else:
            self._interrupt(cell, "timeout")

    def _interrupt(self, cell: Exchange, cause: str) -> None:
        """Said before it is done: a signal that comes before the cell has begun is lost."""
        if cell.cause:
            return
        cell.cause = cause
        cell.deadline = time.monotonic() + _grace(cause)
        self._outgoing += encode({"op": "interrupt", "cell": cell.number})
        self._send()
        with suppress(SandboxError):  # its cage has ended: the socket says so next
            self._worker.interrupt()

    def _raise_what_ended(self, cell: Exchange) -> None:
        if cell.failure is not None:
            raise cell.failure
        if cell.cause == "timeout":
            raise ExecutionTimeout(cell.timeout, cell.record.so_far(cell.duration))
        if cell.cause == "cancelled":
            raise RunCancelled

    def _lost(self, cell: Exchange, reason: str) -> SandboxError:
        """The error for a worker that is gone; what it had printed goes with it."""
        with suppress(OSError):
            self._printed.drain(self._adding(None, cell))
        self._printed.tell(MarkedStream.rest, self._adding(None, cell), is_last=True)
        if self._wanted_end is None and cell.is_killed:
            after = f"it was to end after {cell.timeout:g} s, and " if cell.cause == "timeout" else ""
            reason = f"{after}a cell that was interrupted went on for {_grace(cell.cause):g} s and was killed"
        with self._lock:
            self._ended = self._wanted_end or SessionEnded(reason)
        error = copy(self._ended)
        if isinstance(error, SessionEnded):
            error.result = cell.record.so_far(cell.duration)
        return error

    # ---- what comes in ----

    def _hear_wish(self, run: Run, cell: Exchange) -> None:
        self._is_woken = False
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        if run.is_cancelled:
            self._interrupt(cell, "cancelled")
        elif self._wants_interrupt:
            self._interrupt(cell, "asked")

    def _hear_control(self, run: Run, cell: Exchange) -> None:
        try:
            data = self._worker.control.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise self._lost(cell, self._worker.reason())
        try:
            for message in self._decoder.feed(data):
                self._take(run, cell, parse(message))
        except FrameError as error:
            self._worker.kill()
            raise self._lost(cell, f"what came from its interpreter was {error}") from None

    def _take(self, run: Run, cell: Exchange, event: Event) -> None:
        """What was printed before is in the pipes by now, so that it is read before this is told."""
        if isinstance(event, Piece):
            cell.record.add_piece(event)
            return
        add = self._adding(run, cell)
        self._printed.drain(add)
        if isinstance(event, Done):
            self._printed.tell(MarkedStream.rest, add, is_last=True)
            self._finish(run, cell, event)
            return
        if isinstance(event, Display | Clear) and event.mark:
            self._printed.tell(lambda stream: stream.reach(event.mark), add)
        else:
            self._printed.tell(MarkedStream.rest, add)
        if isinstance(event, Display):
            self._take_display(run, cell, event)
        elif isinstance(event, Clear):
            cell.record.clear()
        else:
            self._answer(run, cell, event)
        self._printed.tell(lambda stream: stream.feed(b""), add)

    def _finish(self, run: Run, cell: Exchange, done: Done) -> None:
        if done.cell != cell.number:
            return
        if done.result is not None:
            self._take_display(run, cell, Display(done.result, True, None, False))
        cell.done = done

    def _take_display(self, run: Run, cell: Exchange, display: Display) -> None:
        shown = cell.record.add_display(display)
        if shown is not None:
            self._tell(run, cell, cell.listeners.on_display, shown)

    def _answer(self, run: Run, cell: Exchange, question: Question) -> None:
        """The time that a person takes to answer is not the cell's."""
        asked = time.monotonic()
        answer = self._tell(run, cell, cell.listeners.on_input, question.prompt)
        if not cell.cause:
            cell.deadline += time.monotonic() - asked
        if answer is not None and not (isinstance(answer, str) and len(answer) <= _PIECE):
            reason = f"must return at most {_PIECE} characters of text, or None"
            self._fail(cell, InvalidRequest(reason, field="on_input"))
            answer = None
        self._outgoing += encode({"op": "input", "ask": question.number, "text": answer})
        self._send()

    def _tell(self, run: Run | None, cell: Exchange, listener: Callable[[Any], object] | None, what: object) -> object:
        if listener is None or cell.failure is not None or run is None:
            return None
        try:
            return listener(what)
        except BaseException as error:
            if run.is_cancelled:
                self._interrupt(cell, "cancelled")
            else:
                self._fail(cell, error)
            return None

    def _fail(self, cell: Exchange, error: BaseException) -> None:
        cell.failure = error
        self._interrupt(cell, "callback")

    def _adding(self, run: Run | None, cell: Exchange) -> Add:
        """What is printed becomes the cell's, and is told to who listens."""

        def add(name: str, data: bytes, is_last: bool) -> None:
            stream: StreamText = getattr(cell.record, name)
            text = stream.add(data, is_last)
            if text:
                self._tell(run, cell, getattr(cell.listeners, f"on_{name}"), text)

        return add

    def _send(self) -> None:
        """What does not fit goes when the worker has read; an error of the socket is told by its other direction."""
        control = self._worker.control
        try:
            while self._outgoing:
                del self._outgoing[: control.send(self._outgoing, socket.MSG_NOSIGNAL)]
        except OSError:
            pass
        if bool(self._outgoing) != self._has_unsent:
            self._has_unsent = bool(self._outgoing)
            self._poll.modify(control.fileno(), select.POLLIN | (select.POLLOUT if self._has_unsent else 0))


def _pieces(code: str) -> list[str]:
    if len(code) <= _PIECE:
        return [code]
    return [code[start : start + _PIECE] for start in range(0, len(code), _PIECE)]


def _grace(cause: str) -> float:
    return CANCEL_SECONDS if cause == "cancelled" else GRACE_SECONDS
