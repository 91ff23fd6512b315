"""Reading a request: a bounded body, parsed into a model, and work that ends when its client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from warmcell.core.errors import InvalidRequest
from warmcell.core.lines import one_line
from warmcell.core.types import MIB
from warmcell.interfaces.serve.responses import ClientDisconnected, HttpError, error_response
from warmcell.lifetime.threads import cancel_and_wait, in_thread
from warmcell.workspace.untrusted_files import load_object

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Receive = Callable[[], Awaitable[Any]]

#: How long a client may take to send its body.
BODY_SECONDS = 60.0
_CLOSE = {"Connection": "close"}
#: Keys in a request's scope: the tenant's id; how many bytes of its body are in memory; a set of tasks that are
#: cancelled when the token is revoked.
OWNER, BUFFERED, REVOCABLE = "warmcell.owner", "warmcell.body", "warmcell.revocable"
#: Another: a function that returns whether the token still exists and has the scope of the route.
HAS_RIGHT = "warmcell.has-right"
#: Another: an event that is set when the response of an MCP request has ended, also because its client hung up.
RESPONSE_END = "warmcell.response-end"
#: Another: for how many seconds more than others the client may send this body. Set before it is read.
MORE_BODY_SECONDS = "warmcell.more-body-seconds"
#: Another: registers a future that is cancelled when an operator ends the request.
ENDABLE = "warmcell.endable"
#: The message of that cancellation, and of the error that its client gets.
ENDED_BY_OPERATOR = "an operator of the server ended it"
#: Of MCP requests other than tool calls. The SDK keeps what a client says about itself as long as its session, as
#: objects that take 25 times as much memory as their text.
MAX_PLAIN_BYTES = 64 * 1024
#: In a JSON body: long texts, not many values. Parsing and validation hold up the event loop for microseconds for each
#: value, and an invalid one takes a kilobyte of memory.
MAX_VALUES = 20_000


class OpenRequests:
    """Work in progress by tenant and request id, so that an operator can end it. Belongs to one event loop."""

    def __init__(self) -> None:
        self._work: dict[tuple[str, str], set[asyncio.Future[Any]]] = {}

    def add(self, tenant: str, request: str, work: asyncio.Future[Any]) -> None:
        """Register `work` until it is done."""
        key = tenant, request
        self._work.setdefault(key, set()).add(work)
        work.add_done_callback(lambda _: self._remove(key, work))

    def _remove(self, key: tuple[str, str], work: asyncio.Future[Any]) -> None:
        left = self._work[key] - {work}
        self._work[key] = left
        if not left:
            del self._work[key]

    def end(self, tenant: str, request: str) -> bool:
        """Cancel the work of a request. Return whether there was any."""
        found = self._work.get((tenant, request), set())
        for work in list(found):
            work.cancel(ENDED_BY_OPERATOR)
        return bool(found)


class BodyMemory:
    """Bounds the bodies of all requests together: each is bounded too, but there may be a thousand.

    One tenant may use half of it. Belongs to one event loop.
    """

    #: What is counted, for messages.
    _what = "request bytes"

    def __init__(self, limit: int = 512 * MIB) -> None:
        self._limit, self._used = limit, Counter[str]()

    def take(self, scope: MutableMapping[str, Any], size: int) -> None:
        owner = scope.get(OWNER, "")
        if self._used[owner] + size > self._limit // 2:
            raise HttpError(429, f"too many {self._what} in flight for this token", headers=_CLOSE)
        if self._used.total() + size > self._limit:
            raise HttpError(503, f"too many {self._what} in flight", headers=_CLOSE)
        self._used[owner] += size
        scope[BUFFERED] = scope.get(BUFFERED, 0) + size

    def keep(self, scope: MutableMapping[str, Any]) -> Callable[[], None]:
        """Keep what the scope has taken beyond its handler, until the returned function is called, perhaps twice."""
        kept = {OWNER: scope.get(OWNER, ""), BUFFERED: scope.pop(BUFFERED, 0)}
        return lambda: self.release(kept)

    def release(self, scope: MutableMapping[str, Any]) -> None:
        """Release what the scope has taken. Called when the handler returned, unless its work needs the body longer."""
        if size := scope.pop(BUFFERED, 0):
            self._used[scope.get(OWNER, "")] -= size


class AnswerMemory(BodyMemory):
    """Bounds the files that are being sent: their clients may never read them."""

    _what = "response bytes"

    def __init__(self) -> None:
        super().__init__()
        #: By tenant: a file is in memory before its size is known, so few are read at a time.
        self.reading: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(4))


async def read_body(request: Request, limit: int | None = None) -> bytes:
    """Return the whole body. Raises `HttpError` if it is larger than `limit` (by default the server's) or takes too
    long.
    """
    limit = request.app.state.service.settings.max_body if limit is None else limit
    with suppress(ValueError):
        if int(request.headers.get("content-length", "0")) > limit:
            raise _too_large(limit)
    parts, size = [], 0
    memory: BodyMemory = request.app.state.bodies
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                memory.take(request.scope, len(part))
                parts.append(part)
    except ClientDisconnect:
        raise ClientDisconnected from None
    except TimeoutError:
        raise HttpError(408, f"the body did not arrive within {BODY_SECONDS:g} s", headers=_CLOSE) from None
    # A client may send the end of its body long after the head with the token.
    if HAS_RIGHT in request.scope and not request.scope[HAS_RIGHT]():
        raise HttpError(401, "the token was revoked", headers=_CLOSE)
    return b"".join(parts)


def _too_large(limit: int) -> HttpError:
    # The rest of the body is not read, so the connection has to close.
    return HttpError(413, f"the body is larger than {limit} bytes", headers=_CLOSE)


async def read_ahead(
    receive: Receive, limit: int, count: Callable[[int], object] = lambda size: None
) -> tuple[bytes, bool]:
    """Read about `limit` bytes of the body; return them and whether there is more. Raises `ClientDisconnected`.

    `count` is called with the size of each piece before it is kept, and may raise `HttpError`.
    """
    pieces, size = list[bytes](), 0
    while size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece = message.get("body", b"")
        count(len(piece))
        pieces.append(piece)
        size += len(piece)
        if not message.get("more_body"):
            return b"".join(pieces), False
    return b"".join(pieces), True


def replay(body: bytes, receive: Receive, *, has_more: bool = False) -> Receive:
    """A `receive` that returns a body, or its beginning, that was read before, and then what the client sends."""
    first = [{"type": "http.request", "body": body, "more_body": has_more}]

    async def receive_again() -> Any:
        return first.pop() if first else await receive()

    return receive_again


async def read_model(request: Request, kind: type[M], limit: int | None = None) -> M:
    """Read the body as a model. The parser bounds depth and builds nothing that does not fit."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise HttpError(415, "the body must be application/json")
    return parse_model(await read_body(request, limit), kind)


def has_many_values(body: bytes) -> bool:
    """Whether a JSON text may have more than `MAX_VALUES` values. Strings are skipped by fast text operations."""
    if _count_separators(body) < MAX_VALUES:
        return False
    text = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # A NUL: UTF-16, in which a quote may be half of another character. A value has up to two strings, with its name.
    if b"\0" in body or text.count(b'"') > 4 * MAX_VALUES:
        return True
    return _count_separators(b"".join(text.split(b'"')[::2])) >= MAX_VALUES


def _count_separators(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def check_values(body: bytes) -> bytes:
    """Return the body. Raises `HttpError` 413 if it may have too many values."""
    if has_many_values(body):
        raise HttpError(413, f"a JSON body has at most {MAX_VALUES} values")
    return body


def parse_model(body: bytes, kind: type[M]) -> M:
    check_values(body)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise HttpError(400, f"the body is not valid JSON: {one_line(str(first['msg']), 200)}") from None
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(str(first["msg"]).lower(), field=one_line(field, 200) or "body") from None


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, and cancel it when the client disconnects or its token is revoked. Read the body before."""
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
    revocable: set[asyncio.Future[Any]] = request.scope.get(REVOCABLE, set())
    revocable.add(disconnect)
    if not request.scope.get(HAS_RIGHT, lambda: True)():  # lost before: the reload had nothing to cancel here
        disconnect.cancel()
    if (register := request.scope.get(ENDABLE)) is not None:
        register(disconnect)
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise _reason(disconnect)
    finally:
        revocable.discard(disconnect)
        await cancel_and_wait(task, disconnect)


def _reason(disconnect: asyncio.Future[Any]) -> Exception:
    """Why the work of a request ends before its result."""
    try:
        disconnect.result()
    except asyncio.CancelledError as error:
        if error.args == (ENDED_BY_OPERATOR,):
            return HttpError(409, ENDED_BY_OPERATOR, fault="host")
        return HttpError(401, "the token was revoked")
    return ClientDisconnected()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def while_allowed(
    revocable: set[asyncio.Future[Any]],
    work: Coroutine[Any, Any, T],
    register: Callable[[asyncio.Future[Any]], object] = lambda task: None,
) -> T:
    """Run `work`, and cancel it when the token is revoked. An operator can end what `register` gets."""
    task = asyncio.ensure_future(work)
    revocable.add(task)
    register(task)
    try:
        await asyncio.wait([task])
        if task.cancelled():
            raise _reason(task)
        return task.result()
    finally:
        revocable.discard(task)
        await cancel_and_wait(task)


async def check_mcp_message(body: bytes) -> bytes:
    """Return the body. Raises `HttpError` 413 for too many values, or if it is large and not a tool call."""
    if len(body) <= MAX_PLAIN_BYTES:
        return body
    return await in_thread(lambda: _check_large(body))


def _check_large(body: bytes) -> bytes:
    try:
        message = json.loads(check_values(body))
    except (ValueError, RecursionError):
        raise HttpError(400, "the body is not valid JSON") from None
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        raise HttpError(413, f"a request other than tools/call has at most {MAX_PLAIN_BYTES} bytes")
    return json.dumps(message).encode()  # of two members of one name, the SDK sees the one that was checked


class RequestsById:
    """Calls the MCP SDK's application, with one request of a session and id at a time.

    The SDK finds the client of a response by the id of its request: of two at the same time, neither is answered.
    """

    def __init__(self) -> None:
        #: The requests in progress by tenant, session and id.
        self._in_progress: dict[tuple[str, str, str], object] = {}

    async def call(self, app: Any, scope: Any, body: bytes, receive: Receive, send: Any) -> None:
        """Pass on a message. A request whose id another one of its session has is refused with 400."""
        session = Headers(scope=scope).get("mcp-session-id")
        identity = _find_id(body) if len(body) <= MAX_PLAIN_BYTES else await in_thread(lambda: _find_id(body))
        if session is None or identity is None:
            await app(scope, replay(body, receive), send)
            return
        key, own = (scope.get(OWNER, ""), session, identity), object()
        if key in self._in_progress:
            refusal = HttpError(400, "another request of this session has the same id and is not answered yet")
            await error_response(refusal)(scope, receive, send)
            return
        self._in_progress[key] = own

        def release() -> None:
            if self._in_progress.get(key) is own:
                del self._in_progress[key]

        async def send_and_release(message: Any) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                release()  # before its client can send the next one
            await send(message)

        try:
            await app(scope, replay(body, receive), send_and_release)
        finally:
            release()


def _find_id(body: bytes) -> str | None:
    """The id of a request, in which the SDK does not tell 1 from "1"; None for other messages."""
    message = load_object(body)  # None: for the SDK to refuse
    identity = message.get("id") if message is not None and "method" in message else None
    return str(identity) if isinstance(identity, int | str) else None
