"""Redirects: each hop is a request like the first, and carries less."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from tests.net.servers import StubResolver, policy_for, redirect, reply, serving

from warmcell.core.errors import FetchFailed
from warmcell.net.fetch.messages import FetchRequest
from warmcell.net.fetch.safe_client import SafeClient
from warmcell.net.rules.fetch_policy import FetchPolicy


async def fetch_refused_error(client: SafeClient, request: FetchRequest | str) -> FetchFailed:
    with pytest.raises(FetchFailed) as caught:
        await client.fetch(request)
    return caught.value


@pytest.mark.attack("SS-09")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:{victim}/",
        "//127.0.0.1:{victim}/",
        "http://localhost:{victim}/",
        "http://other.test:{victim}/",
        "http://[::ffff:127.0.0.1]:{victim}/",
        "http://2130706433:{victim}/",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:{victim}/x",
        "http:\\\\127.0.0.1:{victim}/",
        "/\\127.0.0.1:{victim}/",
        "http://site.test:{own}@127.0.0.1:{victim}/",
        "http://site.test:{own}\r\n\tx/",
    ],
)
async def test_a_redirect_to_a_forbidden_place(status: int, location: str, resolver: StubResolver) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(redirect(location.format(victim=victim.port, own=server.port), status))

    async with serving(reply()) as victim, serving(answer) as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        assert (await fetch_refused_error(client, f"http://site.test:{server.port}/")).reason in ("refused", "connect")
    assert victim.connections == 0 and server.connections == 1


@pytest.mark.attack("SS-09")
async def test_a_loop_of_redirects_ends(resolver: StubResolver) -> None:
    async with serving(redirect("/again")) as server:
        client = SafeClient(policy_for(server, max_redirects=7), resolver=resolver)
        assert "7 redirects" in (await fetch_refused_error(client, f"http://site.test:{server.port}/")).message
        assert server.connections == 8
        none = SafeClient(policy_for(server, max_redirects=0), resolver=resolver)
        await fetch_refused_error(none, f"http://site.test:{server.port}/")
        assert server.connections == 9


@pytest.mark.attack("SS-09")
async def test_relative_and_protocol_relative_redirects_are_followed_and_judged(resolver: StubResolver) -> None:
    async with serving(reply(b"end")) as end:
        for location in (f"//other.test:{end.port}/x", f"http://other.test:{end.port}/x"):
            async with serving(redirect(location)) as server:
                client = SafeClient(policy_for(server, end, names=["site.test", "other.test"]), resolver=resolver)
                response = await client.fetch(f"http://site.test:{server.port}/")
                assert response.body == b"end" and response.url == f"http://other.test:{end.port}/x"
                strict = SafeClient(policy_for(server, end), resolver=resolver)
                assert (await fetch_refused_error(strict, f"http://site.test:{server.port}/")).reason == "refused"
    assert end.connections == 2


CREDENTIALS = {
    "Authorization": "Bearer canary",
    "Cookie": "a=canary",
    "X-Api-Key": "canary",
    "Private-Token": "canary",
    "Referer": "http://x/?canary",
    "Accept": "text/x-kept",
}


async def test_credentials_do_not_cross_origins(resolver: StubResolver) -> None:
    async with serving(reply()) as end, serving(redirect(f"http://site.test:{end.port}/")) as server:
        client = SafeClient(policy_for(server, end), resolver=resolver)
        await client.fetch(FetchRequest(f"http://site.test:{server.port}/", headers=CREDENTIALS))
    assert server.head.count("canary") == 5
    assert "canary" not in end.head and "text/x-kept" in end.head


async def test_credentials_stay_within_an_origin(resolver: StubResolver) -> None:
    answers = iter([redirect("/next"), reply()])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))

    async with serving(answer) as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        await client.fetch(FetchRequest(f"http://site.test:{server.port}/", headers=CREDENTIALS))
    assert server.head.startswith("GET /next") and server.head.count("canary") == 5


@pytest.mark.parametrize(
    ("status", "method", "then", "keeps_body"),
    [
        (301, "POST", "GET", False),
        (302, "POST", "GET", False),
        (303, "PUT", "GET", False),
        (307, "POST", "POST", True),
        (308, "PUT", "PUT", True),
        (302, "PUT", "PUT", True),
    ],
)
async def test_the_method_after_a_redirect(
    status: int, method: str, then: str, keeps_body: bool, resolver: StubResolver
) -> None:
    async with serving(reply()) as end, serving(redirect(f"http://site.test:{end.port}/", status)) as server:
        client = SafeClient(policy_for(server, end), resolver=resolver)
        request = FetchRequest(f"http://site.test:{server.port}/", method, {"Content-Type": "text/plain"}, b"body")
        await client.fetch(request)
    assert end.head.startswith(then + " ")
    assert end.bodies == [b"body" if keeps_body else b""]
    assert ("Content-Type" in end.head) is keeps_body


async def test_a_method_that_the_next_host_does_not_allow_is_refused_there(resolver: StubResolver) -> None:
    from warmcell.policy.model import NetworkRule

    async with serving(reply()) as end, serving(redirect(f"http://other.test:{end.port}/", 307)) as server:
        rules = (NetworkRule("site.test", (server.port,)), NetworkRule("other.test", (end.port,), ("GET",)))
        client = SafeClient(FetchPolicy((server.literal, end.literal), rules=rules), resolver=resolver)
        error = await fetch_refused_error(client, FetchRequest(f"http://site.test:{server.port}/", "POST", body=b"x"))
    assert error.reason == "refused" and end.connections == 0


@pytest.mark.attack("SS-09")
async def test_https_never_becomes_http(
    resolver: StubResolver, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with serving(reply()) as end, serving(redirect(f"http://site.test:{end.port}/"), server_tls) as server:
        client = SafeClient(policy_for(server, end), resolver=resolver, ssl_context=client_tls)
        error = await fetch_refused_error(client, f"https://site.test:{server.port}/")
    assert "https to http" in error.message and end.connections == 0


async def test_redirects_can_be_left_to_the_caller(resolver: StubResolver) -> None:
    async with serving(redirect("http://evil.test/")) as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        response = await client.fetch(FetchRequest(f"http://site.test:{server.port}/", follow_redirects=False))
    assert response.status == 302 and response.headers["location"] == "http://evil.test/"


async def test_each_hop_costs_a_token(resolver: StubResolver) -> None:
    async with serving(redirect("/again")) as server:
        client = SafeClient(policy_for(server, rate_limit=3), resolver=resolver)
        assert (await fetch_refused_error(client, f"http://site.test:{server.port}/")).reason == "rate_limited"
    assert server.connections == 3
