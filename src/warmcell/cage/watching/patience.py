"""Limits the time of one look: a guest that is too large to measure is over its limit. And the pauses between looks."""

from __future__ import annotations

import os
import time
from math import inf

from ..linux import kernel_files
from ..linux.processes import must_be_expected
from ..plan import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List

_CHUNK = 1 << 16
#: How long a look that is late without fault goes on until its lateness is examined again.
_EXCUSED_SECONDS = 0.05


_SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.5


def next_look_after(spent: Spent) -> float:
    """When to repeat a costly look: so that it takes a tenth of the time, or more for the largest trees."""
    return time.monotonic() + min(max(_SHORTEST_PAUSE, 10 * spent.seconds()), LONGEST_PAUSE)


def _run_queue_delay() -> float:
    """Seconds for which this process was runnable without a processor; 0 if the kernel does not count them."""
    try:
        return int(kernel_files.read("/proc/self/schedstat").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _stolen_ticks() -> List[int]:
    """For each processor of this virtual machine, how long the host computed something else; empty if unknown."""
    try:
        lines = kernel_files.read("/proc/stat").splitlines()
        return [int(line.split()[8]) for line in lines if line.startswith("cpu") and line[3:4].isdigit()]
    except (OSError, IndexError):
        return []


class Spent:
    """Measures how long a look takes, without run-queue delay: otherwise a guest could delay looks by keeping the host
    busy.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._delay = _run_queue_delay()

    def seconds(self) -> float:
        return max(0.0, time.monotonic() - self._started - (_run_queue_delay() - self._delay))


class TooLong(Exception):
    """The look took too long."""


class Patience:
    """The time limits of one look, in processor time and in wall time, since a look can block.

    Run-queue delay does not count: a busy host is not the guest's fault. With `counts_stolen`, nor does time that the
    host of a virtual machine took from its processors. Reading it takes long on a large machine.
    """

    def __init__(self, processor: float, clock: float, counts_stolen: bool = False) -> None:
        self._stolen = _stolen_ticks() if counts_stolen else []
        self._processor = time.process_time() + processor
        self._delay = _run_queue_delay()
        self._clock = time.monotonic() + clock
        #: Reading what was stolen takes processor time, which is limited as well, so not every check does.
        self._excused_until = -inf

    def check(self) -> None:
        if time.process_time() > self._processor:
            raise TooLong
        if time.monotonic() > max(self._clock, self._excused_until):
            late = time.monotonic() - self._clock - (_run_queue_delay() - self._delay)
            if late > 0 and late > self._stolen_seconds():
                raise TooLong
            self._excused_until = time.monotonic() + _EXCUSED_SECONDS

    def _stolen_seconds(self) -> float:
        """What was stolen since the start, of the processor from which most was: this process may have lost it."""
        if not self._stolen:
            return 0.0
        pairs = zip(self._stolen, _stolen_ticks())  # noqa: B905  # `strict` came after Python 3.9
        return max((after - before for before, after in pairs), default=0) / os.sysconf("SC_CLK_TCK")

    def extend(self, processor: float, clock: float) -> None:
        """Add time that was spent on what is not the guest's."""
        self._processor += processor
        self._clock += clock

    def read(self, path: str) -> Iterator[bytes]:
        """Yield a file of /proc in pieces of whole lines; `TooLong` if time runs out. A missing file is empty."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            must_be_expected(error)
            return
        rest = b""
        try:
            while True:
                self.check()
                try:
                    piece = os.read(descriptor, _CHUNK)
                except OSError as error:
                    must_be_expected(error)
                    piece = b""
                if not piece:
                    break
                lines, newline, after = (rest + piece).rpartition(b"\n")
                rest = after
                if newline:
                    yield lines + newline
        finally:
            os.close(descriptor)


# The pauses between looks. Pure.

SLOWEST_LOOK = 0.1
FASTEST_LOOK = 0.002
SLOWEST_CPU_LOOK = 0.02
#: A guest can take all memory of a device at once, but a look takes milliseconds, so more looks would cost too much.
SLOWEST_GPU_LOOK = 0.02
_FASTEST_GROWTH = 4e9  # bytes per second that a guest might allocate between two looks


def pause_before_first_look(watch: Watch) -> float:
    """Most runs end before it. The guest can use at most half of its processor time until then."""
    if not watch.cpu_seconds:
        return pause_before_look(watch)
    half = watch.cpu_seconds / (2 * (os.cpu_count() or 1))
    return _pause(watch, 0, min(max(half, SLOWEST_CPU_LOOK), SLOWEST_LOOK))


def pause_before_look(watch: Watch, used: int = 0) -> float:
    """The pause before the next look, given the memory in use."""
    return _pause(watch, used, SLOWEST_CPU_LOOK if watch.cpu_seconds else SLOWEST_LOOK)


def _pause(watch: Watch, used: int, pause: float) -> float:
    if watch.gpu_memory_bytes:
        pause = min(pause, SLOWEST_GPU_LOOK)
    if not watch.memory_bytes:
        return pause
    return min(pause, max((watch.memory_bytes - used) / _FASTEST_GROWTH, FASTEST_LOOK))
