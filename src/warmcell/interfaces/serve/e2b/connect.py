"""The Connect protocol, as far as E2B's clients use it: JSON, alone or in envelopes of five bytes and a message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import SandboxDestroyed, SandboxError
from warmcell.interfaces.serve.exchange import Refused, answer, read_body, status_of, told, whole_number
from warmcell.interfaces.serve.service import service_of

CONNECT = "application/connect+json"
END_OF_STREAM = 0x02
_LOOK_SECONDS = 0.05
STATUSES = {
    "canceled": 408,
    "invalid_argument": 400,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unauthenticated": 401,
    "unimplemented": 501,
    "unavailable": 503,
    "deadline_exceeded": 504,
    "internal": 500,
}


#: What was decided by the words of HTTP, in those of this protocol; the rest is the caller's mistake.
_CODES = {
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    408: "deadline_exceeded",
    409: "failed_precondition",
    413: "invalid_argument",
    429: "resource_exhausted",
    500: "internal",
    503: "unavailable",
}


class RpcError(Exception):
    """An answer that is no success, by one of the protocol's own words."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def as_rpc_error(error: Exception) -> RpcError:
    if isinstance(error, RpcError):
        return error
    if isinstance(error, SandboxDestroyed):
        return RpcError("unavailable", "the sandbox was killed")
    if isinstance(error, Refused):
        return RpcError(_CODES.get(error.status, "internal"), error.message)
    if isinstance(error, SandboxError):
        return RpcError(_CODES.get(status_of(error), "invalid_argument"), told(error))
    return RpcError("internal", f"the server failed inside ({type(error).__name__})")


def rpc_refusal(error: RpcError) -> Response:
    return answer({"code": error.code, "message": error.message}, STATUSES[error.code])


async def unary_message(request: Request) -> dict[str, Any]:
    return _object(await read_body(request, service_of(request).settings.max_body))


async def stream_messages(request: Request) -> list[dict[str, Any]]:
    """What a client sent on its stream, whole: one message, and for `StreamInput` many."""
    body, found = await read_body(request, service_of(request).settings.max_body), []
    while body:
        flags, size = body[0], int.from_bytes(body[1:5], "big")
        if len(body) < 5 + size:
            raise RpcError("invalid_argument", "the stream ends inside a message")
        if flags & ~END_OF_STREAM:
            raise RpcError("unimplemented", "compressed messages are not read")
        if not flags & END_OF_STREAM:
            found.append(_object(body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        raise RpcError("invalid_argument", "the message is not JSON") from None
    if not isinstance(found, dict):
        raise RpcError("invalid_argument", "the message is no object")
    return found


def envelope(message: Mapping[str, Any], flags: int = 0) -> bytes:
    data = json.dumps(message).encode()
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


class LastMessages(list[Mapping[str, Any]]):
    """After which there are no more: they go together with the end of the stream."""


class MessageStream(Response):
    """Always a 200; how it went is in the last envelope. `begun` gives messages, several at a time."""

    media_type = CONNECT

    def __init__(self, begun: Awaitable[AsyncIterator[Sequence[Mapping[str, Any]]]]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._begun = begun

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Whether its client has gone is looked for only where it takes longer than most do."""
        loop, watching = asyncio.get_running_loop(), list[asyncio.Task[None]]()

        async def end_without_client() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            patience.reschedule(loop.time())

        looking = loop.call_later(_LOOK_SECONDS, lambda: watching.append(loop.create_task(end_without_client())))
        try:
            with suppress(TimeoutError):  # nobody is there to hear more
                async with asyncio.timeout(None) as patience:
                    await self._send(send)
        finally:
            looking.cancel()
            for task in watching:
                task.cancel()

    async def _send(self, send: Any) -> None:
        """The head goes with the first of it."""
        last: dict[str, Any] = {}
        data, is_begun = b"", False
        try:
            async with aclosing(await self._begun) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    if not is_begun:
                        is_begun = True
                        await self._send_head(send)
                    data = b"".join(map(envelope, batch))
                    if isinstance(batch, LastMessages):
                        break
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                    data = b""
        except Exception as error:
            told = as_rpc_error(error)
            last = {"error": {"code": told.code, "message": told.message}}
        if not is_begun:
            await self._send_head(send)
        await send({"type": "http.response.body", "body": data + envelope(last, END_OF_STREAM)})

    async def _send_head(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


def seconds_of(request: Request) -> float | None:
    """`Connect-Timeout-Ms`: how long the whole call may take."""
    milliseconds = whole_number(request.headers.get("connect-timeout-ms", ""), most_digits=11)
    return milliseconds / 1000 if milliseconds else None


Unary = Callable[[Any, dict[str, Any]], Awaitable[Mapping[str, Any]]]
