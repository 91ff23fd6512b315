"""E2B's code interpreter: cells that remember, in contexts, on our sessions."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from warmcell.core.errors import SandboxDestroyed, SandboxError
from warmcell.core.types import check_env
from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.e2b.box import box_of
from warmcell.interfaces.serve.e2b.contexts import Context, Contexts
from warmcell.interfaces.serve.e2b.envd import NoSandbox, awake, guarded, owner_of
from warmcell.interfaces.serve.exchange import (
    Refused,
    answer,
    parsed,
    read_body,
    refusal,
    said_when,
    status_of,
    told,
)
from warmcell.interfaces.serve.service import service_of
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
#: A list or a dict that a cell gave, which clients know as `json` too.
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
    """By either of the sandbox's secrets: some calls bring the one, some the other."""
    identity = request.headers.get("e2b-sandbox-id", "")[:200]
    box = box_of(service_of(request).held.find_any(identity))
    traffic = request.headers.get("e2b-traffic-access-token", "").encode()
    if box is None or not (
        box.knows(request.headers.get("x-access-token")) or hmac.compare_digest(traffic, box.traffic_token.encode())
    ):
        raise NoSandbox(identity)
    await awake(box)
    if "contexts" not in box.extras:
        box.extras["contexts"] = Contexts(box)
    found: Contexts = box.extras["contexts"]
    return found


async def execute(request: Request, tenant: Tenant) -> Response:
    """Runs a cell; one JSON object for each line of the answer. A client that hangs up interrupts it."""
    contexts = await _contexts(request)
    body = parsed(await read_body(request, service_of(request).settings.max_body), Execute)
    context = contexts.chosen(body.context_id, body.language)
    env = dict(check_env(body.env_vars or {}, "env_vars"))
    await context.start()
    return CellStream(_lines(_run(context, body.code, env)), media_type="application/x-ndjson")


class CellStream(StreamingResponse):
    """Breaks off where the sandbox is killed meanwhile: by an answer without an end its client knows that."""

    async def stream_response(self, send: Any) -> None:
        with suppress(SandboxDestroyed):
            await super().stream_response(send)


async def _lines(messages: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    async for message in messages:
        yield json.dumps(message) + "\n"


async def _run(context: Context, code: str, env: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
    heard: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(1000)

    async def text(stream: str, what: str) -> None:
        await heard.put({"type": stream, "text": what, "timestamp": time.time_ns() // 1000})

    async def shown(display: DisplayData) -> None:
        await heard.put(_result(display))

    async def cell() -> CellResult:
        try:
            return await context.run(
                code,
                env,
                on_stdout=lambda what: text("stdout", what),
                on_stderr=lambda what: text("stderr", what),
                on_display=shown,
            )
        finally:
            await heard.put(None)

    running = asyncio.ensure_future(cell())
    try:
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_SECONDS):
                    message = await heard.get()
            except TimeoutError:
                message = {"type": "keepalive"}
            if message is None:
                break
            yield message
        for message in await _ending(running):
            yield message
    finally:
        running.cancel()
        while not running.done():  # nobody hears it any more, and it must not wait for that
            while not heard.empty():
                heard.get_nowait()
            await asyncio.wait([running], timeout=0.05)
        if not running.cancelled():
            running.exception()


async def _ending(running: asyncio.Future[CellResult]) -> list[dict[str, Any]]:
    try:
        result = await running
    except SandboxDestroyed:
        raise
    except SandboxError as error:
        last = {"type": "error", "name": type(error).__name__, "value": told(error), "traceback": told(error)}
        return [last, {"type": "end_of_execution"}]
    found: list[dict[str, Any]] = []
    if result.error is not None:
        error_of = result.error
        found.append(
            {"type": "error", "name": error_of.name, "value": error_of.message, "traceback": error_of.traceback}
        )
    found.append({"type": "number_of_executions", "execution_count": result.execution_count})
    return [*found, {"type": "end_of_execution"}]


def _result(display: DisplayData) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "result", "is_main_result": display.is_result, "extra": {}}
    for mime, value in display.mime.items():
        if mime in _FIELDS:
            found[_FIELDS[mime]] = value
        elif mime == _VALUE:
            if isinstance(value, dict):  # else it is too large or too deep
                found.setdefault("json", value.get("value"))
        else:
            found["extra"][mime] = value
    text = found.get("text")
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] == "'":
        found["text"] = text[1:-1]  # a string shows itself, not how it is written
    return found


async def create(request: Request, tenant: Tenant) -> Response:
    contexts = await _contexts(request)
    body = parsed(await read_body(request, service_of(request).settings.max_body) or b"{}", Create)
    return answer((await contexts.create(body.language, body.cwd)).plain())


async def every(request: Request, tenant: Tenant) -> Response:
    return answer([context.plain() for context in (await _contexts(request)).every()])


async def remove(request: Request, tenant: Tenant) -> Response:
    contexts = await _contexts(request)
    await contexts.remove(contexts.find(request.path_params["id"]))
    return Response(status_code=204)


async def restart(request: Request, tenant: Tenant) -> Response:
    context = (await _contexts(request)).find(request.path_params["id"])
    await context.restart()
    return Response(status_code=204)


def plain_refusal(error: Exception) -> Response:
    if isinstance(error, Refused):
        return PlainTextResponse(error.message, error.status, said_when(error.status, error.headers))
    if isinstance(error, SandboxError):
        status = status_of(error)
        return PlainTextResponse(told(error), 400 if status == 422 else status, said_when(status, None))
    return refusal(error)


def routes() -> list[Any]:
    calls = (
        ("POST", "/execute", execute),
        ("POST", "/contexts", create),
        ("GET", "/contexts", every),
        ("DELETE", "/contexts/{id}", remove),
        ("POST", "/contexts/{id}/restart", restart),
    )
    return [
        door(method, path, guarded(call, plain_refusal), None, plain_refusal, owner_of) for method, path, call in calls
    ]
