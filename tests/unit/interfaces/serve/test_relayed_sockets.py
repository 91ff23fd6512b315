"""The head of a WebSocket that a process of the server relays to another one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from warmcell.interfaces.serve.front.client_sockets import SocketRelay, parse_head
from warmcell.interfaces.serve.middleware import CLIENT, PART, SCHEME

HEAD = b"GET /v1/run/ws HTTP/1.1\r\nhost: x\r\n%s\r\n"


async def choose(request: object) -> None:
    """The process itself."""


def test_a_client_cannot_set_the_headers_between_our_processes() -> None:
    """With `x-warmcell-part: 1` the worker took the socket for a part of a request that another one reports: it was
    neither in the audit nor in the metrics.
    """
    relay = SocketRelay(choose, None, SimpleNamespace(connections=set(), tasks=set()), {})
    transport: Any = SimpleNamespace(get_extra_info={"peername": ("192.0.2.1", 9)}.get)
    relay.connection_made(transport)
    forged = b"".join(b"%s: 1\r\n" % name for name in (CLIENT, SCHEME, PART))
    head = relay._with_our_headers(HEAD % forged)
    headers = dict(reversed(parse_head(head).scope["headers"]))  # the first of each name, as `ProxyHeaders` takes it
    assert (headers[CLIENT], headers[SCHEME], headers[PART]) == (b"192.0.2.1", b"http", b"0")
