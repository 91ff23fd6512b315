"""The proxy and plain HTTP: same rules as a fetch, requests written anew, rules that can change."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, until_async
from tests.net.conftest import Proxies
from tests.net.proxy_talk import get, open_tunnel, talk
from tests.net.servers import StubResolver, policy_for, reply, serving

from warmcell.core import events
from warmcell.net.credentials import SecretRef
from warmcell.net.proxy.egress_proxy import EgressProxy
from warmcell.net.proxy.forward_request import ProxyLimits
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.policy.model import NetworkRule

Start = Callable[..., EgressProxy]


async def test_a_request_goes_through(start_proxy: Start, proxies: Proxies) -> None:
    async with serving(reply(b"hello", "200 OK", "X-A: b")) as server:
        proxy = start_proxy(policy_for(server))
        status, body = await get(proxy, f"http://site.test:{server.port}/x?y", "X-C: d", "Proxy-Authorization: z")
    assert status == 200 and body == b"hello"
    assert server.head.startswith("GET /x?y HTTP/1.1\r\n") and f"Host: site.test:{server.port}" in server.head
    assert "X-C: d" in server.head and "Proxy-Authorization" not in server.head
    (line,) = map(json.loads, proxies.lines)
    assert (line["via"], line["decision"], line["path"]) == ("http", "allow", "/x")


async def test_the_bytes_of_a_connection_are_told_when_it_ends(start_proxy: Start) -> None:
    told: list[events.Event] = []
    stop = events.listen(told.append)
    async with serving(reply(b"x" * 70_000, "200 OK")) as server:
        proxy = start_proxy(policy_for(server))
        await get(proxy, f"http://site.test:{server.port}/")
        proxy.close()
    stop()
    (closed,) = [event.fields for event in told if event.name == "network.closed"]
    assert 70_000 < closed["received"] < 71_000 and 0 < closed["sent"] < 1_000


async def test_a_denied_request_says_why_and_is_reported(
    start_proxy: Start, proxies: Proxies, resolver: StubResolver
) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server))
        status, body = await get(proxy, "http://evil.test/")
    assert status == 403 and b"evil.test is not an allowed domain" in body
    (denial,) = proxies.denials
    assert (denial.kind, denial.what) == ("network", "evil.test:80")
    assert denial.rule.startswith("default") and denial.hint == "allow evil.test"
    assert resolver.asked == [] and json.loads(proxies.lines[0])["decision"] == "deny"


@pytest.mark.attack("NW-08")
@pytest.mark.parametrize("rules", [None, [], (), FetchPolicy(), FetchPolicy(allowed_domains=())])
async def test_empty_rules_allow_nothing(rules: object, start_proxy: Start, resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(rules)
        for host in ("site.test", "localhost", "127.0.0.1"):
            assert (await get(proxy, f"http://{host}:{server.port}/"))[0] == 403
    assert server.connections == 0 and resolver.asked == []


async def test_when_the_audit_fails_nothing_goes_out(resolver: StubResolver) -> None:
    def broken(line: str) -> None:
        raise OSError("disk full")

    async with serving(reply()) as server:
        listener = socket.create_server(("127.0.0.1", 0))
        with EgressProxy(listener, policy_for(server), resolver=resolver, audit=broken) as proxy:
            guest = await talk(proxy)
            where = f"site.test:{server.port}"
            await guest.send(f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
            assert await guest.rest() == b""
            guest.close()
    assert server.connections == 0


async def test_names_are_resolved_by_the_proxy_and_judged(start_proxy: Start, resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        resolver.add("inside.test", ["127.0.0.1"])
        proxy = start_proxy(FetchPolicy((f"inside.test:{server.port}",)))
        status, body = await get(proxy, f"http://inside.test:{server.port}/")
    assert status == 403 and b"127.0.0.1" not in body and b"loopback" not in body
    assert resolver.asked == ["inside.test"] and server.connections == 0


async def test_rules_change_on_a_live_proxy(start_proxy: Start) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(None)
        url = f"http://site.test:{server.port}/"
        assert (await get(proxy, url))[0] == 403
        proxy.set_rules([NetworkRule("site.test", (server.port,)), NetworkRule("127.0.0.1", (server.port,))])
        assert (await get(proxy, url))[0] == 200
        proxy.set_rules(FetchPolicy())
        assert (await get(proxy, url))[0] == 403


async def test_one_connection_carries_many_requests_each_judged(start_proxy: Start) -> None:
    async with serving(reply(b"hi")) as server:
        proxy = start_proxy(policy_for(server))
        guest = await talk(proxy)
        request = f"GET http://site.test:{server.port}/ HTTP/1.1\r\nHost: site.test:{server.port}\r\n\r\n".encode()
        for _ in range(3):
            await guest.send(request)
            assert await guest.status() == 200
            assert await guest.exactly(2) == b"hi"
        await guest.send(request * 2)
        for _ in range(2):
            assert await guest.status() == 200
            assert await guest.exactly(2) == b"hi"
        await guest.send(b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        assert await guest.status() == 403
        guest.close()
    assert server.connections == 5


async def test_bodies_are_carried_in_both_framings(start_proxy: Start) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")

    async with serving(echo) as server:
        proxy = start_proxy(policy_for(server))
        where = f"site.test:{server.port}"
        status, body = await get(proxy, f"http://{where}/", "Content-Length: 0", method="POST")
        assert status == 200 and body == b"3\r\nabc\r\n0\r\n\r\n"
        guest = await talk(proxy)
        head = f"POST http://{where}/ HTTP/1.1\r\nHost: {where}\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        await guest.send(head.encode())
        assert await guest.status() == 100
        await guest.send(b"body")
        assert await guest.status() == 200
        guest.close()
    assert server.bodies[-1] == b"body" and "Expect" not in server.head


async def test_old_clients_and_head_requests(start_proxy: Start) -> None:
    async with serving(reply(b"hello")) as server:
        proxy = start_proxy(policy_for(server))
        guest = await talk(proxy)
        await guest.send(f"GET http://site.test:{server.port}/ HTTP/1.0\r\n\r\n".encode())
        assert await guest.status() == 200
        assert await guest.rest() == b"hello"
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n") as server:
        proxy.set_rules(policy_for(server))
        assert await get(proxy, f"http://site.test:{server.port}/", method="HEAD") == (200, b"")


SMUGGLED = [
    "POST http://{w}/ HTTP/1.1\r\nHost: {w}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST http://{w}/ HTTP/1.1\r\nHost: {w}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
    "POST http://{w}/ HTTP/1.1\r\nHost: {w}\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
    "POST http://{w}/ HTTP/1.1\r\nHost: {w}\r\nTransfer-Encoding:\x0bchunked\r\n\r\n",
    "POST http://{w}/ HTTP/1.1\r\nHost: {w}\r\nTransfer-Encoding : chunked\r\n\r\n",
    "GET http://{w}/ HTTP/1.1\r\nHost: {w}\r\nX: y\r\n folded: z\r\n\r\n",
    "GET http://{w}/ HTTP/1.1\nHost: {w}\n\r\n\r\n",
    "GET http://{w}/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "GET http://{w}/ HTTP/1.1\r\nHost: {w}\r\nHost: evil.test\r\n\r\n",
    "GET http://{w}/ HTTP/1.1\r\nHost: site.test:1\r\n\r\n",
    "GET http://{w}/ HTTP/1.1\r\n\r\n",
    "GET http://user@{w}/ HTTP/1.1\r\nHost: {w}\r\n\r\n",
    "GET http://evil.test\\@{w}/ HTTP/1.1\r\nHost: {w}\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: {w}\r\n\r\n",
    "GET * HTTP/1.1\r\nHost: {w}\r\n\r\n",
    "GET https://{w}/ HTTP/1.1\r\nHost: {w}\r\n\r\n",
    "GET ftp://{w}/ HTTP/1.1\r\nHost: {w}\r\n\r\n",
    "CONNECT {w} HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "CONNECT {w} HTTP/1.1\r\nHost: {w}\r\nContent-Length: 5\r\n\r\nhello",
    "CONNECT site.test HTTP/1.1\r\nHost: site.test\r\n\r\n",
    "CONNECT http://{w}/ HTTP/1.1\r\nHost: {w}\r\n\r\n",
    "\r\nGET http://{w}/ HTTP/1.1\r\nHost: {w}\r\n\r\n",
]


@pytest.mark.attack("SS-14")
@pytest.mark.parametrize("request_text", SMUGGLED)
async def test_smuggling_is_refused_before_anything_is_dialled(
    request_text: str, start_proxy: Start, resolver: StubResolver
) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server))
        guest = await talk(proxy)
        await guest.send(request_text.format(w=f"site.test:{server.port}").encode("latin-1"))
        assert await guest.status() == 400
        guest.close()
    assert server.connections == 0 and resolver.asked == []


@pytest.mark.attack("SS-14")
@pytest.mark.parametrize("tail", [b"zz\r\n", b"-1\r\n", b"5\r\nhelloXX0\r\n\r\n", b"ffffffffffffffffffffffff\r\n"])
async def test_a_bad_chunk_never_becomes_a_second_request(tail: bytes, start_proxy: Start) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server))
        where = f"site.test:{server.port}"
        guest = await talk(proxy)
        head = f"POST http://{where}/ HTTP/1.1\r\nHost: {where}\r\nTransfer-Encoding: chunked\r\n\r\n"
        await guest.send(
            head.encode() + tail + f"GET http://{where}/smuggled HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()
        )
        await guest.rest()
        guest.close()
    assert not any(b"smuggled" in head for head in server.heads)


async def test_methods_and_paths_are_enforced(start_proxy: Start) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(
            [
                NetworkRule("site.test", (server.port,), ("GET",), ("/simple/",)),
                NetworkRule("127.0.0.1", (server.port,)),
            ]
        )
        base = f"http://site.test:{server.port}"
        assert (await get(proxy, f"{base}/simple/x"))[0] == 200
        assert (await get(proxy, f"{base}/upload"))[0] == 403
        assert (await get(proxy, f"{base}/simple/../upload"))[0] == 403
        assert (await get(proxy, f"{base}/simple/x", "Content-Length: 0", method="POST"))[0] == 403
        assert (await get(proxy, f"{base}/simple/x", "X-HTTP-Method-Override: PUT"))[0] == 403
        assert (await get(proxy, f"{base}/simple/x", "x_original-URL: /upload"))[0] == 403
    assert server.connections == 1


async def test_rate_limit(start_proxy: Start) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server, rate_limit=2))
        url = f"http://site.test:{server.port}/"
        assert [(await get(proxy, url))[0] for _ in range(3)] == [200, 200, 429]


SECRET = "canary-s3cr3t-value"


async def test_credentials_are_injected_and_an_echo_is_redacted(start_proxy: Start, proxies: Proxies) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\nX-Echo: {SECRET}\r\nContent-Length: 29\r\n\r\nyou sent: ".encode())
        for byte in SECRET:
            writer.write(byte.encode())
            await writer.drain()
            await asyncio.sleep(0.001)

    async with serving(echo) as server:
        inject = {"http://site.test": {"Authorization": SecretRef(lambda: SECRET, format="Bearer {}")}}
        proxy = start_proxy(policy_for(server, inject=inject))
        guest = await talk(proxy)
        where = f"site.test:{server.port}"
        await guest.send(f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\nConnection: close\r\n\r\n".encode())
        answer = await guest.rest()
    assert f"Authorization: Bearer {SECRET}" in server.head and "Accept-Encoding: identity" in server.head
    assert SECRET.encode() not in answer and b"X-Echo: [redacted]" in answer
    assert b"you sent: " in answer and answer.endswith(b"[redacted]\r\n0\r\n\r\n")
    assert SECRET not in "".join(proxies.lines)


async def test_an_encoded_echo_is_not_let_through(start_proxy: Start) -> None:
    async with serving(reply(b"??", "200 OK", "Content-Encoding: gzip")) as server:
        inject = {"http://site.test": {"Authorization": SecretRef(lambda: SECRET)}}
        proxy = start_proxy(policy_for(server, inject=inject))
        assert (await get(proxy, f"http://site.test:{server.port}/"))[0] == 502


async def test_limits_of_size_time_and_number(start_proxy: Start) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x" * 65536)
            await writer.drain()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with serving(endless) as big, serving(silent) as slow:
        policy = policy_for(big, slow)
        proxy = start_proxy(policy, limits=ProxyLimits(max_bytes=100_000, connections=2))
        status, body = await get(proxy, f"http://site.test:{big.port}/")
        assert status == 200 and len(body) <= 110_000 and not body.endswith(b"0\r\n\r\n")
        flood = await talk(proxy)
        await flood.send(b"GET http://site.test/ HTTP/1.1\r\n" + b"X: y\r\n" * 20_000)
        assert b"larger than" in await flood.rest()
        # Each limit of time is alone: a loaded host can reach it at every other step.
        impatient = start_proxy(policy, limits=ProxyLimits(idle_seconds=0.3))
        assert (await get(impatient, f"http://site.test:{slow.port}/"))[0] == 504
        hurried = start_proxy(policy, limits=ProxyLimits(head_seconds=0.3))
        stalled = await talk(hurried)
        await stalled.send(b"GET http://site")
        assert await stalled.rest() == b""
        crowded = start_proxy(policy, limits=ProxyLimits(connections=2))
        idle = [await talk(crowded) for _ in range(2)]
        assert (await get(crowded, f"http://site.test:{big.port}/"))[0] == 429
        for guest in idle:
            guest.close()


@pytest.mark.needs("linux")
async def test_nothing_is_left_of_a_proxy(start_proxy: Start) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as mute, serving(reply()) as server:
        descriptors, threads = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
        proxy = start_proxy(policy_for(server, mute))
        await get(proxy, f"http://site.test:{server.port}/")
        guests = [(await open_tunnel(proxy, f"site.test:{mute.port}"))[0], await talk(proxy)]
        await asyncio.to_thread(proxy.close)
        for guest in guests:
            guest.close()
        # The servers of this test are in the same process and need a moment to see that they were left.
        await until_async(lambda: len(list(Path("/proc/self/fd").iterdir())) <= descriptors)
        # The pool thread that `to_thread` used stays; it is not the proxy's.
        assert "warmcell egress proxy" not in {thread.name for thread in threading.enumerate()}
        assert threading.active_count() <= threads + 1


async def test_a_guest_that_never_reads_loses_its_place(start_proxy: Start) -> None:
    async with serving(reply(b"x" * 4_000_000)) as server:
        # The usual time for a head: on a loaded host the guests that ask for the place are slow.
        proxy = start_proxy(policy_for(server), limits=ProxyLimits(connections=1, idle_seconds=0.2, total_seconds=4))
        deaf = await talk(proxy)
        deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
        where = f"site.test:{server.port}"
        await deaf.send(f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n".encode() * 3)
        deadline = time.monotonic() + PATIENCE
        while (await get(proxy, f"http://{where}/"))[0] != 200:
            assert time.monotonic() < deadline, "the place is still taken"
            await asyncio.sleep(0.05)
        deaf.close()


async def test_close_ends_everything(start_proxy: Start) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    async with serving(silent) as server:
        proxy = start_proxy(policy_for(server))
        guest = await talk(proxy)
        where = f"site.test:{server.port}"
        await guest.send(f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
        while not server.connections:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(proxy.close)
        assert await guest.rest() == b""
        proxy.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", guest.writer.get_extra_info("peername")[1])


@pytest.mark.attack("S2-32")
async def test_blanks_without_end_hold_nobody_up(start_proxy: Start) -> None:
    async def after_the_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "chunked" in server.head:
            await reader.readuntil(b"0\r\n\r\n")
        writer.write(reply())
        await writer.drain()

    async with serving(after_the_body) as server:
        proxy = start_proxy(policy_for(server))
        where = f"site.test:{server.port}"
        head = f"POST http://{where}/ HTTP/1.1\r\nHost: {where}\r\n".encode()
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
        blanks = b" " * 30_000
        for request, expected in (
            (head + b"X:" + blanks + b"\1\r\n\r\n", 400),
            (head + b"X: a" + blanks + b"b\r\nContent-Length: 0\r\n\r\n", 200),
            (chunked + b"0\r\nX:" + blanks + b"\0\r\n\r\n", 400),
            (chunked + b"7530\r\n" + blanks + b"\r\n0\r\n\r\n", 200),
        ):
            guest = await talk(proxy)
            began = time.process_time()
            await guest.send(request)
            assert await guest.status() == expected
            assert time.process_time() - began < 4
            guest.close()
