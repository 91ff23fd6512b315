"""CageError: the step of building the cage that failed, its errno, and the item."""

from __future__ import annotations

import os

from .fast_imports import socket
from .wire import send_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class CageError(Exception):
    """A step failed; the guest must not start."""

    def __init__(self, step: str, errno: int, what: str) -> None:
        super().__init__(step, errno, what)
        self.step, self.errno, self.what = step, errno, what

    def __str__(self) -> str:
        reason = os.strerror(self.errno) if self.errno else "refused"
        return f"{self.step}: {self.what}: {reason}"


class Step:
    """Turns an OSError in the block into the CageError of this step. A class is faster than a generator."""

    __slots__ = ("_name", "_what")

    def __init__(self, name: str, what: str = "") -> None:
        self._name, self._what = name, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        if isinstance(error, OSError):
            item = self._what or str(error.filename or error.strerror or "")
            raise CageError(self._name, error.errno or 0, item) from None


step = Step


def send_failure(channel: socket.socket, failure: CageError) -> None:
    """Send the failure to the process that waits for the cell, if it still exists."""
    try:
        send_packet(channel, {"failed": [failure.step, failure.errno, failure.what]})
    except OSError:
        pass
