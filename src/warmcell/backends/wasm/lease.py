"""A worker for the length of one run, given back whatever happens."""

from __future__ import annotations

from types import TracebackType

from warmcell.backends.wasm.cancellation import Cancellation, RunCancelled
from warmcell.backends.wasm.pool import NO_PATHS, Paths, WorkerPool
from warmcell.core.errors import BackendUnavailable, ExecutionFailed


class Lease:
    """Use as a context manager. The worker goes back to the pool only when `is_reusable` was set."""

    def __init__(
        self,
        pool: WorkerPool,
        prefer: str = "",
        paths: Paths = NO_PATHS,
        *,
        needs_clean: bool = False,
        may_wait: bool = True,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._pool = pool
        self._paths = paths
        self._cancellation = cancellation or Cancellation()
        self.is_reusable = False
        self.worker = pool.lease(
            prefer, paths, needs_clean=needs_clean, may_wait=may_wait, cancellation=self._cancellation
        )
        self._cancellation.attach(self.worker)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cancellation.detach()
        self._pool.release(self.worker, is_reusable=self.is_reusable)

    def swap_for_clean(self) -> None:
        """Another worker, in which nothing of any guest has ever been."""
        self._cancellation.detach()
        self._pool.release(self.worker, is_reusable=True)
        self.worker = self._pool.lease(paths=self._paths, needs_clean=True, cancellation=self._cancellation)
        self._cancellation.attach(self.worker)

    def explain_death(self, what: str) -> Exception:
        """Why the worker is gone. Disposes of it, so that its status is known."""
        if self._cancellation.is_cancelled:
            return RunCancelled()
        was_killed = self.worker.is_killed
        status = self.worker.dispose()
        if was_killed:
            return BackendUnavailable("the WASM backend was closed during the run")
        ended = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        words = f": {self.worker.log()}" if self.worker.log() else ""
        return ExecutionFailed(
            f"the WASM worker died ({ended}) while {what}{words}", hint="other runs are not affected"
        )
