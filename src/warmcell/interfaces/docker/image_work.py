"""Builds, loads, imports, pulls and saves: how many run at a time, and the disk that they take."""

from __future__ import annotations

import os

from warmcell.core.errors import BackendBusy
from warmcell.core.light import on_error
from warmcell.core.types import MIB
from warmcell.images.prune import check_room
from warmcell.interfaces.docker.messages import DockerError
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.lifetime.threads import in_thread
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.root import Quota

#: How many jobs run at a time, how many wait, and for how long.
_AT_ONCE, _MAX_WAITING, _QUEUE_SECONDS = max(4, len(os.sched_getaffinity(0))), 64, 3600.0
#: The most disk for archives of requests in progress; half of the free disk if that is less.
_MAX_UPLOADED_MB = 64 << 10


class ClientLeft(Exception):
    """Raised in the working thread when its client has disconnected."""


class ImageWork:
    """Limits the jobs of one engine. `directory` is for their archives, `store` is the image store's."""

    def __init__(self, directory: str, store: str) -> None:
        # One tenant may have half of those that wait.
        self._slots, self._save_slots = (FairSemaphore(_AT_ONCE, 2 * _MAX_WAITING) for _ in ("stores", "saves"))
        disk, self._mb = os.statvfs(directory), _MAX_UPLOADED_MB
        if disk.f_blocks:  # else the file system reports no size
            self._mb = max(1, min(self._mb, disk.f_bavail * disk.f_frsize // 2 // MIB))
        self._uploaded, self._store = Quota(self._mb), store
        self._is_closed = False

    async def start(self, *, fills_store: bool = True) -> ImageJob:
        """Wait for a slot, in the order of arrival. The body is not read meanwhile, so waiting takes no disk.

        Saves fill no store. They have slots of their own: in `docker save | docker load` each job waits for the other.
        """
        slots = self._slots if fills_store else self._save_slots
        try:
            await slots.acquire_async(_QUEUE_SECONDS)
        except BackendBusy:
            what = "builds, loads and pulls" if fills_store else "saves"
            reason = f"{_AT_ONCE} {what} are in progress, and others wait"
            raise DockerError(503, f"{reason}; try again when some have ended") from None
        if self._is_closed:
            slots.release()
            raise DockerError(503, "the server is shutting down")
        with on_error(slots.release):
            if fills_store:
                await in_thread(self.check_store)
        return ImageJob(self, slots, fills_store=fills_store)

    def check_store(self) -> None:
        """Raises `ExecutionFailed` if images leave too little of their disk free. Blocking."""
        check_room(self._store)

    def close(self) -> None:
        """Refuse the jobs that wait. Call it before `directory` is removed."""
        self._is_closed = True

    def charge(self, size: int) -> None:
        try:
            with self._uploaded.charge("", size):
                pass
        except LimitExceeded:
            what = "archives of builds, loads and saves in progress"
            reason = f"{what} would take more than {self._mb} MB of disk together"
            remedy = "try again when others have ended, or have the server use a larger disk (TMPDIR)"
            raise DockerError(503, f"{reason}; {remedy}") from None

    def refund(self, charged: int) -> None:
        self._uploaded.refund(charged)


class ImageJob:
    """A running job. Counts what is uploaded, unpacked and written for it until `end`."""

    def __init__(self, work: ImageWork, slots: FairSemaphore, *, fills_store: bool) -> None:
        self._work: ImageWork | None = work
        #: None when its slot is free again.
        self._slots: FairSemaphore | None = slots
        self._fills_store = fills_store
        self._charged = 0
        self._is_abandoned = False

    def charge(self, size: int) -> None:
        """Count bytes, in any thread. Raises `DockerError` if all jobs together take too much."""
        self.check()
        assert self._work is not None
        self._work.charge(size)
        self._charged += size

    def check(self, _: object = None) -> None:
        """Raises `ClientLeft` after `abandon`, and `ExecutionFailed` if the disk of the images is full."""
        if self._is_abandoned:
            raise ClientLeft
        if self._work is not None and self._fills_store:
            self._work.check_store()

    def abandon(self) -> None:
        self._is_abandoned = True

    def free_slot(self) -> None:
        """Let the next job start while what this one has written still takes disk. May be called twice."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.release()

    def end(self, _: object = None) -> None:
        """End the job, after its files were removed. May be called twice."""
        work, self._work = self._work, None
        if work is not None:
            work.refund(self._charged)
        self.free_slot()
