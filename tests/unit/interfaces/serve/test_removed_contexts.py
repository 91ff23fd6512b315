"""Contexts of E2B's code interpreter that are removed while they start, or cannot be prepared: no session is left."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.core.errors import SessionEnded, SessionNotFound
from warmcell.interfaces.serve.e2b.contexts import Contexts


class Sandbox:
    """Starts sessions when it may. They run no cell."""

    def __init__(self) -> None:
        self.may_start, self.open_sessions = asyncio.Event(), 0

    async def session(self, language: str, cwd: str) -> Any:
        await self.may_start.wait()
        self.open_sessions += 1
        return self

    async def run(self, code: str, timeout: float) -> None:
        raise SessionEnded("the guest ended it")

    async def close(self) -> None:
        self.open_sessions -= 1


def contexts_in(sandbox: Sandbox) -> Contexts:
    async def ask(op: str, path: str) -> None:
        pass

    entry = SimpleNamespace(sandbox=sandbox, tenant=None)
    service = SimpleNamespace(run_slot=lambda tenant: nullcontext())
    box: Any = SimpleNamespace(entry=entry, service=service, files=SimpleNamespace(ask=ask))
    return Contexts(box)


async def test_a_context_that_is_removed_while_it_starts() -> None:
    """The list of contexts has it from the beginning, so other clients can remove it."""
    sandbox = Sandbox()
    contexts = contexts_in(sandbox)
    before = contexts.all()
    making = asyncio.ensure_future(contexts.create("bash", None))
    await asyncio.sleep(0)
    (starting,) = [context for context in contexts.all() if context not in before]
    removing = asyncio.ensure_future(contexts.remove(starting))
    await asyncio.sleep(0)
    sandbox.may_start.set()
    await asyncio.gather(making, removing)
    assert contexts.all() == before and sandbox.open_sessions == 0
    with pytest.raises(SessionNotFound):
        await starting.start()
    assert sandbox.open_sessions == 0


async def test_a_context_that_cannot_enter_its_directory() -> None:
    sandbox = Sandbox()
    sandbox.may_start.set()
    contexts = contexts_in(sandbox)
    before = contexts.all()
    with pytest.raises(SessionEnded):
        await contexts.create("bash", "/srv")
    assert contexts.all() == before and sandbox.open_sessions == 0
