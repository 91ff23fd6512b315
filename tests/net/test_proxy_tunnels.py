"""CONNECT and SOCKS5: judged by name, checked against the TLS name, capped."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import ssl
from collections.abc import Callable

import pytest
from tests.helpers import PATIENCE
from tests.net.conftest import Proxies
from tests.net.proxy_talk import Talk, open_tunnel, socks, talk
from tests.net.servers import StubResolver, policy_for, reply, serving

from warmcell.net.proxy.egress_proxy import EgressProxy
from warmcell.net.proxy.forward_request import ProxyLimits
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.policy.model import NetworkRule

Start = Callable[..., EgressProxy]


def only_tls_on(*ports: int, **more: float) -> ProxyLimits:
    """The rules of port 443, for the ports that test servers get."""
    return ProxyLimits(tls_ports=frozenset(ports), **more)  # type: ignore[arg-type]


async def ask(guest: Talk, name: str) -> bytes:
    await guest.send(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
    return await guest.rest()


def untrusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def test_tls_through_connect(start_proxy: Start, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext) -> None:
    async with serving(reply(b"secret"), server_tls) as server:
        proxy = start_proxy(policy_for(server), limits=only_tls_on(server.port))
        guest, status = await open_tunnel(proxy, f"site.test:{server.port}")
        assert status == 200
        await guest.start_tls(client_tls, "site.test")
        assert (await ask(guest, "site.test")).endswith(b"secret")


async def test_tls_through_socks_by_name(
    start_proxy: Start, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with serving(reply(b"secret"), server_tls) as server:
        proxy = start_proxy(policy_for(server), limits=only_tls_on(server.port))
        guest, code = await socks(proxy, b"site.test", server.port)
        assert code == 0
        await guest.start_tls(client_tls, "site.test")
        assert (await ask(guest, "site.test")).endswith(b"secret")


async def test_denied_tunnels(start_proxy: Start, proxies: Proxies, resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server))
        for where in ("evil.test:443", f"evil.test:{server.port}", "site.test:22", "127.0.0.1:22", "[::1]:443"):
            assert (await open_tunnel(proxy, where))[1] == 403
        assert (await socks(proxy, b"evil.test", 443))[1] == 2
        assert (await socks(proxy, b"site.test", 22))[1] == 2
        assert (await socks(proxy, bytes([127, 0, 0, 1]), 22, kind=1))[1] == 2
        assert (await socks(proxy, ipaddress.ip_address("::1").packed, 443, kind=4))[1] == 2
        assert (await socks(proxy, bytes([169, 254, 169, 254]), 80, kind=1))[1] == 2
    assert len(proxies.denials) == 10 and resolver.asked == [] and server.connections == 0
    assert {denial.kind for denial in proxies.denials} == {"network"}
    assert "evil.test:443" in {denial.what for denial in proxies.denials}


async def test_a_name_that_resolves_inside_is_denied(start_proxy: Start, resolver: StubResolver) -> None:
    resolver.add("meta.test", ["169.254.169.254"]).add("mixed.test", ["93.184.216.34", "127.0.0.1"])
    proxy = start_proxy(FetchPolicy(("*.test",)))
    for name in ("meta.test", "mixed.test", "site.test"):
        assert (await open_tunnel(proxy, f"{name}:443"))[1] == 403
        assert (await socks(proxy, name.encode(), 443))[1] == 2


async def test_socks_speaks_only_what_it_offers(start_proxy: Start) -> None:
    proxy = start_proxy(FetchPolicy(("*.test",)))
    assert (await socks(proxy, b"site.test", 443, command=2))[1] == 7
    assert (await socks(proxy, b"site.test", 443, command=3))[1] == 7
    assert (await socks(proxy, b"", 443, kind=9))[1] == 8
    assert (await socks(proxy, b"site.test", 0))[1] == 2
    for name in (b"2130706433", b"0x7f.1", b"a b", b"site.test\0", b"a@b", b"\xff"):
        assert (await socks(proxy, name, 443))[1] == 2
    guest = await talk(proxy)
    await guest.send(b"\x05\x01\x02")
    assert await guest.rest() == b"\x05\xff" + b"\x05\x02" + bytes([0, 1, 0, 0, 0, 0, 0, 0])
    old = await talk(proxy)
    await old.send(b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00\r\n\r\n")
    assert b"400" in await old.rest()


async def test_an_address_literal_through_socks_when_named(start_proxy: Start) -> None:
    async with serving(reply(b"hi")) as server:
        proxy = start_proxy(FetchPolicy((server.literal,)))
        for host, kind in ((bytes([127, 0, 0, 1]), 1), (b"127.0.0.1", 3)):
            guest, code = await socks(proxy, host, server.port, kind)
            assert code == 0
            assert (await ask(guest, "127.0.0.1")).endswith(b"hi")


@pytest.mark.parametrize("name", ["other.test", "evil.test", "site.test.evil.test", None])
async def test_another_name_inside_tls_is_refused(
    name: str | None, start_proxy: Start, proxies: Proxies, server_tls: ssl.SSLContext
) -> None:
    async with serving(reply(), server_tls) as server:
        proxy = start_proxy(policy_for(server, names=["site.test", "other.test"]), limits=only_tls_on(server.port))
        guest, status = await open_tunnel(proxy, f"site.test:{server.port}")
        assert status == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await guest.start_tls(untrusting(), name)
    assert server.heads == []
    (denial,) = proxies.denials
    assert denial.rule == "SNI must be the CONNECT name" and denial.what == f"site.test:{server.port}"


async def test_the_name_is_checked_on_other_ports_too(
    start_proxy: Start, proxies: Proxies, server_tls: ssl.SSLContext
) -> None:
    async with serving(reply(), server_tls) as server:
        proxy = start_proxy(policy_for(server))
        guest, _ = await open_tunnel(proxy, f"site.test:{server.port}")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await guest.start_tls(untrusting(), "evil.test")
        unnamed, _ = await open_tunnel(proxy, f"site.test:{server.port}")
        await unnamed.start_tls(untrusting(), None)
    assert len(proxies.denials) == 1


async def test_a_hello_in_many_small_pieces_is_still_checked(start_proxy: Start, proxies: Proxies) -> None:
    from tests.net.hellos import real_hello, records

    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server), limits=only_tls_on(server.port))
        guest, _ = await open_tunnel(proxy, f"site.test:{server.port}")
        for byte in records(real_hello("evil.test")[5:], 7):
            await guest.send(bytes([byte]))
        assert (await guest.rest()).startswith(b"\x15\x03\x03")
    assert proxies.denials[0].rule == "SNI must be the CONNECT name" and server.heads == []


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-x\r\n", b"\x80\x2e\x01\x00\x02", b"\x00" * 50]
)
async def test_only_tls_passes_on_a_tls_port(data: bytes, start_proxy: Start, proxies: Proxies) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server), limits=only_tls_on(server.port))
        guest, _ = await open_tunnel(proxy, f"site.test:{server.port}")
        await guest.send(data)
        assert await guest.rest() == b""
    assert server.heads == [] and proxies.denials[0].rule == "only TLS on this port"


async def test_a_tls_port_that_hears_nothing_is_closed(start_proxy: Start) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server), limits=only_tls_on(server.port, head_seconds=2))
        guest, _ = await open_tunnel(proxy, f"site.test:{server.port}")
        await guest.send(b"\x16\x03")
        assert await guest.rest() == b""


async def test_tls_to_a_named_address_needs_no_name(start_proxy: Start, server_tls: ssl.SSLContext) -> None:
    async with serving(reply(b"hi"), server_tls) as server:
        proxy = start_proxy(FetchPolicy((server.literal,)), limits=only_tls_on(server.port))
        guest, _ = await open_tunnel(proxy, server.literal)
        await guest.start_tls(untrusting(), None)
        assert (await ask(guest, "x")).endswith(b"hi")
        named, _ = await open_tunnel(proxy, server.literal)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await named.start_tls(untrusting(), "site.test")


async def test_http_ports_carry_http_to_the_judged_host_only(start_proxy: Start, proxies: Proxies) -> None:
    async with serving(reply(b"hi")) as server:
        rules = [NetworkRule("site.test", (server.port,), ("GET",), ("/a/",)), NetworkRule("127.0.0.1", (server.port,))]
        proxy = start_proxy(rules, limits=ProxyLimits(http_ports=frozenset({server.port})))
        where = f"site.test:{server.port}"

        async def inside(request: str) -> bytes:
            guest, code = await socks(proxy, b"site.test", server.port)
            assert code == 0
            await guest.send(request.encode())
            return await guest.rest()

        head = f"Host: {where}\r\nConnection: close\r\n\r\n"
        assert (await inside(f"GET /a/b HTTP/1.1\r\n{head}")).endswith(b"hi")
        assert b"403" in await inside(f"GET /b HTTP/1.1\r\n{head}")
        assert b"403" in await inside(f"DELETE /a/ HTTP/1.1\r\n{head}")
        assert b"400" in await inside("GET /a/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        assert b"400" in await inside(f"GET http://evil.test/a/ HTTP/1.1\r\n{head}")
        assert b"400" in await inside(f"CONNECT {where} HTTP/1.1\r\n{head}")
        assert b"400" in await inside("SSH-2.0-OpenSSH\r\n\r\n")
    assert server.connections == 1
    assert json.loads(proxies.lines[0])["via"] == "socks5 http"


async def test_a_rule_about_methods_refuses_an_unreadable_tunnel(start_proxy: Start) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(
            [NetworkRule("site.test", (server.port,), ("GET",)), NetworkRule("127.0.0.1", (server.port,))]
        )
        assert (await open_tunnel(proxy, f"site.test:{server.port}"))[1] == 403
    assert server.connections == 0


async def test_a_protocol_in_which_the_server_speaks_first(start_proxy: Start) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        writer.write(b"you said " + await reader.readline())
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(greet, "127.0.0.1", 0)
    where = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        proxy = start_proxy(FetchPolicy((where,)))
        guest, _ = await open_tunnel(proxy, where)
        assert await guest.exactly(11) == b"220 hello\r\n"
        await guest.send(b"hi\n")
        assert await guest.rest() == b"you said hi\n"


async def test_tunnels_are_capped_in_bytes_and_time(start_proxy: Start) -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(1000):
            writer.write(b"x" * 65536)
            await writer.drain()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(10 * PATIENCE)

    opening = b"x\r\n\r\n"
    async with serving(pour) as fast, serving(drip) as slow, serving(silent) as mute:
        policy = policy_for(fast, slow, mute)
        small = start_proxy(policy, limits=ProxyLimits(max_bytes=200_000))
        # Each limit of time is alone: a loaded host can reach it before the tunnel is open.
        short = start_proxy(policy, limits=ProxyLimits(total_seconds=2))
        impatient = start_proxy(policy, limits=ProxyLimits(idle_seconds=0.3))
        for proxy, server in ((small, fast), (short, slow), (impatient, mute)):
            guest, _ = await open_tunnel(proxy, f"site.test:{server.port}")
            await guest.send(opening)
            assert len(await guest.rest()) <= 200_000
        guest, _ = await open_tunnel(small, f"site.test:{mute.port}")
        with pytest.raises(ConnectionError):
            for _ in range(500):
                await guest.send(b"y" * 65536)


async def test_the_number_of_tunnels_is_capped(start_proxy: Start) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(10)

    async with serving(hold) as server:
        proxy = start_proxy(policy_for(server), limits=ProxyLimits(connections=3))
        held = [await open_tunnel(proxy, f"site.test:{server.port}") for _ in range(3)]
        assert [status for _, status in held] == [200] * 3
        assert (await open_tunnel(proxy, f"site.test:{server.port}"))[1] == 429
        for guest, _ in held:
            guest.close()
        for _ in range(100):
            await asyncio.sleep(0.02)
            guest, status = await open_tunnel(proxy, f"site.test:{server.port}")
            guest.close()
            if status == 200:
                return
        pytest.fail("closed tunnels did not make room")


async def test_tunnels_cost_tokens(start_proxy: Start) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server, rate_limit=2))
        statuses = [(await open_tunnel(proxy, f"site.test:{server.port}"))[1] for _ in range(3)]
    assert statuses == [200, 200, 429]


async def test_new_rules_hold_for_the_next_tunnel(start_proxy: Start) -> None:
    async with serving(reply(b"hi")) as server:
        proxy = start_proxy(policy_for(server))
        standing, status = await open_tunnel(proxy, f"site.test:{server.port}")
        assert status == 200
        proxy.set_rules(None)
        assert (await open_tunnel(proxy, f"site.test:{server.port}"))[1] == 403
        assert (await ask(standing, "site.test")).endswith(b"hi")


async def test_a_server_that_refuses_is_a_gateway_error(start_proxy: Start, resolver: StubResolver) -> None:
    proxy = start_proxy(FetchPolicy(("site.test:1", "127.0.0.1:1", "unknown.test:1")))
    assert (await open_tunnel(proxy, "site.test:1"))[1] == 502
    assert (await open_tunnel(proxy, "unknown.test:1"))[1] == 502
    assert (await socks(proxy, b"site.test", 1))[1] == 5
    assert (await socks(proxy, b"unknown.test", 1))[1] == 4
