"""What a run created for a caller that was cancelled meanwhile is ended."""

from __future__ import annotations

import asyncio
import threading

import pytest

from warmcell.lifetime.run import Run
from warmcell.lifetime.runs import Runs


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_only_the_result_of_a_cancelled_run_is_discarded(is_cancelled: bool) -> None:
    began, may_end, discarded = threading.Event(), threading.Event(), []

    def work(run: Run) -> str:
        began.set()
        may_end.wait(30)
        return "made"

    async def main() -> None:
        task = asyncio.ensure_future(Runs("test", 1, 30).run(work, discard=discarded.append))
        await asyncio.to_thread(began.wait, 30)
        if is_cancelled:
            task.cancel()
            await asyncio.sleep(0)
        may_end.set()
        await asyncio.wait([task])
        assert task.cancelled() is is_cancelled

    asyncio.run(main())
    assert discarded == (["made"] if is_cancelled else [])
