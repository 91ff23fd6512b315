"""The guest's fetch: JSON in, JSON out."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.net.servers import StubResolver, policy_for, reply, serving

from warmcell.net.fetch.safe_client import (
    MAX_REQUEST_BYTES,
    HostCallError,
    SafeClient,
    handle_fetch_json,
    parse_request,
)
from warmcell.net.rules.fetch_policy import FetchPolicy, RateLimit


async def call(client: SafeClient | None, **request: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await handle_fetch_json(client, json.dumps(request).encode()))
    return answer


async def test_a_round_trip(resolver: StubResolver) -> None:
    async with serving(reply(b"\xff\x00binary", "201 Created", "X-A: b")) as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        url = f"http://site.test:{server.port}/"
        body = base64.b64encode(b"\0sent").decode()
        answer = await call(client, url=url, method="PUT", headers={"X-C": "d"}, body=body, follow_redirects=False)
    assert answer["status"] == 201 and answer["url"] == url and answer["headers"]["x-a"] == "b"
    assert base64.b64decode(answer["body"]) == b"\xff\x00binary"
    assert server.bodies == [b"\0sent"] and "X-C: d" in server.head


async def test_failures_are_data(resolver: StubResolver) -> None:
    async def silent(*_: object) -> None:
        import asyncio

        await asyncio.sleep(5)

    resolver.add("gone.test", [])
    async with serving(reply(b"x" * 1000)) as server, serving(silent) as slow:
        names, rate_limit = ["site.test", "gone.test"], RateLimit(6, 1000)
        policy = policy_for(server, slow, names=names, max_body_bytes=10, rate_limit=rate_limit)
        client = SafeClient(policy, resolver=resolver)
        port = server.port
        cases: list[tuple[dict[str, Any], str]] = [
            ({"url": "http://evil.test/"}, "fetch.refused"),
            ({"url": "not a url"}, "fetch.invalid"),
            ({"url": f"http://site.test:{port}/", "headers": {"Host": "x"}}, "fetch.invalid"),
            ({"url": f"http://site.test:{port}/", "headers": {"X": 7}}, "fetch.invalid"),
            ({"url": f"http://site.test:{port}/", "timeout": -1}, "fetch.invalid"),
            ({"url": f"http://gone.test:{port}/"}, "fetch.dns"),
            ({"url": f"http://site.test:{port}/"}, "fetch.too_large"),
            ({"url": f"https://site.test:{slow.port}/", "timeout": 0.2}, "fetch.timeout"),
            ({"url": f"http://site.test:{slow.port}/", "timeout": 0.2}, "fetch.timeout"),
        ]
        for request, code in cases:
            answer = await call(client, **request)
            assert answer["error"]["code"] == code, (request, answer)
            assert answer["error"]["message"]
        for _ in range(3):
            answer = await call(client, url=f"http://site.test:{port}/")
        assert answer["error"]["code"] == "fetch.rate_limited"


async def test_networking_off_says_how_to_turn_it_on() -> None:
    answer = await call(None, url="http://site.test/")
    assert "FetchPolicy(allowed_domains=[...])" in answer["error"]["message"]


BAD = [
    b"",
    b"\xff\xfe",
    b"{",
    b"[]",
    b"null",
    b"1",
    b'"http://a/"',
    b"{}",
    b'{"url": 1}',
    b'{"url": "http://a/", "extra": 1}',
    b'{"url": "http://a/", "method": 1}',
    b'{"url": "http://a/", "headers": []}',
    b'{"url": "http://a/", "headers": "x"}',
    b'{"url": "http://a/", "body": 1}',
    b'{"url": "http://a/", "body": "***"}',
    b'{"url": "http://a/", "timeout": "1"}',
    b'{"url": "http://a/", "timeout": true}',
    b'{"url": "http://a/", "follow_redirects": 1}',
    b"[" * 100_000,
    b" " * (MAX_REQUEST_BYTES + 1),
]


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
async def test_what_is_no_request_is_the_one_error(data: bytes) -> None:
    with pytest.raises(HostCallError):
        await handle_fetch_json(SafeClient(FetchPolicy()), data)


@given(
    st.one_of(st.binary(max_size=60), st.recursive(st.none() | st.text(max_size=5) | st.floats(), st.lists).map(repr))
)
def test_any_bytes_are_a_request_or_that_error(data: bytes | str) -> None:
    with contextlib.suppress(HostCallError):
        parse_request(data.encode() if isinstance(data, str) else data)
