"""Attacks on egress from inside that once worked."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable

import pytest
from tests.net.conftest import Proxies
from tests.net.hellos import real_hello, records
from tests.net.proxy_talk import get, open_tunnel, socks, talk
from tests.net.servers import Server, StubResolver, policy_for, reply, serving

from warmcell.core.errors import FetchFailed
from warmcell.net.credentials import Redactor, SecretRef
from warmcell.net.fetch.messages import FetchRequest
from warmcell.net.fetch.safe_client import SafeClient, handle_fetch_json
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.proxy.client_hello import MAX_HELLO_BYTES, HelloReader, NotTlsError
from warmcell.net.proxy.egress_proxy import EgressProxy
from warmcell.net.proxy.serve import _read_head
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.hosts import IPAddress
from warmcell.policy.model import NetworkRule

Start = Callable[..., EgressProxy]
SECRET = "canary-s3cr3t-value-0123456789"
SECRET_REF = SecretRef(lambda: SECRET, format="Bearer {}")
OVER_TLS = {"site.test": {"Authorization": SECRET_REF}}
IN_CLEAR = {"http://site.test": {"Authorization": SECRET_REF}}


def dialling(server: Server) -> Callable[..., object]:
    """Whatever port was judged, it is this server that answers: tests may not listen on 443."""

    async def dial(addresses: list[IPAddress], port: int) -> object:
        import socket

        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", server.port))
        return connection

    return dial


@pytest.mark.attack("S2-07")
@pytest.mark.parametrize("where", ["site.test:443", "site.test"])
async def test_a_credential_never_goes_in_the_clear(
    where: str, start_proxy: Start, proxies: Proxies, resolver: StubResolver
) -> None:
    async with serving(reply()) as server:
        policy = FetchPolicy((where, "127.0.0.1:443", "127.0.0.1:80"), inject=OVER_TLS)
        proxy = start_proxy(policy, dial=dialling(server))
        client = SafeClient(policy, resolver=resolver, dial=dialling(server))  # type: ignore[arg-type]
        for url in (f"http://{where}/", "http://site.test:443/", "http://SITE.test.:443/"):
            assert (await get(proxy, url))[0] == 403
            with pytest.raises(FetchFailed) as refused:
                await client.fetch(url)
            assert refused.value.reason == "refused" and SECRET not in str(refused.value)
        guest, status = await open_tunnel(proxy, "site.test:80")  # a tunnel, inside which plain HTTP is spoken
        if status == 200:
            await guest.send(b"GET / HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n\r\n")
            assert await guest.status() == 403
    assert server.heads == [] and SECRET not in "".join(proxies.lines)


@pytest.mark.attack("S2-07")
async def test_without_credentials_port_443_carries_no_plain_http_either(start_proxy: Start) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(FetchPolicy(("site.test", "127.0.0.1:443")), dial=dialling(server))
        assert (await get(proxy, "http://site.test:443/"))[0] == 403
    assert server.connections == 0


@pytest.mark.attack("S2-07")
async def test_it_goes_over_tls_and_where_the_rule_says_http(
    resolver: StubResolver, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with serving(reply(), server_tls) as secure, serving(reply()) as plain:
        client = SafeClient(policy_for(secure, inject=OVER_TLS), resolver=resolver, ssl_context=client_tls)
        assert (await client.fetch(f"https://site.test:{secure.port}/")).ok
        client = SafeClient(policy_for(plain, inject=IN_CLEAR), resolver=resolver)
        assert (await client.fetch(f"http://site.test:{plain.port}/")).ok
    assert SECRET in secure.head and SECRET in plain.head


@pytest.mark.attack("S2-19")
@pytest.mark.parametrize("method", ["trace", "Trace", "tRACK", "track"])
async def test_a_method_is_judged_in_one_form(method: str, start_proxy: Start, resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server))
        assert (await get(proxy, f"http://site.test:{server.port}/", method=method))[0] == 403
        guest, _ = await open_tunnel(proxy, f"site.test:{server.port}")
        guest.close()
        with pytest.raises(FetchFailed, match="never allowed"):
            client = SafeClient(policy_for(server), resolver=resolver)
            await client.fetch(FetchRequest(f"http://site.test:{server.port}/", method))
    assert server.heads == []


@pytest.mark.attack("S2-19")
async def test_what_was_judged_is_what_the_server_reads(start_proxy: Start) -> None:
    async with serving(reply(b"")) as server:
        rule = NetworkRule("site.test", (server.port,), methods=("GET", "HEAD"))
        proxy = start_proxy([rule, NetworkRule("127.0.0.1", (server.port,))])
        url = f"http://site.test:{server.port}/"
        assert [(await get(proxy, url, method=method))[0] for method in ("get", "head", "Post", "post")] == [
            200,
            200,
            403,
            403,
        ]
    assert [head.split()[0] for head in server.heads] == [b"GET", b"HEAD"]


@pytest.mark.attack("S2-22")
async def test_a_rule_for_an_address_holds_for_names_that_lead_there(
    start_proxy: Start, proxies: Proxies, resolver: StubResolver
) -> None:
    async with serving(reply()) as server:
        narrow = NetworkRule("127.0.0.1", (server.port,), methods=("GET",), path_prefixes=("/public/",))
        wide = NetworkRule("site.test", (server.port,))
        proxy = start_proxy([narrow, wide])
        base = f"http://site.test:{server.port}"
        assert (await get(proxy, f"{base}/public/x"))[0] == 200
        assert (await get(proxy, f"{base}/admin", method="POST"))[0] == 403
        assert (await get(proxy, f"{base}/admin"))[0] == 403
        assert (await get(proxy, f"{base}/public/x", "X-Original-URL: /admin"))[0] == 403
        assert (await open_tunnel(proxy, f"site.test:{server.port}"))[1] == 403
        assert (await socks(proxy, b"site.test", server.port))[1] == 2
        client = SafeClient(FetchPolicy(rules=(narrow, wide)), resolver=resolver)
        with pytest.raises(FetchFailed):
            await client.fetch(FetchRequest(f"{base}/admin", "POST"))
    assert len(server.heads) == 1
    assert all("127.0.0.1" not in repr(denial) for denial in proxies.denials)


@pytest.mark.attack("S2-22")
async def test_the_name_may_be_the_narrower_one_too(start_proxy: Start) -> None:
    async with serving(reply()) as server:
        narrow = NetworkRule("site.test", (server.port,), methods=("GET",), path_prefixes=("/public/",))
        proxy = start_proxy([narrow, NetworkRule("127.0.0.1", (server.port,))])
        assert (await get(proxy, f"http://site.test:{server.port}/admin"))[0] == 403
        assert (await get(proxy, f"http://site.test:{server.port}/public/"))[0] == 200


ODD_PATHS = """
    /ok/..%3b/admin /ok/..;/admin /ok/..;a=b/admin /ok/.;/admin /ok/%c0%ae%c0%ae/admin /ok/%e0%80%ae%e0%80%ae/admin
    /ok/..%09/admin /ok/..%20/admin /ok/%20../admin /ok/..%00/admin /ok/.%0a./admin /ok/%2e%2e/admin /ok/%2e%2e%2fadmin
    /ok/.%2e/admin /ok/%252e%252e/admin /ok/..%252fadmin /ok/..%5cadmin /ok/..%c0%afadmin /ok/..%ef%bc%8fadmin
    /ok/%ef%bc%8e%ef%bc%8e/admin /ok/%e2%80%a5/admin /ok/%u002e%u002e/admin /ok/..%u2215admin /ok/.../admin /ok/....//admin
    /ok//admin /ok/..%3f/admin /ok/..%23/admin /ok/%ff%ff/admin /ok/..%e2%80%8b/admin /ok/..%c2%a0/admin /ok/%zz /ok/%
    /ok/x/..%2f..%2fadmin /ok/%f8%80%80%80%ae%f8%80%80%80%ae/admin /ok/%e2%88%95..%e2%88%95admin /ok/..%ef%bc%8f /okay/x /o%6b%2f
""".split()
PLAIN_PATHS = "/ok /ok/ /ok/a /ok/a/b.c /ok/.hidden /ok/a..b /ok/a%20b /ok/caf%C3%A9 /ok/%E4%B8%AD /ok/a;v=1 /ok/a+b@c:d~e".split()


@pytest.mark.attack("S2-29")
async def test_paths_that_a_server_might_read_otherwise_are_refused_under_a_path_rule(start_proxy: Start) -> None:
    async with serving(reply()) as server:
        rule = NetworkRule("site.test", (server.port,), path_prefixes=("/ok",))
        proxy = start_proxy([rule, NetworkRule("127.0.0.1", (server.port,))])
        base = f"http://site.test:{server.port}"
        answers = {path: (await get(proxy, base + path))[0] for path in ODD_PATHS}
        assert {path for path, status in answers.items() if status not in (400, 403)} == set()
        assert server.heads == []
        answers = {path: (await get(proxy, base + path))[0] for path in PLAIN_PATHS}
        assert {path for path, status in answers.items() if status != 200} == set()


@pytest.mark.attack("S2-33")
async def test_nobody_gets_a_credential_in_pieces(start_proxy: Start, resolver: StubResolver) -> None:
    """A server that echoes the request, and serves ranges of that if it is asked to or not."""
    echo = f"you sent {SECRET}".encode()

    async def ranged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = server.heads[-1].lower()
        if b"range:" in head or b"/always" in head:
            piece = reply(echo[12:20], "206 Partial Content", f"Content-Range: bytes 12-19/{len(echo)}")
            writer.write(piece)
        elif b"/disguised" in head:
            writer.write(reply(echo[12:20], "200 OK", "Content-Type: multipart/byteranges; boundary=x"))
        else:
            writer.write(reply(echo))

    async with serving(ranged) as server:
        policy = policy_for(server, inject=IN_CLEAR)
        proxy, client = start_proxy(policy), SafeClient(policy, resolver=resolver)
        base = f"http://site.test:{server.port}"
        for header in ("Range: bytes=12-19", "range: bytes=12-19", "Request-Range: bytes=12-19"):
            status, body = await get(proxy, f"{base}/", header, "If-Range: x")
            assert (status, body) == (200, b"you sent [redacted]") or (status == 200 and b"[redacted]" in body)
            name, _, value = header.partition(": ")
            assert (await client.fetch(FetchRequest(f"{base}/", headers={name: value}))).body == b"you sent [redacted]"
        for path in ("/always", "/disguised"):
            status, body = await get(proxy, base + path)
            assert status == 502 and echo[12:20] not in body
            with pytest.raises(FetchFailed, match="partial"):
                await client.fetch(base + path)
    assert all(b"range" not in head.lower().replace(b"/always", b"") for head in server.heads)


@pytest.mark.attack("S2-33")
async def test_without_credentials_a_part_may_be_had(start_proxy: Start) -> None:
    async with serving(reply(b"part", "206 Partial Content", "Content-Range: bytes 0-3/9")) as server:
        status, body = await get(
            start_proxy(policy_for(server)), f"http://site.test:{server.port}/", "Range: bytes=0-3"
        )
    assert (status, body) == (206, b"part") and "Range: bytes=0-3" in server.head


@pytest.mark.attack("S2-33")
async def test_other_spellings_and_names_of_headers_are_seen(start_proxy: Start) -> None:
    import base64

    as_user = base64.b64encode(f"me:{SECRET}".encode())
    spelt = b" ".join([as_user, SECRET.encode().hex().encode(), SECRET.encode("utf-16-le")])
    async with serving(reply(spelt, "200 OK", f"X-{SECRET}: 1", "X-Other: 2")) as server:
        proxy = start_proxy(policy_for(server, inject=IN_CLEAR))
        guest = await talk(proxy)
        host = f"site.test:{server.port}"
        await guest.send(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = await guest.rest()
    assert b"200 OK" in answer and b"X-Other: 2" in answer
    assert SECRET.encode() not in answer and answer.count(b"[redacted]") == 3
    for cut in range(0, len(SECRET) - 8, 4):
        assert SECRET[cut : cut + 8].encode() not in answer
    assert as_user[6:-4] not in answer
    assert Redactor([SECRET]).data(b"nothing of the kind") == b"nothing of the kind"


def _drip_steps(count: int) -> float:
    """Processor seconds for a hello of so many bytes in one-byte records, which arrive one by one."""
    hello = b"\x01" + (60_000).to_bytes(3, "big") + bytes(count)
    reader, pieces = HelloReader(), [b"\x16\x03\x01\x00\x01" + bytes([byte]) for byte in hello]
    started = time.process_time()
    for piece in pieces:
        assert reader.feed(piece) is None
    return time.process_time() - started


@pytest.mark.attack("S2-38")
def test_a_hello_in_one_byte_records_is_read_in_linear_time() -> None:
    _drip_steps(1000)
    small, large = (min(_drip_steps(count) for _ in range(3)) for count in (2000, 8000))
    assert large < 4 * small * 2.5 + 0.01, f"four times the bytes took {large / small:.1f} times as long"


@pytest.mark.attack("S2-38")
def test_a_request_head_byte_by_byte_is_read_in_linear_time() -> None:
    class Drip:
        def __init__(self, count: int) -> None:
            self.left = count

        async def read(self) -> bytes:
            self.left -= 1
            return b"x" if self.left >= 0 else b""

    def seconds(count: int) -> float:
        started = time.process_time()
        asyncio.run(_read_head(Drip(count), b"GET / HTTP/1.1\r\nA: ", 60))  # type: ignore[arg-type]
        return time.process_time() - started

    seconds(1000)
    small, large = (min(seconds(count) for _ in range(3)) for count in (15_000, 60_000))
    assert large < 4 * small * 2.2, f"four times the bytes took {large / small:.1f} times as long"


@pytest.mark.attack("S2-38")
def test_a_hello_that_does_not_end_is_cut_off() -> None:
    reader, sent = HelloReader(), 0
    with pytest.raises(NotTlsError, match="incomplete"):
        for byte in b"\x01\x00\xf0\x00" + bytes(60_000):
            sent += 6
            reader.feed(b"\x16\x03\x01\x00\x01" + bytes([byte]))
    assert sent <= MAX_HELLO_BYTES + 6


@pytest.mark.attack("S2-38")
async def test_a_hello_in_pieces_still_reaches_its_server(start_proxy: Start, server_tls: ssl.SSLContext) -> None:
    hello = records(real_hello("site.test")[5:], 1)
    async with serving(reply(), server_tls) as server:
        proxy = start_proxy(policy_for(server))
        guest, status = await open_tunnel(proxy, f"site.test:{server.port}")
        assert status == 200
        for start in range(0, len(hello), 700):
            await guest.send(hello[start : start + 700])
            await asyncio.sleep(0)
        assert (await guest.exactly(1)) in (b"\x16", b"\x15")  # the server's word, not the proxy's
        guest.close()


INSIDE = "10.66.77.88"


@pytest.mark.attack("S2-39")
async def test_a_guest_is_not_told_where_a_name_leads(
    start_proxy: Start, proxies: Proxies, resolver: StubResolver
) -> None:
    resolver.add("inside.corp.test", [INSIDE]).add("half.corp.test", ["93.184.215.14", INSIDE])
    policy = FetchPolicy(("*.corp.test",))
    proxy, told = start_proxy(policy), []
    client = SafeClient(policy, resolver=resolver, audit=proxies.lines.append)
    for name in ("inside", "half", "missing"):
        answer = await get(proxy, f"http://{name}.corp.test/")
        tunnel = await open_tunnel(proxy, f"{name}.corp.test:443")
        raw = json.dumps({"url": f"http://{name}.corp.test/"}).encode()
        guest_fetch = await handle_fetch_json(client, raw)
        socks_reply = (await socks(proxy, f"{name}.corp.test".encode(), 443))[1]
        seen = [answer[0], answer[1], await tunnel[0].rest(), tunnel[1], guest_fetch, socks_reply]
        told.append(repr(seen).replace(name, "NAME"))
    # A name that leads inside and one that does not exist are the same thing to a guest, byte for byte.
    assert len(set(told)) == 1 and "refused" in told[0]
    assert "10.66" not in told[0] and "private" not in told[0]
    assert {(denial.rule, denial.hint) for denial in proxies.denials} == {(d.rule, d.hint) for d in proxies.denials[:1]}
    assert INSIDE not in repr(proxies.denials)
    assert any(INSIDE in line and "inside.corp.test" in line for line in proxies.lines)
    with pytest.raises(FetchFailed, match=INSIDE):  # the host's own code is told
        await client.fetch("http://inside.corp.test/")


@pytest.mark.attack("S2-39")
async def test_a_connection_that_fails_does_not_tell_the_address(start_proxy: Start, resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        port = server.port
    proxy = start_proxy(FetchPolicy((f"site.test:{port}", f"127.0.0.1:{port}")))
    status, body = await get(proxy, f"http://site.test:{port}/")
    assert status == 502 and b"refused" in body.lower() and b"127.0.0.1" not in body


def test_the_authority_knows_hosts_written_with_http() -> None:
    pytest.importorskip("cryptography")
    assert SandboxAuthority.for_policy(FetchPolicy(inject=IN_CLEAR)).certificate_pem
