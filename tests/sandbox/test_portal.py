"""The portal from blocking code into the loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

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


def test_there_is_one_thread_however_many_call() -> None:
    own = Portal()
    results: list[int] = []
    callers = [threading.Thread(target=lambda: results.append(own.call(double, 1, wait=0.3))) for _ in range(20)]
    started = time.monotonic()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [2] * 20
    assert time.monotonic() - started < 4


async def test_it_works_from_within_a_running_loop() -> None:
    assert portal.call(double, 1) == 2


def test_its_own_loop_may_not_wait_for_itself() -> None:
    async def nested() -> int:
        return portal.call(double, 1)

    with pytest.raises(InvalidRequest, match="own loop"):
        portal.call(nested)


def test_the_callers_context_is_seen() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")

    async def look() -> str:
        return variable.get("nothing")

    assert portal.call(look) == "here"


def test_an_interrupted_wait_is_cleaned_up_before_it_ends() -> None:
    events: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            events.append("cleaned")

    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        portal.call(long)
    assert events == ["cleaned"]
    assert time.monotonic() - started < 20


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    portal.call(double, 1)
    child = os.fork()
    if not child:
        try:
            os._exit(portal.call(double, 3))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6


def test_a_wait_that_is_interrupted_before_the_first_step_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is held up, so that the coroutine has not begun when its caller no longer wants it."""
    portal = Portal()
    loop, go = portal._started(), threading.Event()
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
