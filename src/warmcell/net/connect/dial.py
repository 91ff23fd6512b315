"""Connect to addresses that were admitted."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence

from warmcell.core.errors import FetchFailed
from warmcell.net.connect.byte_streams import READ_SIZE, SocketStream
from warmcell.net.rules.hosts import Host, IPAddress

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
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
        return connection
    except BaseException:
        connection.close()
        raise


async def open_stream(
    host: Host, port: int, addresses: Sequence[IPAddress], tls: ssl.SSLContext | None, dial: Dial = dial
) -> SocketStream:
    """Open a stream to one of the admitted addresses. With TLS, the certificate must match the host's name."""
    where = f"{host.in_url}:{port}"
    try:
        connection = await dial(addresses, port)
    except OSError as error:
        raise FetchFailed(f"could not connect to {where}: {_cause(error)}", reason="connect") from None
    try:
        reader, writer = await asyncio.open_connection(
            sock=connection, ssl=tls, server_hostname=host.name if tls else None, limit=READ_SIZE
        )
    except ssl.SSLError as error:
        connection.close()
        raise FetchFailed(f"TLS with {where} failed: {_tls_reason(error)}", reason="tls") from None
    except OSError as error:
        connection.close()
        reason = "tls" if tls else "connect"
        raise FetchFailed(f"could not connect to {where}: {_cause(error)}", reason=reason) from None
    except BaseException:
        connection.close()
        raise
    return SocketStream(reader, writer)


def _cause(error: OSError) -> str:
    """The errno's text alone: asyncio's message contains the address, which guests must not see."""
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
