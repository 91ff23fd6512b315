"""Packs: files of chunks, with an index at the end. A snapshot writes its new chunks to as few as possible.

chunk chunk ... | index: (digest, offset, length)... | number of chunks, digest of the index, magic
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from typing import NamedTuple

from warmcell.workspace.files import write_all
from warmcell.workspaces.snapshots.chunks import damage_error
from warmcell.workspaces.snapshots.objects import PACKS, Objects, Staging

#: A pack is closed when it is larger: the unit of transfers to and from a URL, and of compaction.
PACK_BYTES = 64 * 1024 * 1024
_ROW = struct.Struct(">24sQI")
_FOOTER = struct.Struct(">Q24s8s")
_MAGIC = b"WCPACK01"
_BUFFER = 1 << 20


class ChunkPlace(NamedTuple):
    digest: str
    offset: int
    length: int


class Pack(NamedTuple):
    name: str
    chunks: list[ChunkPlace]


class PackWriter:
    """Writes chunks to packs. They are in the store after `finish`; `abandon` removes what was not finished."""

    def __init__(self, objects: Objects, staging: Staging) -> None:
        self._objects, self._staging = objects, staging
        self._path, self._fd = "", -1
        self._buffer = bytearray()
        self._size = 0
        self._places: list[ChunkPlace] = []
        self.packs: list[Pack] = []

    def append(self, digest: str, stored: bytes) -> None:
        if self._fd < 0:
            self._path = self._staging.new_path()
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._places.append(ChunkPlace(digest, self._size, len(stored)))
        self._buffer += stored
        self._size += len(stored)
        if len(self._buffer) > _BUFFER:
            self._flush()
        if self._size > PACK_BYTES:
            self.finish()

    def finish(self) -> None:
        """Put the open pack into the store."""
        if self._fd < 0:
            return
        rows = b"".join(_ROW.pack(bytes.fromhex(place.digest), *place[1:]) for place in self._places)
        self._buffer += rows + _FOOTER.pack(len(self._places), _digest(rows), _MAGIC)
        self._flush()
        os.close(self._fd)
        self._fd = -1
        name = secrets.token_hex(16)
        self._objects.put(PACKS, name, self._path)
        self.packs.append(Pack(name, self._places))
        self._places, self._size = [], 0

    def abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            os.unlink(self._path)

    def _flush(self) -> None:
        write_all(self._fd, bytes(self._buffer))
        self._buffer.clear()


def read_index(path: str, name: str) -> Pack:
    """The index of a pack; `SnapshotInvalid` if the file is not a whole pack."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _FOOTER.size:
            raise damage_error(name, "the pack is incomplete")
        file.seek(size - _FOOTER.size)
        count, digest, magic = _FOOTER.unpack(file.read(_FOOTER.size))
        start = size - _FOOTER.size - count * _ROW.size
        if magic != _MAGIC or start < 0:
            raise damage_error(name, "the pack is incomplete")
        file.seek(start)
        rows = file.read(count * _ROW.size)
    if _digest(rows) != digest:
        raise damage_error(name, "the index of the pack has changed")
    return Pack(name, [ChunkPlace(row[0].hex(), *row[1:]) for row in _ROW.iter_unpack(rows)])


def _digest(rows: bytes) -> bytes:
    return hashlib.blake2b(rows, digest_size=24).digest()
