"""Pump: writes a guest's input, reads its output, watches the clock and receives the report on its end.

Memory is bounded, nothing deadlocks, and pipes that other processes hold open are not waited for.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from math import inf

from warmcell.core.records import dataclass
from warmcell.lifetime.run import Run
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.outcome import Exit, GpuUsage, ResidentPeak
from warmcell.runner.streams import Capture, Feed, pipe_capacity, unread_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.runner.listening import Listener, Pace

_LOOK = 0.02
#: The longest wait: a cell that was asked to stop and did not is noticed by then.
_SELDOM = 1.0
#: Most guests have ended after this, and their output is read once, at the end. A guest that writes more than a pipe
#: holds waits for us, once, and no longer than this.
_SHORT_RUN = 0.005
#: How long a guest that has its job may take to start, on an overloaded host.
_BEGIN_SECONDS = 60.0
#: How long to wait for the report on a guest that is gone, and on one that was cancelled. It comes at once, unless the
#: host is overloaded; if its manager has died, we know at once.
_REPORT_SECONDS, _CANCELLED_SECONDS, _REPORT_LOOK_MS = 60.0, 10.0, 100
#: How long a guest that waits for a processor, or for us, is given to use its time: so many times its timeout, and
#: seconds more. Enough for as many guests that compute as a backend runs at a time (`ProcessConfig.most_at_once`).
_MOST_STRETCH, _STRETCH_SECONDS = 25, 10.0
#: A pipe that holds so much of what it can is full, since a page of it holds whole writes: the guest waits until we
#: read. A user with many pipes gets small ones, of one or two pages.
_FULL_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one run may take, as far as the pump enforces it."""

    #: Seconds, from the moment the guest's code can run.
    timeout: float
    output_bytes: int
    cpu_seconds: float | None = None
    #: Whether a run that prints more than `output_bytes` is ended.
    ends_at_output_limit: bool = False


class Pump:
    """Runs in the calling thread, from the moment the cell has its job.

    `stdin` is what the guest reads: bytes, or a descriptor whose data is forwarded. Cancelling `run` ends it.
    `on_linger` is called once if the run takes longer than most. `listener` gets the output as it arrives.
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
        self._cell, self._bounds, self._run = cell, bounds, run
        self._on_linger: Callable[[], None] | None = on_linger
        self._sent = time.monotonic()
        self._began: float | None = None
        self._deadline = self._sent + _BEGIN_SECONDS
        self._is_lost = False
        #: When output was last read or a listener caught up, and how long the guest may have waited for us to read.
        self._last_read = self._sent
        self._held_up = 0.0
        self._full_sizes: dict[int, float] = {}
        #: Outputs that no process has open for writing any more.
        self._ended: set[int] = set()
        self._poll = select.poll()
        self._order = (cell.stdout, cell.stderr)
        self._captures = {descriptor: Capture(bounds.output_bytes) for descriptor in self._order}
        self._pace = None if listener is None else self._listen(listener)
        # A cgroup knows best; without one the watcher looks.
        self._counts_cpu = bounds.cpu_seconds is not None and cell.group is not None
        #: When to start reading output as it arrives; 0 once we do.
        self._draws_from = inf if listener is None else 0.0
        # Without a keeper there is no message before the guest's own process has ended.
        last = (cell.status.fileno(), cell.pidfd) if cell.has_keeper else (cell.guest, cell.pidfd)
        drawn = self._order if listener is not None else ()
        for descriptor in (cell.job.fileno(), *drawn, *last):
            self._poll.register(descriptor, select.POLLIN)
        self._feed = Feed(stdin, cell.stdin, cell.close_stdin, self._poll)

    def _listen(self, listener: Listener) -> Pace:
        from warmcell.runner.listening import STREAMS, DeliveringCapture, Pace

        for descriptor, stream in zip(self._order, STREAMS, strict=True):
            self._captures[descriptor] = DeliveringCapture(self._bounds.output_bytes, listener, stream)
        return Pace(listener, self._order, self._poll)

    def run(self) -> Exit:
        """Returns when the cell is gone: by itself, at a limit, or cancelled."""
        cut_short = ""
        # Cancelling ends the cell, and we learn of that as of any end: there is nothing else to wait for.
        with self._run.on_cancel(self._cell.ask_to_stop):
            while self._cell.report is None and not self._is_lost and not cut_short:
                cut_short = self._turn()
        if cut_short:
            self._stop()
        return self._finish(cut_short)

    def _turn(self) -> str:
        """Waits for the next event and handles it. Returns why the run is to be cut short, if it is."""
        now = time.monotonic()
        remaining = self._deadline - now
        if remaining <= 0:
            cut_short = self._check_deadline(now)
            if cut_short:
                return cut_short
            remaining = self._deadline - now
        pause = min(remaining, _LOOK if self._counts_cpu or self._on_linger else _SELDOM)
        pause = max(0.0, min(pause, self._draws_from - now)) if self._draws_from else pause
        # poll() counts whole milliseconds: rounding down would spin, rounding up overshoots by less than one.
        for descriptor, _ in self._poll.poll(int(pause * 1000) + 1):
            self._handle(descriptor)
        if self._run.is_cancelled:
            return "cancelled"
        if self._pace is not None and self._pace.keep():
            self._last_read = time.monotonic()
        if self._draws_from and time.monotonic() >= self._draws_from:
            self._draw()
        if self._on_linger and time.monotonic() - self._sent >= _LOOK:
            self._on_linger()
            self._on_linger = None
        if self._counts_cpu and self._cell.cpu_seconds() > (self._bounds.cpu_seconds or 0):
            return "cpu"
        if self._bounds.ends_at_output_limit and any(capture.is_over for capture in self._captures.values()):
            return "output"
        return ""

    def _check_deadline(self, now: float) -> str:
        """Extends the deadline of a guest that waited for a processor or for us: it has not used its time."""
        if self._began is None:
            return "never began"
        from warmcell.runner.starvation import guest_time

        self._read_full_pipes()
        elapsed, timeout = now - self._began, self._bounds.timeout
        longest = _MOST_STRETCH * timeout + _STRETCH_SECONDS
        # A guest that writes past its output limit for this long is flooding us: that time counts as used.
        is_endless = elapsed >= longest and any(capture.is_over for capture in self._captures.values())
        held_up = self._feed.held_up + (0.0 if is_endless else self._held_up)
        cut_short, more = guest_time(self._cell.pids(), held_up).check_deadline(elapsed, timeout, longest)
        if not cut_short and self._cell.group is not None:
            self._cell.group.ask_for_weight()
        self._deadline = now + more
        return cut_short

    def _handle(self, descriptor: int) -> None:
        cell = self._cell
        if descriptor in self._captures:
            if self._read_output(descriptor) is False:
                self._ended.add(descriptor)
                self._poll.unregister(descriptor)
                if self._pace is not None:
                    self._pace.close_output(descriptor)
        elif descriptor == cell.status.fileno():
            self._receive_message()
        elif descriptor == cell.job.fileno():
            if cell.receive_start():
                self._poll.unregister(descriptor)
                self._begin()
                cell.close_job()
        elif descriptor == cell.guest:
            self._take_guests_end()
        elif descriptor == cell.pidfd:
            self._is_lost = cell.is_gone = True
        elif self._pace is None or not self._pace.take(descriptor):
            self._feed.handle(descriptor)

    def _read_output(self, descriptor: int) -> bool | None:
        capture = self._captures[descriptor]
        before, last, start = capture.total, self._last_read, time.monotonic()
        more = capture.read(descriptor)
        self._last_read = time.monotonic()
        if capture.total - before >= self._full_size(descriptor):
            # Reading calls the listener, and the guest waits for a slow one on its own time.
            until = self._last_read if self._pace is None else start
            self._held_up += max(0.0, until - max(last, self._began or last))
        return more

    def _full_size(self, descriptor: int) -> float:
        if descriptor not in self._full_sizes:
            self._full_sizes[descriptor] = _FULL_SHARE * pipe_capacity(descriptor)
        return self._full_sizes[descriptor]

    def _read_full_pipes(self) -> None:
        """Reads pipes that are full because we were late. For a slow listener the guest waits on its own time."""
        for descriptor in self._order if self._pace is None else ():
            if descriptor not in self._ended and unread_bytes(descriptor) >= self._full_size(descriptor):
                self._read_output(descriptor)

    def _begin(self) -> None:
        """The guest's code can run now: earlier delays do not count against it."""
        self._began = time.monotonic()
        self._deadline = self._began + self._bounds.timeout
        if self._draws_from:
            self._draws_from = self._began + _SHORT_RUN

    def _take_guests_end(self) -> None:
        """The manager ends the rest of the cell and reports. Meanwhile we read what the guest wrote, but not for as
        long as there is more: processes that it left behind may still be writing.
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
        """From now on output is read as it arrives."""
        self._draws_from = 0.0
        for descriptor in self._order:
            if descriptor not in self._ended:
                self._poll.register(descriptor, select.POLLIN)

    def _receive_message(self) -> None:
        try:
            self._cell.receive_message()
        except CellLost:
            self._is_lost = True

    def _stop(self) -> None:
        """Asks first, because the report says what was used. A cell that does not answer is killed."""
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
        self._cell.await_end(10)
        # Everything that could write is gone, so the pipes hold all there will ever be.
        for descriptor, capture in self._captures.items():
            if descriptor not in self._ended:
                while (more := capture.read(descriptor)) or (more is None and _is_readable(descriptor)):
                    pass
            if self._pace is not None:
                capture.finish()
        if self._cell.report is None:
            self._receive_late_report()
        if self._began is None:
            self._cell.receive_start()
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
            gpu=GpuUsage(*report["gpu"]) if "gpu" in report else None,
            resident=ResidentPeak(*report["resident"]) if "resident" in report else None,
            start_failure=self._cell.start_failure,
        )

    def _receive_late_report(self) -> None:
        """The report may have been sent just before the end that we noticed, or be on its way."""
        poll = select.poll()
        poll.register(self._cell.status, select.POLLIN)
        began = time.monotonic()
        try:
            while self._cell.report is None:
                if poll.poll(_REPORT_LOOK_MS):
                    self._cell.receive_message()
                elif time.monotonic() - began > (_CANCELLED_SECONDS if self._run.is_cancelled else _REPORT_SECONDS):
                    return
        except CellLost:
            return


def _is_readable(descriptor: int) -> bool:
    """Whether the pipe holds data. Called after a read found nothing, when no process is left to write more."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))
