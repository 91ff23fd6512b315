"""Tunnels, from CONNECT and SOCKS5: checked by name and by the first bytes (SNI), bounded in bytes and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from warmcell.core.errors import FetchFailed
from warmcell.net.connect.byte_streams import SocketStream, TlsServerStream
from warmcell.net.connect.dial import open_stream
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.proxy.client_hello import (
    UNRECOGNIZED_NAME_ALERT,
    ClientHello,
    HelloReader,
    NotTlsError,
    looks_like_tls,
)
from warmcell.net.proxy.forward_request import EgressContext
from warmcell.net.proxy.limits import ActivityTimer, ByteMeter
from warmcell.net.proxy.serve_http import PinnedTarget, serve_http
from warmcell.net.rules.hosts import Host, HostError, IPAddress, parse_host
from warmcell.net.rules.rule_book import Decision, EgressRequest

Accept = Callable[[], Awaitable[None]]
"""Tells the guest that its tunnel is established. Called once, after all checks of the name."""


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
        self._guest = guest
        self._host = host
        self._port = port
        self._via = via
        self._egress = egress
        self._authority = authority if authority is not None and authority.covers(host) else None

    async def run(self, accept: Accept) -> None:
        is_http = self._port in self._egress.limits.http_ports
        if is_http or self._authority is not None:
            self._egress.gate.judge(EgressRequest(self._host, self._port, is_readable=True), self._via)
            await accept()
            await (self._serve_plain() if is_http else self._serve_terminated())
        else:
            await self._carry(accept)

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

    async def _carry(self, accept: Accept) -> None:
        gate, request = self._egress.gate, EgressRequest(self._host, self._port)
        with gate.log.track(request) as connection:
            addresses, decision = await gate.admit(request, self._via)
            connection.allow(decision, addresses)
            server = await self._server(addresses)
            connection.carry(server, self._guest)
            await self._relay(server, accept)

    async def _relay(self, server: SocketStream, accept: Accept) -> None:
        limits = self._egress.limits
        try:
            await accept()
            async with ActivityTimer(limits.idle_seconds, limits.total_seconds) as timer, asyncio.TaskGroup() as both:
                both.create_task(self._pump_to(server, timer))
                both.create_task(_pump(server, self._guest, ByteMeter(limits.max_bytes), timer))
        except (ExceptionGroup, TimeoutError):
            # Refusals are already recorded; a limit, a timeout or a lost connection just ends the tunnel.
            return
        finally:
            server.close()

    async def _server(self, addresses: Sequence[IPAddress]) -> SocketStream:
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
        # On a port where the server may speak first, the first read is bounded only by the idle timeout.
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
