"""Program: what `build` gives: built once, run as often as wanted, each run in a cage of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import replace
from warmcell.core.run_record import RunRecord

if TYPE_CHECKING:
    from warmcell.core.types import ExecRequest, ExecResult, Limits
    from warmcell.lifetime.run import Run
    from warmcell.lifetime.runs import Runs

#: Carries out one run of it.
Work = Callable[["ExecRequest", "Run"], "ExecResult"]


class Program:
    """A program and the backend that runs it. `request` is the one that it was built from.

    `run` may be called many times at once, from any thread and event loop, until it or its backend is closed.
    """

    def __init__(
        self, backend: str, request: ExecRequest, runs: Runs, work: Work, release: Callable[[], object] = lambda: None
    ) -> None:
        self.request = request
        self._backend = backend
        self._runs = runs
        self._work = work
        self._release = release
        self._is_closed = False

    async def run(
        self,
        stdin: str | bytes | None = None,
        args: Sequence[str] = (),
        timeout: float | None = None,
        *,
        limits: Limits | None = None,
    ) -> ExecResult:
        """One run. What is not said is as in `request`."""
        request = self._request(stdin, args, timeout, limits)
        with RunRecord(self._backend, request) as record:
            record.result = await self._runs.run(lambda run: self._work(request, run))
            return record.result

    def run_blocking(
        self,
        stdin: str | bytes | None = None,
        args: Sequence[str] = (),
        timeout: float | None = None,
        *,
        limits: Limits | None = None,
    ) -> ExecResult:
        """The same in the calling thread."""
        request = self._request(stdin, args, timeout, limits)
        with RunRecord(self._backend, request) as record:
            record.result = self._runs.run_blocking(lambda run: self._work(request, run))
            return record.result

    def _request(
        self, stdin: str | bytes | None, args: Sequence[str], timeout: float | None, limits: Limits | None
    ) -> ExecRequest:
        if self._is_closed:
            raise InvalidRequest("the program was closed", hint="build it again")
        own = self.request
        return replace(
            own,
            stdin=own.stdin if stdin is None else stdin,
            args=args or own.args,
            timeout=own.timeout if timeout is None else timeout,
            limits=own.limits if limits is None else limits,
        )

    def close(self) -> None:
        """Lets go of what was built. Runs that are under way end by themselves."""
        if not self._is_closed:
            self._is_closed = True
            self._release()

    def __del__(self) -> None:
        self.close()

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Program:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
