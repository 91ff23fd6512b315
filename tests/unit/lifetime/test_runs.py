"""The runs of a backend: waiting in order, cancelling, closing, forking."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
import sys
import threading
import time

import pytest
from tests.helpers import PATIENCE, in_a_fork, until, until_async

from warmcell.core.errors import BackendBusy, BackendUnavailable
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.lifetime.runs import Runs
from warmcell.lifetime.threads import in_thread

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


class Slow:
    """Work that ends when it is cancelled, a moment later, or when it is let."""

    def __init__(self, takes_to_end: float = 0.1) -> None:
        self.takes_to_end = takes_to_end
        self.events: list[str] = []
        self.may_end = threading.Event()

    def __call__(self, run: Run) -> str:
        self.events.append("began")
        cancelled = threading.Event()
        with run.on_cancel(lambda: (cancelled.set(), self.may_end.set())):
            self.may_end.wait()
        if cancelled.is_set():
            time.sleep(self.takes_to_end)
        self.events.append("ended")
        run.check()
        return "done"


class TestRun:
    def test_a_cancellation_that_comes_late_finds_nothing(self) -> None:
        run, ended = Run(), []
        with run.on_cancel(lambda: ended.append("first")):
            pass
        run.cancel()
        assert ended == []
        with pytest.raises(RunCancelled):
            run.check()

    def test_one_that_came_early_ends_the_next_stretch_at_once(self) -> None:
        run, ended = Run(), []
        run.cancel()
        with run.on_cancel(lambda: ended.append("second")):
            assert ended == ["second"]

    def test_leaving_waits_for_an_end_that_is_under_way(self) -> None:
        """Or it would hit whatever is done next with the same worker."""
        run, events = Run(), []
        ending = threading.Event()

        def end() -> None:
            ending.set()
            time.sleep(0.1)
            events.append("ended")

        with run.on_cancel(end):
            canceller = threading.Thread(target=run.cancel)
            canceller.start()
            ending.wait()
        events.append("left")
        canceller.join()
        assert events == ["ended", "left"]

    def test_its_descriptor_becomes_readable_and_is_closed(self) -> None:
        run = Run()
        with run.descriptor() as descriptor:
            assert not select.select([descriptor], [], [], 0)[0]
            run.cancel()
            assert select.select([descriptor], [], [], 0)[0]
        assert not os.path.exists(f"/proc/self/fd/{descriptor}")


class TestCancelling:
    @pytest.mark.parametrize("times", [1, 2, 5])
    async def test_it_waits_for_the_real_end_however_often(self, times: int) -> None:
        runs, work = Runs("test", 4, 1), Slow()
        task = asyncio.create_task(runs.run(work))
        await asyncio.to_thread(until, lambda: work.events)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.events == ["began", "ended"]

    async def test_work_that_cannot_be_cancelled_is_waited_for(self) -> None:
        events: list[str] = []
        may_end = threading.Event()

        def work() -> None:
            assert may_end.wait(PATIENCE)
            events.append("ended")

        task = asyncio.create_task(in_thread(work))
        for _ in range(3):
            await asyncio.sleep(0.02)
            task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert events == ["ended"]

    async def test_what_was_cancelled_before_it_began_never_begins(self) -> None:
        runs, first, second = Runs("test", 1, 5), Slow(), Slow()
        running = asyncio.create_task(runs.run(first))
        await asyncio.to_thread(until, lambda: first.events)
        waiting = asyncio.create_task(runs.run(second))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        first.may_end.set()
        assert await running == "done"
        assert second.events == [] and runs.run_blocking(lambda run: 5) == 5

    async def test_errors_and_results_come_through_with_the_callers_context(self) -> None:
        import contextvars

        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
        variable.set("here")
        assert await in_thread(lambda: variable.get("nothing")) == "here"
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 // 0)


class TestWaiting:
    def test_who_came_first_is_served_first_from_threads_and_loops(self) -> None:
        runs, first = Runs("test", 1, 30), Slow()
        order: list[int] = []
        holder = threading.Thread(target=runs.run_blocking, args=(first,))
        holder.start()
        until(lambda: first.events)
        callers = []
        for number in range(8):

            def call(number: int = number) -> None:
                if number % 2:
                    asyncio.run(runs.run(lambda run: order.append(number)))
                else:
                    runs.run_blocking(lambda run: order.append(number))

            callers.append(threading.Thread(target=call))
            callers[-1].start()
            until(lambda number=number: runs._queue.waiting == number + 1)
        first.may_end.set()
        for caller in (holder, *callers):
            caller.join()
        assert order == list(range(8))

    async def test_waits_are_bounded_by_the_queue_timeout(self) -> None:
        runs, work = Runs("test", 1, 0.1), Slow()
        running = asyncio.create_task(runs.run(work))
        await asyncio.to_thread(until, lambda: work.events)
        with pytest.raises(BackendBusy) as refused:
            await runs.run(lambda run: None)
        assert refused.value.fault == "host" and refused.value.retryable
        with pytest.raises(BackendBusy):
            await asyncio.to_thread(runs.run_blocking, lambda run: None)
        work.may_end.set()
        assert await running == "done" and await runs.run(lambda run: "free again") == "free again"

    async def test_never_more_than_so_many_at_once_and_no_more_threads(self) -> None:
        runs = Runs("test", 3, 30)
        now, most = 0, 0
        lock = threading.Lock()
        threads = set()

        def work(run: Run) -> None:
            nonlocal now, most
            with lock:
                now += 1
                most = max(most, now)
                threads.add(threading.current_thread())
            time.sleep(0.005)
            with lock:
                now -= 1

        before = set(threading.enumerate())
        await asyncio.gather(*[runs.run(work) for _ in range(60)])
        assert most == 3 and len(threads - before) <= 3

    def test_a_loop_that_was_closed_while_waiting_loses_its_turn_to_the_next(self) -> None:
        runs, first = Runs("test", 1, 30), Slow()
        holder = threading.Thread(target=runs.run_blocking, args=(first,))
        holder.start()
        until(lambda: first.events)
        loop = asyncio.new_event_loop()
        task = loop.create_task(runs.run(lambda run: None))
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        first.may_end.set()
        holder.join()
        assert runs.run_blocking(lambda run: "served") == "served"
        task._log_destroy_pending = False  # type: ignore[attr-defined]


class TestClosing:
    def test_it_waits_for_blocking_runs_too(self) -> None:
        runs, work = Runs("test", 4, 1), Slow()

        def call() -> None:
            with contextlib.suppress(BackendUnavailable):  # it may also end before `close` has begun
                runs.run_blocking(work)

        caller = threading.Thread(target=call)
        caller.start()
        until(lambda: work.events)
        threading.Timer(0.1, work.may_end.set).start()
        runs.close()
        assert work.events == ["began", "ended"]
        caller.join()
        with pytest.raises(BackendUnavailable, match="closed"):
            runs.run_blocking(lambda run: None)
        with pytest.raises(BackendUnavailable, match="closed"):
            asyncio.run(runs.run(lambda run: None))

    def test_close_ends_them_with_a_typed_error(self) -> None:
        runs, work = Runs("test", 4, 1), Slow()
        said: list[str] = []

        def call() -> None:
            with pytest.raises(BackendUnavailable) as refused:
                runs.run_blocking(work)
            said.append(str(refused.value))

        caller = threading.Thread(target=call)
        caller.start()
        until(lambda: work.events)
        runs.close()
        assert work.events == ["began", "ended"]
        caller.join()
        assert "closed during the run" in said[0]

    def test_it_waits_only_so_long_for_code_of_the_caller(self) -> None:
        runs, began, may_end = Runs("test", 4, 1), threading.Event(), threading.Event()

        def work(run: Run) -> None:
            began.set()
            may_end.wait()

        caller = threading.Thread(target=runs.run_blocking, args=(work,))
        caller.start()
        assert began.wait(PATIENCE)
        runs.patience = 0.05
        closing = threading.Thread(target=runs.close)
        closing.start()
        try:
            closing.join(PATIENCE)
            assert not closing.is_alive() and runs.is_busy
        finally:
            may_end.set()
            caller.join()
            closing.join()
        assert not runs.is_busy

    async def test_runs_that_wait_for_code_of_the_caller_are_refused_then(self) -> None:
        """That code may never return, and they would wait as long as the queue lets them: a day."""
        runs, began, may_end = Runs("test", 1, 86_400), threading.Event(), threading.Event()

        def work(run: Run) -> None:
            began.set()
            may_end.wait()

        caller = threading.Thread(target=runs.run_blocking, args=(work,))
        caller.start()
        try:
            assert began.wait(PATIENCE)
            in_thread_too = asyncio.create_task(asyncio.to_thread(runs.run_blocking, lambda run: None))
            here = asyncio.create_task(runs.run(lambda run: None))
            await until_async(lambda: runs._queue.waiting == 2)
            runs.patience = 0.05
            await asyncio.to_thread(runs.close)
            for waiting in (in_thread_too, here):
                with pytest.raises(BackendUnavailable, match="closed"):
                    await asyncio.wait_for(waiting, PATIENCE)
            assert runs.is_busy
        finally:
            may_end.set()
            caller.join()

    def test_at_exit_runs_under_way_are_ended_not_waited_for(self) -> None:
        script = """
import threading, time
from warmcell.lifetime.runs import Runs
runs = Runs("test", 4, 1)
began = threading.Event()
def work(run):
    stop = threading.Event()
    with run.on_cancel(stop.set):
        began.set()
        stop.wait(600)
    print("ended", flush=True)
threading.Thread(target=runs.run_blocking, args=(work,), daemon=True).start()
began.wait()
"""
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
        assert ended.stdout == "ended\n"


class TestForking:
    def test_nothing_is_under_way_in_a_fork_and_all_places_are_free(self) -> None:
        runs, work = Runs("test", 1, 1), Slow()
        caller = threading.Thread(target=runs.run_blocking, args=(work,))
        caller.start()
        until(lambda: work.events)

        def use() -> list[object]:
            first = runs.run_blocking(lambda run: 1)
            second = asyncio.run(runs.run(lambda run: 2))
            runs.close()
            return [first, second]

        assert in_a_fork(use, seconds=20, ends="sys.exit") == [1, 2]
        assert work.events == ["began"]
        work.may_end.set()
        caller.join()

    async def test_a_fork_made_inside_a_loop_has_threads_of_its_own(self) -> None:
        assert await in_thread(lambda: "warm") == "warm"
        assert in_a_fork(lambda: _in_a_thread_of_its_own(), seconds=20) == "there"


def _in_a_thread_of_its_own() -> object:
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(asyncio.run(in_thread(lambda: "there"))))
    thread.start()
    thread.join()
    return answers[0]
