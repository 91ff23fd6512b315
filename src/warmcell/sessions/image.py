"""A session's image on its way from one cage to another: bytes in memory, bounded, and looked at by nobody here."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from contextlib import suppress

from warmcell.core.errors import InvalidRequest
from warmcell.lifetime.descriptors import Descriptors
from warmcell.sessions.cell_results import CellError

_CHUNK = 1 << 20
_LONGEST_REASON = 1000
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class SessionImage:
    """Filled from a pipe by whoever talks with the worker, then given to another worker as a file to read."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._owned = Descriptors()
        self._file = self._owned.opened(
            lambda: os.memfd_create("warmcell-image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        )
        self._size = 0
        #: How many cells the session had run.
        self.cells = 0

    @property
    def is_too_large(self) -> bool:
        return self._size > self.most_bytes

    def take_from(self, pipe: int) -> bool:
        """One piece; False when nobody writes there any more. What is too much is read and forgotten."""
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return True
        self._size += len(data)
        if not self.is_too_large:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        return bool(data)

    def take_rest(self, pipe: int) -> None:
        """What is there now: whoever still writes must not keep us here."""
        for _ in range(waiting(pipe) // _CHUNK + 1):
            if waiting(pipe):
                self.take_from(pipe)

    def sealed(self) -> int:
        """To be read from its beginning, by one process that cannot change it. Closed with the image."""
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
        return self._owned.opened(lambda: os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC))

    def close(self) -> None:
        self._owned.close()


def waiting(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


def skip(pipe: int) -> None:
    """What one that failed has left there."""
    with suppress(BlockingIOError):
        for _ in range(64):
            if not os.read(pipe, _CHUNK):
                return


def refuse_image(error: CellError | None, image: SessionImage) -> None:
    """Where the worker had an error in place of its image, or too much of it."""
    if error is not None:
        raise not_forkable(error)
    if image.is_too_large:
        raise too_large(image)


def not_forkable(error: CellError) -> InvalidRequest:
    reason = error.message if error.name == "CannotBranch" else f"{error.name}: {error.message}"
    hint = "end, close or delete what is named, then fork again"
    return InvalidRequest(f"the session cannot be forked: {reason[:_LONGEST_REASON]}", hint=hint)


def too_large(image: SessionImage) -> InvalidRequest:
    return InvalidRequest(
        f"the session cannot be forked: its variables and private files take more than {image.most_bytes >> 20} MB",
        hint="delete some, or raise Limits(memory_mb=...)",
    )
