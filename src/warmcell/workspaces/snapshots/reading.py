"""ChunkReader: reads and verifies chunks for one operation."""

from __future__ import annotations

import os
import shutil

from warmcell.lifetime.own_modes import make_directory
from warmcell.workspaces.snapshots.catalogue import Catalogue, find_chunk
from warmcell.workspaces.snapshots.chunks import ChunkCodec, damage_error
from warmcell.workspaces.snapshots.objects import PACKS, Objects, Staging, missing

_KEPT_OPEN = 32


class ChunkReader:
    """Calling it with a digest returns the data. Packs of a URL are copied here once. `close` removes the copies."""

    def __init__(self, catalogue: Catalogue, objects: Objects, staging: Staging, codec: ChunkCodec) -> None:
        self._objects, self._codec = objects, codec
        self._connection = catalogue.connect()
        self._database = self._connection.__enter__()
        self._copies = staging.new_path()
        self._open: dict[str, int] = {}

    def __call__(self, digest: str) -> bytes:
        return self._codec.open(self.read_stored(digest), digest)

    def read_stored(self, digest: str) -> bytes:
        """As it lies in the pack, not verified."""
        place = find_chunk(self._database, digest)
        if place is None:
            raise missing("chunk", digest)
        pack, offset, length = place
        data = os.pread(self._descriptor(pack), length, offset)
        if len(data) != length:
            raise damage_error(f"packs/{pack}", "the pack is incomplete")
        return data

    def fetch(self, pack: str) -> str:
        """The path of a pack, or of a copy of it."""
        if not os.path.isdir(self._copies):
            make_directory(self._copies)
        return self._objects.fetch(PACKS, pack, self._copies)

    def _descriptor(self, pack: str) -> int:
        if pack not in self._open:
            if len(self._open) >= _KEPT_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            try:
                self._open[pack] = os.open(self.fetch(pack), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise missing(PACKS, pack) from None
        return self._open[pack]

    def close(self) -> None:
        self._connection.__exit__(None, None, None)
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        shutil.rmtree(self._copies, ignore_errors=True)  # missing if nothing was fetched
