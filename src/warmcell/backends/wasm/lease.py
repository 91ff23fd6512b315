"""A worker for the length of one run, and the worker that is made ahead of the next sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warmcell.backends.wasm.frames import WorkerDied, encode
from warmcell.backends.wasm.pool import Wanted, WorkerPool, WorkerUnusable
from warmcell.core.errors import BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.late_log import LateLog
from warmcell.lifetime.descriptors import told_shortage
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.run import Run, RunCancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_log = LateLog(__name__)


class Lease:
    """A worker for the length of one run, given back whatever happens; it is reused only when `is_reusable` was set.

    While it is held, cancelling the run kills the worker; afterwards it cannot reach it any more.
    """

    def __init__(self, pool: WorkerPool, wanted: Wanted, run: Run, queue_timeout: float) -> None:
        self._pool = pool
        self._wanted = wanted
        self._run = run
        self._queue_timeout = queue_timeout
        self.is_reusable = False
        self._take(wanted)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back(self.is_reusable)

    def swap_for_clean(self) -> None:
        """Another worker, in which nothing of any guest has ever been."""
        self._give_back(is_reusable=True)
        self._take(Wanted(directories=self._wanted.directories, needs_clean=True))

    def _take(self, wanted: Wanted) -> None:
        self.worker = self._pool.take(wanted, self._run, self._queue_timeout)
        self._is_held = True
        self._run.add_end(self.worker.kill)

    def _give_back(self, is_reusable: bool) -> None:
        if not self._is_held:
            return
        self._is_held = False
        # First: a cancellation that comes late must not hit whoever gets the worker next.
        self._run.remove_end(self.worker.kill)
        self._pool.give_back(self.worker, is_reusable=is_reusable)

    def send(self, message: dict[str, Any], blob: bytes, descriptors: Sequence[int] = (), *, seconds: float) -> None:
        """A request. Raises `WorkerUnusable` where the worker died by itself before it could take it."""
        self.send_encoded(encode(message, blob), descriptors, seconds=seconds)

    def send_encoded(self, data: bytes, descriptors: Sequence[int] = (), *, seconds: float) -> None:
        """The same for frames that are ready."""
        try:
            self.worker.channel.send_encoded(data, descriptors, timeout=seconds)
        except WorkerDied:
            if self.worker.is_killed:
                raise
            raise WorkerUnusable from None

    def explain_death(self, what: str) -> Exception:
        """Why the worker is gone. Disposes of it, so that its status is known."""
        if self._run.is_cancelled:
            return RunCancelled()
        was_killed = self.worker.is_killed
        status = self.worker.dispose()
        if was_killed:
            return BackendUnavailable("the WASM workers were ended during the run")
        last_words = self.worker.log()
        if last_words:
            _log.warning("a WASM worker died while %s: %s", what, last_words)
        if (shortage := told_shortage(last_words, f"go on {what}")) is not None:
            return shortage
        ended = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return ExecutionFailed(f"the WASM worker died ({ended}) while {what}", hint="other runs are not affected")


def keep_spare(pool: WorkerPool, prepare: Callable[[Lease], None]) -> None:
    """Has a worker that nobody uses made and prepared by a thread, unless there is one. For when a run has ended."""
    if not pool.claim_spare():
        return
    try:
        start_daemon(_make_spare, pool, prepare, name="warmcell-wasm-spare")
    except SandboxError:  # no thread to be had: the next run makes its worker itself
        pool.spare_is_made()


def _make_spare(pool: WorkerPool, prepare: Callable[[Lease], None]) -> None:
    try:
        if not pool.is_still_open():
            return
        with Lease(pool, Wanted(needs_new=True), Run(), queue_timeout=0) as lease:
            prepare(lease)
            lease.is_reusable = True
    except (SandboxError, WorkerUnusable, OSError) as error:
        _log.debug("no spare WASM worker: %s", error)  # the run that would have had it will say what is wrong
    finally:
        pool.spare_is_made()
