"""StateCipher: encrypts records (which have secrets), variables of sessions and files below `--state`.

Each piece is bound to the place where it is stored: one that was moved, cut or changed cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import IO

from warmcell.core.errors import InvalidRequest
from warmcell.workspaces.snapshots.chunks import derive_key, make_cipher, parse_key

KEY_VARIABLE = "WARMCELL_STATE_KEY"
_CONTENT, _CHECK, _FILES = b"warmcell state", b"warmcell state check", b"warmcell state files "
_NONCE_BYTES, _LENGTH_BYTES = 12, 4
#: A piece is at most this long. Bounds what a damaged file makes us read.
PIECE = 1 << 20
_MAX_STORED = PIECE + 64


class StateCipher:
    """`key` is 64 hexadecimal digits; None: nothing is encrypted."""

    def __init__(self, key: str | None) -> None:
        self._secret = secret = None if key is None else parse_key(key)
        self._cipher = None if secret is None else make_cipher(derive_key(secret, _CONTENT))
        #: Identifies the key and reveals nothing else about it.
        self.fingerprint = None if secret is None else derive_key(secret, _CHECK).hex()[:32]

    def derive_for(self, place: str) -> bytes | None:
        """The key for files stored at this place; None if nothing is encrypted."""
        return None if self._secret is None else derive_key(self._secret, _FILES + place.encode())

    def seal(self, data: bytes, place: str) -> bytes:
        if self._cipher is None:
            return data
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + bytes(self._cipher.encrypt(nonce, data, place.encode()))

    def open(self, stored: bytes, place: str) -> bytes:
        """Decrypt what `seal` made for this place. Raises `ValueError` for anything else."""
        if self._cipher is None:
            return stored
        from cryptography.exceptions import InvalidTag

        try:
            return bytes(self._cipher.decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], place.encode()))
        except InvalidTag:
            raise ValueError("it was changed, or encrypted with another key") from None

    def write(self, file: IO[bytes], pieces: Iterable[bytes], place: str) -> None:
        """Write pieces of at most `PIECE` bytes, and an empty one as the end."""
        number = 0
        for number, piece in enumerate(pieces, 1):  # the number of the last one is used
            self._write_piece(file, piece, f"{place}/{number}")
        self._write_piece(file, b"", f"{place}/{number + 1}")

    def _write_piece(self, file: IO[bytes], piece: bytes, place: str) -> None:
        sealed = self.seal(piece, place)
        file.write(len(sealed).to_bytes(_LENGTH_BYTES, "big") + sealed)

    def read(self, file: IO[bytes], place: str) -> Iterator[bytes]:
        """Yield the pieces that `write` was given. Raises `ValueError` if they are damaged."""
        number = 0
        while True:
            number += 1
            header = file.read(_LENGTH_BYTES)
            length = int.from_bytes(header, "big")
            if length > _MAX_STORED:
                raise ValueError("it is damaged")
            stored = file.read(length)
            if len(header) + len(stored) < _LENGTH_BYTES + length:
                raise ValueError("it is incomplete")
            piece = self.open(stored, f"{place}/{number}")
            if not piece:
                return
            yield piece


def read_key(path: str | None) -> str | None:
    """Read the key from a file, else from the variable WARMCELL_STATE_KEY; None if there is neither."""
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        with open(path, encoding="ascii") as file:
            key = file.read(1024).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read the key {path!r}: {error}", field="state-key") from None
    parse_key(key)
    return key
