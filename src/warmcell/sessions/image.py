"""A session's image, copied from one cage to another: bytes in memory, bounded and never interpreted here.

The guest wrote it. Only an interpreter in a cage may load it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from warmcell.core.errors import InvalidRequest
from warmcell.core.light import Closing
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.runner.streams import unread_bytes
from warmcell.sessions.cell_results import CellError
from warmcell.workspace.files import write_all

_CHUNK = 1 << 20
_LONGEST_REASON = 1000
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class SessionImage(Closing):
    """Filled from a worker's pipe, then given to another worker as a file to read."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._owned = Descriptors()
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            self._file = self._owned.open(lambda: os.memfd_create("warmcell-image", flags))
        except OSError as error:
            raise host_failure(error, "copy the session") from error
        self.size = 0
        self._is_sealed = False
        #: How many cells the session had run.
        self.cells = 0

    @property
    def is_too_large(self) -> bool:
        return self.size > self.most_bytes

    def take_from(self, pipe: int) -> bool:
        """Reads one piece; False at the end. Excess data is read and dropped."""
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return True
        self.size += len(data)
        if not self.is_too_large:
            write_all(self._file, data)
        return bool(data)

    def take_rest(self, pipe: int) -> None:
        """Reads what the pipe holds now, without waiting for a process that keeps writing."""
        for _ in range(unread_bytes(pipe) // _CHUNK + 1):
            if unread_bytes(pipe):
                self.take_from(pipe)

    def seal(self) -> None:
        """Forbids changes: many sessions may map the same pages."""
        if not self._is_sealed:
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
            self._is_sealed = True

    @contextmanager
    def open_reader(self) -> Iterator[int]:
        """A read-only descriptor of the sealed image, with an offset of its own."""
        self.seal()
        path, owned = f"/proc/self/fd/{self._file}", Descriptors()
        try:
            yield owned.open(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        finally:
            owned.close()

    def pieces(self) -> Iterator[bytes]:
        """Its content, for a file."""
        with self.open_reader() as descriptor:
            while data := os.read(descriptor, _CHUNK):
                yield data

    def add(self, data: bytes) -> None:
        """Appends a piece of a stored image. `InvalidRequest` if it becomes too large."""
        self.size += len(data)
        if self.is_too_large:
            raise too_large(self)
        write_all(self._file, data)

    def close(self) -> None:
        self._owned.close()


def skip(pipe: int) -> None:
    """Discards data of an earlier image that failed."""
    with suppress(BlockingIOError):
        for _ in range(64):
            if not os.read(pipe, _CHUNK):
                return


def refuse_image(error: CellError | None, image: SessionImage) -> None:
    """Raises if the worker reported an error or its image is too large."""
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
