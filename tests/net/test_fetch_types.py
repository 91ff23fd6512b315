"""FetchPolicy, FetchRequest, FetchResponse, Headers."""

from __future__ import annotations

from typing import Any

import pytest

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.net.fetch.messages import FetchRequest, FetchResponse
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.headers import Headers

BAD: list[dict[str, Any]] = [
    {"allowed_domains": "example.com"},
    {"allowed_domains": [1]},
    {"blocked_domains": "example.com"},
    {"allowed_methods": "GET"},
    {"deny_private_ips": "no"},
    {"deny_private_ips": None},
    {"request_timeout": 0},
    {"request_timeout": float("inf")},
    {"request_timeout": None},
    {"max_redirects": -1},
    {"max_redirects": 51},
    {"max_redirects": True},
    {"max_body_bytes": -1},
    {"max_body_bytes": 1.5},
    {"allowed_ports": (0,)},
    {"allowed_ports": (70000,)},
    {"allowed_ports": ("80",)},
]


@pytest.mark.parametrize("fields", BAD)
def test_a_policy_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        FetchPolicy(**fields)


def test_a_policy_is_normalised_and_cannot_be_changed() -> None:
    policy = FetchPolicy(["a.test"], allowed_methods=["get"], allowed_ports=[80])  # type: ignore[arg-type]
    assert (
        policy.allowed_domains == ("a.test",) and policy.allowed_methods == ("GET",) and policy.allowed_ports == (80,)
    )
    with pytest.raises(AttributeError):
        policy.allowed_domains = ("*",)  # type: ignore[misc]
    with pytest.raises(TypeError):
        policy.inject["a.test"] = {}  # type: ignore[index]
    with pytest.raises(PolicyViolation):
        FetchPolicy(inject={"not a host": {}})


def test_a_request_holds_text_or_bytes() -> None:
    assert FetchRequest("http://a/").body_bytes == b""
    assert FetchRequest("http://a/", body="ä").body_bytes == "ä".encode()
    assert FetchRequest("http://a/", body=b"x").body_bytes == b"x"


def test_headers() -> None:
    headers = Headers([("X-A", "1"), ("x-a", "2"), ("B", "3")])
    assert headers["x-A"] == "1, 2" and headers.get("c") is None and len(headers) == 2
    assert dict(headers) == {"x-a": "1, 2", "b": "3"} and "X-a" in headers
    with pytest.raises(KeyError):
        headers["nope"]


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/plain; charset=latin-1", b"\xe4", "ä"),
        ('text/plain; charset="UTF-8"', b"\xc3\xa4", "ä"),
        ("text/plain", b"\xc3\xa4\xff", "ä\ufffd"),
        ("text/plain; charset=no-such-thing", b"\xc3\xa4", "ä"),
        ("text/plain; charset=", b"x", "x"),
        ("text/plain; charset=PunyCode", b"a-b", "a-b"),
        ("text/plain; charset=base64", b"eA==", "eA=="),
        ("text/plain; charset=a\0b", b"x", "x"),
    ],
)
def test_text_in_the_servers_charset(content_type: str, body: bytes, text: str) -> None:
    response = FetchResponse(200, Headers([("content-type", content_type)]), body, "http://a/")
    assert response.text() == text


@pytest.mark.parametrize(("status", "ok"), [(199, False), (200, True), (299, True), (301, False), (404, False)])
def test_ok(status: int, ok: bool) -> None:
    assert FetchResponse(status, Headers(), b"[1]", "http://a/").ok is ok
    assert FetchResponse(status, Headers(), b"[1]", "http://a/").json() == [1]


def test_a_response_made_by_hand_has_the_same_headers() -> None:
    response = FetchResponse(200, {"X-A": "b"}, b"", "http://a/")  # type: ignore[arg-type]
    assert response.headers["x-a"] == "b"
