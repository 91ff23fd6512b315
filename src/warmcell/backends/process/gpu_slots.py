"""How many runs share a GPU: a slot is a lock on a file, so that it holds across the processes of this user."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from functools import partial

from warmcell.core.errors import BackendBusy
from warmcell.core.light import Cleanup
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.lifetime.held_directories import make_cache, user_cache
from warmcell.lifetime.ownership import Lock
from warmcell.lifetime.run import Run
from warmcell.policy.gpu import GpuGrant

#: How often to try again while other processes have all slots.
_RETRY_SECONDS = 0.01
_HINT = "another run has the GPU; raise ProcessConfig(gpu_concurrency=...) or queue_timeout"


class GpuSlots:
    """Runs of this backend get slots in the order in which they asked; the order among processes is not defined."""

    def __init__(self, concurrency: int, queue_timeout: float) -> None:
        self._concurrency, self._timeout = concurrency, queue_timeout
        self._lock = Lock()
        self._lines: dict[str, FairSemaphore] = {}

    def acquire(self, grant: GpuGrant, run: Run, release: Cleanup) -> None:
        """Waits for a slot of each device, in numerical order, so that no two runs wait for each other.

        `release` gives them back. Raises `BackendBusy` after the queue timeout.
        """
        until = time.monotonic() + self._timeout
        for number in grant.numbers:
            name = f"{grant.vendor}{number}"
            line = self._line_of(name)
            try:
                line.acquire(run, max(0.0, until - time.monotonic()))
            except BackendBusy:
                raise self._busy() from None
            release.callback(line.release)
            self._lock_slot(name, run, until, release)

    def _line_of(self, name: str) -> FairSemaphore:
        with self._lock:
            return self._lines.setdefault(name, FairSemaphore(self._concurrency))

    def _lock_slot(self, name: str, run: Run, until: float, release: Cleanup) -> None:
        place = os.path.join(user_cache(), "gpus")
        make_cache(place)
        cancelled = threading.Event()
        with run.on_cancel(cancelled.set):
            while not self._try_slots(os.path.join(place, name), release):
                if time.monotonic() >= until:
                    raise self._busy()
                cancelled.wait(_RETRY_SECONDS)
                run.check()

    def _try_slots(self, path: str, release: Cleanup) -> bool:
        for slot in range(self._concurrency):
            owned = Descriptors()
            file = owned.open(partial(os.open, f"{path}.{slot}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another process has it
                owned.close()
                continue
            release.callback(owned.close)
            return True
        return False

    def _busy(self) -> BackendBusy:
        return BackendBusy(self._timeout, hint=_HINT)
