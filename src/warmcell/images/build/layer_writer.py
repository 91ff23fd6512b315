"""LayerWriter: a layer as a tar, entry by entry, with the owners that the build states. Nothing of the host's users."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable

from warmcell.core.errors import ImageInvalid
from warmcell.core.records import dataclass
from warmcell.core.timestamps import limit_tar_time
from warmcell.images.blobs import CHUNK, BlobWriter
from warmcell.images.limits import MAX_PATH_BYTES, Budget
from warmcell.images.tar_reader import BLOCK
from warmcell.images.tree_tar import Exactly, Readable

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Mode, owner and time of an entry."""

    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0


class LayerWriter:
    """Writes to a blob. `is_empty` until there is an entry; parents come before what is in them."""

    def __init__(self, blob: BlobWriter, budget: Budget) -> None:
        self._blob = blob
        self._budget = budget
        self.is_empty = True
        self._links: dict[tuple[int, int], str] = {}

    def finish(self) -> None:
        self._blob.write(bytes(2 * BLOCK))

    def add_directory(self, path: str, attributes: Attributes, *, is_opaque: bool = False) -> None:
        """`is_opaque`: what lower layers have in it is removed."""
        self._add(path, tarfile.DIRTYPE, attributes)
        if is_opaque:
            self._add(f"{path}/{OPAQUE}", tarfile.REGTYPE, Attributes(0), is_whiteout=True)

    def add_symlink(self, path: str, target: str, attributes: Attributes) -> None:
        self._add(path, tarfile.SYMTYPE, attributes, link=target)

    def add_hardlink(self, path: str, target: str, attributes: Attributes) -> None:
        self._add(path, tarfile.LNKTYPE, attributes, link=target)

    def add_whiteout(self, path: str) -> None:
        """What lower layers have at the path is removed."""
        directory, name = os.path.split(path)
        self._add(os.path.join(directory, WHITEOUT + name), tarfile.REGTYPE, Attributes(0), is_whiteout=True)

    def add_file(self, path: str, attributes: Attributes, size: int, content: Readable) -> None:
        """Exactly `size` bytes; zeros in place of those that the content lacks."""
        self._budget.count_bytes(size)
        self._add(path, tarfile.REGTYPE, attributes, size=size, content=Exactly(content, size))

    def add_linked_file(
        self, path: str, attributes: Attributes, state: os.stat_result, open_file: Callable[[], int]
    ) -> None:
        """A regular file, or a hard link if its inode was added before."""
        identity = (state.st_dev, state.st_ino)
        first = self._links.setdefault(identity, path) if state.st_nlink > 1 else path
        if first != path:
            self.add_hardlink(path, first, attributes)
            return
        with open(open_file(), "rb") as content:
            self.add_file(path, attributes, os.fstat(content.fileno()).st_size, content)

    def _add(
        self,
        path: str,
        kind: bytes,
        attributes: Attributes,
        *,
        link: str = "",
        size: int = 0,
        content: Exactly | None = None,
        is_whiteout: bool = False,
    ) -> None:
        self._budget.count_entry()
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ImageInvalid(f"a path of the layer has more than {MAX_PATH_BYTES} bytes: {path[:80]!r}...")
        name = os.path.basename(path)
        if name.startswith(WHITEOUT) and not is_whiteout:
            reason = f"names that begin with {WHITEOUT!r} mark deleted files in images"
            raise ImageInvalid(f"cannot add {path!r} to a layer: {reason}", hint="rename the file")
        entry = tarfile.TarInfo(path or ".")
        entry.type, entry.linkname, entry.size = kind, link, size
        entry.mode, entry.uid, entry.gid, entry.mtime = (
            attributes.mode & 0o7777,
            attributes.uid,
            attributes.gid,
            int(limit_tar_time(attributes.mtime)),
        )
        # GNU's format: names of any length and any bytes, without extended headers.
        self._blob.write(entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        while content is not None and (piece := content.read(CHUNK)):
            self._blob.write(piece)
        self._blob.write(bytes(-size % BLOCK))
        self.is_empty = False
