"""Feeds and drains one run until it ends: bounded memory, no deadlock, no waiting for pipes that others hold open."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress

from warmcell.core.records import dataclass, field
from warmcell.runner.cell import Cell, CellLost

_CHUNK = 1 << 16
_LOOK = 0.02
_LAST_WORDS_MS = 1000


@dataclass(slots=True)
class Capture:
    """One output stream: the first `cap` bytes are kept, the rest is read and counted, so that nobody stalls."""

    cap: int
    kept: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.cap - len(self.kept)
        if room > 0:
            self.kept += chunk[:room]


@dataclass(slots=True)
class Exit:
    """How a run ended, as facts. `outcome` judges them."""

    stdout: Capture
    stderr: Capture
    duration: float
    is_timeout: bool = False
    is_cancelled: bool = False
    #: The wait status that init saw, or None when init never told.
    status: int | None = None
    verdict: str = ""
    cpu_time: float = 0.0
    peak_memory: int = 0
    denials: list[list[str]] = field(default_factory=list)
    start_failure: str = ""


class Pump:
    """One run's conversation with its cell, in the calling thread.

    `stdin` is what the guest reads: bytes, or a descriptor that is passed on as its data comes. `on_linger` is called
    once when the run takes longer than most.
    """

    def __init__(
        self,
        cell: Cell,
        stdin: bytes | int,
        output_cap: int,
        deadline: float,
        cancel: int = -1,
        cpu_seconds: float | None = None,
        on_linger: Callable[[], None] | None = None,
    ) -> None:
        self._cell = cell
        self._source = stdin if isinstance(stdin, int) else -1
        self._stdin = memoryview(b"" if isinstance(stdin, int) else stdin)
        self._deadline = deadline
        self._cancel = cancel
        self._captures = {cell.stdout: Capture(output_cap), cell.stderr: Capture(output_cap)}
        self._order = (cell.stdout, cell.stderr)
        self._poll = select.poll()
        self._is_lost = False
        self._cpu_seconds = cpu_seconds
        self._on_linger = on_linger

    def run(self, started: float) -> Exit:
        """Until the cell is gone: by itself, at the deadline, at the end of its cpu time, or because of the caller."""
        self._register()
        cut_short = ""
        while self._cell.report is None and not self._is_lost and not cut_short:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                cut_short = "timeout"
                break
            # poll() counts whole milliseconds: rounding down would spin, rounding up overshoots by less than one.
            pause = min(remaining, _LOOK) if self._counts_cpu or self._on_linger else remaining
            events = self._poll.poll(int(pause * 1000) + 1)
            if self._on_linger and time.monotonic() - started >= _LOOK:
                self._on_linger()
                self._on_linger = None
            for descriptor, event in events:
                if descriptor == self._cancel:
                    cut_short = "cancelled"
                else:
                    self._handle(descriptor, event)
            if self._counts_cpu and self._cell.cpu_seconds() > (self._cpu_seconds or 0):
                cut_short = "cpu"
        if cut_short:
            self._stop()
        return self._finish(started, cut_short)

    @property
    def _counts_cpu(self) -> bool:
        """Where there is a cgroup it knows best; elsewhere init looks."""
        return self._cpu_seconds is not None and self._cell.group is not None

    def _register(self) -> None:
        for descriptor in (*self._order, self._cell.status.fileno(), self._cell.pidfd):
            self._poll.register(descriptor, select.POLLIN)
        if self._stdin:
            self._poll.register(self._cell.stdin, select.POLLOUT)
        elif self._source >= 0:
            self._poll.register(self._source, select.POLLIN)
            self._poll.register(self._cell.stdin, 0)  # only whether the guest has closed its end
        else:
            self._cell.close_stdin()
        if self._cancel >= 0:
            self._poll.register(self._cancel, select.POLLIN)

    def _handle(self, descriptor: int, event: int) -> None:
        if descriptor in self._captures:
            self._read(descriptor)
        elif descriptor == self._cell.stdin:
            self._feed()
        elif descriptor == self._source:
            self._draw()
        elif descriptor == self._cell.status.fileno():
            self._hear()
        elif descriptor == self._cell.pidfd:
            self._is_lost = True
        elif descriptor == self._cell.guest:
            self._report_orphan()

    def _read(self, descriptor: int) -> bool:
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._poll.unregister(descriptor)
            return False
        self._captures[descriptor].add(chunk)
        return True

    def _draw(self) -> None:
        """Takes the next piece from the source, and no more of it until that piece is with the guest."""
        try:
            piece = os.read(self._source, _CHUNK)
        except OSError:
            piece = b""
        self._poll.unregister(self._source)
        if not piece:
            self._end_stdin()
            return
        self._stdin = memoryview(piece)
        self._poll.modify(self._cell.stdin, select.POLLOUT)

    def _feed(self) -> None:
        try:
            self._stdin = self._stdin[os.write(self._cell.stdin, self._stdin[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._end_stdin()  # the guest closed its end and will never read the rest
            return
        if self._stdin:
            return
        if self._source < 0:
            self._end_stdin()
        else:
            self._poll.modify(self._cell.stdin, 0)
            self._poll.register(self._source, select.POLLIN)

    def _end_stdin(self) -> None:
        self._stdin = self._stdin[:0]
        self._poll.unregister(self._cell.stdin)
        self._cell.close_stdin()
        if self._source >= 0:
            with suppress(KeyError):
                self._poll.unregister(self._source)

    def _hear(self) -> None:
        try:
            self._cell.hear()
        except CellLost:
            self._is_lost = self._cell.guest < 0
            if not self._is_lost:  # its zygote died, which is no reason for the run to end
                self._poll.unregister(self._cell.status)
                self._poll.register(self._cell.guest, select.POLLIN)

    def _report_orphan(self) -> None:
        try:
            self._cell.report_orphan()
        except CellLost:
            self._is_lost = True

    def _stop(self) -> None:
        """Asks first, because the report says what was used; a namespace that does not answer is taken down."""
        self._cell.ask_to_stop()
        until = time.monotonic() + self._cell.grace
        while self._cell.report is None and not self._is_lost and time.monotonic() < until:
            for descriptor, event in self._poll.poll(20):
                if descriptor != self._cancel:
                    self._handle(descriptor, event)

    def _finish(self, started: float, cut_short: str) -> Exit:
        if self._cell.report is None:
            self._cell.kill()
        self._cell.await_gone(10)
        for descriptor in self._order:
            while self._read_rest(descriptor):
                pass
        if self._cell.report is None:
            self._last_words()
        report = self._cell.report or {}
        stdout, stderr = (self._captures[descriptor] for descriptor in self._order)
        return Exit(
            stdout,
            stderr,
            duration=time.monotonic() - started,
            is_timeout=cut_short == "timeout",
            is_cancelled=cut_short == "cancelled",
            status=report.get("exit"),
            verdict="cpu" if cut_short == "cpu" else report.get("verdict", ""),
            cpu_time=report.get("cpu", 0.0),
            peak_memory=report.get("peak", 0),
            denials=report.get("denials", []),
            start_failure=self._cell.start_failure(),
        )

    def _read_rest(self, descriptor: int) -> bool:
        # Everything that could write is gone, so what is in the pipe now is all there will ever be.
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        self._captures[descriptor].add(chunk)
        return bool(chunk)

    def _last_words(self) -> None:
        """The report may have been sent just before the end that we noticed first, or be on its way."""
        poll = select.poll()
        poll.register(self._cell.status, select.POLLIN)
        try:
            while self._cell.report is None and poll.poll(_LAST_WORDS_MS):
                self._cell.hear()
        except CellLost:
            return
