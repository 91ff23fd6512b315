"""A guest that waits for a processor has not used its time."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.helpers import PATIENCE, require, until

from warmcell import ExecRequest, ExecutionTimeout, Limits, ProcessBackend, ProcessConfig
from warmcell.runner import pump, starvation
from warmcell.runner.cell import Cell
from warmcell.runner.cgroup_parent import GroupParent, group_parent
from warmcell.runner.pump import Pump
from warmcell.runner.starvation import GuestClock, GuestTime, guest_time, waits_for_processor
from warmcell.runner.stolen_time import ProcessorTime, processor_times, stolen_time
from warmcell.runner.streams import Capture

_SPIN = "while True: pass"


@pytest.mark.parametrize(
    ("cpu", "delay", "elapsed", "unused"),
    [
        (0.0, 0.0, 1.0, 0.0),  # it slept
        (1.0, 0.0, 1.0, 0.0),  # it computed
        (0.3, 0.7, 1.0, 0.7),  # it waited for a processor
        (0.5, 0.1, 1.0, 0.0),  # it slept for the most part
        (1.9, 0.9, 1.0, 0.0),  # its own threads delayed each other
        (0.3, 5.0, 1.0, 1.0),  # a delay from before it started is not longer than its time
        (0.95, 3.0, 4.0, 0.0),  # it was given time later
    ],
)
def test_time_on_a_run_queue_is_not_used(cpu: float, delay: float, elapsed: float, unused: float) -> None:
    assert GuestTime(cpu, delay).remaining_time(elapsed, 1.0) == pytest.approx(unused)


@pytest.mark.parametrize(
    ("cpu", "delay", "elapsed", "decided"),
    [
        (0.3, 0.7, 1.0, ("", 0.7)),
        (0.3, 18.7, 19.0, ("", 0.7)),
        (0.3, 19.5, 19.8, ("", 0.2)),  # it may go on until it is starved
        (0.0, 20.0, 20.0, ("starved", 0.0)),  # it never ran
        (0.4, 19.6, 20.0, ("starved", 0.0)),  # 0.6 s more might have been enough
        (0.9, 19.1, 20.0, ("timeout", 0.0)),  # it had its time, however late
        (0.0, 19.0, 20.0, ("timeout", 0.0)),  # it slept through what it had
        (0.9, 19.1, 50.0, ("timeout", 0.0)),  # nobody looked in time
    ],
)
@pytest.mark.claim("WC-RX-8")
def test_only_a_guest_that_had_its_time_has_timed_out(
    cpu: float, delay: float, elapsed: float, decided: tuple[str, float]
) -> None:
    stop_reason, more = GuestTime(cpu, delay).check_deadline(elapsed, 1.0, 20.0)
    assert (stop_reason, more) == (decided[0], pytest.approx(decided[1]))


@pytest.mark.parametrize("processors", [1, 2, 4, 16, 128])
@pytest.mark.claim("WC-RX-8")
def test_as_many_guests_as_run_at_a_time_can_all_use_their_time(
    monkeypatch: pytest.MonkeyPatch, processors: int
) -> None:
    """If all of them compute, each gets this share of a processor for its timeout."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(processors))
    most_guests, timeout = ProcessConfig().most_at_once, 30.0
    longest = pump._MOST_STRETCH * timeout + pump._STRETCH_SECONDS
    assert longest * processors / most_guests >= timeout


@pytest.mark.root
@pytest.mark.needs("user namespaces")
def test_a_guest_that_waits_for_a_processor_asks_for_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, though it is looked at many times."""
    weights: list[int] = []
    monkeypatch.setattr("warmcell.runner.starvation.guest_time", lambda *_: GuestTime(0.05, 60.0))
    monkeypatch.setattr(GroupParent, "_add_weight", lambda _, tasks: weights.append(tasks))
    require(group_parent(), "this host has no control groups that root may use")
    with ProcessBackend() as backend:
        backend.execute_blocking(ExecRequest("python", "import time; time.sleep(1)", timeout=0.1))
    assert weights == [1, -1]


@pytest.fixture
def crowd() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Six busy processes that share one processor."""
    processor = min(os.sched_getaffinity(0))
    processes = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(6)]
    for process in processes:
        os.sched_setaffinity(process.pid, {processor})
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_delays_are_read_from_the_kernel(crowd: list[subprocess.Popen[bytes]]) -> None:
    before = guest_time([crowd[0].pid, 0])
    time.sleep(1.5)
    after = guest_time([crowd[0].pid, 0])
    found = GuestTime(after.cpu - before.cpu, after.delay - before.delay)
    assert found.delay > found.cpu > 0
    assert found.remaining_time(1.5, 1.5) > 0


def test_processes_below_count(crowd: list[subprocess.Popen[bytes]]) -> None:
    everything = guest_time([os.getpid()])
    assert everything.cpu >= guest_time([crowd[0].pid]).cpu
    assert guest_time([2**22 + 1]) == GuestTime(0.0, 0.0)


def test_a_clock_measures_from_its_start(crowd: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.runner.starvation.processor_times", dict)  # its estimate may be all that is left
    time.sleep(0.5)
    clock = GuestClock(lambda: [crowd[0].pid])
    time.sleep(1.5)
    assert 0.5 < clock.remaining_time(1.5) < 1.5
    assert GuestClock(list).remaining_time(60.0) > 0


def test_a_clock_counts_no_stall_of_its_own_thread(
    crowd: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread stands still when it has read the delays: they are complete for the time before only."""
    measure = starvation._measure

    def measure_and_stall(roots: Iterable[int]) -> tuple[float, dict[int, float]]:
        found = measure(roots)
        time.sleep(0.4)
        return found

    monkeypatch.setattr("warmcell.runner.starvation.processor_times", dict)
    monkeypatch.setattr(starvation, "_measure", measure_and_stall)
    clock = GuestClock(lambda: [crowd[0].pid])
    time.sleep(0.1)
    assert clock.remaining_time(3.0) == 3.0


def test_a_wait_for_a_processor_is_seen_while_it_lasts() -> None:
    """One that may run only if the other does not."""
    processor = {min(os.sched_getaffinity(0))}
    with (
        subprocess.Popen([sys.executable, "-c", _SPIN]) as spins,
        subprocess.Popen([sys.executable, "-c", _SPIN]) as waits,
        subprocess.Popen(["sleep", "60"]) as sleeps,
    ):
        os.sched_setaffinity(spins.pid, processor)
        os.sched_setaffinity(waits.pid, processor)
        os.sched_setscheduler(waits.pid, os.SCHED_IDLE, os.sched_param(0))
        try:
            until(lambda: waits_for_processor([waits.pid]))
            until(lambda: not waits_for_processor([sleeps.pid, 2**22 + 1]))
            until(lambda: not waits_for_processor([spins.pid, waits.pid]))  # of one guest
        finally:
            for process in (spins, waits, sleeps):
                process.kill()


@pytest.mark.claim("WC-RX-8")
@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize(("waits", "stretch", "is_late"), [(3, 10.0, False), (10**9, 0.3, True)])
def test_a_guest_that_waits_at_its_deadline_is_not_late(
    monkeypatch: pytest.MonkeyPatch, waits: int, stretch: float, is_late: bool
) -> None:
    looks = iter(range(waits))
    monkeypatch.setattr(starvation, "waits_for_processor", lambda pids: next(looks, None) is not None)
    monkeypatch.setattr(starvation, "RECHECK_SECONDS", 0.3)
    monkeypatch.setattr(pump, "_MOST_STRETCH", 1)
    monkeypatch.setattr(pump, "_STRETCH_SECONDS", stretch)
    request = ExecRequest("python", "import time; time.sleep(1.2)", timeout=0.5)
    with ProcessBackend() as backend:
        if is_late:
            with pytest.raises(ExecutionTimeout):
                backend.execute_blocking(request)
        else:
            assert backend.execute_blocking(request).exit_code == 0


@pytest.mark.needs("user namespaces")
def test_a_guest_is_looked_at_again_when_descriptors_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is the run a failure of the host, nor does it go on without a timeout."""
    looks: list[object] = []

    def look(*measured: object) -> GuestTime:
        looks.append(measured)
        if len(looks) < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return GuestTime(0.0, 0.0)

    monkeypatch.setattr(starvation, "guest_time", look)
    with ProcessBackend() as backend, pytest.raises(ExecutionTimeout):
        backend.execute_blocking(ExecRequest("python", "import time; time.sleep(60)", timeout=0.5))
    assert len(looks) == 3


@pytest.mark.needs("user namespaces")
def test_looks_at_a_guest_with_many_threads_take_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def look_long(pids: Iterable[int]) -> bool:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass
        looks.append(time.monotonic())
        return len(looks) < 3

    monkeypatch.setattr(starvation, "waits_for_processor", look_long)
    monkeypatch.setattr(starvation, "RECHECK_SECONDS", 0.01)
    with ProcessBackend() as backend, pytest.raises(ExecutionTimeout):
        backend.execute_blocking(ExecRequest("python", "import time; time.sleep(60)", timeout=0.5))
    assert all(later - earlier > 0.9 for earlier, later in itertools.pairwise(looks)) and len(looks) == 3


@pytest.mark.parametrize(
    ("cpu", "busy", "stolen", "lost"),
    [
        (1.0, 1.0, 3.0, 3.0),  # it computed alone, and the host took the processor three times as long
        (0.5, 1.0, 3.0, 3.0),  # it may all have been taken from it
        (0.05, 1.0, 3.0, 1.5),  # as well, but that is not probable
        (0.0, 1.0, 3.0, 0.0),  # it slept
        (9.0, 1.0, 3.0, 3.0),  # it computed on several processors
        (0.1, 0.0, 0.2, 0.2),  # less than a tick
        (1.0, 1.0, 0.0, 0.0),
    ],
)
def test_stolen_time_is_that_of_computing_processes(cpu: float, busy: float, stolen: float, lost: float) -> None:
    before = {"cpu0": ProcessorTime(10, 10), "cpu1": ProcessorTime(0, 50), "cpu2": ProcessorTime(0, 0)}
    after = {"cpu0": ProcessorTime(10 + busy, 10 + stolen), "cpu1": ProcessorTime(9, 50), "cpu3": ProcessorTime(0, 99)}
    assert stolen_time(cpu, before, after) == pytest.approx(lost)
    assert stolen_time(cpu, before, {}) == stolen_time(cpu, {}, after) == 0.0


def test_processor_times_are_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    before, end = processor_times(), time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = processor_times()
    assert len(before) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert 0.1 < sum(after[name].busy - before[name].busy for name in before) < 60 * len(before)
    assert all(time.stolen >= before[name].stolen for name, time in after.items())
    monkeypatch.setattr("warmcell.runner.stolen_time.kernel_files.read", _refuse)
    assert processor_times() == {}


def _refuse(path: str) -> str:
    raise PermissionError(path)


@pytest.mark.claim("WC-RX-8")
@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize(("is_busy", "is_late"), [(True, False), (False, True)])
def test_a_guest_whose_processor_the_host_takes_is_not_late(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool, is_late: bool
) -> None:
    """The host seems to take nine tenths of the time. A guest that sleeps for all of it is late.

    What the host really takes is not counted here, so a guest that computes has many times the time that it needs.
    """
    began = time.monotonic()

    def pretend() -> dict[str, ProcessorTime]:
        elapsed = time.monotonic() - began
        return {"cpu0": ProcessorTime(0.1 * elapsed, 0.9 * elapsed)}

    monkeypatch.setattr("warmcell.runner.stolen_time.processor_times", pretend)
    monkeypatch.setattr("warmcell.runner.starvation.processor_times", pretend)
    computes = "until = time.process_time() + 0.01\n  while time.process_time() < until: pass" if is_busy else "pass"
    code = f"import time\nfor _ in range(70):\n  {computes}\n  time.sleep(0.01 if {is_busy} else 0.1)"
    request = ExecRequest("python", code, timeout=1.0)
    with ProcessBackend() as backend:
        if is_late:
            with pytest.raises(ExecutionTimeout):
                backend.execute_blocking(request)
        else:
            assert backend.execute_blocking(request).duration > 1.2


@pytest.mark.claim("WC-RX-8")
@pytest.mark.needs("user namespaces")
def test_a_crowd_does_not_make_a_program_late() -> None:
    """Each needs a quarter of a second, and together they need several times their limit."""
    code = "import time\nwhile time.process_time() < 0.25: pass\nprint('done')"
    with ProcessBackend() as backend, ThreadPoolExecutor(24) as threads:
        runs = [threads.submit(backend.execute_blocking, ExecRequest("python", code, timeout=0.75)) for _ in range(24)]
        assert [run.result().stdout for run in runs] == ["done\n"] * 24


def read_slowly(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Outputs are pipes of this size, which the supervisor reads ten times in a second."""
    read, open_channels = Capture.read, Cell._open_channels

    def slow(capture: Capture, descriptor: int) -> bool | None:
        time.sleep(0.1)
        return read(capture, descriptor)

    def small(cell: Cell, stdin: int | None) -> None:
        open_channels(cell, stdin)
        fcntl.fcntl(cell.stdout, 1031, size)  # F_SETPIPE_SZ

    monkeypatch.setattr(Cell, "_open_channels", small)
    monkeypatch.setattr(Capture, "read", slow)


@pytest.mark.claim("WC-RX-8")
@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize("size", [1 << 16, 1 << 13], ids=["64 KB", "8 KB, for a user with many pipes"])
def test_a_guest_does_not_pay_for_a_slow_reader(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """On an overloaded host it may be the supervisor that has no processor to read its output with."""
    read_slowly(monkeypatch, size)
    with ProcessBackend() as backend:
        result = backend.execute_blocking(ExecRequest("python", f"print('x' * {14 * size})", timeout=0.7))
    assert len(result.stdout) == 14 * size + 1 and result.duration > 1


@pytest.mark.claim("WC-RX-8")
@pytest.mark.needs("user namespaces")
def test_a_guest_that_waits_for_us_at_its_deadline_has_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """We were away for longer than its whole time, and it could not print more than a pipe holds."""
    note = Pump._note_long_run

    def note_and_stall(pump: Pump, on_linger: Callable[[], None]) -> None:
        note(pump, on_linger)
        time.sleep(1)

    monkeypatch.setattr(Pump, "_note_long_run", note_and_stall)
    code = "import time; time.sleep(0.1); print('x' * (900 << 10))"  # it is not done before that
    with ProcessBackend() as backend:
        result = backend.execute_blocking(ExecRequest("python", code, timeout=0.7))
    assert len(result.stdout) == (900 << 10) + 1


@pytest.mark.claim("WC-RX-8")
@pytest.mark.needs("user namespaces")
def test_a_stall_before_processor_times_are_read_is_not_the_guests_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall of the whole machine right after the start: how much was stolen by then is unknown."""
    begin = Pump._on_start

    def late(pump: Pump) -> None:
        begin(pump)
        time.sleep(1.2)

    monkeypatch.setattr(Pump, "_on_start", late)
    with ProcessBackend() as backend:
        result = backend.execute_blocking(ExecRequest("python", "import time; time.sleep(1.4)", timeout=1))
    assert result.duration > 1.2


@pytest.mark.claim("WC-RX-1")
@pytest.mark.needs("user namespaces")
def test_an_endless_writer_with_a_slow_reader_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for us nearly all the time, and uses hardly any processor time."""
    read_slowly(monkeypatch, 1 << 13)
    monkeypatch.setattr(pump, "_STRETCH_SECONDS", 1.0)
    code = "import os\nwhile True: os.write(1, b'x' * 65536)"
    request = ExecRequest("python", code, timeout=0.5, limits=Limits(output_bytes=1 << 14))
    with ProcessBackend() as backend, pytest.raises(ExecutionTimeout):
        backend.execute_blocking(request)


@pytest.mark.claim("WC-RX-1")
@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize(
    "code", [_SPIN, "import time; time.sleep(300)", "import os; [os.fork() for _ in 'abc']\n" + _SPIN]
)
def test_time_that_was_used_is_over(code: str) -> None:
    with ProcessBackend() as backend, pytest.raises(ExecutionTimeout) as raised:
        backend.execute_blocking(ExecRequest("python", code, timeout=0.5))
    assert raised.value.result is not None and raised.value.result.duration < PATIENCE
