"""One request carried to a worker and its answer carried back, as it comes. Knows HTTP and nothing of any protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import h11

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.exchange import ClientGone
from warmcell.interfaces.serve.front.workers import Worker

#: About one connection, and so not for the next.
_OF_ONE_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"}
)
_CHUNK = 1 << 16
#: How long the head of a request waits for the first of its body, to be sent with it.
_PATIENCE = 1.0
#: Of an answer's head and of what surrounds its chunks.
_MAX_HEAD = 256 * 1024
Headers = list[tuple[bytes, bytes]]
Event = h11.Response | h11.Data | h11.EndOfMessage
Receive = Callable[[], Awaitable[Any]]


class WorkerLost(SandboxError):
    """The process that was at work on the request has ended: nobody knows how far it came."""

    code = "sandbox.worker_lost"
    retryable = True


class NotReached(Exception):
    """The worker never got the request, and another may."""


async def reached(worker: Worker) -> socket.socket:
    way = socket.socket(socket.AF_UNIX)
    way.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(way, worker.path)
    except OSError:
        way.close()
        raise NotReached from None
    return way


async def carried(worker: Worker, way: socket.socket, scope: Any, receive: Receive) -> AsyncIterator[Event]:
    """The events of the answer, first its head. Closing the iterator hangs up, which ends a run in the worker."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
    sending = asyncio.ensure_future(_send(connection, way, scope, receive))
    worker.under_way += 1
    try:
        async for event in _events(connection, way, sending):
            yield event
    finally:
        worker.under_way -= 1
        sending.cancel()
        await asyncio.wait([sending])
        if not sending.cancelled():
            sending.exception()  # looked at: a client that has gone, or a worker that did not want the rest
        way.close()


async def _send(connection: h11.Connection, way: socket.socket, scope: Any, receive: Receive) -> None:
    """The request, and then nothing, until its client has gone."""
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    head = h11.Request(method=scope["method"], target=target, headers=forwarded(scope["headers"]))
    sent, send = connection.send(head) or b"", asyncio.get_running_loop().sock_sendall
    try:
        async with asyncio.timeout(_PATIENCE):
            message = await receive()
    except TimeoutError:  # a worker waits for a head no longer than for any client's
        await send(way, sent)
        sent, message = b"", await receive()
    while message["type"] != "http.disconnect":
        if connection.our_state is not h11.SEND_BODY:
            message = await receive()
            continue
        if message.get("body"):
            sent += connection.send(h11.Data(data=message["body"])) or b""
        if not message.get("more_body"):
            sent += connection.send(h11.EndOfMessage()) or b""
        await send(way, sent)
        sent, message = b"", await receive()
    raise ClientGone


def forwarded(headers: Headers) -> Headers:
    """What a body is framed by is said once, and by us: two who disagree about it would be two requests."""
    kept = [(name, value) for name, value in headers if name not in _OF_ONE_CONNECTION]
    if any(name == b"transfer-encoding" for name, _ in headers):
        kept = [(name, value) for name, value in kept if name != b"content-length"]
        kept.append((b"transfer-encoding", b"chunked"))
    return [*kept, (b"connection", b"close")]


async def _events(
    connection: h11.Connection, way: socket.socket, sending: asyncio.Future[None]
) -> AsyncIterator[Event]:
    """`WorkerLost` where it ends before its end; `ClientGone` where that is the client's doing."""
    while True:
        try:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await _read(way, sending))
                continue
        except (h11.RemoteProtocolError, ConnectionError):
            raise WorkerLost("the worker that carried this out has ended", hint="ask again") from None
        if isinstance(event, h11.ConnectionClosed):
            raise WorkerLost("the worker that carried this out has ended", hint="ask again")
        if isinstance(event, h11.Response | h11.Data | h11.EndOfMessage):
            yield event
        if isinstance(event, h11.EndOfMessage):
            return


async def _read(way: socket.socket, sending: asyncio.Future[None]) -> bytes:
    """What comes, even where the rest of the request is not wanted any more: a refusal may precede its end."""
    reading = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(way, _CHUNK))
    try:
        if not sending.done():
            await asyncio.wait((reading, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and isinstance(error := sending.exception(), ClientGone):
                raise error
        return await reading
    finally:
        reading.cancel()
