"""Timeouts count the guest's own time; everything before is queueing: ordered, bounded, cancellable."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import PATIENCE, share_no_zygotes, until

from warmcell import Enforced, ExecRequest, ExecResult, ProcessBackend, ProcessConfig, Usage
from warmcell.backends.process.building import ArtefactCache
from warmcell.backends.process.launch import Launch
from warmcell.backends.process.launcher import Launcher
from warmcell.backends.process.run_result import make_terms
from warmcell.cage.linux.processes import children
from warmcell.core.errors import BackendBusy, BackendUnavailable, ExecutionTimeout, InvalidRequest
from warmcell.core.records import replace
from warmcell.core.types import EffectiveLimits
from warmcell.languages.program_spec import Build, ProgramSpec
from warmcell.lifetime.run import Run
from warmcell.pool.manager_process import CAGE_DIR
from warmcell.pool.zygote import ZygoteProcess
from warmcell.runner.cell import Cell
from warmcell.runner.pump import Pump

SMALL = "print(6*7)"
SLEEPS = "import time; time.sleep({})"


def slow_zygotes(monkeypatch: pytest.MonkeyPatch, wait: Callable[[], object]) -> threading.Event:
    """As a heavy preload makes them, which lasts as long as `wait`. The event: one is being started, also where another
    backend has one.
    """
    share_no_zygotes(monkeypatch)
    prepare, entered = ZygoteProcess._prepare, threading.Event()

    def slowly(self: ZygoteProcess, cancelled: int) -> None:
        entered.set()
        wait()
        prepare(self, cancelled)

    monkeypatch.setattr(ZygoteProcess, "_prepare", slowly)
    return entered


class TestTheClock:
    def test_a_slow_start_is_not_the_guests_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slow_zygotes(monkeypatch, lambda: time.sleep(1.5))
        with ProcessBackend() as backend:
            began = time.monotonic()
            result = backend.execute_blocking(ExecRequest("python", SMALL, 1))
            elapsed = time.monotonic() - began
        assert result.stdout == "42\n" and result.queued >= 1.5
        assert result.queued + result.duration <= elapsed

    def test_it_starts_when_the_guest_has_its_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A host that is too busy to let the guest begin must not make that the guest's timeout."""
        start = Cell.send_job

        def start_one_that_sleeps(self: Cell, *args: Any, **options: Any) -> None:
            guest = os.pidfd_open(self.guest_pid)
            signal.pidfd_send_signal(guest, signal.SIGSTOP)
            threading.Timer(1.5, signal.pidfd_send_signal, (guest, signal.SIGCONT)).start()
            start(self, *args, **options)

        with ProcessBackend(ProcessConfig(pool_size=0)) as backend:
            backend.execute_blocking(ExecRequest("python", SMALL, 20))
            monkeypatch.setattr(Cell, "send_job", start_one_that_sleeps)
            began = time.monotonic()
            result = backend.execute_blocking(ExecRequest("python", SMALL, 1))
            elapsed = time.monotonic() - began
        assert result.stdout == "42\n" and result.queued >= 1.4
        assert result.queued + result.duration <= elapsed

    def test_a_late_report_is_not_a_timeout(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The guest exited in time; only the manager that reports it does not get to run until the deadline is over."""
        start, check, reasons = Pump._on_start, Pump._check_deadline, list[str]()

        def stop_the_manager(self: Pump) -> None:
            os.kill(zygote, signal.SIGSTOP)
            start(self)

        def check_and_continue_the_manager(self: Pump, now: float) -> str:
            reason = check(self, now)
            if reason:
                reasons.append(reason)
                os.kill(zygote, signal.SIGCONT)
            return reason

        with ProcessBackend(ProcessConfig(pool_size=0)) as backend:
            backend.execute_blocking(ExecRequest("python", SMALL, 20))
            zygote = backend.zygote_pids[0]
            with monkeypatch.context() as patched:
                patched.setattr(Pump, "_on_start", stop_the_manager)
                patched.setattr(Pump, "_check_deadline", check_and_continue_the_manager)
                code = "import time; time.sleep(0.2); print('in time')"
                try:
                    assert backend.execute_blocking(ExecRequest("python", code, 2)).stdout == "in time\n"
                finally:
                    os.kill(zygote, signal.SIGCONT)
        assert reasons in (["timeout"], [])  # []: the manager had reported before it was stopped

    @pytest.mark.parametrize("enforcer", ["native", "landlock", "bubblewrap", None])
    def test_who_overstays_is_still_ended(self, enforcer: str | None) -> None:
        with ProcessBackend(enforcer=enforcer) as backend, pytest.raises(ExecutionTimeout) as ended:
            backend.execute_blocking(ExecRequest("python", "print('x', flush=True)\n" + SLEEPS.format(300), 0.5))
        assert ended.value.result is not None and ended.value.result.stdout == "x\n"
        assert 0.5 <= ended.value.result.duration < PATIENCE and ended.value.clock == "wall"

    def test_a_build_takes_of_the_same_time_and_is_not_queueing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        launches: list[Launch] = []

        def took_two_seconds(self: Launcher, launch: Launch) -> ExecResult:
            """On a host where it waited three more for a processor."""
            launches.append(launch)
            return ExecResult(duration=5.0, usage=Usage(cpu_time=2.0))

        monkeypatch.setattr(Launcher, "_run_program", took_two_seconds)
        monkeypatch.setattr(ArtefactCache, "store", lambda self, build, workshop, cleanup: workshop)
        program = ProgramSpec(("/x",), {}, "main", build=Build(("/compiler",), "made", "no such artefact"))
        run = Run()
        launch = Launch(program, {}, b"", 5.0, EffectiveLimits(), run)
        with ProcessBackend() as backend:
            backend._launcher.run(launch)
            build, after = launches
            assert (build.phase == "build", build.spent, after.phase == "build", after.spent) == (True, 0.0, False, 2.0)
            template = SimpleNamespace(effective=SimpleNamespace(enforced=Enforced()), wrapper=None)
            terms = make_terms(after, template)  # type: ignore[arg-type]
            assert (terms.timeout, terms.requested_at, terms.phase) == (5.0, run.requested_at + 5.0, "run")
            assert make_terms(build, template).phase == "build"  # type: ignore[arg-type]
            with pytest.raises(ExecutionTimeout, match="build timed out after 2 s"):
                backend._launcher.run(replace(launch, timeout=2.0))


class TestTheQueue:
    def test_no_more_than_so_many_at_once(self) -> None:
        with ProcessBackend(ProcessConfig(max_concurrency=2)) as backend:
            backend.execute_blocking(ExecRequest("python", SMALL, 20))

            async def all_at_once() -> tuple[float, list[ExecResult]]:
                runs = [asyncio.create_task(backend.execute(ExecRequest("python", code, 20))) for _ in range(6)]
                await asyncio.sleep(0)  # each has asked for its place
                return time.monotonic(), await asyncio.gather(*runs)

            code = "import time; print(time.monotonic()); " + SLEEPS.format(0.4) + "; print(time.monotonic())"
            asked, results = asyncio.run(all_at_once())
        began, ended = zip(*(map(float, result.stdout.split()) for result in results), strict=True)
        for number in range(2, 6):  # in order: at most one of those before it is still there
            free_at = sorted(ended[:number])[number - 2]
            assert began[number] >= free_at and results[number].queued >= free_at - asked

    def test_a_wait_that_is_too_long_is_reported(self) -> None:
        with ProcessBackend(ProcessConfig(max_concurrency=1, queue_timeout=0.2)) as backend:
            backend.execute_blocking(ExecRequest("python", SMALL, 20))

            async def two() -> list[object]:
                ours, theirs = os.pipe()
                first = asyncio.create_task(backend.execute(ExecRequest("python", "input()", 60), stdin=ours))
                await asyncio.sleep(0.05)
                second = await asyncio.gather(backend.execute(ExecRequest("python", SMALL, 20)), return_exceptions=True)
                os.write(theirs, b"\n")  # the first has its place until now
                os.close(theirs)
                exit_code = (await first).exit_code
                os.close(ours)
                return [exit_code, *second]

            exit_code, refused = asyncio.run(two())
            assert exit_code == 0 and isinstance(refused, BackendBusy)
            assert (refused.fault, refused.retryable) == ("host", True)
            assert backend.execute_blocking(ExecRequest("python", SMALL, 20)).stdout == "42\n"

    @pytest.mark.parametrize("bad", [0, -1, True, 1.5, "2", 1 << 20])
    def test_odd_numbers_are_refused(self, bad: Any) -> None:
        with pytest.raises(InvalidRequest, match="max_concurrency"):
            ProcessConfig(max_concurrency=bad)

    @pytest.mark.parametrize("bad", [0, -1, "x", float("nan"), None])
    def test_odd_timeouts_are_refused(self, bad: Any) -> None:
        with pytest.raises(InvalidRequest, match="queue_timeout"):
            ProcessConfig(queue_timeout=bad)


class TestCancelling:
    async def test_a_run_whose_cell_is_still_made_ends_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answer, entered = ZygoteProcess._answer, threading.Event()

        def never_ready(self: ZygoteProcess, cancelled: int) -> Any:
            os.kill(self.pid, signal.SIGSTOP)
            entered.set()
            return answer(self, cancelled)

        share_no_zygotes(monkeypatch)
        monkeypatch.setattr(ZygoteProcess, "_answer", never_ready)
        backend = ProcessBackend(ProcessConfig(pool_size=0))
        task = asyncio.create_task(backend.execute(ExecRequest("python", SMALL, 600)))
        await asyncio.to_thread(entered.wait)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < PATIENCE
        monkeypatch.undo()
        assert (await backend.execute(ExecRequest("python", SMALL, 20))).stdout == "42\n"
        await backend.aclose()

    @pytest.mark.parametrize("times", [1, 3])
    async def test_nothing_is_left_however_often(self, times: int) -> None:
        async with ProcessBackend() as backend:
            task = asyncio.create_task(backend.execute(ExecRequest("python", SLEEPS.format(60), 100)))
            await asyncio.to_thread(until, lambda: backend._launcher.pool._leased)
            await asyncio.sleep(0.5)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert backend._launcher.pool._leased == 0 and not backend._runs._in_progress
            assert (await backend.execute(ExecRequest("python", SMALL, 20))).stdout == "42\n"


class TestClosing:
    def test_closing_during_a_run_leaves_no_zygote(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def is_cancelled() -> bool:
            return all(run.is_cancelled for run in tuple(backend._runs._in_progress))

        entered = slow_zygotes(monkeypatch, lambda: until(is_cancelled))
        backend, others = ProcessBackend(), _managers_below(os.getpid())
        caller, outcome = _call(backend)
        entered.wait()
        backend.close()
        caller.join()
        assert isinstance(outcome[0], BackendUnavailable) and _managers_below(os.getpid()) == others
        with pytest.raises(BackendUnavailable):
            backend.execute_blocking(ExecRequest("python", SMALL, 20))

    def test_a_zygote_that_is_ready_too_late_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def is_left() -> bool:
            return backend._launcher.pool.is_closed and not backend._launcher.pool._zygotes

        entered = slow_zygotes(monkeypatch, lambda: until(is_left))
        backend, others = ProcessBackend(), _managers_below(os.getpid())
        caller, outcome = _call(backend)
        entered.wait()
        backend._launcher.pool.close()
        caller.join()
        assert isinstance(outcome[0], BackendUnavailable) and _managers_below(os.getpid()) == others


def _call(backend: ProcessBackend) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []

    def call() -> None:
        try:
            outcome.append(backend.execute_blocking(ExecRequest("python", SMALL, 20)))
        except BackendUnavailable as error:
            outcome.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    return caller, outcome


def _managers_below(pid: int) -> set[int]:
    """By what they were started with: the directory of the cage is their last argument."""
    found: set[int] = set()
    for child in children(pid):
        try:
            with open(f"/proc/{child}/cmdline", "rb") as file:
                found |= {child} if file.read().rstrip(b"\0").endswith(CAGE_DIR.encode()) else set()
        except OSError:
            continue
    return found
