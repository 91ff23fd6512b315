"""Resolves names, once per connection, and connects to the admitted addresses; byte streams."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

from warmcell.core.errors import FetchFailed
from warmcell.core.light import on_error
from warmcell.lifetime.ownership import own
from warmcell.net.connect.limits import FairSlots
from warmcell.net.rules.hosts import Host, IPAddress

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns every address of a name as text. Called once per connection; raises `OSError` if the lookup fails."""

MAX_ADDRESSES = 32
LOOKUP_SECONDS = 10.0
MAX_LOOKUPS = 64

_slots = FairSlots(MAX_LOOKUPS)


class _LookupCounts:
    """Lookups in progress per event loop. Each proxy, and so each guest, has its own loop.

    A lookup keeps its slot until getaddrinfo returns, even if the caller no longer waits.
    """

    def __init__(self) -> None:
        self._under_way: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
        own(self)
        self.abandon()

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._under_way.clear()

    def begin(self, loop: asyncio.AbstractEventLoop) -> bool:
        with self._lock:
            held = self._under_way.get(loop, 0)
            if not _slots.take(held):
                return False
            self._under_way[loop] = held + 1
            return True

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._under_way[loop] = max(0, self._under_way.get(loop, 0) - 1)
        _slots.release()


_lookups = _LookupCounts()


async def system_resolver(name: str, port: int) -> Sequence[str]:
    """Run `getaddrinfo` in a daemon thread, so that a stuck lookup blocks neither the loop nor interpreter exit."""
    loop = asyncio.get_running_loop()
    if not _lookups.begin(loop):
        raise OSError("too many name lookups in progress")
    answer: asyncio.Future[list[str]] = loop.create_future()

    def look_up() -> None:
        try:
            records = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            settle(answer.set_result, [str(record[4][0]) for record in records])
        except (OSError, UnicodeError) as error:
            settle(answer.set_exception, error)
        finally:
            _lookups.end(loop)

    def settle(put: Callable[..., None], value: object) -> None:
        # RuntimeError: the loop is closed, so no task is waiting for the result.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if answer.done() else put(value))

    try:
        threading.Thread(target=look_up, name=f"resolve {name[:40]}", daemon=True).start()
    except RuntimeError as error:  # can't start new thread
        _lookups.end(loop)
        raise OSError(str(error)) from None
    async with asyncio.timeout(LOOKUP_SECONDS):
        return await answer


async def resolve_host(host: Host, port: int, resolver: Resolver) -> tuple[IPAddress, ...]:
    """All addresses of the host, in the resolver's order. A literal needs no lookup."""
    if host.address is not None:
        return (host.address,)
    try:
        records = await resolver(host.name, port)
        found = tuple(dict.fromkeys(_address(record) for record in records))
    except (OSError, UnicodeError) as error:
        # `TimeoutError` is an `OSError`. Only the lookup's deadline arrives here; the fetch's raises CancelledError.
        raise FetchFailed(f"could not resolve {host}: {str(error) or 'timed out'}", reason="dns") from None
    except ValueError:
        message = f"could not resolve {host}: the resolver returned an invalid IP address"
        raise FetchFailed(message, reason="dns") from None
    if not found:
        raise FetchFailed(f"{host} has no address", reason="dns")
    if len(found) > MAX_ADDRESSES:
        raise FetchFailed(f"{host} has more than {MAX_ADDRESSES} addresses", reason="dns")
    return found


def _address(text: str) -> IPAddress:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        return ipaddress.IPv6Address(int(address))
    return address


READ_SIZE = 128 * 1024

Result = TypeVar("Result")


class ByteStream(Protocol):
    """`read` returns b"" at EOF; `write` waits while the peer's window is full; `close` aborts the connection."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def write_eof(self) -> None: ...

    def close(self) -> None: ...


class SocketStream:
    """An asyncio connection. `unread` pushes data back to be read again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._peeked = b""
        self.bytes_read = self.bytes_written = 0

    async def read(self) -> bytes:
        if self._peeked:
            data, self._peeked = self._peeked, b""
            return data
        data = await self._reader.read(READ_SIZE)
        self.bytes_read += len(data)
        return data

    def unread(self, data: bytes) -> None:
        self._peeked = data + self._peeked

    async def write(self, data: bytes) -> None:
        self.bytes_written += len(data)
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        with contextlib.suppress(OSError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    async def aclose(self) -> None:
        """Close after flushing pending writes."""
        with contextlib.suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()

    def close(self) -> None:
        # Abort rather than close: a peer that does not read would keep the buffer and the socket alive.
        self._writer.transport.abort()


class TlsServerStream:
    """The server side of TLS, for hosts terminated by the sandbox's own CA.

    Wraps a stream rather than a socket because the ClientHello has already been read.
    """

    def __init__(self, inner: ByteStream, context: ssl.SSLContext) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        await self._drive(self._tls.do_handshake)

    async def read(self) -> bytes:
        try:
            return await self._drive(lambda: self._tls.read(READ_SIZE))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def write(self, data: bytes) -> None:
        sent = 0
        while sent < len(data):
            sent += await self._drive(partial(self._tls.write, memoryview(data)[sent:]))

    async def write_eof(self) -> None:
        """Does nothing: TLS has no useful half-closed state. `aclose` sends close_notify."""

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        """Send close_notify, which lets the client tell a complete response from a truncated one."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        await self._flush()

    async def _drive(self, step: Callable[[], Result]) -> Result:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._inner.read()
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._inner.write(self._outgoing.read())


Dial = Callable[[Sequence[IPAddress], int], Awaitable[socket.socket]]
"""Connects to one of the addresses; raises `OSError` if none accepts."""

SECONDS_PER_ADDRESS = 4.0


async def dial(addresses: Sequence[IPAddress], port: int) -> socket.socket:
    """Connect to the first address that accepts. Takes addresses, not names, so that nothing is resolved twice."""
    last_error: OSError = OSError("no address to connect to")
    for position, address in enumerate(addresses):
        is_last = position == len(addresses) - 1
        try:
            # The last address has no limit of its own: the caller's deadline applies.
            async with asyncio.timeout(None if is_last else SECONDS_PER_ADDRESS):
                return await _connect(address, port)
        except OSError as error:
            last_error = error
    raise last_error


async def _connect(address: IPAddress, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with on_error(connection.close):
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
        return connection


async def open_stream(
    host: Host, port: int, addresses: Sequence[IPAddress], tls: ssl.SSLContext | None, dial: Dial = dial
) -> SocketStream:
    """Open a stream to one of the admitted addresses. With TLS, the certificate must match the host's name."""
    where = f"{host.in_url}:{port}"
    try:
        connection = await dial(addresses, port)
    except OSError as error:
        raise FetchFailed(f"could not connect to {where}: {_cause(error)}", reason="connect") from None
    with on_error(connection.close):
        try:
            name = host.name if tls else None
            streams = await asyncio.open_connection(sock=connection, ssl=tls, server_hostname=name, limit=READ_SIZE)
        except ssl.SSLError as error:
            raise FetchFailed(f"TLS with {where} failed: {_tls_reason(error)}", reason="tls") from None
        except OSError as error:
            reason = "tls" if tls else "connect"
            raise FetchFailed(f"could not connect to {where}: {_cause(error)}", reason=reason) from None
    return SocketStream(*streams)


def _cause(error: OSError) -> str:
    """The errno's text only: asyncio's message contains the address, which guests must not see."""
    if error.errno:
        return os.strerror(error.errno)
    return "timed out" if isinstance(error, TimeoutError) else "connection closed"


def _tls_reason(error: ssl.SSLError) -> str:
    message = getattr(error, "verify_message", None)
    return f"the certificate is not valid for this host: {message}" if message else error.reason or str(error)


def client_tls() -> ssl.SSLContext:
    """The system's trust store, TLS 1.2 and later, HTTP/1.1 only."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
