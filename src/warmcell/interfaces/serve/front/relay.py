"""Relay one HTTP request to another process of this server and stream back its response."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import h11
from starlette.requests import HTTPConnection

from warmcell.core.errors import BackendUnavailable, SandboxError
from warmcell.core.light import on_error
from warmcell.interfaces.serve.authentication import find_token
from warmcell.interfaces.serve.e2b.connect import CONNECT, END_OF_STREAM, envelope
from warmcell.interfaces.serve.e2b.template_records import UPLOAD_SECONDS, UPLOADS
from warmcell.interfaces.serve.event_streams import StreamTurns
from warmcell.interfaces.serve.middleware import CLIENT, PART, SCHEME, scheme_of
from warmcell.interfaces.serve.requests import MORE_BODY_SECONDS, Receive
from warmcell.interfaces.serve.responses import ClientDisconnected, error_to_dict
from warmcell.lifetime.threads import cancel_and_wait

#: Hop-by-hop headers, which are not forwarded.
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"}
)
_CHUNK = 1 << 16
#: How long the head waits, so that it is sent together with the first part of the body.
_HEAD_DELAY = 1.0
#: How long a request waits for a worker that is starting.
STARTING_SECONDS = 20.0
EVENT_STREAM = "text/event-stream"
#: Limit for a response head and for chunk headers.
_MAX_HEAD = 256 * 1024
#: A key in a scope: another worker reports the client's request. `PART` tells the worker.
PART_OF_REQUEST = "warmcell.part"
Headers = list[tuple[bytes, bytes]]
Event = h11.Response | h11.Data | h11.EndOfMessage


class WorkerLost(SandboxError):
    """The worker exited during the request; it is unknown how far the request got."""

    code = "sandbox.worker_lost"
    retryable = True


def make_lost_error() -> WorkerLost:
    return WorkerLost("the worker of this request exited", hint="try again")


class Peer:
    """A process of this server, at a Unix socket whose path exists while the process accepts requests."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        #: Requests that this process relays to it.
        self.active_requests = 0
        #: Added to each row of its activity.
        self.labels: dict[str, str] = {}

    @property
    def loss(self) -> SandboxError | None:
        """Why it will never answer again; None if it answers or is being restarted."""
        return None


async def connect_to_peer(peer: Peer) -> socket.socket:
    """Wait for a peer that is starting; raises `BackendUnavailable` after `STARTING_SECONDS`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + STARTING_SECONDS
    while True:
        if peer.loss is not None:
            raise peer.loss
        upstream = socket.socket(socket.AF_UNIX)
        upstream.setblocking(False)
        with suppress(OSError), on_error(upstream.close):
            await loop.sock_connect(upstream, peer.path)
            return upstream
        if loop.time() > deadline:
            raise BackendUnavailable(f"{peer.name} did not start in time", hint="try again later")
        await asyncio.sleep(0.05)


async def relay(peer: Peer, scope: Any, receive: Receive, send: Any) -> None:
    """Relay a request. Raises `WorkerLost`, or its `loss`, if the peer exits before it answers; a stream ends with
    an error event instead.
    """
    kind, turns, owner = "", StreamTurns.of_this_loop(), find_token(HTTPConnection(scope)) or ""
    if scope["path"].startswith(UPLOADS):
        scope[MORE_BODY_SECONDS] = UPLOAD_SECONDS
    upstream = await connect_to_peer(peer)
    async with aclosing(_relay_request(peer, upstream, scope, receive)) as events:
        try:
            async for event in events:
                if isinstance(event, h11.Response):
                    kind = dict(event.headers).get(b"content-type", b"").decode("latin-1") or "unknown"
                elif isinstance(event, h11.Data):
                    await turns.wait(owner)
                await send(_to_asgi(event))
        except WorkerLost as error:
            reason = peer.loss or error
            if not kind:
                raise reason from None
            # Any other response is cut, and its client sees that it is short.
            if (last := last_event(kind, reason)) is not None:
                await send({"type": "http.response.body", "body": last})


def last_event(content_type: str, error: SandboxError) -> bytes | None:
    """An error event of a stream's protocol; None if it has none."""
    kind = content_type.partition(";")[0]
    if kind == EVENT_STREAM:
        return f"event: error\ndata: {json.dumps({'error': error_to_dict(error)})}\n\n".encode()
    if kind == CONNECT:
        return envelope({"error": {"code": "unavailable", "message": error.message}}, END_OF_STREAM)
    return None


def _to_asgi(event: Event) -> dict[str, Any]:
    if isinstance(event, h11.Response):
        headers = [(name, value) for name, value in event.headers if name not in (b"connection", b"transfer-encoding")]
        return {"type": "http.response.start", "status": event.status_code, "headers": headers}
    data = bytes(event.data) if isinstance(event, h11.Data) else b""
    return {"type": "http.response.body", "body": data, "more_body": isinstance(event, h11.Data)}


async def _relay_request(
    peer: Peer, upstream: socket.socket, scope: Any, receive: Receive
) -> AsyncGenerator[Event, None]:
    """Yield the events of the response, first its head. Closing the iterator disconnects, which ends the run."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
    sending = asyncio.ensure_future(_send(connection, upstream, scope, receive))
    peer.active_requests += 1
    try:
        async for event in _events(connection, upstream, sending):
            yield event
    finally:
        peer.active_requests -= 1
        try:
            await cancel_and_wait(sending)
        finally:  # also if the request is cancelled here
            upstream.close()


async def _send(connection: h11.Connection, upstream: socket.socket, scope: Any, receive: Receive) -> None:
    """Send the request, then wait until the client disconnects and raise `ClientDisconnected`."""
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    ours = [(CLIENT, (scope.get("client") or ("", 0))[0].encode()), (SCHEME, scheme_of(scope))]
    ours.append((PART, b"1" if scope.get(PART_OF_REQUEST) else b"0"))
    if all(name != b"host" for name, _ in scope["headers"]):  # HTTP/1.0 needs none, and we send HTTP/1.1
        ours.append((b"host", b"localhost"))
    head = h11.Request(method=scope["method"], target=target, headers=[*ours, *headers_to_forward(scope["headers"])])
    sent, send = connection.send(head) or b"", asyncio.get_running_loop().sock_sendall
    try:
        async with asyncio.timeout(_HEAD_DELAY):
            message = await receive()
    except TimeoutError:  # the worker's own deadline for heads is running
        await send(upstream, sent)
        sent, message = b"", await receive()
    while message["type"] != "http.disconnect":
        if connection.our_state is not h11.SEND_BODY:
            message = await receive()
            continue
        if message.get("body"):
            sent += connection.send(h11.Data(data=message["body"])) or b""
        if not message.get("more_body"):
            sent += connection.send(h11.EndOfMessage()) or b""
        await send(upstream, sent)
        sent, message = b"", await receive()
    raise ClientDisconnected


def headers_to_forward(headers: Headers) -> Headers:
    """Frame the body exactly once, by us: a disagreement about its length would allow request smuggling."""
    kept = [(name, value) for name, value in headers if name not in _HOP_BY_HOP]
    if any(name == b"transfer-encoding" for name, _ in headers):
        kept = [(name, value) for name, value in kept if name != b"content-length"]
        kept.append((b"transfer-encoding", b"chunked"))
    return [*kept, (b"connection", b"close")]


async def _events(
    connection: h11.Connection, upstream: socket.socket, sending: asyncio.Future[None]
) -> AsyncIterator[Event]:
    """Raises `WorkerLost` if the response is cut short, `ClientDisconnected` if the client left."""
    while True:
        try:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await _read(upstream, sending))
                continue
        except (h11.RemoteProtocolError, ConnectionError):
            raise make_lost_error() from None
        if isinstance(event, h11.ConnectionClosed):
            raise make_lost_error()
        if isinstance(event, h11.Response | h11.Data | h11.EndOfMessage):
            yield event
        if isinstance(event, h11.EndOfMessage):
            return


async def _read(upstream: socket.socket, sending: asyncio.Future[None]) -> bytes:
    """Read also when the worker stopped reading the request: an error response may come before its end."""
    reading = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(upstream, _CHUNK))
    try:
        if not sending.done():
            await asyncio.wait((reading, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and isinstance(error := sending.exception(), ClientDisconnected):
                raise error
        return await reading
    finally:
        reading.cancel()
