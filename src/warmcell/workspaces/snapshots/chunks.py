"""Chunks: pieces of data named by their digest, compressed, and encrypted if there is a key.

Data is verified against its digest when it is read, so a chunk that changed on disk is never used.

Packs are files of chunks, with an index at the end. A snapshot writes its new chunks to as few packs as possible:

chunk chunk ... | index: (digest, offset, length)... | number of chunks, digest of the index, magic
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
import zlib
from typing import Any, NamedTuple

from warmcell.core.errors import BackendUnavailable, InvalidRequest, SnapshotInvalid
from warmcell.core.light import Closing, on_error
from warmcell.lifetime.own_modes import grant_owner
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.files import write_all
from warmcell.workspaces.snapshots.objects import PACKS, Objects, Staging, discard, explain_writes

#: Files are split into blocks of this size.
BLOCK = 256 * 1024
#: The largest chunk: a list of names can be longer than a block. Limits the expansion of a hostile chunk.
MAX_CHUNK = 64 * 1024 * 1024
KEY_BYTES = 32
#: The environment variable with the default key of stores, as hexadecimal digits.
KEY_VARIABLE = "WARMCELL_STORE_KEY"
_DIGEST_BYTES = 24
_RAW, _DEFLATED = b"\x00", b"\x01"
_NONCE_BYTES = 12
_SAMPLE = 4096
_ZEROS = bytes(_SAMPLE)
#: The digests of chunks depend on the key too: without the key, one cannot test whether a known file is in it.
_NAMES, _CONTENT = b"warmcell names", b"warmcell content"
#: A pack is closed when it exceeds this. Packs are the unit of transfers to and from a URL, and of compaction.
PACK_BYTES = 64 * 1024 * 1024
_ROW = struct.Struct(">24sQI")
_FOOTER = struct.Struct(">Q24s8s")
_MAGIC = b"WCPACK01"
_BUFFER = 1 << 20


class ChunkCodec:
    """Names, compresses and encrypts chunks. Without a key they are not encrypted."""

    def __init__(self, key: bytes | None = None) -> None:
        self._name_key = b"" if key is None else derive_key(key, _NAMES)
        self._cipher: Any = None if key is None else make_cipher(derive_key(key, _CONTENT))

    def digest(self, data: bytes) -> str:
        return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=self._name_key).hexdigest()

    def seal(self, data: bytes, digest: str, *, is_compressed: bool = True) -> bytes:
        """The stored form of a chunk. `LimitExceeded` if `open` would refuse it: what is stored can be read again."""
        if len(data) > MAX_CHUNK:
            reason = "has too many names that cannot be stored, or a file with too many blocks, for a snapshot"
            raise LimitExceeded(".", reason, limit=MAX_CHUNK, hint="remove such files, or take a smaller directory")
        packed = zlib.compress(data, 1) if is_compressed and is_worth_compressing(data) else data
        body = _DEFLATED + packed if len(packed) < len(data) else _RAW + data
        if self._cipher is None:
            return body
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + bytes(self._cipher.encrypt(nonce, body, digest.encode()))

    def open(self, stored: bytes, digest: str) -> bytes:
        """The data of a stored chunk; `SnapshotInvalid` if it does not match the digest."""
        data = _unpack(self._decrypt(stored, digest), digest)
        if not hmac.compare_digest(self.digest(data), digest):
            raise damage_error(digest, "its content has changed")
        return data

    def _decrypt(self, stored: bytes, digest: str) -> bytes:
        if self._cipher is None:
            return stored
        from cryptography.exceptions import InvalidTag

        try:
            return bytes(self._cipher.decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], digest.encode()))
        except (InvalidTag, ValueError):
            raise damage_error(digest, "it cannot be decrypted with this key") from None


def is_worth_compressing(data: bytes) -> bool:
    """False for most images, archives and random data: compression takes ten times as long as everything else."""
    if len(data) <= 3 * _SAMPLE or _ZEROS in data:  # a sparse file must not take more space than its data
        return True
    middle = len(data) // 2
    sample = data[:_SAMPLE] + data[middle : middle + _SAMPLE] + data[-_SAMPLE:]
    return len(zlib.compress(sample, 1)) < 0.95 * len(sample)


def damage_error(what: str, reason: str) -> SnapshotInvalid:
    return SnapshotInvalid(f"the store is damaged at {what[:80]}: {reason}", hint="restore the store from a backup")


def parse_key(text: str) -> bytes:
    """Parse a key of 64 hexadecimal digits."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        hint = "make one with: python3 -c 'import secrets; print(secrets.token_hex(32))'"
        raise InvalidRequest(f"must be {2 * KEY_BYTES} hexadecimal digits", field="key", hint=hint)
    return key


def derive_key(key: bytes, purpose: bytes) -> bytes:
    """Derive a key for one purpose."""
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise InvalidRequest(f"must be {KEY_BYTES} bytes", field="key")
    return hmac.digest(key, purpose, "sha256")


def make_cipher(key: bytes) -> Any:
    """AES-GCM. Raises `BackendUnavailable` without the extra."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        reason = "encryption needs the package 'cryptography', which is not installed"
        raise BackendUnavailable(reason, hint="pip install 'warmcell[encryption]'") from None
    return AESGCM(key)


def _unpack(body: bytes, digest: str) -> bytes:
    kind, content = body[:1], body[1:]
    if kind == _RAW and len(content) <= MAX_CHUNK:
        return content
    if kind != _DEFLATED:
        raise damage_error(digest, "its format is unknown")
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(content, MAX_CHUNK)
    except zlib.error:
        raise damage_error(digest, "it cannot be decompressed") from None
    if not unpacker.eof or unpacker.unused_data:
        raise damage_error(digest, "it is incomplete or too large")
    return data


class ChunkPlace(NamedTuple):
    digest: str
    offset: int
    length: int


class Pack(NamedTuple):
    name: str
    chunks: list[ChunkPlace]


class PackWriter(Closing):
    """Writes chunks to packs. `finish` adds the open pack to the store; `close` removes it."""

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
            with explain_writes():
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                grant_owner(self._fd)
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
        name = secrets.token_hex(16)
        with explain_writes(), on_error(lambda: discard(self._path)):
            fd, self._fd = self._fd, -1
            os.close(fd)
            self._objects.put(PACKS, name, self._path)
        self.packs.append(Pack(name, self._places))
        self._places, self._size = [], 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            os.unlink(self._path)

    def _flush(self) -> None:
        with explain_writes():
            write_all(self._fd, bytes(self._buffer))
        self._buffer.clear()


def read_index(path: str, name: str) -> Pack:
    """Read the index of a pack; `SnapshotInvalid` if the pack is incomplete or damaged."""
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
    chunks = [ChunkPlace(row[0].hex(), *row[1:]) for row in _ROW.iter_unpack(rows)]
    if any(chunk.offset + chunk.length > start for chunk in chunks):
        raise damage_error(name, "the index of the pack refers to data beyond its end")
    return Pack(name, chunks)


def _digest(rows: bytes) -> bytes:
    return hashlib.blake2b(rows, digest_size=24).digest()
