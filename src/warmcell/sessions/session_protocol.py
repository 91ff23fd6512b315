"""The host's side of a session: sends a cell to its worker and receives events, in order and within bounds.

No message or silence of a worker can hold up the host: every wait ends with the cell's time, and a violation of the
protocol ends the session.
"""

from __future__ import annotations

import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from math import ceil

from warmcell.core.errors import InvalidRequest, SandboxError, SessionEnded
from warmcell.core.records import replace
from warmcell.guest.live.frames import Decoder, FrameError, encode, frame_text, quoted
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.lifetime.ownership import own
from warmcell.lifetime.run import Run
from warmcell.sessions.cell_events import Clear, Display, Done, Event, Piece, Question, parse
from warmcell.sessions.cell_record import StreamText
from warmcell.sessions.cell_results import CellResult
from warmcell.sessions.exchange import (
    PIECE,
    CellInterrupts,
    Exchange,
    InterruptSignal,
    Listener,
    Listeners,
    Worker,
    split_code,
)
from warmcell.sessions.image import SessionImage, not_forkable, refuse_image, skip, too_large
from warmcell.sessions.output_pipes import Add, MarkedStream, OutputPipes

#: How long a worker may go on after it was killed.
_KILL_SECONDS = 30.0
_CHUNK = 1 << 16
#: Bounds on unanswered questions of a cell, and on bytes of answers that it has not read.
_MOST_QUESTIONS = 16
_MOST_UNREAD = 1 << 20
#: At a deadline, so many events that have arrived are handled before the cell is interrupted or its worker killed.
_MOST_LATE_EVENTS = 64
#: And those of a cell that is to be interrupted for no longer than this.
_LATE_SECONDS = 1.0


class SessionProtocol:
    """Talks to one worker. One exchange at a time; `interrupts` and `end` are for any thread."""

    def __init__(self, worker: Worker, cells: int = 0) -> None:
        """`cells`: how many cells the session has run, for a fork."""
        self._worker = worker
        self._decoder = Decoder()
        self._outgoing = bytearray()
        #: Events that have arrived and are not handled yet, and how far `_outgoing` may grow.
        self._events: deque[Event] = deque()
        self._most_outgoing = 0
        self._cells = cells
        self._lock = threading.Lock()
        self._has_unsent = False
        self._signal = InterruptSignal(worker)
        #: The error that later exchanges raise; the error given to `end`.
        self._ended: SandboxError | None = None
        self._wanted_end: SandboxError | None = None
        self._owned = Descriptors()
        try:
            self.interrupts = CellInterrupts(self._owned)
        except OSError as error:
            worker.close()  # nothing else would end it
            raise host_failure(error, "start the session") from error
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[Run, Exchange], object]] = {
            worker.control.fileno(): self._receive_control,
            worker.stdout: lambda run, cell: self._pipes.read_output(worker.stdout, self._appender(run, cell)),
            worker.stderr: lambda run, cell: self._pipes.read_output(worker.stderr, self._appender(run, cell)),
            self.interrupts.descriptor: self._check_interrupts,
        }
        worker.control.setblocking(False)
        for descriptor in self._handlers:
            self._poll.register(descriptor, select.POLLIN)
        self._mark = f"\0\2{secrets.token_hex(8)}:"
        self._mark_text = f'"mark":{quoted(self._mark)}'
        self._pipes = OutputPipes(worker.stdout, worker.stderr, self._mark.encode(), self._poll.unregister)
        own(self)

    def abandon(self) -> None:
        """In a fork of the program: the worker belongs to the original."""
        self._lock = threading.Lock()
        self.interrupts.abandon()
        self._ended = SessionEnded("it belongs to the program that this one was forked from")

    def run(self, run: Run, code: str, timeout: float, listeners: Listeners, most_bytes: int) -> CellResult:
        """Runs one cell. An exception of the cell is in its result; an error that ended it is raised."""
        cell = self._exchange(run, "run", split_code(code), timeout, listeners, most_bytes)
        assert cell.done is not None
        result = cell.record.result(cell.done, cell.number, cell.duration)
        denials = self._worker.denials_since(cell.began)
        return replace(result, denials=denials) if denials else result

    def variables(self, run: Run, timeout: float) -> dict[str, str]:
        return self._ask(run, "variables", timeout).names or {}

    def fill(self, run: Run, timeout: float, image: SessionImage) -> None:
        """Fills the image of the session; `InvalidRequest` with the worker's reason if that is impossible."""
        assert self._worker.image is not None
        with self._receive_image(image, self._worker.image):
            done = self._ask(run, "branch", timeout)
        refuse_image(done.error, image)
        image.cells = self._cells

    @contextmanager
    def _receive_image(self, image: SessionImage, pipe: int) -> Iterator[None]:
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

    def resume(self, run: Run, timeout: float, reseed: bool, keeps_files: bool) -> None:
        """Makes a new worker restore the session from its image, with or without replacing files in `/tmp`."""
        done = self._ask(run, "resume", timeout, how={"reseed": reseed, "keeps_files": keeps_files})
        if done.error is not None:
            raise not_forkable(done.error)

    def end(self, error: SandboxError) -> None:
        """Ends the worker. The current exchange and all later ones raise `error`."""
        with self._lock:
            if self._ended is None and self._wanted_end is None:
                self._wanted_end = error
        self._worker.kill()

    def close(self) -> None:
        """Call it after `end`, when no exchange is in progress."""
        if self._ended is None:
            self._ended = self._wanted_end or SessionEnded(SessionEnded.CLOSED)
        self._worker.close()
        with self._lock:
            self._owned.close()

    @property
    def end_error(self) -> SandboxError | None:
        """A new one each time: a raised error carries its traceback."""
        error = self._ended or self._wanted_end
        return None if error is None else copy(error)

    # ---- an exchange ----

    def _ask(self, run: Run, op: str, timeout: float, **fields: object) -> Done:
        """An exchange that is not counted as a cell."""
        cell = self._exchange(run, op, [], timeout, Listeners(), 0, **fields)
        self._cells -= 1
        assert cell.done is not None
        return cell.done

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
        if (error := self.end_error) is not None:
            raise error
        self._signal.await_delivery()
        self._cells += 1
        cell = Exchange(self._cells, timeout, listeners, most_bytes)
        for piece in pieces[:-1]:
            self._outgoing += encode({"op": "piece", "text": piece})
        if pieces:
            self._outgoing += frame_text(
                f'{{"op":"{op}","cell":{cell.number},"code":{quoted(pieces[-1])},{self._mark_text}}}'
            )
        else:
            self._outgoing += encode({"op": op, "cell": cell.number, **fields})
        self._most_outgoing = len(self._outgoing) + _MOST_UNREAD
        self.interrupts.begin(is_cell=op == "run")
        self._pipes.begin()
        try:
            with run.on_cancel(self.interrupts.wake):
                self._converse(run, cell)
        finally:
            self.interrupts.end()
        cell.raise_end()
        return cell

    def _converse(self, run: Run, cell: Exchange) -> None:
        try:
            self._send()
            while cell.done is None:
                self._take_turn(run, cell)
        finally:
            if cell.done is None and self._ended is None:  # our own failure: the state of the worker is unknown
                self.end(SessionEnded("the host failed in the middle of a cell"))

    def _take_turn(self, run: Run, cell: Exchange) -> None:
        """Handles at most one event, so that deadline and interrupts are checked between callbacks."""
        left = min(cell.deadline, cell.next_signal) - time.monotonic()
        if left <= 0:
            self._escalate(run, cell)
            return
        if self._events:
            self._check_interrupts(run, cell)
        self._take_next(run, cell, ceil(left * 1000))

    def _take_next(self, run: Run, cell: Exchange, milliseconds: int) -> bool:
        """Handles one event, or what arrives within this time; False if nothing does."""
        if self._events:
            self._take(run, cell, self._events.popleft())
            return True
        ready = self._poll.poll(milliseconds)
        for descriptor, events in ready:
            if events & select.POLLOUT:
                self._send()
            if events & ~select.POLLOUT:
                self._handlers[descriptor](run, cell)
            if cell.done is not None:
                break
        return bool(ready)

    def _escalate(self, run: Run, cell: Exchange) -> None:
        """At the deadline: interrupts the cell first, then kills the worker. Before it, repeats the signal."""
        if time.monotonic() < cell.deadline:
            self._signal.repeat(cell)
            return
        late = time.monotonic() + _LATE_SECONDS
        for _ in range(_MOST_LATE_EVENTS):  # a callback took long, or this thread had no processor
            if cell.done is not None or not self._take_next(run, cell, 0):
                break
            if not cell.cause and time.monotonic() > late:  # callbacks that take long must not delay the interrupt
                break
        if cell.done is not None or time.monotonic() < cell.deadline:
            return
        if cell.is_killed:
            raise self._end_of_worker(cell, "it could not be ended")
        if not cell.cause:
            self._interrupt(cell, "timeout")
        elif not self._signal.extend(cell):
            cell.is_killed = True
            cell.deadline = cell.next_signal = time.monotonic() + _KILL_SECONDS
            self.end(SessionEnded(cell.kill_reason))  # also for the next exchange, if the end of this one overtakes it

    def _interrupt(self, cell: Exchange, cause: str) -> None:
        """Sends a message before the signal, because a signal before the start of the cell is lost."""
        if cell.cause:
            return
        cell.cause = cause
        cell.interrupted_at = time.monotonic()
        cell.deadline = cell.interrupted_at + cell.grace
        self._outgoing += encode({"op": "interrupt", "cell": cell.number})
        self._send()
        self._signal.send(cell)

    def _end_of_worker(self, cell: Exchange, reason: str) -> SandboxError:
        """The error for a worker that is gone, with its output."""
        with suppress(OSError):
            self._pipes.drain(self._appender(None, cell))
        self._pipes.release(MarkedStream.rest, self._appender(None, cell), is_last=True)
        with self._lock:
            self._ended = self._wanted_end or SessionEnded(reason)
        so_far = replace(cell.record.so_far(cell.duration), denials=self._worker.denials_since(cell.began))
        if self._wanted_end is None and (error := self._worker.limit_error(so_far)) is not None:
            return error
        error = copy(self._ended)
        if isinstance(error, SessionEnded):
            error.result = so_far
        return error

    # ---- incoming ----

    def _check_interrupts(self, run: Run, cell: Exchange) -> None:
        is_wanted = self.interrupts.take()
        if run.is_cancelled:
            self._interrupt(cell, "cancelled")
        elif is_wanted:
            self._interrupt(cell, "asked")

    def _receive_control(self, run: Run, cell: Exchange) -> None:
        try:
            data = self._worker.control.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise self._end_of_worker(cell, self._worker.reason())
        try:
            self._events.extend(parse(message) for message in self._decoder.feed(data))
            if sum(isinstance(event, Question) for event in self._events) > _MOST_QUESTIONS:
                raise FrameError("too many questions at once")
        except FrameError as error:
            raise self._refuse(cell, str(error)) from None

    def _refuse(self, cell: Exchange, reason: str) -> SandboxError:
        """Kills a worker that violates the protocol."""
        self._worker.kill()
        return self._end_of_worker(cell, f"unexpected message from its interpreter: {reason}")

    def _take(self, run: Run, cell: Exchange, event: Event) -> None:
        """Handles an event. Earlier output is in the pipes and is read first."""
        if isinstance(event, Piece):
            cell.record.add_piece(event)
            return
        add = self._appender(run, cell)
        self._pipes.drain(add)
        if isinstance(event, Done):
            self._pipes.release(MarkedStream.rest, add, is_last=True)
            self._finish(run, cell, event)
            return
        if isinstance(event, Display | Clear) and event.mark:
            self._pipes.release(lambda stream: stream.reach(event.mark), add)
        else:
            self._pipes.release(MarkedStream.rest, add)
        if isinstance(event, Display):
            self._take_display(run, cell, event)
        elif isinstance(event, Clear):
            cell.record.clear()
        else:
            self._answer(run, cell, event)
        self._pipes.release(lambda stream: stream.feed(b""), add)

    def _finish(self, run: Run, cell: Exchange, done: Done) -> None:
        if done.cell != cell.number:
            return
        if self._worker.end_if_over_memory(done.peak_memory):
            return  # the end of its socket follows
        if done.result is not None:
            self._take_display(run, cell, Display(done.result, True, None, False))
        cell.done = done

    def _take_display(self, run: Run, cell: Exchange, display: Display) -> None:
        shown = cell.record.add_display(display)
        if shown is not None:
            self._call_listener(run, cell, cell.listeners.on_display, shown)

    def _answer(self, run: Run, cell: Exchange, question: Question) -> None:
        """Answers `input()`. The callback's time is not the cell's. A cell without time left gets None."""
        asked, cause = time.monotonic(), cell.cause
        answer: object = None
        if not cause or (asked < cell.deadline and not cell.is_killed):
            with self.interrupts.question(run, is_interrupted=bool(cause)) as asking:
                answer = self._call_listener(run, cell, cell.listeners.on_input, question.prompt, asking)
        if not cell.cause:
            cell.deadline += time.monotonic() - asked
        elif cell.cause == "asked" and not cause:
            return  # an answer would be an EOFError, before the signal comes
        if answer is not None and not (isinstance(answer, str) and len(answer) <= PIECE):
            reason = f"must return at most {PIECE} characters of text, or None"
            self._fail(cell, InvalidRequest(reason, field="on_input"))
            answer = None
        self._outgoing += encode({"op": "input", "ask": question.number, "text": answer})
        self._send()
        if len(self._outgoing) > self._most_outgoing:
            raise self._refuse(cell, "questions whose answers it does not read")

    def _call_listener(
        self, run: Run | None, cell: Exchange, listener: Listener | None, what: object, asking: Run | None = None
    ) -> object:
        if listener is None or cell.failure is not None or run is None:
            return None
        try:
            return listener(what, asking or run)
        except BaseException as error:
            if run.is_cancelled:
                self._interrupt(cell, "cancelled")
            elif asking is not None and asking.is_cancelled:
                self._interrupt(cell, "asked")
            else:
                self._fail(cell, error)
            return None

    def _fail(self, cell: Exchange, error: BaseException) -> None:
        cell.failure = error
        self._interrupt(cell, "callback")

    def _appender(self, run: Run | None, cell: Exchange) -> Add:
        """Adds output to the cell's record and passes it to the callbacks."""

        def add(name: str, data: bytes, is_last: bool) -> None:
            stream: StreamText = getattr(cell.record, name)
            text = stream.add(data, is_last)
            if text:
                self._call_listener(run, cell, getattr(cell.listeners, f"on_{name}"), text)

        return add

    def _send(self) -> None:
        """Sends what fits; the rest is sent later. Errors are reported by the next read."""
        control = self._worker.control
        try:
            while self._outgoing:
                del self._outgoing[: control.send(self._outgoing, socket.MSG_NOSIGNAL)]
        except OSError:
            pass
        if bool(self._outgoing) != self._has_unsent:
            self._has_unsent = bool(self._outgoing)
            self._poll.modify(control.fileno(), select.POLLIN | (select.POLLOUT if self._has_unsent else 0))
