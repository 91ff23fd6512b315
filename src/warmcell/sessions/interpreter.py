"""Interpreter: runs the cells of a session one by one, and restarts and ends its worker."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import TypeVar

from warmcell.core import events
from warmcell.core.errors import BackendUnavailable, SandboxError, SessionBusy, SessionEnded
from warmcell.core.run_record import outcome_of
from warmcell.core.types import MAX_TIMEOUT
from warmcell.lifetime.ownership import Lock
from warmcell.lifetime.run import Run
from warmcell.lifetime.runs import Runs
from warmcell.sessions.cell_results import CellResult
from warmcell.sessions.exchange import NO_LISTENERS, Listeners, Worker
from warmcell.sessions.image import SessionImage
from warmcell.sessions.session_protocol import SessionProtocol

T = TypeVar("T")

#: How long `close`, and the end of the program, wait for a callback. It may wait for something that never happens.
_CALLBACK_SECONDS = 10.0
#: Cells in whose callbacks the current code runs: waiting for one of them would deadlock. Tasks that a callback started
#: inherit it, and may outlive the cell.
_calling_back: ContextVar[frozenset[Run]] = ContextVar("_calling_back", default=frozenset())


class Interpreter:
    """Safe from many threads and event loops. Calls are served in turn; `close` ends the call in progress."""

    def __init__(self, worker: Worker, most_bytes: int, cells: int = 0) -> None:
        self.id = secrets.token_hex(16)
        self._most_bytes = most_bytes
        self._protocol = SessionProtocol(worker, cells)
        self._lock = Lock()
        self._over: SandboxError | None = None
        self.is_closed = False
        #: Called when it is closed for good.
        self.on_closed: Callable[[], None] = lambda: None
        self._runs = Runs("session", 1, MAX_TIMEOUT, opens_descriptors=False)
        #: Cells that were requested and have not ended, in order; and the one that the last interrupt was for.
        self._cells: dict[object, None] = {}
        self._interrupted: object = None
        #: The cell in progress, if it has callbacks.
        self._marked: Run | None = None

    # ---- calls, as work for a `Run`; `run` and `run_blocking` carry them out ----

    async def run_cell(self, code: str, timeout: float, listeners: Listeners) -> CellResult:
        with self._register_cell() as cell:
            return await self.run(self._cell(cell, code, timeout, listeners))

    def run_cell_blocking(self, code: str, timeout: float, listeners: Listeners) -> CellResult:
        with self._register_cell() as cell:
            return self.run_blocking(self._cell(cell, code, timeout, listeners))

    @contextmanager
    def _register_cell(self) -> Iterator[object]:
        """A cell from its request on: `interrupt` is for the first one, also before it starts."""
        cell = object()
        with self._lock:
            self._cells[cell] = None
        try:
            yield cell
        finally:
            self._forget(cell)

    def _forget(self, cell: object) -> None:
        with self._lock:
            self._cells.pop(cell, None)
            if cell is self._interrupted:  # it will not start, so the interrupt must not reach the next one
                self._protocol.interrupts.forget()

    def _cell(self, cell: object, code: str, timeout: float, listeners: Listeners) -> Callable[[Run], CellResult]:
        def carry_out(run: Run) -> CellResult:
            try:
                call = partial(self._protocol.run, run, code, timeout, listeners, self._most_bytes)
                return self._run_with_event(call) if events.listeners else call()
            finally:
                self._forget(cell)

        return carry_out if listeners is NO_LISTENERS else self._mark_callbacks(carry_out)

    def _run_with_event(self, carry_out: Callable[[], CellResult]) -> CellResult:
        """Emits an event about the cell."""
        began, result, error = time.monotonic(), None, None
        try:
            result = carry_out()
            return result
        except BaseException as raised:
            error = raised
            raise
        finally:
            fields = {
                "outcome": outcome_of(result, error),
                "duration": round(time.monotonic() - began, 6),
                "cpu_time": round(result.usage.cpu_time, 6) if result else None,
                "error": getattr(error, "code", type(error).__name__) if error else None,
            }
            events.emit("session.cell", self.id, fields)

    def look(self, timeout: float) -> Callable[[Run], dict[str, str]]:
        return lambda run: self._protocol.variables(run, timeout)

    def picture(self, timeout: float, image: SessionImage, meanwhile: Callable[[], None]) -> Callable[[Run], None]:
        """Writes the image and calls `meanwhile` while the session is unchanged."""

        def fill(run: Run) -> None:
            self._protocol.fill(run, timeout, image)
            meanwhile()

        return fill

    def resumption(self, timeout: float, reseed: bool, *, keeps_files: bool = False) -> Callable[[Run], None]:
        return lambda run: self._protocol.resume(run, timeout, reseed, keeps_files)

    def renewal(self, start: Callable[[], Worker]) -> Callable[[Run], None]:
        def renew(run: Run) -> None:
            if self._over is not None:  # by a callback of the cell before it: the new worker would never be ended
                raise self._error()
            self._protocol.close()
            renewed = SessionProtocol(start())
            with self._lock:
                self._protocol.interrupts.pass_on(renewed.interrupts)
                self._protocol = renewed

        return renew

    def run_blocking(self, work: Callable[[Run], T]) -> T:
        self.check_open()
        try:
            return self._runs.run_blocking(work)
        except BackendUnavailable as error:
            raise self._prefer_end_error(error) from None

    async def run(self, work: Callable[[Run], T]) -> T:
        self.check_open()
        try:
            return await self._runs.run(work)
        except BackendUnavailable as error:
            raise self._prefer_end_error(error) from None

    # ---- from other threads ----

    @property
    def is_busy(self) -> bool:
        """Whether a call is in progress."""
        return self._runs.is_busy

    @property
    def is_calling_back(self) -> bool:
        """Whether the caller is a callback of the cell in progress."""
        return self._marked in _calling_back.get()

    def interrupt(self) -> bool:
        """Interrupts the running cell, or the first that waits. Returns whether there was one."""
        if self._over is not None:
            raise self._error()
        with self._lock:
            self._interrupted = next(iter(self._cells), None)
            return self._protocol.interrupts.request(is_awaited=self._interrupted is not None)

    def end_worker(self, error: SandboxError) -> None:
        """Ends the worker and the call in progress; `renewal` may follow."""
        protocol = self._protocol  # another restart may replace it
        protocol.end(error)
        protocol.interrupts.end_questions()

    def close(self, error: SandboxError | None = None) -> None:
        """Later calls raise `error`. May be called twice, and by a callback of a cell.

        A callback that does not return in time is left behind; the end of its cell then finishes.
        """
        with self._lock:
            if self._over is None:
                self._over = error or SessionEnded(SessionEnded.CLOSED)
            is_in_callback = self.is_calling_back
        self._protocol.end(self._over)
        if not is_in_callback:
            self._runs.close()
            if not self._runs.is_busy:
                self._finish()

    def check_open(self) -> None:
        if self._over is not None:
            raise self._error()
        if self.is_calling_back:
            raise SessionBusy("a callback of a cell cannot run another one in the same session")

    def _error(self) -> SandboxError:
        assert self._over is not None
        return copy(self._over)

    def _prefer_end_error(self, error: SandboxError) -> SandboxError:
        return error if self._over is None else self._error()

    def _mark_callbacks(self, work: Callable[[Run], T]) -> Callable[[Run], T]:
        """Marks the callbacks of this cell, which may close the session but not use it."""

        def run_marked(run: Run) -> T:
            token = _calling_back.set(_calling_back.get() | {run})
            self._marked, self._runs.patience = run, _CALLBACK_SECONDS
            try:
                return work(run)
            finally:
                _calling_back.reset(token)
                with self._lock:
                    self._marked, self._runs.patience = None, None
                if self._over is not None:
                    self._finish()

        return run_marked

    def _finish(self) -> None:
        """Called by the last user, when no exchange is in progress."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        self._protocol.close()
        self.on_closed()
