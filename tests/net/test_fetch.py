"""SafeClient against real local servers: what goes out, what comes back, what it leaves behind."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import json
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests.helpers import until_async
from tests.net.servers import StubResolver, policy_for, reply, serving

from warmcell.core.errors import FetchFailed
from warmcell.core.types import Denial
from warmcell.net.fetch.messages import FetchRequest
from warmcell.net.fetch.safe_client import SafeClient
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.rules.fetch_policy import FetchPolicy, RateLimit
from warmcell.net.rules.hosts import Host
from warmcell.policy.model import NetworkRule


async def failure(client: SafeClient, request: FetchRequest | str) -> FetchFailed:
    with pytest.raises(FetchFailed) as caught:
        await client.fetch(request)
    return caught.value


async def test_a_plain_get(resolver: StubResolver) -> None:
    answer = reply(b'{"a": 1}', "200 OK", "Content-Type: application/json", "X-Two: a", "X-Two: b")
    async with serving(answer) as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        response = await client.fetch(f"http://site.test:{server.port}/x?y=z#f")
    assert (response.status, response.ok, response.body) == (200, True, b'{"a": 1}')
    assert response.json() == {"a": 1} and response.text() == '{"a": 1}'
    assert response.headers["CONTENT-TYPE"] == "application/json"
    assert response.headers.get_all("x-two") == ["a", "b"] and response.headers["x-two"] == "a, b"
    assert response.url == f"http://site.test:{server.port}/x?y=z"
    assert server.head.startswith("GET /x?y=z HTTP/1.1\r\n")
    assert f"Host: site.test:{server.port}\r\n" in server.head


async def test_a_post_with_headers(resolver: StubResolver) -> None:
    async with serving(reply(b"", "404 Not Found")) as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        request = FetchRequest(f"http://site.test:{server.port}/", "post", {"X-A": " b "}, "wörds")
        response = await client.fetch(request)
    assert not response.ok and response.status == 404
    assert server.bodies == ["wörds".encode()]
    assert "POST / HTTP/1.1" in server.head and "X-A: b\r\n" in server.head and "Content-Length: 6" in server.head


async def test_encoded_bodies_are_decoded(resolver: StubResolver) -> None:
    async with serving(reply(gzip.compress(b"x" * 5000), "200 OK", "Content-Encoding: gzip")) as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        response = await client.fetch(f"http://site.test:{server.port}/")
    assert response.body == b"x" * 5000
    assert "content-encoding" not in response.headers and "content-length" not in response.headers


async def test_head_and_empty_answers(resolver: StubResolver) -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n") as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        response = await client.fetch(FetchRequest(f"http://site.test:{server.port}/", "HEAD"))
    assert response.body == b"" and response.headers["content-length"] == "99999999999"


async def test_tls_is_verified_against_the_name(
    resolver: StubResolver, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with serving(reply(), server_tls) as server:
        policy = policy_for(server, names=["site.test", "other.test"])
        trusting = SafeClient(policy, resolver=resolver, ssl_context=client_tls)
        assert (await trusting.fetch(f"https://site.test:{server.port}/")).ok
        wrong_name = await failure(trusting, f"https://other.test:{server.port}/")
        by_address = await failure(trusting, f"https://127.0.0.1:{server.port}/")
        stranger = SafeClient(policy, resolver=resolver)
        unknown_ca = await failure(stranger, f"https://site.test:{server.port}/")
    for error in (wrong_name, by_address, unknown_ca):
        assert error.reason == "tls"
    assert len(server.heads) == 1


async def test_tls_to_an_address_is_verified_against_the_address(
    authority: SandboxAuthority, client_tls: ssl.SSLContext
) -> None:
    context = authority.context_for(Host("127.0.0.1", ipaddress.ip_address("127.0.0.1")))
    async with serving(reply(), context) as server:
        client = SafeClient(FetchPolicy((server.literal,)), ssl_context=client_tls)
        assert (await client.fetch(f"https://{server.literal}/")).ok


async def test_a_server_that_does_not_speak_tls(client_tls: ssl.SSLContext) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(reply(b"", "400 Bad Request"))
        writer.close()

    listening = await asyncio.start_server(plain, "127.0.0.1", 0)
    where = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        client = SafeClient(FetchPolicy((where,)), ssl_context=client_tls)
        assert (await failure(client, f"https://{where}/")).reason == "tls"


async def test_dns_and_connection_failures_have_their_own_reasons(resolver: StubResolver) -> None:
    resolver.add("empty.test", [])
    resolver.add("odd.test", ["not an address"])
    resolver.add("many.test", [f"8.8.8.{n}" for n in range(100)])
    client = SafeClient(FetchPolicy(("*.test", "127.0.0.1:1", "site.test:1")), resolver=resolver)
    for name in ("unknown", "empty", "odd", "many"):
        assert (await failure(client, f"http://{name}.test/")).reason == "dns"
    assert (await failure(client, "http://site.test:1/")).reason == "connect"


async def test_a_slow_resolver_is_held_to_the_deadline() -> None:
    async def slow(name: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    client = SafeClient(FetchPolicy(("site.test",), request_timeout=0.2), resolver=slow)
    assert (await failure(client, "http://site.test/")).reason == "timeout"


async def test_the_system_resolver_knows_localhost() -> None:
    async with serving(reply()) as server:
        client = SafeClient(FetchPolicy(("localhost",), deny_private_ips=False))
        assert (await client.fetch(f"http://localhost:{server.port}/")).ok
        closed = SafeClient(FetchPolicy((f"localhost:{server.port}",)))
        error = await failure(closed, f"http://localhost:{server.port}/")
    assert error.reason == "refused" and "loopback" in error.message


async def test_a_request_can_shorten_the_deadline_and_not_lengthen_it(resolver: StubResolver) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as server:
        url = f"http://site.test:{server.port}/"
        client = SafeClient(policy_for(server, request_timeout=0.3), resolver=resolver)
        short = await failure(client, FetchRequest(url, timeout=0.1))
        long = await failure(client, FetchRequest(url, timeout=500))
    assert short.reason == long.reason == "timeout"
    assert "0.1 s" in short.message and "0.3 s" in long.message


async def test_ambient_proxies_netrc_and_cookies_are_ignored(
    resolver: StubResolver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine site.test login canary password canary")
    monkeypatch.setenv("NETRC", str(netrc))
    async with serving(reply(b"", "200 OK", "Set-Cookie: canary=1")) as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        for _ in range(2):
            assert (await client.fetch(f"http://site.test:{server.port}/")).ok
    assert server.connections == 2
    for head in server.heads:
        assert b"canary" not in head and b"cookie" not in head.lower() and b"authorization" not in head.lower()


async def test_rate_limits(resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        policy = policy_for(server, names=["site.test", "other.test"], rate_limit=RateLimit(3, 1000, per_domain=2))
        client = SafeClient(policy, resolver=resolver)
        site, other = f"http://site.test:{server.port}/", f"http://other.test:{server.port}/"
        await client.fetch(site)
        await client.fetch(site)
        assert (await failure(client, site)).reason == "rate_limited"
        await client.fetch(other)
        assert (await failure(client, other)).reason == "rate_limited"
    assert server.connections == 3


async def test_each_decision_leaves_one_audit_line_and_each_denial_is_reported(resolver: StubResolver) -> None:
    lines: list[str] = []
    denials: list[Denial] = []
    async with serving(reply()) as server:
        client = SafeClient(policy_for(server), resolver=resolver, audit=lines.append, on_denial=denials.append)
        await client.fetch(f"http://site.test:{server.port}/a?token=canary")
        await failure(client, "http://evil.test/")
        await failure(client, "http://user@site.test/")
    allowed, denied, ambiguous = map(json.loads, lines)
    assert allowed["decision"] == "allow" and allowed["rule"] == f"allowed_domains: site.test:{server.port}"
    assert allowed["addresses"] == ["127.0.0.1"] and allowed["path"] == "/a"
    assert denied["decision"] == ambiguous["decision"] == "deny" and denied["host"] == "evil.test"
    assert "canary" not in "".join(lines)
    denial, unclear = denials
    assert unclear.what == "an ambiguous request"
    assert (denial.kind, denial.what, denial.hint) == ("network", "evil.test:80", "allow evil.test")


async def test_when_the_audit_fails_nothing_goes_out(resolver: StubResolver) -> None:
    def broken(line: str) -> None:
        raise OSError("disk full")

    async with serving(reply()) as server:
        client = SafeClient(policy_for(server), resolver=resolver, audit=broken)
        with pytest.raises(OSError, match="disk full"):
            await client.fetch(f"http://site.test:{server.port}/")
    assert server.connections == 0


async def test_methods_paths_and_the_headers_that_would_undo_them(resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        rules = (NetworkRule("site.test", (server.port,), ("GET",), ("/simple/",)),)
        client = SafeClient(FetchPolicy((server.literal,), rules=rules), resolver=resolver)
        url = f"http://site.test:{server.port}"
        assert (await client.fetch(f"{url}/simple/pip")).ok
        refused = [
            FetchRequest(f"{url}/simple/pip", "POST"),
            FetchRequest(f"{url}/upload"),
            FetchRequest(f"{url}/simple/../upload"),
            FetchRequest(f"{url}/simple/%2e%2e/upload"),
            FetchRequest(f"{url}/simple/pip", headers={"X-HTTP-Method-Override": "DELETE"}),
            FetchRequest(f"{url}/simple/pip", headers={"X-Original-URL": "/upload"}),
            FetchRequest(f"{url}/simple/pip", headers={"X_HTTP_Method_Override": "DELETE"}),
        ]
        for request in refused:
            assert (await failure(client, request)).reason == "refused"
    assert server.connections == 1


async def test_an_early_answer_to_a_large_upload_is_read(resolver: StubResolver) -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"too big", "413 Content Too Large"))
        await writer.drain()
        with suppress(ConnectionError):
            await reader.read()  # closing it before would reset the connection
        writer.close()

    listening = await asyncio.start_server(lambda r, w: early(r, w), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = SafeClient(FetchPolicy((f"127.0.0.1:{port}",), request_timeout=5))
    async with listening:
        response = await client.fetch(FetchRequest(f"http://127.0.0.1:{port}/", "POST", body=b"x" * 100_000))
    assert response.status == 413


def test_a_thread_without_a_loop(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply(b"hi"))

        threading.Thread(target=answer, daemon=True).start()
        assert SafeClient(FetchPolicy((where,))).fetch_blocking(f"http://{where}/").body == b"hi"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.needs("linux")
async def test_nothing_is_left_open_whatever_happened(
    resolver: StubResolver, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(reply(b"x" * 500_000)) as plain, serving(silent) as mute, serving(reply(), server_tls) as tls:
        policy = policy_for(plain, mute, tls, max_body_bytes=1000, request_timeout=0.1)
        client = SafeClient(policy, resolver=resolver, ssl_context=client_tls)
        urls = [f"http://site.test:{plain.port}/", f"http://site.test:{mute.port}/", f"https://site.test:{tls.port}/"]
        urls += [f"https://127.0.0.1:{tls.port}/", f"https://site.test:{mute.port}/"]
        await asyncio.gather(*[client.fetch(url) for url in urls], return_exceptions=True)
        await asyncio.sleep(0.1)
        before = descriptors()
        for _ in range(5):
            await asyncio.gather(*[client.fetch(url) for url in urls], return_exceptions=True)
        cancelled = asyncio.create_task(client.fetch(urls[1]))
        await asyncio.sleep(0.02)
        cancelled.cancel()
        await until_async(lambda: descriptors() <= before)


async def test_two_loops_may_use_one_client(resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        url = f"http://site.test:{server.port}/"
        await client.fetch(url)
        response = await asyncio.to_thread(lambda: asyncio.run(client.fetch(url)))
    assert response.ok


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n",
    ],
)
async def test_a_server_that_breaks_http_is_an_error(resolver: StubResolver, answer: bytes) -> None:
    async with serving(answer) as server:
        client = SafeClient(policy_for(server, request_timeout=5), resolver=resolver)
        assert (await failure(client, f"http://site.test:{server.port}/")).reason == "connect"


def test_importing_warmcell_imports_no_http() -> None:
    code = (
        "import sys, warmcell, warmcell.net; from warmcell.net import FetchPolicy; FetchPolicy(('a.test',)); "
        "heavy = ('h11', 'idna', 'ssl', 'httpcore', 'brotli', 'cryptography', 'asyncio'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_without_the_extra_the_error_names_it() -> None:
    code = (
        "import sys; sys.modules['h11'] = None\n"
        "import asyncio\nfrom warmcell.net import SafeClient, FetchPolicy\n"
        "async def refuse(addresses, port):\n raise SystemExit('dialled')\n"
        "try:\n    SafeClient(FetchPolicy(('a.test',)))\nexcept Exception as error:\n    print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "warmcell[net]" in ended.stdout
