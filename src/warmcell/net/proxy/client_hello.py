"""Finds the server name in a TLS ClientHello, which may be split over any number of records. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_HELLO_BYTES = 64 * 1024
UNRECOGNIZED_NAME_ALERT = bytes([0x15, 3, 3, 0, 2, 2, 112])

_RECORD_HEAD = 5
_HANDSHAKE_RECORD = 0x16
_CLIENT_HELLO = 0x01
_SERVER_NAME = 0
_ASCII_NAME = re.compile(rb"[\x21-\x7e]{1,255}")


class NotTlsError(ValueError):
    """The bytes are not a TLS ClientHello."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """`server_name` is None if the client sent no SNI. With an encrypted hello it is only the outer name."""

    server_name: str | None


def looks_like_tls(data: bytes) -> bool:
    return data[:1] == bytes([_HANDSHAKE_RECORD]) and data[1:2] in (b"", b"\x03")


class HelloReader:
    """Incremental parser for a connection's first bytes.

    The guest chooses how the message is split into records and segments. The work is linear in the bytes received,
    and the bytes received before the hello is complete are bounded.
    """

    def __init__(self) -> None:
        #: All bytes so far, to be forwarded.
        self.received = bytearray()
        self._next_record = 0
        self._message = bytearray()

    def feed(self, data: bytes) -> ClientHello | None:
        """The hello; None if more bytes are needed. Raises `NotTlsError` as soon as the data cannot be one."""
        self.received += data
        while not self._is_whole() and self._take_record():
            pass
        if self._is_whole():
            return _hello(_Reader(bytes(self._message[4 : 4 + self._length])))
        if len(self.received) > MAX_HELLO_BYTES:
            raise NotTlsError("the ClientHello is incomplete")
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
        """Append the next record's payload to the message; False if the record is incomplete."""
        begin = self._next_record
        head = bytes(self.received[begin : begin + _RECORD_HEAD])
        if head and not looks_like_tls(head):
            raise NotTlsError("the connection does not start with a TLS handshake")
        if len(head) < _RECORD_HEAD:
            return False
        length = int.from_bytes(head[3:5], "big")
        if not 0 < length <= 1 << 14:
            raise NotTlsError("invalid TLS record length")
        end = begin + _RECORD_HEAD + length
        if len(self.received) < end:
            return False
        self._message += self.received[begin + _RECORD_HEAD : end]
        self._next_record = end
        return True


class _Reader:
    """Reads length-prefixed fields; `NotTlsError` if a length exceeds the data."""

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
    return ClientHello(name)


def _server_name(extension: bytes) -> str:
    entries = _Reader(_Reader(extension).vector(2))
    kind, name = entries.take(1), entries.vector(2)
    # With two names, or one of unknown type, servers differ in which one they use.
    if kind != b"\0" or entries.has_more() or not _ASCII_NAME.fullmatch(name):
        raise NotTlsError("the server name is malformed")
    return name.decode("ascii")
