"""Ask workers on behalf of a client, and collect their responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from warmcell.interfaces.serve.front.relay import PART_OF_REQUEST, Peer, Receive, relay
from warmcell.interfaces.serve.responses import ClientDisconnected

_BODY_HEADERS = (b"content-length", b"content-type", b"transfer-encoding")


async def ask(worker: Peer, scope: Any, receive: Receive, *, is_part: bool = False) -> Response:
    """Send a request without a body. `is_part`: another worker reports the client's request."""
    parts: list[dict[str, Any]] = []

    async def append(message: dict[str, Any]) -> None:
        parts.append(message)

    headers = [pair for pair in scope["headers"] if pair[0] not in _BODY_HEADERS]
    scope = {**scope, "headers": headers, PART_OF_REQUEST: is_part}
    await relay(worker, scope, replay(b"", receive), append)
    head = {name.decode("latin-1"): text.decode("latin-1") for name, text in parts[0]["headers"]}
    return Response(b"".join(part.get("body", b"") for part in parts), parts[0]["status"], head)


async def ask_all(workers: Iterable[Peer], scope: Any, receive: Receive) -> list[Response]:
    """The response of each worker; only the first one that is not 200 if there is such."""
    found: list[Response] = []
    for worker in workers:
        found.append(await ask(worker, {**scope, "method": "GET"}, receive, is_part=bool(found)))
        if found[-1].status_code != 200:
            return found[-1:]
    return found


def no_client() -> Receive:
    """A client that stays connected and sends nothing."""
    connected = asyncio.get_running_loop().create_future()
    return lambda: connected


def replay(body: bytes, receive: Receive, *, has_more: bool = False) -> Receive:
    """A `receive` that returns a body, or its beginning, that was read before, and then what the client sends."""
    first = [{"type": "http.request", "body": body, "more_body": has_more}]

    async def receive_again() -> Any:
        return first.pop() if first else await receive()

    return receive_again


async def read_ahead(receive: Receive, limit: int) -> tuple[bytes, bool]:
    """The body, up to about `limit` bytes, and whether there is more of it. Raises `ClientDisconnected`."""
    pieces, size = list[bytes](), 0
    while size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if not message.get("more_body"):
            return b"".join(pieces), False
    return b"".join(pieces), True
