"""RayProgram: a program that each node builds once, when its first run arrives there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from warmcell.backends.built import Program
from warmcell.core.run_record import RunRecord
from warmcell.lifetime.portal import portal

if TYPE_CHECKING:
    from warmcell.core.types import ExecRequest, ExecResult, Limits
    from warmcell.runner.listening import Listener

#: Carries out one run on the portal's loop; with True, as one of many.
Execute = Callable[..., Any]


class RayProgram(Program):
    """Its runs have no thread of their own: they are messages."""

    def __init__(
        self,
        backend: str,
        request: ExecRequest,
        execute: Execute,
        release: Callable[[], object],
        count_cases: Callable[[], Awaitable[int]],
    ) -> None:
        """`count_cases`: how many calls of `run_case` to have under way, so that every node has enough."""
        self._is_closed = False
        self.request = request
        self._backend, self._execute, self._release = backend, execute, release
        self.count_cases = count_cases

    async def run_case(
        self,
        stdin: str | bytes | None = None,
        args: Sequence[str] = (),
        timeout: float | None = None,
        *,
        limits: Limits | None = None,
    ) -> ExecResult:
        """`run` for one of many cases: it may wait on its node, which runs one for each processor at a time."""
        return await self._run(self._request(stdin, args, timeout, limits), None, True)

    async def _run(self, request: ExecRequest, listener: Listener | None, is_case: bool = False) -> ExecResult:
        with RunRecord(self._backend, request) as record:
            result: ExecResult = await portal.call_async(self._execute, request, listener, is_case)
            record.result = result
            return result

    def _run_blocking(self, request: ExecRequest) -> ExecResult:
        return portal.call(self._run, request, None)
