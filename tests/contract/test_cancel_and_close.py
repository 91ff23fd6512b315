"""Cancelling and closing: at once, twice, late, in the middle; when the call returns, nothing of the run is left."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.contract.conftest import Kind
from tests.contract.processes import alive, descendants, existing, new_descendants
from tests.contract.programs import Flood, Say, Sleep, Spin, Step
from tests.helpers import PATIENCE, eventually

from warmcell import BackendUnavailable, SandboxError

ENDLESS = {"computes": Spin(), "waits": Sleep(600), "writes": Flood(None)}


async def start_run(kind: Kind, backend: Any, *steps: Step) -> tuple[asyncio.Task[Any], set[int]]:
    """A run that is under way, and its processes as the host sees them."""
    await backend.execute(kind.request(Say("what stays between runs is there now")))
    stays = kind.guests(backend)
    task = asyncio.create_task(backend.execute(kind.request(*steps, timeout=300)))
    until = time.monotonic() + 60
    while not kind.guests(backend) - stays and time.monotonic() < until and not kind.is_imaginary:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    assert not task.done()
    pids = kind.guests(backend) - stays
    assert pids or kind.is_imaginary
    return task, pids


async def end_of(task: asyncio.Task[Any]) -> str:
    """What the caller of a run saw."""
    try:
        return str((await task).stdout)
    except (SandboxError, asyncio.CancelledError) as error:
        return type(error).__name__


@pytest.mark.attack("PT-09")
@pytest.mark.parametrize("how", list(ENDLESS))
async def test_cancelling_ends_the_run_before_the_cancellation_is_seen(frugal: Any, kind: Kind, how: str) -> None:
    task, pids = await start_run(kind, frugal, ENDLESS[how])
    at = time.monotonic()
    task.cancel()
    assert await end_of(task) == "CancelledError"
    assert alive(pids) == set()
    assert time.monotonic() - at < PATIENCE
    assert eventually(lambda: not existing(pids))
    assert (await frugal.execute(kind.request(Say("next")))).stdout == "next"


async def test_a_second_cancellation_does_not_return_while_the_run_goes_on(frugal: Any, kind: Kind) -> None:
    task, pids = await start_run(kind, frugal, Spin())
    for _ in range(20):
        task.cancel()
        await asyncio.sleep(0)
        if task.done():
            break
    assert await end_of(task) == "CancelledError"
    assert alive(pids) == set()


async def test_a_late_cancellation_never_hits_the_next_run(backend: Any, kind: Kind) -> None:
    """Cancelled at any moment, before, during and after its end, a run takes nothing with it but itself."""
    for _ in range(2):  # the first one may have to make or compile something, and says nothing about the others
        at = time.monotonic()
        await backend.execute(kind.request(Say("warm")))
        usual = time.monotonic() - at
    for step in range(24):
        task = asyncio.create_task(backend.execute(kind.request(Say("first"))))
        await asyncio.sleep(usual * step / 16)
        task.cancel()
        assert await end_of(task) in ("first", "CancelledError")
        assert (await backend.execute(kind.request(Say("second")))).stdout == "second"


async def test_cancelled_before_it_began_a_run_never_happens(backend: Any, kind: Kind) -> None:
    task = asyncio.create_task(backend.execute(kind.request(Spin(), timeout=300)))
    task.cancel()
    assert await end_of(task) == "CancelledError"
    assert (await backend.execute(kind.request(Say("next")))).stdout == "next"


async def test_a_cancelled_run_takes_no_other_with_it(backend: Any, kind: Kind) -> None:
    others = [asyncio.create_task(backend.execute(kind.request(Sleep(1), Say(str(n))))) for n in range(3)]
    task = asyncio.create_task(backend.execute(kind.request(Spin(), timeout=300)))
    await asyncio.sleep(0.5)
    task.cancel()
    assert await end_of(task) == "CancelledError"
    assert [await end_of(other) for other in others] == ["0", "1", "2"]


async def test_closing_may_be_repeated_and_using_it_afterwards_is_refused(fresh: Any, kind: Kind) -> None:
    backend = fresh()
    assert (await backend.execute(kind.request(Say("x")))).stdout == "x"
    await asyncio.gather(backend.aclose(), backend.aclose())
    await backend.aclose()
    with pytest.raises(BackendUnavailable, match="closed") as caught:
        await backend.execute(kind.request(Say("x")))
    assert caught.value.hint
    if hasattr(backend, "execute_blocking"):
        with pytest.raises(BackendUnavailable, match="closed"):
            backend.execute_blocking(kind.request(Say("x")))


async def test_closing_what_was_never_used(fresh: Any, kind: Kind) -> None:
    backend = fresh()
    await backend.aclose()
    with pytest.raises(BackendUnavailable, match="closed"):
        await backend.execute(kind.request(Say("x")))


@pytest.mark.parametrize("how", list(ENDLESS))
async def test_closing_ends_a_run_that_is_under_way(fresh: Any, kind: Kind, how: str) -> None:
    backend = fresh(**kind.frugal)
    task, pids = await start_run(kind, backend, ENDLESS[how])
    await asyncio.wait_for(backend.aclose(), 60)
    assert alive(pids) == set()
    assert await asyncio.wait_for(end_of(task), 60) == "BackendUnavailable"


def test_closing_ends_a_blocking_run_that_is_under_way(fresh: Any, kind: Kind) -> None:
    backend = fresh(**kind.frugal)
    if not hasattr(backend, "execute_blocking"):
        pytest.skip("a backend need not have one")
    processes = descendants()
    seen: list[BaseException] = []

    def run() -> None:
        try:
            backend.execute_blocking(kind.request(Spin(), timeout=300))
        except BaseException as error:
            seen.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert kind.is_imaginary or eventually(lambda: kind.guests(backend))
    time.sleep(1)
    asyncio.run(asyncio.wait_for(backend.aclose(), 60))
    thread.join(60)
    assert [type(error) for error in seen] == [BackendUnavailable]
    # A pool that was there before may make another cell at any time.
    assert eventually(lambda: not new_descendants(processes)), new_descendants(processes)
