"""The first message of a TLS connection, read only as far as the name that it asks for. Pure.

A client may split the message over as many records as it likes; everything is put together before it is judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_HELLO_BYTES = 64 * 1024
UNRECOGNIZED_NAME_ALERT = bytes([0x15, 3, 3, 0, 2, 2, 112])

_HANDSHAKE_RECORD = 0x16
_CLIENT_HELLO = 0x01
_SERVER_NAME = 0
_ENCRYPTED_HELLO = 0xFE0D
_ASCII_NAME = re.compile(rb"[\x21-\x7e]{1,255}")


class NotTlsError(ValueError):
    """The bytes are no TLS ClientHello."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """`server_name` is None when the client did not say. With an encrypted hello it is only the outer name."""

    server_name: str | None
    has_encrypted_hello: bool = False


def looks_like_tls(data: bytes) -> bool:
    return data[:1] == bytes([_HANDSHAKE_RECORD]) and data[1:2] in (b"", b"\x03")


def parse_client_hello(data: bytes) -> ClientHello | None:
    """The hello, or None when more bytes are needed. Raises `NotTlsError` as soon as it cannot be one."""
    message = _handshake_bytes(data)
    if message is None or len(message) < 4:
        return _more(data)
    if message[0] != _CLIENT_HELLO:
        raise NotTlsError("the first TLS message is not a ClientHello")
    length = int.from_bytes(message[1:4], "big")
    if length > MAX_HELLO_BYTES:
        raise NotTlsError("the ClientHello is too long")
    if len(message) < 4 + length:
        return _more(data)
    return _hello(_Reader(message[4 : 4 + length]))


def _more(data: bytes) -> ClientHello | None:
    if len(data) > MAX_HELLO_BYTES:
        raise NotTlsError("the ClientHello does not end")
    return None


def _handshake_bytes(data: bytes) -> bytes | None:
    """The content of the leading handshake records; the last one may still be on its way."""
    content, position = b"", 0
    while position < len(data):
        if data[position] != _HANDSHAKE_RECORD or data[position + 1 : position + 2] not in (b"", b"\x03"):
            raise NotTlsError("the connection does not begin with TLS")
        if position + 5 > len(data):
            return content
        length = int.from_bytes(data[position + 3 : position + 5], "big")
        if not 0 < length <= 1 << 14:
            raise NotTlsError("a TLS record has an impossible length")
        content += data[position + 5 : position + 5 + length]
        position += 5 + length
        if len(content) >= 4 and len(content) >= 4 + int.from_bytes(content[1:4], "big"):
            return content
    return content


class _Reader:
    """Length-prefixed fields, with an error where the lengths do not add up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, count: int) -> bytes:
        piece = self._data[self._position : self._position + count]
        if len(piece) != count:
            raise NotTlsError("the ClientHello is malformed")
        self._position += count
        return piece

    def vector(self, length_bytes: int) -> bytes:
        return self.take(int.from_bytes(self.take(length_bytes), "big"))

    def has_more(self) -> bool:
        return self._position < len(self._data)


def _hello(reader: _Reader) -> ClientHello:
    reader.take(2 + 32)
    for length_bytes in (1, 2, 1):  # session id, cipher suites, compression methods
        reader.vector(length_bytes)
    if not reader.has_more():
        return ClientHello(None)
    extensions = _Reader(reader.vector(2))
    found: dict[int, bytes] = {}
    while extensions.has_more():
        kind = int.from_bytes(extensions.take(2), "big")
        if kind in found:
            raise NotTlsError("the ClientHello repeats an extension")
        found[kind] = extensions.vector(2)
    name = _server_name(found[_SERVER_NAME]) if _SERVER_NAME in found else None
    return ClientHello(name, _ENCRYPTED_HELLO in found)


def _server_name(extension: bytes) -> str:
    entries = _Reader(_Reader(extension).vector(2))
    kind, name = entries.take(1), entries.vector(2)
    # Two names, or a name of unknown kind, would leave it to the server which one counts.
    if kind != b"\0" or entries.has_more() or not _ASCII_NAME.fullmatch(name):
        raise NotTlsError("the server name is malformed")
    return name.decode("ascii")
