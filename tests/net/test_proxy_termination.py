"""The sandbox's own CA: credentials for HTTPS without the guest ever holding them, for the named hosts only."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.net.conftest import Proxies
from tests.net.proxy_talk import Talk, open_tunnel
from tests.net.servers import Server, policy_for, reply, serving

from warmcell.backends.process.egress import Egress
from warmcell.core.errors import PolicyViolation
from warmcell.net.credentials import SecretRef
from warmcell.net.proxy import certificate_authority
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.proxy.egress_proxy import EgressProxy
from warmcell.net.proxy.forward_request import ProxyLimits
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.hosts import Host
from warmcell.policy.model import NetworkRule

Start = Callable[..., EgressProxy]
SECRET = "canary-s3cr3t-value"
INJECT = {"site.test": {"Authorization": SecretRef(lambda: SECRET, format="Bearer {}")}}


@pytest.fixture(scope="module")
def sandbox_ca(authority: SandboxAuthority) -> SandboxAuthority:
    return SandboxAuthority.for_policy(FetchPolicy(inject=INJECT))


@pytest.fixture(scope="module")
def guest_tls(sandbox_ca: SandboxAuthority) -> ssl.SSLContext:
    """A guest that trusts the sandbox's CA and no other."""
    return ssl.create_default_context(cadata=sandbox_ca.certificate_pem.decode())


async def through(
    proxy: EgressProxy, server: Server, trust: ssl.SSLContext, name: str = "site.test", request: str = "GET / HTTP/1.1"
) -> bytes:
    guest, status = await open_tunnel(proxy, f"{name}:{server.port}")
    assert status == 200
    await guest.start_tls(trust, name)
    return await ask(guest, f"{name}:{server.port}", request)


async def ask(guest: Talk, host: str, request: str = "GET / HTTP/1.1") -> bytes:
    await guest.send(f"{request}\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    return await guest.rest()


async def test_the_header_is_added_inside_tls_and_the_echo_redacted(
    start_proxy: Start,
    proxies: Proxies,
    sandbox_ca: SandboxAuthority,
    guest_tls: ssl.SSLContext,
    server_tls: ssl.SSLContext,
    client_tls: ssl.SSLContext,
) -> None:
    async with serving(reply(f"echo {SECRET}".encode()), server_tls) as server:
        proxy = start_proxy(policy_for(server, inject=INJECT), authority=sandbox_ca, ssl_context=client_tls)
        answer = await through(proxy, server, guest_tls)
    assert f"Authorization: Bearer {SECRET}" in server.head
    assert b"200 OK" in answer and b"[redacted]" in answer and SECRET.encode() not in answer
    assert SECRET not in "".join(proxies.lines)


async def test_other_hosts_are_not_terminated(
    start_proxy: Start,
    authority: SandboxAuthority,
    sandbox_ca: SandboxAuthority,
    guest_tls: ssl.SSLContext,
    client_tls: ssl.SSLContext,
) -> None:
    async with serving(reply(), authority.context_for(Host("other.test"))) as server:
        policy = policy_for(server, names=["other.test"], inject=INJECT)
        proxy = start_proxy(policy, authority=sandbox_ca, ssl_context=client_tls)
        with pytest.raises(ssl.SSLCertVerificationError):
            await through(proxy, server, guest_tls, "other.test")
        assert b"200 OK" in await through(proxy, server, client_tls, "other.test")
    assert SECRET not in server.head


async def test_the_real_server_is_still_verified(
    start_proxy: Start,
    authority: SandboxAuthority,
    sandbox_ca: SandboxAuthority,
    guest_tls: ssl.SSLContext,
    client_tls: ssl.SSLContext,
) -> None:
    impostor = authority.context_for(Host("other.test"))
    async with serving(reply(), impostor) as server:
        proxy = start_proxy(policy_for(server, inject=INJECT), authority=sandbox_ca, ssl_context=client_tls)
        answer = await through(proxy, server, guest_tls)
    assert b"502" in answer and server.heads == []


async def test_requests_inside_are_judged_and_pinned(
    start_proxy: Start,
    sandbox_ca: SandboxAuthority,
    guest_tls: ssl.SSLContext,
    server_tls: ssl.SSLContext,
    client_tls: ssl.SSLContext,
) -> None:
    async with serving(reply(), server_tls) as server:
        rules = (NetworkRule("site.test", (server.port,), ("GET",), ("/v1/",)),)
        policy = FetchPolicy((server.literal,), rules=rules, inject=INJECT)
        proxy = start_proxy(policy, authority=sandbox_ca, ssl_context=client_tls)
        assert b"200 OK" in await through(proxy, server, guest_tls, request="GET /v1/x HTTP/1.1")
        assert b"403" in await through(proxy, server, guest_tls, request="GET /admin HTTP/1.1")
        assert b"403" in await through(proxy, server, guest_tls, request="DELETE /v1/x HTTP/1.1")
        guest, _ = await open_tunnel(proxy, f"site.test:{server.port}")
        await guest.start_tls(guest_tls, "site.test")
        assert b"400" in await ask(guest, "evil.test", "GET /v1/ HTTP/1.1")
    assert len(server.heads) == 1


async def test_a_terminated_tunnel_that_says_nothing_is_closed(
    start_proxy: Start, sandbox_ca: SandboxAuthority
) -> None:
    async with serving(reply()) as server:
        limits = ProxyLimits(head_seconds=2)
        proxy = start_proxy(policy_for(server, inject=INJECT), authority=sandbox_ca, limits=limits)
        guest, _ = await open_tunnel(proxy, f"site.test:{server.port}")
        assert await guest.rest() == b""


async def test_another_name_or_no_tls_is_refused(
    start_proxy: Start, proxies: Proxies, sandbox_ca: SandboxAuthority, guest_tls: ssl.SSLContext
) -> None:
    async with serving(reply()) as server:
        proxy = start_proxy(policy_for(server, inject=INJECT), authority=sandbox_ca, limits=ProxyLimits(head_seconds=3))
        guest, _ = await open_tunnel(proxy, f"site.test:{server.port}")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await guest.start_tls(guest_tls, "other.test")
        plain, _ = await open_tunnel(proxy, f"site.test:{server.port}")
        await plain.send(b"GET / HTTP/1.1\r\nHost: site.test\r\n\r\n")
        assert await plain.rest() == b""
    assert server.connections == 0 and len(proxies.denials) == 2


def handshake(trust: bytes, server: ssl.SSLContext, name: str) -> None:
    """Both sides of a TLS handshake, in memory."""
    client_in, client_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cadata=trust.decode())
    client = context.wrap_bio(client_in, client_out, server_hostname=name)
    peer = server.wrap_bio(client_out, client_in, server_side=True)
    for _ in range(4):
        for side in (client, peer):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()


@pytest.mark.usefixtures("authority")
def test_the_root_is_worthless_for_other_hosts() -> None:
    """Even with its key: a certificate for another name that it signs does not verify."""
    authority = SandboxAuthority(["site.test", "*.inner.test", "10.0.0.1"])
    handshake(authority.certificate_pem, authority.context_for(Host("site.test")), "site.test")
    handshake(authority.certificate_pem, authority.context_for(Host("a.inner.test")), "a.inner.test")
    address = Host("10.0.0.1", ipaddress.ip_address("10.0.0.1"))
    handshake(authority.certificate_pem, authority.context_for(address), "10.0.0.1")
    for name in ("evil.test", "bank.example"):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(authority.certificate_pem, authority.context_for(Host(name)), name)


@pytest.mark.usefixtures("authority")
def test_an_authority_needs_named_hosts() -> None:
    for domains in ([], ["*"], ["a.test", "*"]):
        with pytest.raises(PolicyViolation):
            SandboxAuthority(domains)


@pytest.mark.usefixtures("authority")
def test_the_bundle_holds_the_root_too() -> None:
    authority = SandboxAuthority(["site.test"])
    assert authority.bundle_pem().endswith(authority.certificate_pem)
    assert b"PRIVATE" not in authority.bundle_pem() + authority.certificate_pem


def test_without_the_extra_the_error_names_it() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from warmcell.net import SandboxAuthority\n"
        "try:\n    SandboxAuthority(['a.test'])\nexcept Exception as error:\n    print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "warmcell[net-tls]" in ended.stdout


@pytest.mark.usefixtures("authority")
def test_runs_of_a_backend_that_lives_long_get_a_certificate_that_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    egress = Egress(FetchPolicy(("site.test",), inject=INJECT))
    first = egress._certificate_authority()
    assert first is not None and egress._certificate_authority() is first
    monkeypatch.setattr(certificate_authority, "LIFETIME", timedelta(0))  # as if it had passed
    second = egress._certificate_authority()
    assert second is not None and second.certificate_pem != first.certificate_pem
