"""Program: the result of `build`. Built once, run many times, each run in a cage of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from warmcell.core.errors import InvalidRequest
from warmcell.core.light import Closing
from warmcell.core.records import replace
from warmcell.core.run_record import RunRecord

if TYPE_CHECKING:
    from warmcell.backends.output_callbacks import OnText
    from warmcell.core.output_events import StreamEvent
    from warmcell.core.types import ExecRequest, ExecResult, Limits
    from warmcell.lifetime.run import Run
    from warmcell.lifetime.runs import Runs
    from warmcell.runner.listening import Listener

#: Carries out one run, with an optional listener.
Work = Callable[["ExecRequest", "Run", "Listener | None"], "ExecResult"]


class Program(Closing):
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
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """One run. Arguments that are not given are as in `request`.

        `on_stdout` and `on_stderr` get text as it arrives; they may be coroutine functions. One that raises ends the
        run.
        """
        if on_stdout is None and on_stderr is None:
            return await self._run(self._request(stdin, args, timeout, limits), None)
        from warmcell.backends.output_callbacks import follow

        return await follow(self.stream(stdin, args, timeout, limits=limits), on_stdout, on_stderr)

    async def _run(self, request: ExecRequest, listener: Listener | None) -> ExecResult:
        with RunRecord(self._backend, request) as record:
            record.result = await self._runs.run(lambda run: self._work(request, run, listener))
            return record.result

    def stream(
        self,
        stdin: str | bytes | None = None,
        args: Sequence[str] = (),
        timeout: float | None = None,
        *,
        limits: Limits | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """One run as `OutputEvent`s as it writes, then a `ResultEvent`. Closing the iterator ends the run."""
        from warmcell.backends.streaming import stream

        request = self._request(stdin, args, timeout, limits)
        return stream(lambda listener: self._run(request, listener))

    def stream_blocking(
        self,
        stdin: str | bytes | None = None,
        args: Sequence[str] = (),
        timeout: float | None = None,
        *,
        limits: Limits | None = None,
    ) -> Iterator[StreamEvent]:
        """Like `stream`, for code without an event loop."""
        from warmcell.backends.many import in_step

        return in_step(self.stream(stdin, args, timeout, limits=limits))

    def run_blocking(
        self,
        stdin: str | bytes | None = None,
        args: Sequence[str] = (),
        timeout: float | None = None,
        *,
        limits: Limits | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """`run` in the calling thread, which also calls the callbacks."""
        if on_stdout is not None or on_stderr is not None:
            from warmcell.backends.output_callbacks import call_with_output

            callbacks = {"on_stdout": on_stdout, "on_stderr": on_stderr}
            return call_with_output(self.run, callbacks, stdin, args, timeout, limits=limits)
        return self._run_blocking(self._request(stdin, args, timeout, limits))

    def _run_blocking(self, request: ExecRequest) -> ExecResult:
        return self.carry_out(request, None)

    def carry_out(self, request: ExecRequest, run: Run | None) -> ExecResult:
        """`request` is that of the program with other input or limits. By `run`, another thread can cancel it."""
        with RunRecord(self._backend, request) as record:
            record.result = self._runs.run_blocking(lambda run: self._work(request, run, None), run)
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
        """Releases the artefact. Runs in progress end by themselves."""
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
