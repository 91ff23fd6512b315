"""CageError: which step of building the cage failed, with what errno, on what."""

from __future__ import annotations

import os

from .light import socket
from .wire import send_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class CageError(Exception):
    """A step failed; the guest must not start."""

    def __init__(self, step: str, errno: int, what: str) -> None:
        super().__init__(step, errno, what)
        self.step = step
        self.errno = errno
        self.what = what

    def __str__(self) -> str:
        reason = os.strerror(self.errno) if self.errno else "refused"
        return f"{self.step}: {self.what}: {reason}"


class Step:
    """A part of the work that any OSError inside it belongs to. A class, because a cell takes some forty of these."""

    __slots__ = ("_name", "_what")

    def __init__(self, name: str, what: str = "") -> None:
        self._name = name
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        if isinstance(error, OSError):
            item = self._what or str(error.filename or error.strerror or "")
            raise CageError(self._name, error.errno or 0, item) from None


step = Step


def tell(channel: socket.socket, failure: CageError) -> None:
    """Whoever waits for the cell may have let go of it meanwhile, which is no reason to end anything else."""
    try:
        send_packet(channel, {"failed": [failure.step, failure.errno, failure.what]})
    except OSError:
        pass
