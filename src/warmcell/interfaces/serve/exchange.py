"""One HTTP exchange: a bounded body in, JSON out, errors as data, and a run that ends with its client."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from warmcell.core.door_text import scrub
from warmcell.core.errors import (
    BackendBusy,
    BackendUnavailable,
    ExecutionTimeout,
    FuelExhausted,
    InvalidRequest,
    MemoryExceeded,
    PolicyViolation,
    SandboxError,
    SessionEnded,
)
from warmcell.core.lines import one_line
from warmcell.core.types import MIB, ExecResult
from warmcell.interfaces.cli.render import error_to_plain
from warmcell.lifetime.tenant_queue import TooManyWaiting
from warmcell.sessions.cell_results import CellResult

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

#: How long a client may take to send its body.
BODY_SECONDS = 60.0
#: nginx's word for a client that has gone; nobody is there to read it.
CLIENT_GONE = 499


class Refused(Exception):
    """An answer that is no success, decided at the door."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


class ClientGone(Exception):
    """Whoever asked has hung up."""


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON in ASCII: lone surrogates that a guest printed cannot break it."""
    body = json.dumps(value, ensure_ascii=True, default=str, separators=(",", ":"))
    return Response(body, status, said_when(status, headers), media_type="application/json")


def said_when(status: int, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Who is sent away for now is told when to come again, whatever door it was."""
    return {"Retry-After": "1", **(headers or {})} if status in (429, 503) else headers


def whole_number(text: str, most_digits: int = 15) -> int | None:
    """What a client wrote as one; digits of other alphabets, and more of them than anybody means, are none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= most_digits else None


def refusal(error: Exception) -> Response:
    """What went wrong, as `{"error": {...}}`, under the status that clients act on."""
    if isinstance(error, Refused):
        return answer({"error": plain_refusal(error)}, error.status, error.headers)
    if isinstance(error, ClientGone):
        return Response(status_code=CLIENT_GONE)
    assert isinstance(error, SandboxError)
    return answer({"error": plain_error(error)}, status_of(error))


def plain_refusal(error: Refused) -> dict[str, Any]:
    plain = {"code": f"http.{error.status}", "message": error.message, "hint": None}
    fault = "host" if error.status >= 500 else "caller"
    return plain | {"fault": fault, "retryable": error.status in (429, 503, 504)}


def plain_error(error: SandboxError) -> dict[str, Any]:
    hint = error.hint if error.hint is None or not _is_about_host(error) else scrub(error.hint)
    return error_to_plain(error) | {"message": told(error), "hint": hint, "details": _details(error)}


def _details(error: SandboxError) -> dict[str, Any]:
    """Its other fields, from which a client makes the same error: which path, which limit, how many seconds."""
    said = {name: value for name, value in vars(error).items() if name not in _SAID_ELSEWHERE and name[0] != "_"}
    if isinstance(said.get("misfits"), tuple):
        said["misfits"] = [dataclasses.asdict(misfit) for misfit in said["misfits"]]
    kept = {name: value for name, value in said.items() if isinstance(value, str | int | float | list | None)}
    if _is_about_host(error):
        return {name: scrub(value) if isinstance(value, str) else value for name, value in kept.items()}
    return kept


_SAID_ELSEWHERE = frozenset({"http_status", "message", "hint", "fault", "retryable", "result"})
#: How a guest's program can end beside by itself: what came of it until then is the answer.
ENDED_OTHERWISE = (ExecutionTimeout, MemoryExceeded, FuelExhausted, SessionEnded)
_OUTCOMES = {
    ExecutionTimeout: "timeout",
    MemoryExceeded: "memory_exceeded",
    SessionEnded: "ended",
}


def plain_outcome(outcome: ExecResult | CellResult | SandboxError) -> dict[str, Any]:
    """`{"status", ...result, "error"?}`; in a cell that ran, `error` is what it raised."""
    if not isinstance(outcome, SandboxError):
        return {"status": "success"} | outcome.to_dict()
    result = getattr(outcome, "result", None)
    partial = {} if result is None else result.to_dict()
    return {"status": _OUTCOMES.get(type(outcome), "error")} | partial | {"error": plain_error(outcome)}


def told(error: SandboxError) -> str:
    """What a client hears: its own words as they are, and nothing of where things lie on this machine."""
    return scrub(error.message) if _is_about_host(error) else error.message


def _is_about_host(error: SandboxError) -> bool:
    return error.fault == "host" or isinstance(error, PolicyViolation)


def status_of(error: SandboxError) -> int:
    """The caller's mistake is a 4xx, what may pass a 503, the rest of ours a 500."""
    if isinstance(error, TooManyWaiting):
        return 429
    if isinstance(error, BackendBusy | BackendUnavailable):
        return 503
    if error.fault == "host":
        return 503 if error.retryable else 500
    if isinstance(error, ENDED_OTHERWISE):  # by what has become of the guest, and by no field of the request
        return 409
    return getattr(error, "http_status", None) or _STATUSES.get(error.code, 422)


@contextmanager
def as_it_is(*fields: str) -> Iterator[None]:
    """What is refused (for these fields) is refused for what it was made as or has become, and not for the request."""
    try:
        yield
    except InvalidRequest as error:
        if not fields or error.field in fields:
            error.http_status = 409  # type: ignore[attr-defined]
        raise


_STATUSES = {
    "sandbox.session_not_found": 404,
    "sandbox.destroyed": 404,
    "sandbox.file_not_found": 404,
    "sandbox.command_not_found": 404,
    "sandbox.snapshot_not_found": 404,
    "sandbox.session_busy": 409,
    "sandbox.file_exists": 409,
    "sandbox.wrong_file_kind": 409,
    "sandbox.patch_rejected": 409,
    "sandbox.access_denied": 403,
}


async def read_body(request: Request, most: int) -> bytes:
    """The whole body, if it is no larger and comes in time."""
    with suppress(ValueError):
        if int(request.headers.get("content-length", "0")) > most:
            raise _too_large(most)
    parts, size = [], 0
    memory: BodyMemory = request.app.state.bodies
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                memory.take(request.scope, len(part))
                parts.append(part)
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        raise Refused(408, f"the body did not come within {BODY_SECONDS:g} s", headers=_CLOSE) from None
    return b"".join(parts)


_CLOSE = {"Connection": "close"}
#: In a request's scope: whose it is, and how much of its body is in memory.
OWNER, TAKEN = "warmcell.owner", "warmcell.body"


class BodyMemory:
    """What the bodies of all requests under way take together: each is bounded, and there may be a thousand of them.

    One tenant has half of it at most. Belongs to one event loop.
    """

    def __init__(self, most: int = 512 * MIB) -> None:
        self._most, self._taken = most, Counter[str]()

    def take(self, scope: MutableMapping[str, Any], size: int) -> None:
        owner = scope.get(OWNER, "")
        if self._taken[owner] + size > self._most // 2:
            raise Refused(429, "you are sending too much at once", headers=_CLOSE)
        if self._taken.total() + size > self._most:
            raise Refused(503, "too much is being sent at once", headers=_CLOSE)
        self._taken[owner] += size
        scope[TAKEN] = scope.get(TAKEN, 0) + size

    def leave(self, scope: MutableMapping[str, Any]) -> None:
        """When the request was dealt with; its answer may go on."""
        if size := scope.pop(TAKEN, 0):
            self._taken[scope.get(OWNER, "")] -= size


def _too_large(most: int) -> Refused:
    # The rest is not read: the connection ends with the answer.
    return Refused(413, f"the body is larger than {most} bytes", headers=_CLOSE)


async def read_model(request: Request, kind: type[M], most: int) -> M:
    """The body as one of our models. Parsed where depth is bounded and nothing is built of what does not fit."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Refused(415, "the body must be application/json")
    return parsed(await read_body(request, most), kind)


def parsed(body: bytes, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise Refused(400, f"the body is not JSON: {one_line(str(first['msg']), 200)}") from None
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(str(first["msg"]).lower(), field=one_line(field, 200) or "body") from None


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Carries out `work` while its client is there; one that hangs up ends it. The body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _end(task)
        await _end(gone)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _end(task: asyncio.Future[Any]) -> None:
    """Waits until it has really ended, however often we are cancelled meanwhile."""
    task.cancel()
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # looked at, so that asyncio does not complain that nobody did
