"""Pump: one run's conversation with its cell: feeds it, drains it, watches the clock, and hears how it ended.

Bounded memory, no deadlock, no waiting for pipes that others hold open.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from math import inf

from warmcell.core.records import dataclass
from warmcell.lifetime.run import Run
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.outcome import Exit
from warmcell.runner.streams import Capture, Feed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.runner.listening import Listener, Pace

_LOOK = 0.02
#: The longest wait: a cell that is asked to stop and does not is noticed by then.
_SELDOM = 1.0
#: Most guests have ended after this, and what they wrote is read once, at their end. One that has more to write than
#: a pipe holds waits for us, once, and no longer than this.
_SHORT_RUN = 0.005
#: How long a guest that has its job may take to begin, on a host that has nothing left for it.
_BEGIN_SECONDS = 60.0
#: How long to wait for word of a guest that is gone. It comes at once, unless nobody gets to run.
_LAST_WORDS_MS = 10_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one run may take, as far as the pump sees to it."""

    #: Seconds, from the moment that the guest's code can run.
    timeout: float
    output_bytes: int
    cpu_seconds: float | None = None


class Pump:
    """In the calling thread, from the moment that the cell has its job.

    `stdin` is what the guest reads: bytes, or a descriptor that is passed on as its data comes. The run is given up
    when `run` is cancelled. `on_linger` is called once when the run takes longer than most. `listener` hears the
    output while it comes; a run without one does nothing for it.
    """

    def __init__(
        self,
        cell: Cell,
        stdin: bytes | int,
        bounds: Bounds,
        run: Run,
        on_linger: Callable[[], None],
        listener: Listener | None = None,
    ) -> None:
        self._cell = cell
        self._bounds = bounds
        self._run = run
        self._on_linger: Callable[[], None] | None = on_linger
        self._sent = time.monotonic()
        self._began: float | None = None
        self._deadline = self._sent + _BEGIN_SECONDS
        self._is_lost = False
        #: Of outputs, those that nobody has open for writing any more.
        self._ended: set[int] = set()
        self._poll = select.poll()
        self._order = (cell.stdout, cell.stderr)
        self._captures = {descriptor: Capture(bounds.output_bytes) for descriptor in self._order}
        self._pace = None if listener is None else self._listen(listener)
        # Where there is a cgroup it knows best; elsewhere init looks.
        self._counts_cpu = bounds.cpu_seconds is not None and cell.group is not None
        #: When to begin to read output as it comes; 0: we do.
        self._draws_from = inf if listener is None else 0.0
        # Where init sleeps there is nothing to be heard before the guest's own process has ended.
        last = (cell.status.fileno(), cell.pidfd) if cell.has_keeper else (cell.guest, cell.pidfd)
        drawn = self._order if listener is not None else ()
        for descriptor in (cell.job.fileno(), *drawn, *last):
            self._poll.register(descriptor, select.POLLIN)
        self._feed = Feed(stdin, cell.stdin, cell.close_stdin, self._poll)

    def _listen(self, listener: Listener) -> Pace:
        from warmcell.runner.listening import STREAMS, HeardCapture, Pace

        for descriptor, stream in zip(self._order, STREAMS, strict=True):
            self._captures[descriptor] = HeardCapture(self._bounds.output_bytes, listener, stream)
        return Pace(listener, self._order, self._poll)

    def run(self) -> Exit:
        """Until the cell is gone: by itself, at the deadline, at the end of its cpu time, or because of the caller."""
        cut_short = ""
        # Cancelling ends the cell, which is heard of as any end is: there is nothing else to wait for.
        with self._run.on_cancel(self._cell.ask_to_stop):
            while self._cell.report is None and not self._is_lost and not cut_short:
                cut_short = self._turn()
        if cut_short:
            self._stop()
        return self._finish(cut_short)

    def _turn(self) -> str:
        """Waits for what happens next and deals with it. Why the run is to be cut short, if it is."""
        now = time.monotonic()
        remaining = self._deadline - now
        if remaining <= 0:
            return "timeout" if self._began is not None else "never began"
        pause = min(remaining, _LOOK if self._counts_cpu or self._on_linger else _SELDOM)
        pause = max(0.0, min(pause, self._draws_from - now)) if self._draws_from else pause
        # poll() counts whole milliseconds: rounding down would spin, rounding up overshoots by less than one.
        for descriptor, _ in self._poll.poll(int(pause * 1000) + 1):
            self._handle(descriptor)
        if self._run.is_cancelled:
            return "cancelled"
        if self._pace is not None:
            self._pace.keep()
        if self._draws_from and time.monotonic() >= self._draws_from:
            self._draw()
        if self._on_linger and time.monotonic() - self._sent >= _LOOK:
            self._on_linger()
            self._on_linger = None
        if self._counts_cpu and self._cell.cpu_seconds() > (self._bounds.cpu_seconds or 0):
            return "cpu"
        return ""

    def _handle(self, descriptor: int) -> None:
        cell = self._cell
        if descriptor in self._captures:
            if self._captures[descriptor].read(descriptor) is False:
                self._ended.add(descriptor)
                self._poll.unregister(descriptor)
                if self._pace is not None:
                    self._pace.ended(descriptor)
        elif descriptor == cell.status.fileno():
            self._hear()
        elif descriptor == cell.job.fileno():
            if cell.hear_start():
                self._poll.unregister(descriptor)
                self._begin()
                cell.close_job()
        elif descriptor == cell.guest:
            self._take_guests_end()
        elif descriptor == cell.pidfd:
            self._is_lost = cell.is_gone = True
        elif self._pace is None or not self._pace.take(descriptor):
            self._feed.handle(descriptor)

    def _begin(self) -> None:
        """The guest's code can run: whatever held it up until now was not its own doing."""
        self._began = time.monotonic()
        self._deadline = self._began + self._bounds.timeout
        if self._draws_from:
            self._draws_from = self._began + _SHORT_RUN

    def _take_guests_end(self) -> None:
        """Others are about to see to the rest of the cell, and to report: meanwhile we read what it wrote. Not for as
        long as there is more, since what it left behind may be writing still.
        """
        self._poll.unregister(self._cell.guest)
        self._poll.register(self._cell.status, select.POLLIN)
        if self._draws_from:
            for descriptor, capture in self._captures.items():
                more = capture.read(descriptor) and capture.read(descriptor)
                if more is False:
                    self._ended.add(descriptor)
            self._cell.close_early(self._cell.guest, *self._ended)
            self._cell.guest = -1

    def _draw(self) -> None:
        """From now on output is read as it comes."""
        self._draws_from = 0.0
        for descriptor in self._order:
            if descriptor not in self._ended:
                self._poll.register(descriptor, select.POLLIN)

    def _hear(self) -> None:
        try:
            self._cell.hear()
        except CellLost:
            self._is_lost = True

    def _stop(self) -> None:
        """Asks first, because the report says what was used; a namespace that does not answer is taken down."""
        self._cell.ask_to_stop()
        until = time.monotonic() + self._cell.grace
        while self._cell.report is None and not self._is_lost and time.monotonic() < until:
            for descriptor, _ in self._poll.poll(20):
                self._handle(descriptor)
            if self._pace is not None:
                self._pace.keep()

    def _finish(self, cut_short: str) -> Exit:
        if self._cell.report is None and not self._is_lost:
            self._cell.kill()
        self._cell.await_gone(10)
        # Everything that could write is gone, so what is in the pipes now is all there will ever be.
        for descriptor, capture in self._captures.items():
            if descriptor not in self._ended:
                while (more := capture.read(descriptor)) or (more is None and _is_readable(descriptor)):
                    pass
            if self._pace is not None:
                capture.finish()
        if self._cell.report is None:
            self._hear_last_words()
        if self._began is None:
            self._cell.hear_start()
        report = self._cell.report or {}
        began = self._sent if self._began is None else self._began
        stdout, stderr = self._order
        return Exit(
            self._captures[stdout],
            self._captures[stderr],
            began=began,
            duration=time.monotonic() - began,
            cut_short=cut_short,
            status=report.get("exit"),
            verdict=report.get("verdict", ""),
            cpu_time=report.get("cpu", 0.0),
            peak_memory=report.get("peak", 0),
            denials=report.get("denials", []),
            limits_met=report.get("limits", []),
            start_failure=self._cell.start_failure,
        )

    def _hear_last_words(self) -> None:
        """The report may have been sent just before the end that we noticed first, or be on its way."""
        poll = select.poll()
        poll.register(self._cell.status, select.POLLIN)
        try:
            while self._cell.report is None and poll.poll(_LAST_WORDS_MS):
                self._cell.hear()
        except CellLost:
            return


def _is_readable(descriptor: int) -> bool:
    """For who was told that there is nothing yet, when there will never be more: it is the last that is asked."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))
