"""StoredImages: the image store of one host, as the source or the target of a copy between hosts. Blocking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from warmcell.core.errors import ImageNotFound
from warmcell.core.records import dataclass
from warmcell.core.types import MIB
from warmcell.images import ImageStore
from warmcell.images.blobs import BlobWriter
from warmcell.images.limits import Budget
from warmcell.images.records import StoreParts

#: Bytes of a blob in one message.
CHUNK = 4 * MIB
#: Digest and size of a blob.
Blob = tuple[str, int]


@dataclass(slots=True)
class _Incoming:
    """An image that is being received. While `stack` is open, nothing is removed from the store."""

    name: str
    parts: StoreParts
    stack: ExitStack
    writer: BlobWriter | None = None


class StoredImages:
    """`path` as in `ImageStore`. One copy of an image is received at a time; the sender waits for each answer."""

    def __init__(self, path: str | None = None) -> None:
        self._store = ImageStore(path)
        self._incoming: dict[str, _Incoming] = {}

    def find(self, reference: str) -> tuple[str, str] | None:
        """Name and digest of an image that is here."""
        try:
            image = self._store.get(reference)
        except ImageNotFound:
            return None
        return image.name, image.digest

    def pull(self, reference: str) -> tuple[str, str]:
        """Name and digest of an image from its registry."""
        image = self._store.pull(reference)
        return image.name, image.digest

    def list_blobs(self, digest: str) -> list[Blob]:
        with self._store.adding() as parts:
            names: list[str] = parts.records.image(digest)["blobs"]
            return [(name, _size_of(parts, name)) for name in dict.fromkeys(names)]

    def read_blob(self, blob: str, offset: int) -> bytes:
        with self._store.adding() as parts, parts.blobs.open(blob) as file:
            file.seek(offset)
            return file.read(CHUNK)

    # ---- the target ----

    def begin(self, digest: str, name: str, blobs: Sequence[Blob]) -> list[Blob]:
        """The blobs that are missing here. `finish` or `abandon` follows."""
        self.abandon(digest)
        with ExitStack() as stack:
            parts = stack.enter_context(self._store.adding())
            budget = Budget(parts.limits)
            for _, size in blobs:
                budget.count_bytes(size)
            missing = [(blob, size) for blob, size in blobs if not parts.blobs.has(blob)]
            self._incoming[digest] = _Incoming(name, parts, stack.pop_all())
            return missing

    def write(self, digest: str, blob: str, size: int, data: bytes) -> None:
        """The next bytes of a blob; none: there are no more. It is verified when all of them are here."""
        incoming = self._incoming[digest]
        if incoming.writer is None:
            incoming.writer = incoming.stack.enter_context(incoming.parts.blobs.writer())
        incoming.writer.write(data)
        if incoming.writer.size >= size or not data:
            incoming.writer.commit(blob, size)
            incoming.writer = None

    def finish(self, digest: str) -> None:
        """Unpacks the image, whose layers are verified again, and names it."""
        with self._take(digest) as incoming:
            self._store.add_image(digest, incoming.name)

    def abandon(self, digest: str) -> None:
        if digest in self._incoming:
            with self._take(digest):
                pass

    def close(self) -> None:
        for digest in tuple(self._incoming):
            self.abandon(digest)

    @contextmanager
    def _take(self, digest: str) -> Iterator[_Incoming]:
        incoming = self._incoming.pop(digest)
        with incoming.stack:
            yield incoming


def _size_of(parts: StoreParts, blob: str) -> int:
    with parts.blobs.open(blob) as file:
        return file.seek(0, 2)
