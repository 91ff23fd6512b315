"""Supervisor processes that a backend adds while many callers use it at once.

One interpreter starts about 1,300 runs a second, however many processors there are. On a machine with many, a program
whose callers keep it that busy gets further supervisors: they start in the background, take over its runs, and exit
when it is no longer busy.
"""

from __future__ import annotations

import threading
import time

from warmcell.core.light import suppress
from warmcell.lifetime.host_program import count_own_processors
from warmcell.lifetime.ownership import own_until_exit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from warmcell.backends.supervisor_process import BackendFactory
    from warmcell.backends.supervisors import Supervisors
    from warmcell.core.types import ExecRequest, ExecResult
    from warmcell.lifetime.run import Run

_FEWEST_PROCESSORS, _PROCESSORS_EACH = 8, 4
#: So many runs that began in a crowd are worth more supervisors.
_CROWDED_RUNS = 200
_IDLE_SECONDS = 5.0
#: How long a new supervisor may take for its first run.
_START_SECONDS = 60.0
#: How long to wait for their end.
_END_SECONDS = 30.0


def choose_number() -> int:
    """0: this process starts its runs itself."""
    processors = count_own_processors()
    return processors // _PROCESSORS_EACH if processors >= _FEWEST_PROCESSORS else 0


class ExtraSupervisors:
    """The extra supervisor processes of one backend."""

    def __init__(self) -> None:
        self._number = choose_number()
        self._is_closed = False
        self.abandon()
        own_until_exit(self)

    def abandon(self) -> None:
        """A fork has none."""
        self._supervisors: Supervisors | None = None
        self._lock = threading.Lock()
        #: The task that starts and ends them, and how to cancel it.
        self._task: tuple[Future[None], Callable[[], object]] | None = None
        #: Runs that they carry out now, and when the last one began.
        self._users = 0
        self._last_used = 0.0
        #: Runs that began in a crowd, since they were last started.
        self._crowded = 0

    def run(self, request: ExecRequest, run: Run, factory: BackendFactory | None) -> ExecResult | None:
        """Runs the request in another process. None if this process has to run it. Called for each run in a crowd.

        `factory` makes the backend in another process; None if only this one can carry out the run.
        """
        if not self._number or factory is None:
            return None
        supervisors = self._take()
        if supervisors is not None:
            try:
                return self._run_on(supervisors, request, run)
            finally:
                self._give_back(supervisors)
        self._crowded += 1
        if self._crowded >= _CROWDED_RUNS:
            with suppress(OSError):  # no descriptors left
                self._start_in_background(factory)
        return None

    def _take(self) -> Supervisors | None:
        """While there are users, they do not end."""
        with self._lock:
            if self._supervisors is not None:
                self._users += 1
                self._last_used = time.monotonic()
            return self._supervisors

    def _give_back(self, supervisors: Supervisors) -> None:
        with self._lock:
            self._users -= 1
            if not supervisors.is_complete and self._supervisors is supervisors:
                self._supervisors = None  # and start again when it is worth it

    @staticmethod
    def _run_on(supervisors: Supervisors, request: ExecRequest, run: Run) -> ExecResult:
        from concurrent.futures import CancelledError

        from warmcell.lifetime.portal import portal
        from warmcell.lifetime.run import RunCancelled

        outcome, cancel = portal.start(lambda: supervisors.execute(request))
        try:
            with run.on_cancel(cancel):
                return outcome.result()
        except CancelledError:
            raise RunCancelled from None

    def _start_in_background(self, factory: BackendFactory) -> None:
        from warmcell.lifetime.portal import portal

        with self._lock:
            if self._is_closed or (self._task is not None and not self._task[0].done()):
                return
            self._task, self._crowded = portal.start(lambda: self._serve(factory)), 0

    async def _serve(self, factory: BackendFactory) -> None:
        """Starts them, and ends them when they are idle. A failure only leaves the runs to this process."""
        import asyncio

        from warmcell.backends.supervisors import Supervisors
        from warmcell.core.errors import SandboxError

        try:
            async with Supervisors(factory, self._number) as supervisors:
                async with asyncio.timeout(_START_SECONDS):
                    await supervisors.warm_up()
                with self._lock:
                    self._supervisors, self._last_used = (None if self._is_closed else supervisors), time.monotonic()
                while not self._is_idle(supervisors):
                    await asyncio.sleep(_IDLE_SECONDS / 10)
        except (SandboxError, OSError, TimeoutError):
            return

    def _is_idle(self, supervisors: Supervisors) -> bool:
        """Whether they may end. From then on they get no run."""
        with self._lock:
            if self._supervisors is supervisors and time.monotonic() > self._last_used + _IDLE_SECONDS:
                self._supervisors = None
            return self._supervisors is not supervisors and not self._users

    def close(self) -> None:
        """After the backend's runs have ended. Returns when the processes have exited."""
        with self._lock:
            self._is_closed, self._supervisors = True, None
            task, self._task = self._task, None
        if task is None:
            return
        from concurrent.futures import wait

        outcome, cancel = task
        cancel()
        wait([outcome], timeout=_END_SECONDS)
