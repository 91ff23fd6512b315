"""The Connect protocol, as far as E2B's clients use it: JSON, alone or in envelopes of five bytes and a message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from warmcell.core.errors import SandboxDestroyed, SandboxError
from warmcell.interfaces.serve.exchange import answer, read_body, told
from warmcell.interfaces.serve.service import service_of

CONNECT = "application/connect+json"
END_OF_STREAM = 0x02
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
    if isinstance(error, SandboxError):
        return RpcError("invalid_argument" if error.fault == "caller" else "internal", told(error))
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


def streamed(messages: AsyncIterator[Mapping[str, Any]]) -> Response:
    """Always a 200; how it went is in the last envelope."""

    async def parts() -> AsyncIterator[bytes]:
        try:
            async for message in messages:
                yield envelope(message)
            yield envelope({}, END_OF_STREAM)
        except Exception as error:
            told = as_rpc_error(error)
            yield envelope({"error": {"code": told.code, "message": told.message}}, END_OF_STREAM)

    return StreamingResponse(parts(), media_type=CONNECT)


def seconds_of(request: Request) -> float | None:
    """`Connect-Timeout-Ms`: how long the whole call may take."""
    text = request.headers.get("connect-timeout-ms", "")
    return int(text) / 1000 if text.isascii() and text.isdigit() and len(text) < 12 and int(text) else None


Unary = Callable[[Any, dict[str, Any]], Awaitable[Mapping[str, Any]]]
