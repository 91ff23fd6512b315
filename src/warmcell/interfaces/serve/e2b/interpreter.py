"""E2B's code interpreter: cells that remember, in contexts, on our sessions."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from warmcell.core.errors import SandboxError, SessionEnded
from warmcell.core.types import MAX_TIMEOUT, check_env
from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.e2b.box import HOME, Box, box_of
from warmcell.interfaces.serve.e2b.envd import NoSandbox, awake, guarded
from warmcell.interfaces.serve.exchange import Refused, answer, parsed, read_body, refusal, status_of, told
from warmcell.interfaces.serve.service import service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.sandbox.session import AsyncSession
from warmcell.sessions.cell_results import CellResult, DisplayData

KEEPALIVE_SECONDS = 5.0
MAX_CONTEXTS = 32
LANGUAGES = {
    "python": "python",
    "python3": "python",
    "javascript": "javascript",
    "js": "javascript",
    "bash": "command",
}
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
    "e2b/data": "data",
    "e2b/chart": "chart",
}


class Execute(BaseModel):
    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class Create(BaseModel):
    language: str | None = None
    cwd: str | None = None


class Context:
    """A session, and what its client said about it. Cells of one come one after the other."""

    def __init__(self, session: AsyncSession, language: str, cwd: str) -> None:
        self.session, self.language, self.cwd = session, language, cwd

    def plain(self) -> dict[str, str]:
        return {"id": self.session.id, "language": self.language, "cwd": self.cwd}


class Contexts:
    """Of one sandbox; the default one of a language is made when it is first used."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._all: dict[str, Context] = {}
        self._defaults: dict[str, Context] = {}
        self._making = asyncio.Lock()

    async def create(self, language: str | None, cwd: str | None) -> Context:
        asked = (language or "python").lower()
        if asked not in LANGUAGES:
            raise Refused(400, f"unsupported language: {asked[:40]}")
        if len(self._all) >= MAX_CONTEXTS:
            raise Refused(429, f"there are {MAX_CONTEXTS} contexts already")
        session = await self._box.held.sandbox.session(LANGUAGES[asked], cwd=cwd or HOME)
        made = self._all[session.id] = Context(session, asked, cwd or HOME)
        return made

    async def chosen(self, body: Execute) -> Context:
        if body.context_id is not None and body.language is not None:
            raise Refused(400, "only one of context_id or language can be provided")
        if body.context_id is not None:
            return self.find(body.context_id)
        async with self._making:
            language = LANGUAGES.get((body.language or "python").lower(), body.language or "")
            found = self._defaults.get(language)
            if found is None or found.session.id not in self._all:
                found = self._defaults[language] = await self.create(body.language, None)
            return found

    def find(self, identity: str) -> Context:
        found = self._all.get(identity)
        if found is None:
            raise Refused(404, f"Context {identity[:80]} not found")
        return found

    def every(self) -> list[Context]:
        return list(self._all.values())

    async def remove(self, context: Context) -> None:
        self._all.pop(context.session.id, None)
        await context.session.close()


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
    found: Contexts = box.extras.setdefault("contexts", Contexts(box))
    return found


async def execute(request: Request, tenant: Tenant) -> Response:
    """Runs a cell; one JSON object for each line of the answer. A client that hangs up interrupts it."""
    contexts = await _contexts(request)
    body = parsed(await read_body(request, service_of(request).settings.max_body), Execute)
    context = await contexts.chosen(body)
    env = dict(check_env(body.env_vars or {}, "env_vars"))
    return StreamingResponse(_lines(_run(context, body.code, env)), media_type="application/x-ndjson")


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
            return await _in_environment(
                context,
                env,
                code,
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
                message = await asyncio.wait_for(heard.get(), KEEPALIVE_SECONDS)
            except TimeoutError:
                message = {"type": "keepalive"}
            if message is None:
                break
            yield message
        for message in await _ending(context, running):
            yield message
    finally:
        running.cancel()
        while not running.done():  # nobody hears it any more, and it must not wait for that
            while not heard.empty():
                heard.get_nowait()
            await asyncio.wait([running], timeout=0.05)
        if not running.cancelled():
            running.exception()


async def _ending(context: Context, running: asyncio.Future[CellResult]) -> list[dict[str, Any]]:
    try:
        result = await running
    except SandboxError as error:
        if isinstance(error, SessionEnded):
            await context.session.restart()
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


async def _in_environment(context: Context, env: dict[str, str], code: str, **listeners: Any) -> CellResult:
    session = context.session
    if not code.strip():
        return CellResult()
    if env:
        await session.run(_setting(context.language, env), timeout=60)
    try:
        return await session.run(code, timeout=MAX_TIMEOUT, **listeners)
    finally:
        if env:
            await asyncio.shield(session.run(_undoing(context.language, env), timeout=60))


def _setting(language: str, env: dict[str, str]) -> str:
    plain = json.dumps(env)
    if LANGUAGES[language] == "python":
        keep = "__import__('builtins').__dict__.__setitem__('_warmcell_env', dict(__import__('os').environ))"
        return f"{keep}\n__import__('os').environ.update(__import__('json').loads({plain!r}))"
    if LANGUAGES[language] == "javascript":
        return f"globalThis._warmcell_env = {{...process.env}}; Object.assign(process.env, {plain}); undefined"
    return "\n".join(f"export {name}={_quoted(value)}" for name, value in env.items())


def _undoing(language: str, env: dict[str, str]) -> str:
    if LANGUAGES[language] == "python":
        names = f"{list(env)!r}"
        return (
            f"for _warmcell_name in {names}:\n"
            "    __import__('os').environ.pop(_warmcell_name, None)\n"
            "    if _warmcell_name in _warmcell_env: "
            "__import__('os').environ[_warmcell_name] = _warmcell_env[_warmcell_name]\n"
            "del _warmcell_name"
        )
    if LANGUAGES[language] == "javascript":
        return (
            f"for (const name of {json.dumps(list(env))}) {{ delete process.env[name]; "
            "if (name in _warmcell_env) process.env[name] = _warmcell_env[name]; } undefined"
        )
    return "unset " + " ".join(env)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _result(display: DisplayData) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "result", "is_main_result": display.is_result, "extra": {}}
    for mime, value in display.mime.items():
        if mime in _FIELDS:
            found[_FIELDS[mime]] = value
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
    await context.session.restart()
    return Response(status_code=204)


def plain_refusal(error: Exception) -> Response:
    if isinstance(error, Refused):
        return PlainTextResponse(error.message, error.status, error.headers)
    if isinstance(error, SandboxError):
        status = status_of(error)
        return PlainTextResponse(told(error), 400 if status == 422 else status)
    return refusal(error)


def routes() -> list[Any]:
    calls = (
        ("POST", "/execute", execute),
        ("POST", "/contexts", create),
        ("GET", "/contexts", every),
        ("DELETE", "/contexts/{id}", remove),
        ("POST", "/contexts/{id}/restart", restart),
    )
    return [door(method, path, guarded(call, plain_refusal), None) for method, path, call in calls]
