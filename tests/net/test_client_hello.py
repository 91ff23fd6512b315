"""The ClientHello: found in real handshakes, in any slices and records, and nothing else passes for one."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.net.hellos import real_hello, records

from warmcell.net.proxy.client_hello import MAX_HELLO_BYTES, ClientHello, HelloReader, NotTlsError, looks_like_tls

HELLO = real_hello("api.example.com")


def parse_client_hello(data: bytes) -> ClientHello | None:
    return HelloReader().feed(data)


def hello_with(*extensions: tuple[int, bytes]) -> bytes:
    packed = b"".join(kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data for kind, data in extensions)
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + len(packed).to_bytes(2, "big") + packed
    return records(b"\x01" + len(body).to_bytes(3, "big") + body, 1 << 14)


def server_name(*names: bytes, kind: int = 0) -> tuple[int, bytes]:
    entries = b"".join(bytes([kind]) + len(name).to_bytes(2, "big") + name for name in names)
    return (0, len(entries).to_bytes(2, "big") + entries)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_real_handshakes(version: ssl.TLSVersion) -> None:
    named = parse_client_hello(real_hello("api.example.com", version))
    assert named is not None and named.server_name == "api.example.com"
    unnamed = parse_client_hello(real_hello(None, version))
    assert unnamed is not None and unnamed.server_name is None


def test_every_beginning_asks_for_more() -> None:
    for length in range(len(HELLO)):
        assert parse_client_hello(HELLO[:length]) is None


@pytest.mark.parametrize("size", [1, 2, 5, 40, 100, 1000])
def test_a_name_split_over_records_is_still_seen(size: int) -> None:
    found = parse_client_hello(records(HELLO[5:], size))
    assert found is not None and found.server_name == "api.example.com"


def test_an_encrypted_hello_has_its_outer_name() -> None:
    found = parse_client_hello(hello_with(server_name(b"outer.test"), (0xFE0D, b"x")))
    assert found is not None and found.server_name == "outer.test"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-x\r\n",
        b"\x80\x2e\x01\x03\x01",
        b"\x16\x02\x01\x00\x05",
        b"\x15\x03\x01\x00\x02\x01\x00",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff",
        records(b"\x02" + (10).to_bytes(3, "big") + bytes(10), 100),
        records(b"\x01" + (10).to_bytes(3, "big") + b"\xff" * 10, 100),
        records(b"\x01" + (1 << 20).to_bytes(3, "big"), 100),
        hello_with(server_name(b"a.test", b"b.test")),
        hello_with(server_name(b"a.test", kind=1)),
        hello_with(server_name(b"a.test"), server_name(b"b.test")),
        hello_with(server_name(b"a.test\0.evil")),
        hello_with(server_name(b"")),
        hello_with((0, b"")),
        b"\x16\x03\x01\x00\x01\x01" * (MAX_HELLO_BYTES // 6 + 10),
    ],
)
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(NotTlsError):
        if parse_client_hello(data) is None:
            pytest.fail("asked for more")


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_give_a_hello_nothing_or_the_one_error(data: bytes, framed: bool) -> None:
    with contextlib.suppress(NotTlsError):
        parse_client_hello(records(b"\x01" + len(data).to_bytes(3, "big") + data, 50) if framed else data)


def test_the_first_byte_tells() -> None:
    assert looks_like_tls(b"\x16\x03\x01") and looks_like_tls(b"\x16")
    assert not looks_like_tls(b"GET") and not looks_like_tls(b"\x16\x04") and not looks_like_tls(b"")


@given(st.sampled_from([1, 3, 50, 1 << 14]), st.lists(st.integers(1, 400), max_size=20), st.binary(max_size=30))
def test_the_way_in_which_it_arrives_makes_no_difference(record: int, cuts: list[int], noise: bytes) -> None:
    """A reader that is fed piece by piece says what one says that sees all at once."""
    for data in (records(HELLO[5:], record), records(HELLO[5:], record)[:-1] + noise, noise):
        outcomes = []
        for pieces in ([data], _cut(data, cuts), [data[i : i + 1] for i in range(len(data))]):
            reader = HelloReader()
            try:
                found = None
                for piece in pieces:
                    found = found or reader.feed(piece)
                outcomes.append(found)
            except NotTlsError:
                outcomes.append("refused")
        # A refusal may come before the rest would have been read, never instead of a hello.
        assert outcomes[1] == outcomes[2] == outcomes[0]


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]
