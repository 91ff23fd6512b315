"""Pump: writes a guest's input, reads its output, enforces the timeout and receives the report on its end.

Memory is bounded, and pipes that other processes keep open are not waited for.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from math import inf

from warmcell.core.records import dataclass
from warmcell.lifetime.descriptors import is_shortage
from warmcell.lifetime.run import Run
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.outcome import Exit, GpuUsage, ResidentPeak
from warmcell.runner.streams import Capture, Feed, pipe_capacity, unread_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.runner.listening import Listener, OutputThrottle
    from warmcell.runner.stolen_time import ProcessorTime

#: The wait for an event while processor time must be checked, or until `on_linger` was called.
_SHORT_WAIT = 0.02
#: The longest wait otherwise: a cell that does not react to a cancellation is noticed by then.
_LONG_WAIT = 1.0
#: Most guests end within this time, and their output is read once, at the end. A guest that fills a pipe earlier waits
#: for us until then.
_SHORT_RUN = 0.005
#: How long a guest that has its job may take to start, on an overloaded host.
_START_SECONDS = 60.0
#: How long to wait for the report on a guest that has ended, or was cancelled. Only an overloaded host takes long; if
#: the manager has died, its channel is closed.
_REPORT_SECONDS, _CANCELLED_SECONDS, _REPORT_POLL_MS = 60.0, 10.0, 100
#: A guest that waits for a processor, or for us, may run for so many times its timeout, plus seconds. Enough for as
#: many computing guests as a backend runs at a time (`ProcessConfig.most_at_once`).
_MOST_STRETCH, _STRETCH_SECONDS = 25, 10.0
#: How soon to look again if too few descriptors were left for a look.
_SHORTAGE_SECONDS = 0.25
#: A pipe filled to this share counts as full: its pages hold whole writes only, so the guest may already be blocked.
#: Users with many pipes get small ones, of one or two pages.
_FULL_SHARE = 0.7
#: Far more than any pipe holds.
_MOST_LAST_READS = 1 << 10


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one run that the pump enforces."""

    #: Seconds, from the moment the guest's code can run.
    timeout: float
    output_bytes: int
    cpu_seconds: float | None = None
    #: Whether a run that prints more than `output_bytes` is ended.
    ends_at_output_limit: bool = False


class Pump:
    """Runs in the calling thread, from the moment the cell has its job.

    `stdin` is the guest's input: bytes, or a descriptor whose data is forwarded. Cancelling `run` ends it. `on_linger`
    is called once if the run takes longer than most. `listener` gets the output as it arrives.
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
        self._started_at: float | None = None
        self._deadline = self._sent + _START_SECONDS
        self._is_lost = False
        #: When output was last read or the listener caught up.
        self._last_read = self._sent
        #: How long the guest may have waited for us to read.
        self._guest_wait = 0.0
        self._full_sizes: dict[int, float] = {}
        #: Read when the run takes longer than most; and how late that was: what was stolen until then is unknown.
        self._processors: dict[str, ProcessorTime] = {}
        self._lateness = 0.0
        #: Outputs at end of file.
        self._ended: set[int] = set()
        self._poll = select.poll()
        self._outputs = (cell.stdout, cell.stderr)
        self._captures = {descriptor: Capture(bounds.output_bytes) for descriptor in self._outputs}
        self._throttle = None if listener is None else self._listen(listener)
        # Without a cgroup the watcher enforces the limit.
        self._counts_cpu = bounds.cpu_seconds is not None and cell.group is not None
        #: When to start reading output as it arrives; 0 once we do.
        self._reads_from = inf if listener is None else 0.0
        # Without a keeper, no message arrives before the guest's own process has ended.
        last = (cell.status.fileno(), cell.pidfd) if cell.has_keeper else (cell.guest_pidfd, cell.pidfd)
        outputs = self._outputs if listener is not None else ()
        for descriptor in (cell.job.fileno(), *outputs, *last):
            self._poll.register(descriptor, select.POLLIN)
        self._feed = Feed(stdin, cell.stdin, cell.close_stdin, self._poll)

    def _listen(self, listener: Listener) -> OutputThrottle:
        from warmcell.runner.listening import STREAMS, DeliveringCapture, OutputThrottle

        for descriptor, stream in zip(self._outputs, STREAMS, strict=True):
            self._captures[descriptor] = DeliveringCapture(self._bounds.output_bytes, listener, stream)
        return OutputThrottle(listener, self._outputs, self._poll)

    def run(self) -> Exit:
        """Returns when the cell has ended: by itself, at a limit, or cancelled."""
        stop_reason = ""
        # Cancelling ends the cell, which wakes poll like any other end.
        with self._run.on_cancel(self._cell.ask_to_stop):
            while self._cell.report is None and not self._is_lost and not stop_reason:
                stop_reason = self._step()
        if stop_reason:
            self._stop()
        return self._finish(stop_reason)

    def _step(self) -> str:
        """Waits for events and handles them. Returns the reason if the run must be stopped, else ""."""
        now = time.monotonic()
        remaining = self._deadline - now
        if remaining <= 0:
            stop_reason = self._check_deadline(now)
            if stop_reason:
                return stop_reason
            remaining = self._deadline - now
        pause = min(remaining, _SHORT_WAIT if self._counts_cpu or self._on_linger else _LONG_WAIT)
        pause = max(0.0, min(pause, self._reads_from - now)) if self._reads_from else pause
        # poll() counts whole milliseconds: rounding down would spin, rounding up overshoots by less than one.
        for descriptor, _ in self._poll.poll(int(pause * 1000) + 1):
            self._handle(descriptor)
        if self._run.is_cancelled:
            return "cancelled"
        if self._throttle is not None and self._throttle.update():
            self._last_read = time.monotonic()
        if self._reads_from and time.monotonic() >= self._reads_from:
            self._start_reading()
        if self._on_linger and time.monotonic() - self._sent >= _SHORT_WAIT:
            self._note_long_run(self._on_linger)
        if self._counts_cpu and self._cell.cpu_seconds() > (self._bounds.cpu_seconds or 0):
            return "cpu"
        if self._bounds.ends_at_output_limit and any(capture.is_truncated for capture in self._captures.values()):
            return "output"
        return ""

    def _note_long_run(self, on_linger: Callable[[], None]) -> None:
        """Called once if the run takes longer than most: stolen time is counted from now on."""
        on_linger()
        self._on_linger = None
        self._processors = _processor_times()
        if self._started_at is not None and self._throttle is None:  # a slow listener counts against the guest
            self._lateness = max(0.0, time.monotonic() - self._started_at - 2 * _SHORT_WAIT)

    def _check_deadline(self, now: float) -> str:
        """Returns the reason if the run must be stopped. Else extends the deadline: the guest waited for a processor or
        for us.
        """
        if self._started_at is None:
            return "not started"
        if self._on_linger:
            self._note_long_run(self._on_linger)
        self._read_full_pipes()
        elapsed, timeout = now - self._started_at, self._bounds.timeout
        longest = _MOST_STRETCH * timeout + _STRETCH_SECONDS
        # Time that a guest spent writing endlessly past its output limit counts as used.
        is_endless = elapsed >= longest and any(capture.is_truncated for capture in self._captures.values())
        guest_wait = self._lateness + self._feed.guest_wait + (0.0 if is_endless else self._guest_wait)
        try:
            stop_reason, more = self._measure_guest(elapsed, longest, guest_wait)
        except OSError as error:  # too few descriptors to look, or to load what looks
            if not is_shortage(error) or elapsed >= longest:
                raise
            stop_reason, more = "", _SHORTAGE_SECONDS
        if not stop_reason and self._cell.group is not None:
            self._cell.group.add_task_weight()
        self._deadline = now + more
        return stop_reason

    def _measure_guest(self, elapsed: float, longest: float, guest_wait: float) -> tuple[str, float]:
        """Why the run must be stopped, or "" and the seconds until the next look."""
        from warmcell.runner.starvation import RECHECK_SECONDS, guest_time, waits_for_processor

        looked, pids, timeout = time.thread_time(), self._cell.pids(), self._bounds.timeout
        used = guest_time(pids, guest_wait, self._processors)
        stop_reason, more = used.check_deadline(elapsed, timeout, longest)
        if stop_reason == "timeout" and elapsed < longest and used.cpu < timeout and waits_for_processor(pids):
            # Looking at a guest with many threads takes long: a tenth of this thread's time at most.
            pause = max(RECHECK_SECONDS, 10 * (time.thread_time() - looked))
            return "", min(pause, longest - elapsed)
        return stop_reason, more

    def _handle(self, descriptor: int) -> None:
        cell = self._cell
        if descriptor in self._captures:
            if self._read_output(descriptor) is False:
                self._ended.add(descriptor)
                self._poll.unregister(descriptor)
                if self._throttle is not None:
                    self._throttle.close_output(descriptor)
        elif descriptor == cell.status.fileno():
            self._receive_message()
        elif descriptor == cell.job.fileno():
            if cell.receive_start():
                self._poll.unregister(descriptor)
                self._on_start()
                cell.close_early(descriptor)
        elif descriptor == cell.guest_pidfd:
            self._on_guest_exit()
        elif descriptor == cell.pidfd:
            self._is_lost = cell.is_gone = True
        elif self._throttle is None or not self._throttle.on_ready(descriptor):
            self._feed.handle(descriptor)

    def _read_output(self, descriptor: int) -> bool | None:
        capture = self._captures[descriptor]
        before, last, start = capture.total, self._last_read, time.monotonic()
        more = capture.read(descriptor)
        self._last_read = time.monotonic()
        if capture.total - before >= self._full_size(descriptor):
            # Reading calls the listener. Waiting for a slow listener counts against the guest.
            until = self._last_read if self._throttle is None else start
            self._guest_wait += max(0.0, until - max(last, self._started_at or last))
        return more

    def _full_size(self, descriptor: int) -> float:
        if descriptor not in self._full_sizes:
            self._full_sizes[descriptor] = _FULL_SHARE * pipe_capacity(descriptor)
        return self._full_sizes[descriptor]

    def _read_full_pipes(self) -> None:
        """Reads pipes that are full because we were late. Waiting for a slow listener counts against the guest."""
        for descriptor in self._outputs if self._throttle is None else ():
            if descriptor not in self._ended and unread_bytes(descriptor) >= self._full_size(descriptor):
                self._read_output(descriptor)

    def _on_start(self) -> None:
        """The guest's code can run now. Earlier delays do not count against it."""
        self._started_at = time.monotonic()
        self._deadline = self._started_at + self._bounds.timeout
        if self._reads_from:
            self._reads_from = self._started_at + _SHORT_RUN

    def _on_guest_exit(self) -> None:
        """The manager now ends the rest of the cell and reports. Meanwhile we read what the guest wrote, but only two
        pieces of each output: processes that it left behind may still be writing.
        """
        self._poll.unregister(self._cell.guest_pidfd)
        self._poll.register(self._cell.status, select.POLLIN)
        if self._reads_from:
            for descriptor, capture in self._captures.items():
                more = capture.read(descriptor) and capture.read(descriptor)
                if more is False:
                    self._ended.add(descriptor)
            self._cell.close_early(self._cell.guest_pidfd, *self._ended)
            self._cell.guest_pidfd = -1

    def _start_reading(self) -> None:
        """From now on output is read as it arrives."""
        self._reads_from = 0.0
        for descriptor in self._outputs:
            if descriptor not in self._ended:
                self._poll.register(descriptor, select.POLLIN)

    def _receive_message(self) -> None:
        try:
            self._cell.receive_message()
        except CellLost:
            self._is_lost = True

    def _stop(self) -> None:
        """Asks the cell to stop and waits for its report, which says what was used."""
        self._cell.ask_to_stop()
        until = time.monotonic() + self._cell.grace
        while self._cell.report is None and not self._is_lost and time.monotonic() < until:
            for descriptor, _ in self._poll.poll(20):
                self._handle(descriptor)
            if self._throttle is not None:
                self._throttle.update()

    def _finish(self, stop_reason: str) -> Exit:
        if self._cell.report is None and not self._is_lost:
            self._cell.kill()
        self._cell.await_end(10)
        # No process is left that could write, so the pipes hold all remaining output. Without a namespace, though, a
        # guest can kill its keeper and write on.
        for descriptor, capture in self._captures.items():
            if descriptor not in self._ended:
                for _ in range(_MOST_LAST_READS):
                    more = capture.read(descriptor)
                    if not more and (more is False or not _is_readable(descriptor)):
                        break
            if self._throttle is not None:
                capture.finish()
        if self._cell.report is None:
            self._receive_late_report()
        if self._started_at is None:
            self._cell.receive_start()
        report = self._cell.report or {}
        started_at = self._sent if self._started_at is None else self._started_at
        stdout, stderr = self._outputs
        return Exit(
            self._captures[stdout],
            self._captures[stderr],
            started_at=started_at,
            duration=time.monotonic() - started_at,
            stop_reason=stop_reason,
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
        """Waits for a report that is still on its way when the cell has ended."""
        poll = select.poll()
        poll.register(self._cell.status, select.POLLIN)
        began = time.monotonic()
        try:
            while self._cell.report is None:
                if poll.poll(_REPORT_POLL_MS):
                    self._cell.receive_message()
                elif time.monotonic() - began > (_CANCELLED_SECONDS if self._run.is_cancelled else _REPORT_SECONDS):
                    return
        except CellLost:
            return


def _processor_times() -> dict[str, ProcessorTime]:
    try:
        from warmcell.runner.stolen_time import processor_times
    except OSError:  # no descriptor left to load it
        return {}
    return processor_times()


def _is_readable(descriptor: int) -> bool:
    """Whether the pipe holds data, although a read that did not block found none."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))
