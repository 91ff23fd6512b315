"""WebSocket routes: the same authentication as for other requests, and a limit per tenant."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from warmcell.core.errors import SandboxError
from warmcell.core.output_events import OutputEvent
from warmcell.interfaces.serve.authentication import SUBPROTOCOL, authenticate
from warmcell.interfaces.serve.event_streams import with_keepalives
from warmcell.interfaces.serve.middleware import annotate_events, id_of
from warmcell.interfaces.serve.requests import OWNER, has_many_values, while_allowed
from warmcell.interfaces.serve.responses import HttpError, error_response, error_to_dict
from warmcell.interfaces.serve.service import get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import cancel_and_wait

_log = logging.getLogger("warmcell.serve")
#: The largest message that a client may send.
MAX_MESSAGE = 1 << 20
#: Open WebSockets per tenant.
MAX_SOCKETS = 64
#: The first byte of a binary message of ours.
CHANNELS = {"stdout": b"\1", "stderr": b"\2"}
#: Close codes: normal, policy violation, internal error, try again later.
DONE, POLICY_VIOLATION, INTERNAL_ERROR, TRY_AGAIN_LATER = 1000, 1008, 1011, 1013
Handler = Callable[[WebSocket, Tenant], Coroutine[Any, Any, None]]


def websocket_route(path: str, handler: Handler, scope: str) -> WebSocketRoute:
    """Make a route for tenants with the scope. Errors before the handshake are ordinary HTTP responses."""

    async def endpoint(socket: WebSocket) -> None:
        try:
            tenant = authenticate(socket, scope)
            socket.scope[OWNER] = tenant.id
            annotate_events(socket, tenant)
            service = get_service(socket)
            quota = service.sockets
            if quota.total() >= service.settings.max_connections // 2:
                raise HttpError(503, "too many open WebSockets", headers={"Retry-After": "5"})
            if not quota.take(tenant.id, MAX_SOCKETS):
                message = f"this token already has {MAX_SOCKETS} open WebSockets"
                raise HttpError(429, message, headers={"Retry-After": "5"})
            try:
                register = partial(service.open_requests.add, tenant.id, id_of(socket.scope))
                await while_allowed(service.revocable(tenant, scope), handler(socket, tenant), register)
            finally:
                quota.release(tenant.id)
        except WebSocketDisconnect:
            return
        except (HttpError, SandboxError) as error:
            await _refuse(socket, error)
        except Exception as error:
            # As in `routing`: log it, and send only its type.
            _log.exception("a WebSocket failed with an internal error")
            await _refuse(socket, HttpError(500, f"internal server error ({type(error).__name__})"))

    return WebSocketRoute(path, endpoint)


async def _refuse(socket: WebSocket, error: HttpError | SandboxError) -> None:
    if socket.application_state is WebSocketState.CONNECTING:
        with suppress(OSError):  # the client has disconnected
            await socket.send_denial_response(error_response(error))
        return
    plain = error_to_dict(error)
    code = POLICY_VIOLATION if plain["fault"] == "caller" else TRY_AGAIN_LATER if plain["retryable"] else INTERNAL_ERROR
    try:
        await send_message(socket, "error", {"error": plain})
        await socket.close(code)
    except (WebSocketDisconnect, RuntimeError):
        return  # the client has disconnected


async def accept(socket: WebSocket) -> None:
    """Select our subprotocol if the client offered it: a browser that sent its token as one requires an answer."""
    try:
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope.get("subprotocols", ()) else None)
    except OSError:  # Starlette translates it only for sockets that were accepted
        raise WebSocketDisconnect from None


async def send_message(socket: WebSocket, kind: str, more: dict[str, Any]) -> None:
    await socket.send_text(json.dumps({"type": kind} | more, ensure_ascii=True, default=str))


async def receive_messages(socket: WebSocket) -> AsyncIterator[bytes | str]:
    """Yield the client's messages until it disconnects. The next one is read when the last one was handled."""
    while (message := await socket.receive())["type"] == "websocket.receive":
        data = message.get("bytes")
        yield message["text"] if data is None else data


def parse_command(text: str, kinds: Mapping[str, type[BaseModel]]) -> tuple[str, Any]:
    """Parse a JSON message into its type and its fields."""
    try:
        plain: Any = None if has_many_values(text.encode()) else json.loads(text)
        kind = plain.pop("type")
        return kind, kinds[kind].model_validate(plain)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, ValidationError):
        message = f"a text message must be a JSON object with a valid type ({', '.join(kinds)}) and its fields"
        raise HttpError(400, message) from None


async def send_output(socket: WebSocket, pieces: AsyncIterator[OutputEvent], until: asyncio.Event | None) -> None:
    """Send output as bytes, and keepalives, which detect a client that is gone."""
    async with aclosing(with_keepalives(pieces, until)) as items:  # type: ignore[type-var]
        async for item in items:
            if item is None:
                await send_message(socket, "keepalive", {})
            else:
                await socket.send_bytes(CHANNELS[item.stream] + item.data)


async def run_until_first_ends(*works: Coroutine[Any, Any, object]) -> None:
    """Run all, cancel the others when the first ends, and raise what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_and_wait(*tasks)
