"""The part of the Connect protocol that E2B's clients use: JSON, alone or in envelopes of five bytes and a message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import BackendBusy, SandboxDestroyed, SandboxError
from warmcell.interfaces.serve.event_streams import StreamTurns
from warmcell.interfaces.serve.requests import MAX_VALUES, OWNER, has_many_values
from warmcell.interfaces.serve.responses import (
    LONG_CHUNK,
    HttpError,
    json_response,
    parse_whole_number,
    public_message,
    status_of,
)

CONNECT = "application/connect+json"
END_OF_STREAM = 0x02
_LOOK_SECONDS = 0.05
#: Flags and length.
_HEADER_SIZE = 5
MAX_MESSAGES = 4096
#: Messages that are sent together.
Batches = AsyncIterator[Sequence[Mapping[str, Any]]]
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
#: By HTTP status: the code of the protocol.
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
    """An error response with a code of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def as_rpc_error(error: Exception) -> RpcError:
    if isinstance(error, RpcError):
        return error
    if isinstance(error, SandboxDestroyed):
        return RpcError("unavailable", "the sandbox was killed")
    if isinstance(error, BackendBusy):  # clients take "unavailable" for the end of the sandbox
        return RpcError("resource_exhausted", public_message(error))
    if isinstance(error, HttpError):
        return RpcError(_CODES.get(error.status, "internal"), error.message)
    if isinstance(error, SandboxError):
        return RpcError(_CODES.get(status_of(error), "invalid_argument"), public_message(error))
    return RpcError("internal", f"internal error ({type(error).__name__})")


def rpc_refusal(error: RpcError) -> Response:
    return json_response({"code": error.code, "message": error.message}, STATUSES[error.code])


def parse_envelopes(body: bytes) -> list[dict[str, Any]]:
    """Parse all messages of a client's stream: one, or many for `StreamInput`. Linear in the size of the body.

    Raises `RpcError` for more than `MAX_MESSAGES` envelopes, or more than `MAX_VALUES` values in all of them.
    """
    texts: list[bytes] = []
    start = envelopes = 0
    while start < len(body):
        envelopes += 1
        if envelopes > MAX_MESSAGES:
            raise RpcError("invalid_argument", f"the stream has more than {MAX_MESSAGES} messages")
        flags, first = body[start], start + _HEADER_SIZE
        end = first + int.from_bytes(body[start + 1 : first], "big")
        if max(first, end) > len(body):
            raise RpcError("invalid_argument", "the stream ends inside a message")
        if flags & ~END_OF_STREAM:
            raise RpcError("unimplemented", "compressed messages are not supported")
        if not flags & END_OF_STREAM:
            texts.append(body[first:end])
        start = end
    _check_values(b"".join(texts))
    return list(map(parse_message, texts))


def parse_message(text: bytes) -> dict[str, Any]:
    _check_values(text)
    try:
        found = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        raise RpcError("invalid_argument", "the message is not JSON") from None
    if not isinstance(found, dict):
        raise RpcError("invalid_argument", "the message is not an object")
    return found


def _check_values(text: bytes) -> None:
    if has_many_values(text):
        raise RpcError("invalid_argument", f"a request has at most {MAX_VALUES} values")


def envelope(message: Mapping[str, Any], flags: int = 0) -> bytes:
    data = json.dumps(message).encode()
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


class LastMessages(list[Mapping[str, Any]]):
    """The last messages, sent together with the end of the stream."""


class MessageStream(Response):
    """A stream of messages: always status 200, with an error in the last envelope. `starting` yields batches."""

    media_type = CONNECT
    keeps_body = True

    def __init__(self, starting: Awaitable[Batches]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._starting = starting

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the stream. Watches for a disconnect only if the answer takes longer than most."""
        loop, watching = asyncio.get_running_loop(), list[asyncio.Task[None]]()

        async def end_without_client() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            patience.reschedule(loop.time())

        looking = loop.call_later(_LOOK_SECONDS, lambda: watching.append(loop.create_task(end_without_client())))
        try:
            with suppress(TimeoutError):  # the client has gone
                async with asyncio.timeout(None) as patience:
                    await self._send(send, scope.get(OWNER, ""))
        finally:
            looking.cancel()
            for task in watching:
                task.cancel()

    async def _send(self, send: Any, owner: str) -> None:
        """Send the head together with the first batch, then the others, a long one in pieces."""
        turns = StreamTurns.of_this_loop()
        last: dict[str, Any] = {}
        data, has_head = bytearray(), False

        async def send_piece() -> None:
            await turns.wait(owner)
            await send({"type": "http.response.body", "body": bytes(data), "more_body": True})
            data.clear()

        try:
            async with aclosing(await self._starting) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    if not has_head:
                        has_head = True
                        await self._send_head(send)
                    for message in batch:
                        data += envelope(message)
                        if len(data) > LONG_CHUNK:
                            await send_piece()
                    if isinstance(batch, LastMessages):
                        break
                    if data:
                        await send_piece()
        except Exception as error:
            refused = as_rpc_error(error)
            last = {"error": {"code": refused.code, "message": refused.message}}
        if not has_head:
            await self._send_head(send)
        await send({"type": "http.response.body", "body": bytes(data + envelope(last, END_OF_STREAM))})

    async def _send_head(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


async def end_at_deadline(starting: Awaitable[Batches], seconds: float) -> Batches:
    """The same batches, which end with `deadline_exceeded` after so many seconds."""
    deadline = asyncio.get_running_loop().time() + seconds
    return _take_until(deadline, await starting)


async def _take_until(deadline: float, batches: Batches) -> Batches:
    async with aclosing(batches) as items:  # type: ignore[type-var]
        is_late = False
        while not is_late:  # one batch in any case: a generator that has not begun would not clean up
            try:
                async with asyncio.timeout_at(deadline):
                    batch = await anext(items)
            except StopAsyncIteration:
                return
            except TimeoutError:
                break
            yield batch
            is_late = asyncio.get_running_loop().time() >= deadline
    raise RpcError("deadline_exceeded", "the deadline of the call has passed")


def seconds_of(request: Request) -> float | None:
    """`Connect-Timeout-Ms`: how long the whole call may take."""
    milliseconds = parse_whole_number(request.headers.get("connect-timeout-ms", ""), max_digits=11)
    return milliseconds / 1000 if milliseconds else None
