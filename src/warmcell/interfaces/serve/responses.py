"""Responses: JSON for results, and errors as data under the status that clients act on."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeGuard

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
from warmcell.core.types import ExecResult
from warmcell.lifetime.fair_semaphore import TooManyWaiting
from warmcell.sessions.cell_results import CellResult

#: nginx's status for a client that closed the connection. It appears in logs only.
CLIENT_GONE = 499
_PIECE = 1 << 14
#: Characters of JSON that are encoded before other requests get a turn.
LONG_CHUNK = 1 << 16
#: A key in a request's scope: counts so many bytes as unread while a block sends them.
UNREAD = "warmcell.unread"


class HttpError(Exception):
    """An error status for a request that does not reach a sandbox.

    `fault`: by default the host's from 500 on, else the caller's.
    """

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None, fault: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})
        self.fault = fault or ("host" if status >= 500 else "caller")


def shutting_down() -> HttpError:
    return HttpError(503, "the server is shutting down", headers={"Retry-After": "5"})


class ClientDisconnected(Exception):
    """The client closed the connection before its response was complete."""


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON in ASCII: lone surrogates that a guest printed cannot break it."""
    body = json.dumps(value, ensure_ascii=True, default=str, separators=(",", ":"))
    return Response(body, status, with_retry_after(status, headers), media_type="application/json")


def json_pieces(value: object) -> Iterator[str]:
    """ASCII JSON in pieces that take about a millisecond each, however long its texts are."""
    if isinstance(value, str) and len(value) > _PIECE:
        yield '"'
        for start in range(0, len(value), _PIECE):
            yield json.dumps(value[start : start + _PIECE])[1:-1]
        yield '"'
    elif isinstance(value, dict) and value:
        for number, (key, inner) in enumerate(value.items()):
            yield f"{', ' if number else '{'}{json.dumps(str(key))}: "
            yield from json_pieces(inner)
        yield "}"
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield ", " if number else "["
            yield from json_pieces(inner)
        yield "]"
    else:
        yield json.dumps(value, default=str)


def json_chunks(value: object, head: str = "", tail: str = "") -> Iterator[str]:
    """`head`, the pieces of `json_pieces` and `tail`, in as few chunks as take about a millisecond each."""
    waiting = head
    for piece in json_pieces(value):
        waiting += piece
        if len(waiting) > LONG_CHUNK:
            yield waiting
            waiting = ""
    yield waiting + tail


def _has_objects(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def has_long_text(value: object) -> bool:
    """Whether its texts are long together: there may be a thousand cases, each with a short output."""
    return count_characters(value) > LONG_CHUNK


def count_characters(value: object) -> int:
    """The characters of all texts in it."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if _has_objects(value) else ()
    return sum(map(count_characters, inner))


class LongJson(Response):
    """JSON that is encoded when it is sent: other requests get a turn after each chunk."""

    def __init__(self, value: object) -> None:
        super().__init__(media_type="application/json")
        self._value = value

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # The value and its JSON. Counted before the first await: the next run may begin while this is encoded.
        with scope[UNREAD](2 * count_characters(self._value)) if UNREAD in scope else nullcontext():
            await self._send(send)

    async def _send(self, send: Any) -> None:
        chunks: list[bytes] = []
        for chunk in json_chunks(self._value):
            chunks.append(chunk.encode())
            await asyncio.sleep(0)
        self.headers["content-length"] = str(sum(map(len, chunks)))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for number, data in enumerate(chunks, 1):
            await send({"type": "http.response.body", "body": data, "more_body": number < len(chunks)})


def outcome_response(plain: object) -> Response:
    """`json_response` for a result, whose output may have megabytes."""
    return LongJson(plain) if has_long_text(plain) else json_response(plain)


def with_retry_after(status: int, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Add `Retry-After` to every 429 and 503 that does not set it."""
    return {"Retry-After": "1", **(headers or {})} if status in (429, 503) else headers


def parse_whole_number(text: str, max_digits: int = 15) -> int | None:
    """Return the number, or None for anything but up to `max_digits` ASCII digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= max_digits else None


def error_response(error: Exception) -> Response:
    """Render an error as `{"error": {...}}`."""
    if isinstance(error, ClientDisconnected):
        return Response(status_code=CLIENT_GONE)
    if isinstance(error, HttpError):
        return json_response({"error": error_to_dict(error)}, error.status, error.headers)
    assert isinstance(error, SandboxError)
    return json_response({"error": error_to_dict(error)}, status_of(error))


def error_to_dict(error: SandboxError | HttpError) -> dict[str, Any]:
    if isinstance(error, HttpError):
        is_retryable, code = error.status in (429, 503, 504), f"http.{error.status}"
        plain = {"code": code, "message": error.message, "hint": None, "fault": error.fault}
        return {**plain, "retryable": is_retryable}
    return {
        "code": error.code,
        "message": public_message(error),
        "hint": error.hint if error.hint is None or not _is_about_host(error) else scrub(error.hint),
        "fault": error.fault,
        "retryable": error.retryable,
        "details": _details(error),
    }


def _details(error: SandboxError) -> dict[str, Any]:
    """The error's own fields, such as `path`, `limit` and `timeout`, from which a client rebuilds it."""
    fields = {name: value for name, value in vars(error).items() if name not in _OTHER_FIELDS and name[0] != "_"}
    if isinstance(fields.get("misfits"), tuple):
        fields["misfits"] = [dataclasses.asdict(misfit) for misfit in fields["misfits"]]
    kept = {name: value for name, value in fields.items() if isinstance(value, str | int | float | list | None)}
    if _is_about_host(error):
        return {name: scrub(value) if isinstance(value, str) else value for name, value in kept.items()}
    return kept


_OTHER_FIELDS = frozenset({"http_status", "message", "hint", "fault", "retryable", "result"})
#: Errors that end a guest's program early and carry its partial result.
ENDED_EARLY = (ExecutionTimeout, MemoryExceeded, FuelExhausted, SessionEnded)
_OUTCOMES = {ExecutionTimeout: "timeout", MemoryExceeded: "memory_exceeded", SessionEnded: "ended"}


def outcome_to_dict(outcome: ExecResult | CellResult | SandboxError) -> dict[str, Any]:
    """`{"status", ...result, "error"?}`; for a cell that ran, `error` is the exception that it raised."""
    if not isinstance(outcome, SandboxError):
        return {"status": "success"} | outcome.to_dict()
    result = getattr(outcome, "result", None)
    partial = {} if result is None else result.to_dict()
    return {"status": _OUTCOMES.get(type(outcome), "error")} | partial | {"error": error_to_dict(outcome)}


def public_message(error: SandboxError) -> str:
    """The message for clients: paths of this machine are removed from errors about the host."""
    return scrub(error.message) if _is_about_host(error) else error.message


def _is_about_host(error: SandboxError) -> bool:
    return error.fault == "host" or isinstance(error, PolicyViolation)


def status_of(error: SandboxError) -> int:
    """4xx for the caller's mistakes, 503 for what may succeed later, 500 for other failures of the host."""
    if isinstance(error, TooManyWaiting):
        return 429
    if isinstance(error, BackendBusy | BackendUnavailable) and error.fault == "host":
        return 503
    if error.fault == "host":
        return getattr(error, "http_status", None) or (503 if error.retryable else 500)
    if isinstance(error, ENDED_EARLY):  # the state of the guest conflicts with the request
        return 409
    return getattr(error, "http_status", None) or _STATUSES.get(error.code, 422)


@contextmanager
def as_conflict(*fields: str) -> Iterator[None]:
    """Answer 409 instead of 422 to an `InvalidRequest` about these fields, or about any if none is given.

    For requests that are well formed and conflict with how the sandbox was made or what it has become.
    """
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
    "sandbox.image_not_found": 404,
    "sandbox.session_busy": 409,
    "sandbox.file_exists": 409,
    "sandbox.wrong_file_kind": 409,
    "sandbox.patch_rejected": 409,
    "sandbox.access_denied": 403,
    "sandbox.policy_violation": 403,
}
