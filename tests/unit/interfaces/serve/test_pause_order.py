"""An E2B sandbox that is resumed while it is being paused."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.helpers import PATIENCE

from warmcell.core.errors import SessionEnded
from warmcell.interfaces.serve.e2b import creation
from warmcell.interfaces.serve.e2b.box import Box
from warmcell.interfaces.serve.sandbox_registry import TypedState
from warmcell.interfaces.serve.saved_sessions import SavedSessions


class Sandbox:
    """Its one session takes long to save."""

    def __init__(self) -> None:
        self.is_stopped, self.may_save = False, asyncio.Event()

    async def write_session(self, session: Any, room: int, seconds: float) -> Any:
        await self.may_save.wait()
        raise SessionEnded("the guest ended it")

    async def pause_programs(self, spared: Sequence[int]) -> None:
        self.is_stopped = True

    async def resume_programs(self) -> None:
        self.is_stopped = False


def box_of(sandbox: Sandbox) -> Box:
    state = TypedState()
    entry: Any = SimpleNamespace(sandbox=sandbox, state=state, tenant=SimpleNamespace(disk_mb=1))
    saved = state.put(SavedSessions(cast(Any, None), entry, lambda: None))
    saved.list_live = lambda: [("session", cast(Any, None), {})]
    service: Any = SimpleNamespace(state=TypedState(), search_path=str)
    return Box(entry, SimpleNamespace(templateID="base", autoPause=True, autoResume=None), service)


async def test_a_sandbox_that_is_resumed_while_it_is_paused_runs() -> None:
    """It was called running, and its programs were stopped: no later `connect` resumed them."""
    sandbox = Sandbox()
    box = box_of(sandbox)
    pausing = asyncio.ensure_future(box.pause())
    await asyncio.sleep(0)
    assert box.is_paused
    resuming = [asyncio.ensure_future(box.resume()) for _ in range(2)]
    await asyncio.wait(resuming, timeout=0.2)
    sandbox.may_save.set()
    await asyncio.gather(pausing, *resuming)
    assert not box.is_paused and not sandbox.is_stopped
    await box.pause()
    assert box.is_paused and sandbox.is_stopped


async def test_an_expired_sandbox_whose_record_cannot_be_written_stays_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error that is not of the disk, such as too many open files, it was removed with its files."""

    async def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(creation, "save_now", fail)
    sandbox = Sandbox()
    sandbox.may_save.set()
    box, tasks = box_of(sandbox), list[asyncio.Future[None]]()
    box.entry.id = "a"
    await creation._pause_expired(service_with(tasks), box)
    await asyncio.gather(*tasks)
    assert tasks and box.is_paused and sandbox.is_stopped


async def test_an_expired_sandbox_whose_record_takes_long_to_write_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk it was removed with its files, though it was paused."""
    is_written = asyncio.Event()

    async def write(*_: object) -> None:
        await is_written.wait()

    monkeypatch.setattr(creation, "save_now", write)
    sandbox = Sandbox()
    sandbox.may_save.set()
    box, tasks = box_of(sandbox), list[asyncio.Future[None]]()
    async with asyncio.timeout(PATIENCE):
        await creation._pause_expired(service_with(tasks), box)
    assert tasks and not tasks[0].done() and box.is_paused and sandbox.is_stopped
    is_written.set()
    await asyncio.gather(*tasks)


def service_with(tasks: list[asyncio.Future[None]]) -> Any:
    return SimpleNamespace(run_in_background=lambda work: tasks.append(asyncio.ensure_future(work)))
