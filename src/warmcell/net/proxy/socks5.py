"""The part of SOCKS5 that guests need: CONNECT to names and addresses, without authentication."""

from __future__ import annotations

import ipaddress
from enum import IntEnum

from warmcell.net.connect.byte_streams import SocketStream
from warmcell.net.rules.hosts import Host, HostError, parse_host

VERSION = 5


class Reply(IntEnum):
    """Reply codes of RFC 1928."""

    SUCCEEDED = 0
    FAILED = 1
    NOT_ALLOWED = 2
    HOST_UNREACHABLE = 4
    REFUSED = 5
    COMMAND_UNSUPPORTED = 7
    ADDRESS_UNSUPPORTED = 8


class SocksError(Exception):
    """Protocol error or unsupported request. The caller sends `reply`."""

    def __init__(self, reply: Reply, message: str) -> None:
        super().__init__(message)
        self.reply = reply


class SocksHandshake:
    """Reads exactly the handshake and leaves the rest on the stream."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream

    async def read_request(self) -> tuple[Host, int]:
        """Read the request's destination. The caller sends the reply."""
        _version, count = await self._take(2)
        if 0 not in await self._take(count):
            await self._stream.write(bytes([VERSION, 0xFF]))
            raise SocksError(Reply.NOT_ALLOWED, "only the method 'no authentication' is supported")
        await self._stream.write(bytes([VERSION, 0]))
        version, command, _reserved, kind = await self._take(4)
        if version != VERSION:
            raise SocksError(Reply.FAILED, "not SOCKS5")
        host = await self._host(kind)
        port = int.from_bytes(await self._take(2), "big")
        if command != 1:
            raise SocksError(Reply.COMMAND_UNSUPPORTED, "only CONNECT is supported, not BIND or UDP")
        if port == 0:
            raise SocksError(Reply.NOT_ALLOWED, "port 0")
        return host, port

    async def _host(self, kind: int) -> Host:
        if kind == 1 or kind == 4:
            address = ipaddress.ip_address(await self._take(4 if kind == 1 else 16))
            return Host(str(address), address)
        if kind != 3:
            raise SocksError(Reply.ADDRESS_UNSUPPORTED, f"unknown address type {kind}")
        name = await self._take((await self._take(1))[0])
        try:
            return parse_host(name.decode("ascii"))
        except (HostError, UnicodeError) as error:
            raise SocksError(Reply.NOT_ALLOWED, str(error)) from None

    async def reply(self, code: Reply) -> None:
        await self._stream.write(bytes([VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]))

    async def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = await self._stream.read()
            if not more:
                raise SocksError(Reply.FAILED, "the client closed the connection")
            data += more
        self._stream.unread(data[count:])
        return data[:count]
