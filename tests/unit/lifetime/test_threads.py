"""The bridge from event loops to threads: nothing that was made for a cancelled caller is left."""

from __future__ import annotations

import asyncio
import threading

import pytest

from warmcell.lifetime.threads import _delivery, in_thread


async def test_what_was_made_for_a_cancelled_caller_is_discarded() -> None:
    may_end, discarded = threading.Event(), list[str]()

    def make() -> str:
        may_end.wait(30)
        return "made"

    making = asyncio.ensure_future(in_thread(make, discard=discarded.append))
    await asyncio.sleep(0.01)
    making.cancel()
    await asyncio.sleep(0.01)
    assert not making.done() and not discarded
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert discarded == ["made"]


async def test_stop_iteration_reaches_the_caller() -> None:
    """A future refuses it before Python 3.12: the caller waited for ever, even if it was cancelled."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[object] = loop.create_future()
    _delivery(loop, outcome, lambda: next(iter(())))()
    await asyncio.sleep(0)
    assert outcome.done()
    with pytest.raises(RuntimeError, match="StopIteration"):
        await outcome


async def test_what_failed_meanwhile_has_nothing_to_discard() -> None:
    may_end, discarded = threading.Event(), list[None]()

    def fail() -> None:
        may_end.wait(30)
        raise ValueError

    making = asyncio.ensure_future(in_thread(fail, discard=discarded.append))
    await asyncio.sleep(0.01)
    making.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert not discarded


async def test_a_caller_stays_cancelled_if_nothing_can_be_discarded() -> None:
    """A timeout would end with the error of the discard in place of `TimeoutError`."""
    may_end = threading.Event()

    def fail(made: bool) -> None:
        raise ValueError

    making = asyncio.ensure_future(in_thread(lambda: may_end.wait(30), discard=fail))
    await asyncio.sleep(0.01)
    making.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await making
