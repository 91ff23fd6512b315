"""How much processor time a guest used and how long it waited for a processor. Loaded when a deadline has passed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from warmcell.cage.linux import kernel_files
from warmcell.cage.linux.processes import descendants, expected_errors, must_be_expected
from warmcell.cage.watching.usage import cpu_times, threads
from warmcell.core.records import dataclass
from warmcell.runner.stolen_time import ProcessorTime, processor_times, stolen_time

#: A guest that could use this share of its timeout was not starved.
_OWN_SHARE = 0.9
#: A thread that could run and did not for this long waits for a processor. The kernel counts what runs in each tick.
_MOMENT_SECONDS = 0.03
#: How soon to look again after that.
RECHECK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class GuestTime:
    """Seconds that the processes of a guest computed and waited."""

    #: Processor time of all processes.
    cpu: float
    #: Time on a run queue, of the thread that waited longest, time in which this virtual machine had no processor, and
    #: time waiting for us to read output or write input.
    delay: float

    def remaining_time(self, elapsed: float, timeout: float) -> float:
        """The part of its timeout that the guest could not use. 0 if it computed or slept for the whole timeout.

        Threads of a guest that delay each other also add to `delay`, but then `cpu` is high.
        """
        usable = elapsed - min(self.delay, elapsed)
        return 0.0 if max(self.cpu, usable) >= _OWN_SHARE * timeout else timeout - usable

    def check_deadline(self, elapsed: float, timeout: float, longest: float) -> tuple[str, float]:
        """Whether to stop the run after `elapsed` seconds: the reason ("timeout", or "starved" after `longest`), or ""
        and the seconds until the next check.
        """
        unused = self.remaining_time(elapsed, timeout)
        if unused <= 0.0:
            return "timeout", 0.0
        return ("", min(unused, longest - elapsed)) if elapsed < longest else ("starved", 0.0)


def guest_time(
    roots: Iterable[int], guest_wait: float = 0.0, processors: dict[str, ProcessorTime] | None = None
) -> GuestTime:
    """The times of these processes and all below them; `guest_wait`: seconds that they waited for us.

    Processes that have ended count only if their parent has reaped them. `processors`: their times at the start.
    """
    cpu, delays = _measure(roots)
    stolen = stolen_time(cpu, processors, processor_times()) if processors else 0.0
    return GuestTime(cpu, guest_wait + stolen + max(delays.values(), default=0.0))


class GuestClock:
    """Measures the processes that `roots` returns, and all below them, from its creation on."""

    def __init__(self, roots: Callable[[], Iterable[int]]) -> None:
        self._roots = roots
        self._processors = processor_times()
        self._cpu, self._delays = _measure(roots())
        # Last: a stall of this thread between these lines would be time that passed, and no delay.
        self._began = time.monotonic()

    def remaining_time(self, timeout: float) -> float:
        """The part of a timeout, which began with the clock, that the processes could not use."""
        elapsed = time.monotonic() - self._began  # first, for the same reason
        cpu, delays = _measure(self._roots())
        used = max(0.0, cpu - self._cpu)
        delay = max((delay - self._delays.get(pid, 0.0) for pid, delay in delays.items()), default=0.0)
        stolen = stolen_time(used, self._processors, processor_times())
        remaining = GuestTime(used, delay + stolen).remaining_time(elapsed, timeout)
        if not remaining and used < timeout and waits_for_processor(self._roots()):
            return RECHECK_SECONDS
        return remaining


def waits_for_processor(roots: Iterable[int]) -> bool:
    """Whether threads of these processes, or of those below them, wait at this moment, and none of them runs.

    The kernel counts a wait on a run queue, and time that was stolen, when it has ended. A thread that waits for
    another one of its guest does not count: a guest could arrange that at each of its deadlines, and sleep in between.
    """
    if not (before := _runnable_threads(roots)):
        return False
    time.sleep(_MOMENT_SECONDS)
    return all(_schedstat(thread)[0] == ran for thread, ran in before.items())


def _runnable_threads(roots: Iterable[int]) -> dict[str, int]:
    """For how many nanoseconds each has run."""
    places = [f"/proc/{pid}/task/{thread}" for pid in _trees(roots) for thread in threads(f"/proc/{pid}")]
    ran = {place: _schedstat(place)[0] for place in places if _is_runnable(place)}
    return {place: nanoseconds for place, nanoseconds in ran.items() if nanoseconds}


def _is_runnable(place: str) -> bool:
    with expected_errors:
        return kernel_files.read(f"{place}/stat").rpartition(")")[2].startswith(" R")
    return False


def _measure(roots: Iterable[int]) -> tuple[float, dict[int, float]]:
    """The processor time of all processes, and the delay of each."""
    pids = _trees(roots)
    cpu = sum(time.own + time.waited for time in cpu_times("/proc", pids).values())
    return cpu, {pid: _run_queue_delay(pid) for pid in pids}


def _trees(roots: Iterable[int]) -> set[int]:
    return {pid for root in roots if root > 0 for pid in (root, *descendants(root))}


def _run_queue_delay(pid: int) -> float:
    """Of the thread that waited longest."""
    place = f"/proc/{pid}"
    return max((_schedstat(f"{place}/task/{thread}")[1] for thread in threads(place)), default=0) / 1e9


def _schedstat(place: str) -> tuple[int, int]:
    """For how many nanoseconds a thread has run, and waited on a run queue; 0 if the kernel does not say."""
    try:
        ran, waited, _ = kernel_files.read_short(f"{place}/schedstat").split()
        return int(ran), int(waited)
    except OSError as error:
        must_be_expected(error)
        return 0, 0
    except ValueError:
        return 0, 0
