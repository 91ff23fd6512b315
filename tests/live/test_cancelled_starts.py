"""A caller that goes away while its live cage is made: nothing of it is left."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from warmcell import ProcessBackend


@pytest.mark.needs("user namespaces")
def test_a_cage_that_was_made_for_a_cancelled_caller_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with ProcessBackend() as backend:
            launcher = backend._launcher
            make, made = launcher.live_cage, []
            is_made, may_return = threading.Event(), threading.Event()

            def make_slowly(*arguments: Any) -> Any:
                made.append(make(*arguments))
                is_made.set()
                may_return.wait(30)
                return made[-1]

            monkeypatch.setattr(launcher, "live_cage", make_slowly)
            task = asyncio.ensure_future(backend.live_cage())
            await asyncio.to_thread(is_made.wait, 30)
            assert made[0].is_alive
            task.cancel()
            await asyncio.sleep(0)
            may_return.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not made[0].is_alive

    asyncio.run(main())
