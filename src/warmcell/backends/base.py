"""BackendBase: what all of our backends do alike, over their `execute`, `stream` and `close`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

from warmcell.core.light import Closing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from typing import Self

    from warmcell.backends.extra_supervisors import ExtraSupervisors
    from warmcell.backends.many import OnProgress, Requests
    from warmcell.backends.supervisor_process import IdleSupervisors
    from warmcell.core.output_events import Outcome, StreamEvent
    from warmcell.core.types import ExecRequest


class BackendBase(Closing, ABC):
    """Imports on demand: a single run needs none of it."""

    @abstractmethod
    def stream(self, request: ExecRequest, *, stdin: int = -1) -> AsyncIterator[StreamEvent]: ...

    def stream_blocking(self, request: ExecRequest, *, stdin: int = -1) -> Iterator[StreamEvent]:
        """`stream` for code without an event loop."""
        from warmcell.backends.many import in_step

        return in_step(self.stream(request, stdin=stdin))

    def run_many(
        self,
        requests: Requests,
        concurrency: int | None = None,
        processes: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> AsyncIterator[Outcome]:
        """Outcomes as they finish, `concurrency` runs at a time (None: from the processors), started by `processes`
        Python processes (None: from the processors and the number of requests).
        """
        from warmcell.backends.supervisors import run_many_of

        return run_many_of(self, requests, concurrency, processes, on_progress)

    def run_many_blocking(
        self,
        requests: Iterable[ExecRequest],
        concurrency: int | None = None,
        processes: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Iterator[Outcome]:
        """`run_many` for code without an event loop."""
        from warmcell.backends.many import in_step

        return in_step(self.run_many(requests, concurrency, processes, on_progress))

    @cached_property
    def idle_supervisors(self) -> IdleSupervisors:
        """Between batches of `run_many` and `judge`."""
        from warmcell.backends.supervisor_process import IdleSupervisors

        return IdleSupervisors()

    @cached_property
    def extra_supervisors(self) -> ExtraSupervisors:
        """While it has a crowd of callers."""
        from warmcell.backends.extra_supervisors import ExtraSupervisors

        return ExtraSupervisors()

    def _find_extra_supervisors(self) -> ExtraSupervisors | None:
        """None if there is no descriptor left to load them: this process carries out the run."""
        try:
            return self.extra_supervisors
        except OSError:
            return None

    def _end_supervisors(self) -> None:
        if "extra_supervisors" in self.__dict__:
            self.extra_supervisors.close()
        if "idle_supervisors" in self.__dict__:
            self.idle_supervisors.close()

    @abstractmethod
    def close(self) -> None: ...

    async def aclose(self) -> None:
        """`close` for event loops."""
        from warmcell.lifetime.threads import in_thread

        await in_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
