"""E2B's code interpreter: cells in contexts, which are sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from warmcell.core.errors import SandboxDestroyed, SandboxError
from warmcell.core.types import check_env
from warmcell.interfaces.serve.e2b.connect import STATUSES, RpcError
from warmcell.interfaces.serve.e2b.contexts import Context, Contexts, contexts_of
from warmcell.interfaces.serve.e2b.envd import box_for, owner_of, with_refusals
from warmcell.interfaces.serve.event_streams import MAX_QUEUED
from warmcell.interfaces.serve.requests import parse_model, read_body
from warmcell.interfaces.serve.responses import (
    LONG_CHUNK,
    HttpError,
    error_response,
    json_chunks,
    json_response,
    public_message,
    status_of,
    with_retry_after,
)
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.sessions.cell_results import CellResult, DisplayData

KEEPALIVE_SECONDS = 5.0
_FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "application/vnd.warmcell.table+json": "data",
    "application/vnd.warmcell.chart+json": "chart",
}
#: A list or a dict that a cell evaluated to; clients get it as `json` too.
_VALUE = "application/vnd.warmcell.value+json"


class Execute(BaseModel):
    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class Create(BaseModel):
    language: str | None = None
    cwd: str | None = None


async def _contexts(request: Request) -> Contexts:
    """The contexts of the sandbox. Some calls have the sandbox's token, others its traffic token."""
    return await contexts_of(await box_for(request, takes_traffic_token=True))


async def execute(request: Request, tenant: Tenant) -> Response:
    """Run a cell; the answer has one JSON object per line. A client that hangs up interrupts the cell."""
    contexts = await _contexts(request)
    body = parse_model(await read_body(request), Execute)
    context = contexts.choose(body.context_id, body.language)
    env = dict(check_env(body.env_vars or {}, "env_vars"))
    await context.start()
    return CellStream(_encode_lines(_run(context, body.code, env)), media_type="application/x-ndjson")


async def _encode_lines(messages: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Encode messages in pieces. A display can take 100 MB as JSON: other requests get a turn between pieces."""
    async with aclosing(messages) as items:  # type: ignore[type-var]
        async for message in items:
            for chunk in json_chunks(message, tail="\n"):
                yield chunk
                if len(chunk) > LONG_CHUNK:
                    await asyncio.sleep(0)


class CellStream(StreamingResponse):
    """A response that is cut when the sandbox is killed: the SDK recognises that by the missing end."""

    keeps_body = True

    async def stream_response(self, send: Any) -> None:
        with suppress(SandboxDestroyed):
            await super().stream_response(send)


async def _run(context: Context, code: str, env: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
    # Few: a piece of output may have a megabyte, and a cell that clears its output prints without end.
    messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(MAX_QUEUED)

    async def text(stream: str, what: str) -> None:
        await messages.put({"type": stream, "text": what, "timestamp": time.time_ns() // 1000})

    async def show(display: DisplayData) -> None:
        await messages.put(_result(display))

    async def cell() -> CellResult:
        try:
            return await context.run(
                code,
                env,
                on_stdout=lambda what: text("stdout", what),
                on_stderr=lambda what: text("stderr", what),
                on_display=show,
            )
        finally:
            await messages.put(None)

    running = asyncio.ensure_future(cell())
    try:
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_SECONDS):
                    message = await messages.get()
            except TimeoutError:
                message = {"type": "keepalive"}
            if message is None:
                break
            yield message
        for message in await _await_last_events(running):
            yield message
    finally:
        running.cancel()
        while not running.done():  # a cell that waits for room in the queue could not end
            while not messages.empty():
                messages.get_nowait()
            await asyncio.wait([running], timeout=0.05)
        if not running.cancelled():
            running.exception()


async def _await_last_events(running: asyncio.Future[CellResult]) -> list[dict[str, Any]]:
    try:
        result = await running
    except SandboxDestroyed:
        raise
    except SandboxError as error:
        message = public_message(error)
        return [_error(type(error).__name__, message, message), {"type": "end_of_execution"}]
    raised = result.error
    found = [] if raised is None else [_error(raised.name, raised.message, raised.traceback)]
    count = {"type": "number_of_executions", "execution_count": result.execution_count}
    return [*found, count, {"type": "end_of_execution"}]


def _error(name: str, value: str, traceback: str) -> dict[str, Any]:
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def _result(display: DisplayData) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "result", "is_main_result": display.is_result, "extra": {}}
    for mime, value in display.mime.items():
        if mime in _FIELDS:
            found[_FIELDS[mime]] = value
        elif mime == _VALUE:
            if isinstance(value, dict):  # otherwise it was too large or too deep
                found.setdefault("json", value.get("value"))
        else:
            found["extra"][mime] = value
    text = found.get("text")
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] == "'":
        found["text"] = text[1:-1]  # a string is shown without its quotes
    return found


async def create(request: Request, tenant: Tenant) -> Response:
    contexts = await _contexts(request)
    body = parse_model(await read_body(request) or b"{}", Create)
    return json_response((await contexts.create(body.language, body.cwd)).plain())


async def list_contexts(request: Request, tenant: Tenant) -> Response:
    return json_response([context.plain() for context in (await _contexts(request)).all()])


async def remove(request: Request, tenant: Tenant) -> None:
    contexts = await _contexts(request)
    await contexts.remove(contexts.find(request.path_params["id"]))


async def restart(request: Request, tenant: Tenant) -> None:
    await (await _contexts(request)).find(request.path_params["id"]).restart()


def plain_refusal(error: Exception) -> Response:
    if isinstance(error, HttpError):
        return PlainTextResponse(error.message, error.status, with_retry_after(error.status, error.headers))
    if isinstance(error, SandboxError):
        status, message = status_of(error), public_message(error)
        return PlainTextResponse(message, 400 if status == 422 else status, with_retry_after(status, None))
    if isinstance(error, RpcError):
        return PlainTextResponse(error.message, STATUSES[error.code], with_retry_after(STATUSES[error.code], None))
    return error_response(error)


def routes() -> list[Any]:
    calls = (
        ("POST", "/execute", execute),
        ("POST", "/contexts", create),
        ("GET", "/contexts", list_contexts),
        ("DELETE", "/contexts/{id}", remove),
        ("POST", "/contexts/{id}/restart", restart),
    )
    return [
        route(method, path, with_refusals(call, plain_refusal), None, plain_refusal, owner_of)
        for method, path, call in calls
    ]
