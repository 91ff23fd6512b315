"""Every WebSocket comes in through here: the same questions as to any request, and so many at a time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from warmcell.core.errors import SandboxError
from warmcell.core.output_events import OutputEvent
from warmcell.interfaces.serve.doors import SUBPROTOCOL, admitted
from warmcell.interfaces.serve.exchange import Refused, plain_error, plain_refusal, refusal
from warmcell.interfaces.serve.service import service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.event_streams import with_pauses

_log = logging.getLogger("warmcell.serve")
#: The largest message that is taken from a client.
MAX_MESSAGE = 1 << 20
#: Of one tenant, at a time.
MOST_SOCKETS = 64
#: What a message of ours begins with, before the bytes.
CHANNELS = {"stdout": b"\1", "stderr": b"\2"}
#: Of the end of a conversation: all was said; the client broke the rules; we failed; come again later.
DONE, AGAINST_RULES, FAILED, LATER = 1000, 1008, 1011, 1013
Handler = Callable[[WebSocket, Tenant], Awaitable[None]]


def socket_door(path: str, handler: Handler, scope: str) -> WebSocketRoute:
    """A route for whoever has the scope. What is refused before the handler accepted is an HTTP answer, as anywhere."""

    async def endpoint(socket: WebSocket) -> None:
        try:
            tenant = admitted(socket, scope)
            places = service_of(socket).sockets
            if places.total() >= service_of(socket).settings.max_connections // 2:
                raise Refused(503, "there are as many WebSockets as there may be", headers={"Retry-After": "5"})
            if places[tenant.id] >= MOST_SOCKETS:
                raise Refused(429, f"you have {MOST_SOCKETS} WebSockets already", headers={"Retry-After": "5"})
            places[tenant.id] += 1
            try:
                await handler(socket, tenant)
            finally:
                places[tenant.id] -= 1
        except WebSocketDisconnect:
            return
        except (Refused, SandboxError) as error:
            await _refuse(socket, error)
        except Exception as error:
            # As at the other doors: the log gets it, the client its kind.
            _log.exception("a WebSocket failed inside")
            await _refuse(socket, Refused(500, f"the server failed inside ({type(error).__name__})"))

    return WebSocketRoute(path, endpoint)


async def _refuse(socket: WebSocket, error: Refused | SandboxError) -> None:
    if socket.application_state is WebSocketState.CONNECTING:
        await socket.send_denial_response(refusal(error))
        return
    plain = plain_refusal(error) if isinstance(error, Refused) else plain_error(error)
    code = AGAINST_RULES if plain["fault"] == "caller" else LATER if plain["retryable"] else FAILED
    try:
        await say(socket, "error", {"error": plain})
        await socket.close(code)
    except (WebSocketDisconnect, RuntimeError):
        return  # it has gone meanwhile


async def accept(socket: WebSocket) -> None:
    """By our own name, for clients that brought their token as one: a browser wants to hear one that it named."""
    await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope.get("subprotocols", ()) else None)


async def say(socket: WebSocket, kind: str, more: dict[str, Any]) -> None:
    await socket.send_text(json.dumps({"type": kind} | more, ensure_ascii=True, default=str))


async def heard(socket: WebSocket) -> AsyncIterator[bytes | str]:
    """What the client sends, until it goes. The next message is taken when the last one was dealt with."""
    while (message := await socket.receive())["type"] == "websocket.receive":
        data = message.get("bytes")
        yield message["text"] if data is None else data


def command(text: str, kinds: Mapping[str, type[BaseModel]]) -> tuple[str, Any]:
    """One of the messages that are JSON: its type, and what it says."""
    try:
        plain = json.loads(text)
        kind = plain.pop("type")
        return kind, kinds[kind].model_validate(plain)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, ValidationError):
        known = ", ".join(kinds)
        raise Refused(400, f"a text must be JSON with a type ({known}) and what belongs to it") from None


async def tell_output(socket: WebSocket, pieces: AsyncIterator[OutputEvent], until: asyncio.Event | None) -> None:
    """As bytes, as they come. Says something now and then, by which a client that has gone is noticed."""
    async with aclosing(with_pauses(pieces, until)) as items:  # type: ignore[type-var]
        async for item in items:
            if item is None:
                await say(socket, "keepalive", {})
            else:
                await socket.send_bytes(CHANNELS[item.stream] + item.data)


async def side_by_side(*works: Coroutine[Any, Any, object]) -> None:
    """Until the first of them ends; what it raised is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
