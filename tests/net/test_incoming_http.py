"""What a peer sends reaches h11 whole, or is refused before h11 could spend more than linear time on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.net.incoming_bodies import open_exchange

from warmcell.net.connect.http_exchange import MAX_BLANKS
from warmcell.net.proxy.forward_request import HeadError, parse_head

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def body_of(reads: Iterator[bytes] | list[bytes]) -> bytes:
    """Everything up to the end of the message."""
    incoming, body, waiting = open_exchange(), b"", iter(reads)
    while not isinstance(event := incoming.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            incoming.feed(next(waiting))
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    return body


def growth(work: Callable[[int], None], size: int) -> float:
    """How much longer four times the input takes: 4 is linear, 16 quadratic, 64 cubic."""

    def fastest(count: int) -> int:
        times = []
        for _ in range(5):
            began = time.thread_time_ns()
            work(count)
            times.append(time.thread_time_ns() - began)
        return min(times)

    return fastest(4 * size) / max(fastest(size), 1)


HOSTILE = {
    "header": lambda count: HEAD + b"a:" + b" " * count + b"\0\r\n\r\n",
    "tabs": lambda count: HEAD + b"a:" + b" \t" * (count // 2) + b"\0\r\n\r\n",
    "folded lines": lambda count: HEAD + b"a:" + b"\r\n " * count + b"\0\r\n\r\n",
    "trailer": lambda count: CHUNKED + b"0\r\na:" + b" " * count + b"\0\r\n\r\n",
    "chunk extension": lambda count: CHUNKED + b"1;" + b" " * count + b"\n \r\nx\r\n",
}


@pytest.mark.attack("S2-32")
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("read_size", [1 << 17, 100])
def test_blanks_in_a_line_are_refused_in_linear_time(kind: str, read_size: int) -> None:
    def work(count: int) -> None:
        data = HOSTILE[kind](count)
        with pytest.raises(h11.RemoteProtocolError):
            body_of(iter([data[at : at + read_size] for at in range(0, len(data), read_size)]))

    assert growth(work, 2000) < 8


@pytest.mark.attack("S2-32")
@pytest.mark.parametrize("end", [b"\1", b"b", b""])
def test_a_request_head_is_read_in_linear_time(end: bytes) -> None:
    def work(count: int) -> None:
        try:
            parsed = parse_head(b"GET http://a/ HTTP/1.1\r\nHost: a\r\nX: a" + b" " * count + end + b"\r\n\r\n")
            assert end != b"\1" and parsed.get("x") == ("a" + " " * count + "b" if end else "a")
        except HeadError:
            assert end == b"\1"

    assert growth(work, 500) < 8


PIECES = st.sampled_from([b" " * 31, b" " * 64, b"\r\n" * 40, b"\t" * 200, b"x", b"0\r\n", b" " * 5000])


@given(st.lists(PIECES, min_size=1, max_size=12), st.lists(st.integers(0, 4000), max_size=8), st.booleans())
def test_bodies_of_blanks_arrive_whole_however_they_are_cut(
    pieces: list[bytes], cuts: list[int], is_chunked: bool
) -> None:
    body = b"".join(pieces)
    if is_chunked:
        message = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        message = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    ends = sorted({0, *(cut for cut in cuts if cut < len(message)), len(message)})
    assert body_of([message[begin:end] for begin, end in pairwise(ends)]) == body


def test_a_header_with_some_blanks_passes() -> None:
    blanks = b" " * (MAX_BLANKS - 8)
    assert body_of([HEAD + b"X: a" + blanks + b"b\r\nContent-Length: 1\r\n\r\nx"]) == b"x"


def test_what_comes_after_the_message_is_left_over() -> None:
    after = b"y" + b" " * 1000 + b"z" + b" " * 1000
    incoming = open_exchange()
    incoming.feed(HEAD + b"Content-Length: 1\r\n\r\nx" + after)
    while not isinstance(incoming.next_event(), h11.EndOfMessage):
        pass
    assert incoming.trailing_bytes() == after
