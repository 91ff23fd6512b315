"""CageError: which step of building the cage failed, with what errno, on what."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import Iterator

from .wire import send_packet


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


@contextmanager
def step(name: str, what: str = "") -> Iterator[None]:
    """Names the step that any OSError inside it belongs to."""
    try:
        yield
    except OSError as error:
        item = what or str(error.filename or error.strerror or "")
        raise CageError(name, error.errno or 0, item) from None


def tell(channel: socket.socket, failure: CageError) -> None:
    """Whoever waits for the cell may have let go of it meanwhile, which is no reason to end anything else."""
    try:
        send_packet(channel, {"failed": [failure.step, failure.errno, failure.what]})
    except OSError:
        pass
