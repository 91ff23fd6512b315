"""Injected credentials reach only the server that they are for."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.net.proxy_talk import get
from tests.net.servers import StubResolver, policy_for, redirect, reply, serving

from warmcell.core.errors import FetchFailed
from warmcell.net.credentials import SecretRef
from warmcell.net.fetch.messages import FetchRequest
from warmcell.net.fetch.safe_client import SafeClient, handle_fetch_json
from warmcell.net.proxy.egress_proxy import EgressProxy

SECRET = "canary-s3cr3t-value"
INJECT = {"http://site.test": {"Authorization": SecretRef(lambda: SECRET, format="Bearer {}")}}


async def test_the_header_is_added_and_replaces_the_guests_own(resolver: StubResolver) -> None:
    lines: list[str] = []
    async with serving(reply()) as server:
        client = SafeClient(policy_for(server, inject=INJECT), resolver=resolver, audit=lines.append)
        await client.fetch(FetchRequest(f"http://site.test:{server.port}/", headers={"authorization": "Basic mine"}))
    assert server.head.count("uthorization") == 1 and f"Authorization: Bearer {SECRET}\r\n" in server.head
    assert SECRET not in "".join(lines)


async def test_other_hosts_do_not_get_it(resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        policy = policy_for(server, names=["site.test", "other.test"], inject=INJECT)
        client = SafeClient(policy, resolver=resolver)
        await client.fetch(f"http://other.test:{server.port}/")
        await client.fetch(f"http://127.0.0.1:{server.port}/")
    assert all(SECRET.encode() not in head for head in server.heads)


async def test_a_redirect_to_another_host_does_not_carry_it(resolver: StubResolver) -> None:
    async with serving(reply()) as end, serving(redirect(f"http://other.test:{end.port}/")) as server:
        policy = policy_for(server, end, names=["site.test", "other.test"], inject=INJECT)
        await SafeClient(policy, resolver=resolver).fetch(f"http://site.test:{server.port}/")
    assert SECRET in server.head and SECRET not in end.head


async def test_an_echo_is_redacted_from_body_headers_and_url(resolver: StubResolver) -> None:
    echo = f"you sent {SECRET} and {base64.b64encode(SECRET.encode()).decode()}".encode()
    async with serving(reply(echo, "200 OK", f"X-Echo: Bearer {SECRET}")) as server:
        client = SafeClient(policy_for(server, inject=INJECT), resolver=resolver)
        response = await client.fetch(f"http://site.test:{server.port}/")
    assert response.headers["x-echo"] == "Bearer [redacted]"
    assert response.body.startswith(b"you sent [redacted] and [redacted]")
    assert SECRET not in repr(response)


async def test_an_echo_in_a_redirect_is_redacted_from_errors(resolver: StubResolver) -> None:
    lines: list[str] = []
    for location in (
        f"http://evil.test/{SECRET}",
        f"file:///{SECRET}",
        f"http://{SECRET}.test/",
        f"http://{SECRET} x/",
    ):
        async with serving(redirect(location)) as server:
            client = SafeClient(policy_for(server, inject=INJECT), resolver=resolver, audit=lines.append)
            with pytest.raises(FetchFailed) as caught:
                await client.fetch(f"http://site.test:{server.port}/")
        assert SECRET not in str(caught.value)
    assert SECRET not in "".join(lines)


async def test_a_secret_that_cannot_be_read_stops_the_request(resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        inject = {"http://site.test": {"Authorization": SecretRef.env("NO_SUCH_VARIABLE_HERE")}}
        client = SafeClient(policy_for(server, inject=inject), resolver=resolver)
        with pytest.raises(FetchFailed, match="NO_SUCH_VARIABLE_HERE"):
            await client.fetch(f"http://site.test:{server.port}/")
    assert server.connections == 0


async def test_a_guest_does_not_learn_where_a_secret_is_kept(
    start_proxy: Callable[..., EgressProxy], resolver: StubResolver, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    async with serving(reply()) as server:
        policy = policy_for(server, inject={"http://site.test": {"Authorization": SecretRef.file(path)}})
        url = f"http://site.test:{server.port}/"
        fetched = await handle_fetch_json(SafeClient(policy, resolver=resolver), json.dumps({"url": url}).encode())
        answers = [fetched, (await get(start_proxy(policy), url))[1]]
    for answer in answers:
        assert b"a credential for this host cannot be read" in answer and str(path).encode() not in answer
    assert server.connections == 0


async def test_an_echo_in_a_coding_that_cannot_be_undone_is_refused(resolver: StubResolver) -> None:
    async with serving(reply(b"??", "200 OK", "Content-Encoding: compress")) as server:
        client = SafeClient(policy_for(server, inject=INJECT), resolver=resolver)
        with pytest.raises(FetchFailed, match="compress"):
            await client.fetch(f"http://site.test:{server.port}/")


async def test_the_length_is_not_claimed_for_a_redacted_body(resolver: StubResolver) -> None:
    async with serving(reply(gzip.compress(SECRET.encode()), "200 OK", "Content-Encoding: gzip")) as server:
        client = SafeClient(policy_for(server, inject=INJECT), resolver=resolver)
        response = await client.fetch(f"http://site.test:{server.port}/")
    assert response.body == b"[redacted]" and "content-length" not in response.headers


async def test_secrets_are_read_at_each_use(resolver: StubResolver) -> None:
    values = iter(["first-value", "second-value"])
    inject = {"http://*.test": {"X-Key": SecretRef(lambda: next(values))}}
    async with serving(reply()) as server:
        client = SafeClient(policy_for(server, inject=inject), resolver=resolver)
        for expected in ("first-value", "second-value"):
            await client.fetch(f"http://site.test:{server.port}/")
            assert f"X-Key: {expected}" in server.head


async def test_concurrent_fetches_do_not_mix(resolver: StubResolver) -> None:
    async with serving(reply(f"echo {SECRET}".encode())) as server:
        policy = policy_for(server, names=["site.test", "other.test"], inject=INJECT)
        client = SafeClient(policy, resolver=resolver)
        urls = [f"http://{name}.test:{server.port}/" for name in ("site", "other") * 10]
        responses = await asyncio.gather(*[client.fetch(url) for url in urls])
    assert all(SECRET.encode() not in response.body for response in responses[::2])
