"""Leases a worker for one run, and prepares a spare worker for the next sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warmcell.backends.wasm.channel import WorkerDied
from warmcell.backends.wasm.pool import WorkerPool, WorkerQuery, WorkerUnusable
from warmcell.core.errors import BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.late_log import LateLog
from warmcell.guest.wasm.protocol import encode_frame
from warmcell.lifetime.descriptors import shortage_from_message
from warmcell.lifetime.run import Run, RunCancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_log = LateLog(__name__)


class Lease:
    """Holds a worker for one run and always releases it. The pool reuses it only if `is_reusable` was set.

    Cancelling the run kills the worker while the lease holds it, and does not affect it afterwards.
    """

    def __init__(self, pool: WorkerPool, query: WorkerQuery, run: Run, queue_timeout: float) -> None:
        self._pool = pool
        self._query = query
        self._run = run
        self._queue_timeout = queue_timeout
        self.is_reusable = False
        self._acquire(query)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release(self.is_reusable)

    def swap_for_clean(self) -> None:
        """Replaces the worker by one that has never had any guest code."""
        self._release(is_reusable=True)
        self._acquire(WorkerQuery(mounts=self._query.mounts, needs_clean=True))

    def _acquire(self, query: WorkerQuery) -> None:
        self.worker = self._pool.acquire(query, self._run, self._queue_timeout)
        self._is_held = True
        self._run.add_end(self.worker.kill)

    def _release(self, is_reusable: bool) -> None:
        if not self._is_held:
            return
        self._is_held = False
        # First: a late cancellation must not kill the worker under its next user.
        self._run.remove_end(self.worker.kill)
        self._pool.release(self.worker, is_reusable=is_reusable)

    def send(self, message: dict[str, Any], blob: bytes, descriptors: Sequence[int] = (), *, seconds: float) -> None:
        """Sends a request. Raises `WorkerUnusable` if the worker died by itself before it could read it."""
        self.send_encoded(encode_frame(message, blob), descriptors, seconds=seconds)

    def send_encoded(self, data: bytes, descriptors: Sequence[int] = (), *, seconds: float) -> None:
        try:
            self.worker.channel.send_encoded(data, descriptors, timeout=seconds)
        except WorkerDied:
            if self.worker.is_killed:
                raise
            raise WorkerUnusable from None

    def explain_death(self, what: str) -> Exception:
        """The error for a dead worker. Disposes of it to learn its exit status."""
        if self._run.is_cancelled:
            return RunCancelled()
        was_killed = self.worker.is_killed
        status = self.worker.dispose()
        if was_killed:
            return BackendUnavailable("the WASM workers were shut down during the run")
        log_text = self.worker.log()
        if log_text:
            _log.warning("a WASM worker died while %s: %s", what, log_text)
        if (shortage := shortage_from_message(log_text, f"continue {what}")) is not None:
            return shortage
        ended = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return ExecutionFailed(f"the WASM worker died ({ended}) while {what}", hint="other runs are not affected")


def keep_spare(pool: WorkerPool, prepare: Callable[[Lease], None]) -> None:
    """Makes and prepares an unused worker in a thread, unless there is one. Called after a run has ended."""

    def make() -> None:
        try:
            with Lease(pool, WorkerQuery(needs_new=True), Run(), queue_timeout=0) as lease:
                prepare(lease)
                lease.is_reusable = True
        except (SandboxError, WorkerUnusable, OSError) as error:
            _log.debug("no spare WASM worker: %s", error)  # the run that needs a worker will report the same error

    pool.keep_spare(make)
