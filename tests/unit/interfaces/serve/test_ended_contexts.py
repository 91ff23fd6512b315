"""Contexts of E2B's code interpreter whose interpreter has ended, and whose client leaves before it is replaced."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from tests.helpers import until_async

from warmcell.core.errors import SessionEnded
from warmcell.interfaces.serve.e2b.box import HOME
from warmcell.interfaces.serve.e2b.contexts import Context
from warmcell.sessions.cell_results import CellResult


class Session:
    """Ended; a restart waits until it may go on."""

    def __init__(self) -> None:
        self.may_restart, self.restarts, self.has_ended = asyncio.Event(), 0, True

    async def run(self, code: str, timeout: float) -> CellResult:
        if self.has_ended:
            raise SessionEnded("the guest ended it")
        return CellResult(value=code)

    async def close(self) -> None: ...

    async def restart(self) -> None:
        self.restarts += 1
        await self.may_restart.wait()
        self.has_ended = False


async def test_the_cell_after_one_whose_restart_was_cancelled() -> None:
    session = Session()

    async def open_session(language: str, cwd: str) -> Any:
        return session

    entry = SimpleNamespace(sandbox=SimpleNamespace(session=open_session), tenant=None)
    settings = SimpleNamespace(max_timeout=60)
    service = SimpleNamespace(run_slot=lambda tenant: nullcontext(), settings=settings)
    box: Any = SimpleNamespace(entry=entry, service=service, files=None)
    context = Context(box, "python", HOME)
    first = asyncio.ensure_future(context.run("1", {}))
    await until_async(lambda: session.restarts)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    session.may_restart.set()
    second = await context.run("2", {})
    assert (second.value, second.execution_count) == ("2", 1)
