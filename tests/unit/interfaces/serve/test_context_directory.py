"""Where the contexts of E2B's code interpreter start."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.interfaces.serve.e2b.contexts import Context


@pytest.mark.parametrize(
    ("cwd", "start", "cells"),
    [
        ("/home/user", "/home/user", []),
        ("/home/user/a", "/home/user/a", []),
        ("/home/user2", "/home/user", ["cd -- '/home/user2'"]),
        ("/srv", "/home/user", ["cd -- '/srv'"]),
    ],
)
async def test_a_context_starts_in_its_directory(cwd: str, start: str, cells: list[str]) -> None:
    """A session can only start in the home; a cell leaves it, as the guest may."""
    ran: list[str] = []
    started: list[str] = []

    async def run(code: str, timeout: float) -> None:
        ran.append(code)

    async def open_session(language: str, cwd: str) -> Any:
        started.append(cwd)
        return SimpleNamespace(run=run, close=None)

    async def ask(op: str, path: str) -> None:
        pass

    entry = SimpleNamespace(sandbox=SimpleNamespace(session=open_session), tenant=None)
    service = SimpleNamespace(run_slot=lambda tenant: nullcontext())
    box: Any = SimpleNamespace(entry=entry, service=service, files=SimpleNamespace(ask=ask))
    await Context(box, "bash", cwd).start()
    assert (started, ran) == ([start], cells)
