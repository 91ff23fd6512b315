"""The first message of a TLS connection, read only as far as the name that it asks for. Pure.

A client may split the message over as many records as it likes; everything is put together before it is judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_HELLO_BYTES = 64 * 1024
UNRECOGNIZED_NAME_ALERT = bytes([0x15, 3, 3, 0, 2, 2, 112])

_RECORD_HEAD = 5
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
    return HelloReader().feed(data)


class HelloReader:
    """Takes a connection's first bytes as they come and looks at each of them once.

    A guest chooses how they are cut into records and how these arrive, down to single bytes: whatever it chooses, the
    work is proportional to what it sent, and what it may send before a whole hello is there is bounded.
    """

    def __init__(self) -> None:
        #: Everything that came, to be passed on; of it, where the next record begins, and the message so far.
        self.received = bytearray()
        self._next_record = 0
        self._message = bytearray()

    def feed(self, data: bytes) -> ClientHello | None:
        self.received += data
        while not self._is_whole() and self._take_record():
            pass
        if self._is_whole():
            return _hello(_Reader(bytes(self._message[4 : 4 + self._length])))
        if len(self.received) > MAX_HELLO_BYTES:
            raise NotTlsError("the ClientHello does not end")
        return None

    @property
    def _length(self) -> int:
        return int.from_bytes(self._message[1:4], "big")

    def _is_whole(self) -> bool:
        if self._message[:1] not in (b"", bytes([_CLIENT_HELLO])):
            raise NotTlsError("the first TLS message is not a ClientHello")
        if len(self._message) < 4:
            return False
        if self._length > MAX_HELLO_BYTES:
            raise NotTlsError("the ClientHello is too long")
        return len(self._message) >= 4 + self._length

    def _take_record(self) -> bool:
        """Moves the next record's content into the message; False when it is not all there yet."""
        begin = self._next_record
        head = bytes(self.received[begin : begin + _RECORD_HEAD])
        if head and not looks_like_tls(head):
            raise NotTlsError("the connection does not begin with TLS")
        if len(head) < _RECORD_HEAD:
            return False
        length = int.from_bytes(head[3:5], "big")
        if not 0 < length <= 1 << 14:
            raise NotTlsError("a TLS record has an impossible length")
        end = begin + _RECORD_HEAD + length
        if len(self.received) < end:
            return False
        self._message += self.received[begin + _RECORD_HEAD : end]
        self._next_record = end
        return True


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
