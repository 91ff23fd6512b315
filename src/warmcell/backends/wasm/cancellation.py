"""Giving up a run from another thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmcell.backends.wasm.worker import Worker


class RunCancelled(Exception):
    """The caller gave the run up. Its worker is dead."""


class Cancellation:
    """Lets another thread give up a run, at any moment of it."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self.is_cancelled = False

    def attach(self, worker: Worker) -> None:
        self._worker = worker
        if self.is_cancelled:
            worker.kill()

    def detach(self) -> None:
        self._worker = None

    def check(self) -> None:
        if self.is_cancelled:
            raise RunCancelled

    def cancel(self) -> None:
        self.is_cancelled = True
        worker = self._worker
        if worker is not None:
            worker.kill()
