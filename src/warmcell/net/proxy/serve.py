"""Serves a guest: HTTP requests sent to the proxy, in a tunnel to port 80 or in TLS terminated here, and tunnels.

Tunnels, from CONNECT and SOCKS5, are checked by host name and first bytes (SNI), and bounded in bytes and time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from warmcell.core.errors import FetchFailed
from warmcell.net.connect.dial import ByteStream, SocketStream, TlsServerStream, open_stream
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.proxy.client_hello import (
    UNRECOGNIZED_NAME_ALERT,
    ClientHello,
    HelloReader,
    NotTlsError,
    looks_like_tls,
)
from warmcell.net.proxy.forward_request import (
    MAX_HEAD_BYTES,
    ActivityTimer,
    ByteMeter,
    EgressContext,
    HeadError,
    RequestForwarder,
    RequestHead,
    parse_head,
    refusal,
)
from warmcell.net.rules.hosts import Host, HostError, IPAddress, parse_host
from warmcell.net.rules.rule_book import Decision, EgressRequest
from warmcell.net.rules.urls import DEFAULT_PORTS, Target, UrlError, parse_url, split_authority

_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class PinnedTarget:
    """The only destination for requests inside a tunnel."""

    scheme: str
    host: Host
    port: int


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A guest's CONNECT. `early` is data that it sent without waiting for the response."""

    host: Host
    port: int
    early: bytes


async def serve_http(
    stream: ByteStream, egress: EgressContext, via: str, pinned: PinnedTarget | None = None
) -> ConnectRequest | None:
    """Serve requests until the guest closes. A CONNECT ends the loop and is returned."""
    received = b""
    is_first = True
    while True:
        limit = egress.limits.head_seconds if is_first or received else egress.limits.idle_seconds
        raw, rest = await _read_head(stream, received, limit)
        if raw is None:
            return None
        try:
            head = parse_head(raw)
            if head.method == "CONNECT" and pinned is None:
                return _connect_request(head, rest)
            target = parse_target(head, pinned)
        except (HeadError, UrlError) as error:
            egress.gate.refuse_malformed(str(error), via)
            await _refuse(stream, f"the request is refused: {error}")
            return None
        # The upper-case method: h11 recognises HEAD and CONNECT only in upper case.
        judged = head.method.encode() + raw[len(head.method) :]
        left = await RequestForwarder(stream, egress, via).run(judged, rest, head, target)
        if left is None:
            return None
        received, is_first = left, False


async def _read_head(stream: ByteStream, received: bytes, limit: float) -> tuple[bytes | None, bytes]:
    """The head with its empty line, and the bytes after it; None if the guest closed, timed out or sent too much."""
    found = bytearray(received)
    position = found.find(_END)
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(limit):
            while position < 0 and len(found) <= MAX_HEAD_BYTES:
                data = await stream.read()
                if not data:
                    return None, b""
                # Search only the new bytes: a guest may send its head byte by byte.
                looked_at = max(0, len(found) - len(_END) + 1)
                found += data
                position = found.find(_END, looked_at)
    if not 0 <= position <= MAX_HEAD_BYTES:
        if len(found) > MAX_HEAD_BYTES:
            await _refuse(stream, f"the request head is larger than {MAX_HEAD_BYTES} bytes")
        return None, b""
    end = position + len(_END)
    return bytes(found[:end]), bytes(found[end:])


async def _refuse(stream: ByteStream, message: str) -> None:
    with contextlib.suppress(OSError):
        await stream.write(refusal(FetchFailed(message, reason="invalid")))


def _connect_request(head: RequestHead, early: bytes) -> ConnectRequest:
    host, port = split_authority(head.target, None)
    if head.get("content-length") not in (None, "0") or head.get("transfer-encoding"):
        raise HeadError("a CONNECT with a body")
    named = head.get("host")
    if named and split_authority(named, port)[0] != host:
        raise HeadError("the Host header does not match the CONNECT target")
    return ConnectRequest(host, port, early)


def parse_target(head: RequestHead, pinned: PinnedTarget | None) -> Target:
    """The request's destination; inside a tunnel it is the tunnel's."""
    target = _pinned_target(head, pinned) if pinned else parse_url(head.target)
    if pinned is None and target.scheme != "http":
        raise HeadError("https needs CONNECT")
    named = head.get("host")
    if named is not None and split_authority(named, DEFAULT_PORTS[target.scheme]) != (target.host, target.port):
        raise HeadError("the Host header does not match the URL")
    return target


def _pinned_target(head: RequestHead, pinned: PinnedTarget) -> Target:
    where = Target(pinned.scheme, pinned.host, pinned.port)
    if not head.target.startswith("/"):
        raise HeadError("a request inside a tunnel must use a path, not a URL")
    return parse_url(f"{pinned.scheme}://{where.authority}{head.target}")


Accept = Callable[[], Awaitable[None]]
"""Reports to the guest that its tunnel is established. Called once, after all checks of the name."""


class Tunnel:
    """One tunnel of one guest. `run` raises `FetchFailed` only before it has called `accept`."""

    def __init__(
        self,
        guest: SocketStream,
        host: Host,
        port: int,
        via: str,
        egress: EgressContext,
        authority: SandboxAuthority | None,
    ) -> None:
        self._guest, self._host, self._port = guest, host, port
        self._via, self._egress = via, egress
        self._authority = authority if authority is not None and authority.covers(host) else None

    async def run(self, accept: Accept) -> None:
        is_http = self._port in self._egress.limits.http_ports
        if is_http or self._authority is not None:
            self._egress.gate.judge(EgressRequest(self._host, self._port, is_readable=True), self._via)
            await accept()
            await (self._serve_plain() if is_http else self._serve_terminated())
        else:
            await self._serve_opaque(accept)

    async def _serve_plain(self) -> None:
        await serve_http(self._guest, self._egress, f"{self._via} http", PinnedTarget("http", self._host, self._port))

    async def _serve_terminated(self) -> None:
        assert self._authority is not None
        try:
            self._guest.unread(await self._read_first_bytes(must_be_tls=True))
            stream = TlsServerStream(self._guest, self._authority.context_for(self._host))
            async with asyncio.timeout(self._egress.limits.head_seconds):
                await stream.handshake()
        except FetchFailed:
            return
        await serve_http(stream, self._egress, f"{self._via} tls", PinnedTarget("https", self._host, self._port))
        await stream.aclose()

    async def _serve_opaque(self, accept: Accept) -> None:
        gate, request = self._egress.gate, EgressRequest(self._host, self._port)
        with gate.log.track(request) as connection:
            addresses, decision = await gate.admit(request, self._via)
            connection.allow(decision, addresses)
            server = await self._connect(addresses)
            connection.attach(server, self._guest)
            await self._relay(server, accept)

    async def _relay(self, server: SocketStream, accept: Accept) -> None:
        limits = self._egress.limits
        try:
            await accept()
            async with ActivityTimer(limits.idle_seconds, limits.total_seconds) as timer, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump_to(server, timer))
                tasks.create_task(_pump(server, self._guest, ByteMeter(limits.max_bytes), timer))
        except (ExceptionGroup, TimeoutError):
            # A refusal was recorded already. A limit, a timeout or a lost connection just ends the tunnel.
            return
        finally:
            server.close()

    async def _connect(self, addresses: Sequence[IPAddress]) -> SocketStream:
        try:
            async with asyncio.timeout(self._egress.limits.head_seconds):
                return await open_stream(self._host, self._port, addresses, None, self._egress.dial)
        except TimeoutError:
            raise FetchFailed(f"timed out connecting to {self._host}", reason="timeout") from None

    async def _pump_to(self, server: SocketStream, timer: ActivityTimer) -> None:
        meter = ByteMeter(self._egress.limits.max_bytes)
        beginning = await self._read_first_bytes(must_be_tls=self._port in self._egress.limits.tls_ports)
        if beginning:
            meter.add(len(beginning))
            await server.write(beginning)
        await _pump(self._guest, server, meter, timer)

    async def _read_first_bytes(self, *, must_be_tls: bool) -> bytes:
        """The guest's first bytes, after checking that any SNI in them is the admitted host."""
        # Where the server may speak first, only the idle timeout limits the first read.
        data = b"" if must_be_tls else await self._guest.read()
        if not must_be_tls and not looks_like_tls(data):
            return data
        reader = HelloReader()
        try:
            async with asyncio.timeout(self._egress.limits.head_seconds):
                while (hello := reader.feed(data)) is None:
                    data = await self._guest.read()
                    if not data:
                        raise NotTlsError("the connection ended before TLS began")
        except (NotTlsError, TimeoutError) as error:
            raise self._refuse("only TLS on this port", str(error) or "no TLS in time") from None
        if not self._is_for_host(hello, must_be_tls):
            name = hello.server_name or "nothing"
            refused = self._refuse("SNI must be the CONNECT name", f"TLS asks for {name} through {self._host}")
            await self._guest.write(UNRECOGNIZED_NAME_ALERT)
            raise refused
        return bytes(reader.received)

    def _is_for_host(self, hello: ClientHello, must_be_tls: bool) -> bool:
        if hello.server_name is None:
            return self._host.address is not None or not must_be_tls
        try:
            return parse_host(hello.server_name) == self._host
        except HostError:
            return False

    def _refuse(self, rule: str, reason: str) -> FetchFailed:
        return self._egress.gate.refuse(EgressRequest(self._host, self._port), Decision(False, rule, reason), self._via)


async def _pump(source: SocketStream, sink: SocketStream, meter: ByteMeter, timer: ActivityTimer) -> None:
    while data := await source.read():
        timer.touch()
        meter.add(len(data))
        await sink.write(data)
    await sink.write_eof()
