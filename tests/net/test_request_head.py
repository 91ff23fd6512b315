"""Request heads: what two readers could understand differently is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.net.proxy.forward_request import HeadError, parse_head


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def test_a_plain_request() -> None:
    parsed = parse_head(head("GET http://a.test/ HTTP/1.1", "Host: a.test", "X-A:  b c \t", "x-a: é"))
    assert (parsed.method, parsed.target, parsed.minor_version) == ("GET", "http://a.test/", 1)
    assert parsed.headers == (("Host", "a.test"), ("X-A", "b c"), ("x-a", "é"))
    assert parsed.get("host") == "a.test" and parsed.get("nope") is None


REFUSED = [
    ("GET http://a/ HTTP/1.1", "Host: a", "Content-Length: 1", "Transfer-Encoding: chunked"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Content-Length: 1", "Content-Length: 1"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Content-Length: 1, 1"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Content-Length: +1"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Content-Length: 0x1"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Content-Length: -1"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Content-Length:"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Transfer-Encoding: gzip, chunked"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Transfer-Encoding: xchunked"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    ("GET http://a/ HTTP/1.0", "Transfer-Encoding: chunked"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Transfer-Encoding : chunked"),
    ("GET http://a/ HTTP/1.1", "Host: a", " folded"),
    ("GET http://a/ HTTP/1.1", "Host: a", "X: y", "\tfolded"),
    ("GET http://a/ HTTP/1.1", "Host: a", "Host: b"),
    ("GET http://a/ HTTP/1.1",),
    ("GET http://a/ HTTP/1.1", "Host: a", "X: a\nY: b"),
    ("GET http://a/ HTTP/1.1", "Host: a", "X: a\rY: b"),
    ("GET http://a/ HTTP/1.1", "Host: a", "X: a\0b"),
    ("GET http://a/ HTTP/1.1", "Host: a", "no colon"),
    ("GET http://a/ HTTP/1.1", "Host: a", ": no name"),
    ("GET http://a/ HTTP/2.0", "Host: a"),
    ("GET http://a/ HTTP/1.2", "Host: a"),
    ("GET  http://a/ HTTP/1.1", "Host: a"),
    ("GET http://a/ b HTTP/1.1", "Host: a"),
    ("GET\thttp://a/ HTTP/1.1", "Host: a"),
    ("GET http://a/", "Host: a"),
    ("", "GET http://a/ HTTP/1.1", "Host: a"),
    ("GET http://a/ HTTP/1.1", "Host: a", *[f"X{n}: y" for n in range(300)]),
]


@pytest.mark.parametrize("lines", REFUSED, ids=range(len(REFUSED)))
def test_ambiguous_heads_are_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(HeadError):
        parse_head(head(*lines))


@given(st.binary(max_size=200))
def test_bytes_are_a_head_or_an_error(data: bytes) -> None:
    for raw in (data, b"GET http://a/ HTTP/1.1\r\nHost: a\r\n" + data + b"\r\n\r\n"):
        try:
            parsed = parse_head(raw)
        except HeadError:
            continue
        assert all("\n" not in name + value and "\r" not in name + value for name, value in parsed.headers)
