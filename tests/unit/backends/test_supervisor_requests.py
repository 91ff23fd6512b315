"""Requests that a supervisor process cannot read: their callers learn why, and other runs go on."""

from __future__ import annotations

import asyncio
import socket
import threading
from importlib import import_module
from typing import Any, NoReturn

import pytest
from tests.helpers import PATIENCE

from warmcell import ExecRequest, errors
from warmcell.backends.supervisor_process import SupervisorProcess
from warmcell.backends.supervisor_service import _receive, _Service, frame
from warmcell.lifetime.run import Run


class _Code(str):
    """Text of a class in a module that only the program has, such as its own script."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return import_module, ("module_of_the_program",)


class _Backend:
    def build_blocking(self, request: ExecRequest) -> NoReturn:
        raise errors.BackendUnavailable("not here")

    def execute_blocking(self, request: ExecRequest, *, run: Run | None = None) -> str:
        return request.code if isinstance(request.code, str) else ""


async def test_a_request_that_cannot_be_read_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the process, and with it all runs there; the requests of a batch after it got the same end."""
    ours, theirs = socket.socketpair()
    member = SupervisorProcess(frame("recipe"))
    monkeypatch.setattr(member, "_start", lambda: ours)

    def serve() -> None:
        messages = _receive(theirs)
        next(messages)
        _Service(theirs, _Backend()).run(messages)

    serving = threading.Thread(target=serve, daemon=True)
    with theirs:
        await member.connect()
        serving.start()
        requests = [ExecRequest("python", code, 1) for code in (_Code("pass"), "1")]
        async with asyncio.timeout(PATIENCE):
            runs = (member.run(request, None) for request in requests)
            refused, result = await asyncio.gather(*runs, return_exceptions=True)
        member.hang_up()
        await asyncio.to_thread(serving.join, PATIENCE)
    assert isinstance(refused, errors.BackendUnavailable) and "module_of_the_program" in str(refused)
    assert str(result) == "1"
