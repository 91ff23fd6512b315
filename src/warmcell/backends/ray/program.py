"""RayProgram: a program that each node builds once, when its first run arrives there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warmcell.backends.built import Program
from warmcell.core.run_record import RunRecord
from warmcell.lifetime.portal import portal

if TYPE_CHECKING:
    from warmcell.core.types import ExecRequest, ExecResult
    from warmcell.runner.listening import Listener

#: Carries out one run on the portal's loop.
Execute = Callable[["ExecRequest", "Listener | None"], Any]


class RayProgram(Program):
    """Its runs have no thread of their own: they are messages."""

    def __init__(self, backend: str, request: ExecRequest, execute: Execute, release: Callable[[], object]) -> None:
        self._is_closed = False
        self.request = request
        self._backend, self._execute, self._release = backend, execute, release

    async def _run(self, request: ExecRequest, listener: Listener | None) -> ExecResult:
        with RunRecord(self._backend, request) as record:
            result: ExecResult = await portal.reach(self._execute, request, listener)
            record.result = result
            return result

    def _run_blocking(self, request: ExecRequest) -> ExecResult:
        return portal.call(self._run, request, None)
