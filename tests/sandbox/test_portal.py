"""The portal from blocking code into the loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future, wait
from typing import Any

import pytest
from tests.helpers import PATIENCE, in_a_fork, until

from warmcell import Sandbox
from warmcell.core.errors import InvalidRequest
from warmcell.lifetime.portal import Portal, portal


async def double(value: int, *, wait: float = 0.0) -> int:
    await asyncio.sleep(wait)
    return value * 2


def test_a_result_and_an_error_come_back() -> None:
    async def fail() -> None:
        raise ValueError("inside")

    assert portal.call(double, 21) == 42
    with pytest.raises(ValueError, match="inside"):
        portal.call(fail)


def test_all_callers_share_one_portal_thread() -> None:
    own = Portal()
    threads: list[str] = []

    async def meet() -> None:
        """Returns once all twenty are inside at the same time."""
        threads.append(threading.current_thread().name)
        while len(threads) < 20:
            await asyncio.sleep(0.01)

    callers = [threading.Thread(target=own.call, args=(meet,)) for _ in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(threads) == 20 and len(set(threads)) == 1


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_coroutine_that_exits_ends_its_own_call_only(kind: type[BaseException]) -> None:
    """Such as a callback of the caller: asyncio stops a loop on whose thread these are raised."""
    own = Portal()

    async def leave() -> None:
        raise kind

    outcome, _ = own.start(leave)
    assert isinstance(outcome.exception(PATIENCE), kind)
    assert own.call(double, 21) == 42


async def test_it_works_from_within_a_running_loop() -> None:
    assert portal.call(double, 1) == 2


def test_a_blocking_call_on_the_portals_loop_is_refused() -> None:
    async def call_again() -> int:
        return portal.call(double, 1)

    with pytest.raises(InvalidRequest, match="own event loop"):
        portal.call(call_again)


def test_the_callers_context_is_seen() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")

    async def look() -> str:
        return variable.get("nothing")

    assert portal.call(look) == "here"


def test_an_interrupted_wait_is_cleaned_up_before_it_ends() -> None:
    events: list[str] = []

    def interrupt_wait() -> None:
        main = threading.main_thread().ident or 0
        until(lambda: sys._current_frames()[main].f_code.co_name == "wait")  # of the future's condition
        os.kill(os.getpid(), signal.SIGINT)

    async def long() -> None:
        try:
            threading.Thread(target=interrupt_wait).start()
            await asyncio.sleep(300)
        finally:
            await asyncio.sleep(0.1)
            events.append("cleaned")

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        portal.call(long)
    assert events == ["cleaned"]
    assert time.monotonic() - started < PATIENCE


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    portal.call(double, 1)
    assert in_a_fork(lambda: portal.call(double, 3)) == 6


def test_an_interrupt_before_the_first_step_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is held up, so that the coroutine has not begun when its caller no longer wants it."""
    portal = Portal()
    loop, go = portal._get_loop(), threading.Event()
    loop.call_soon_threadsafe(go.wait, 10)

    class Impatient(Future):  # type: ignore[type-arg]
        def result(self, timeout: float | None = None) -> Any:
            threading.Timer(0.2, go.set).start()
            raise KeyboardInterrupt

    monkeypatch.setattr("warmcell.lifetime.portal.Future", Impatient)
    begun = []

    async def work() -> None:
        begun.append(True)

    with pytest.raises(KeyboardInterrupt):
        portal.call(work)
    assert begun == []


class Late(Future):  # type: ignore[type-arg]
    """Ctrl-C arrives when the result is there, and the caller has not taken it yet."""

    is_interrupted = True

    def result(self, timeout: float | None = None) -> Any:
        if threading.current_thread() is threading.main_thread() and Late.is_interrupted:
            Late.is_interrupted = False
            wait([self])
            raise KeyboardInterrupt
        return super().result(timeout)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.lifetime.portal.Future", Late)
    monkeypatch.setattr(Late, "is_interrupted", True)


@pytest.mark.usefixtures("late")
def test_what_an_interrupted_caller_does_not_get_is_discarded() -> None:
    discarded: list[int] = []

    async def discard(value: int) -> None:
        await asyncio.sleep(0.1)
        discarded.append(value)

    with pytest.raises(KeyboardInterrupt):
        portal.make(discard, double, 21)
    assert discarded == [42]
    assert portal.make(discard, double, 1) == 2
    assert discarded == [42]


async def test_what_a_cancelled_task_does_not_get_is_discarded() -> None:
    discarded: list[int] = []
    loop = asyncio.get_running_loop()

    async def discard(value: int) -> None:
        await asyncio.sleep(0.1)
        discarded.append(value)

    async def make() -> int:
        loop.call_soon_threadsafe(caller.cancel)  # is noticed before the result
        return 42

    caller = asyncio.create_task(portal.make_async(discard, make))
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert discarded == [42]
    assert await portal.make_async(discard, double, 1) == 2


@pytest.mark.needs("user namespaces")
def test_a_process_whose_caller_is_interrupted_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox() as sandbox:
        sandbox.spawn(["true"]).wait()
        monkeypatch.setattr("warmcell.lifetime.portal.Future", Late)
        monkeypatch.setattr(Late, "is_interrupted", True)
        with pytest.raises(KeyboardInterrupt):
            sandbox.spawn(["sleep", "1000"])
        assert [process.is_running for process in sandbox.processes()] == [False, False]


@pytest.mark.usefixtures("late")
def test_a_sandbox_whose_caller_is_interrupted_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed: list[Sandbox] = []
    destroy = Sandbox.destroy

    def note(sandbox: Sandbox) -> None:
        destroy(sandbox)
        destroyed.append(sandbox)

    monkeypatch.setattr(Sandbox, "destroy", note)
    with pytest.raises(KeyboardInterrupt):
        Sandbox()
    assert [os.path.exists(sandbox.work_dir) for sandbox in destroyed] == [False]
