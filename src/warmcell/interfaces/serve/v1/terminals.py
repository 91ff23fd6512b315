"""WebSockets to programs: `.../processes/{pid}/ws` for one that runs, `/v1/run/ws` for a program that is to run now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from pydantic import Field
from starlette.websockets import WebSocket

from warmcell.core.errors import InvalidRequest
from warmcell.core.output_events import OutputEvent
from warmcell.core.types import ExecResult
from warmcell.interfaces.serve.ceiling import check_time
from warmcell.interfaces.serve.exchange import Refused, parsed, plain_error, plain_outcome
from warmcell.interfaces.serve.service import held_of, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.living_models import SignalBody, TerminalBody
from warmcell.interfaces.serve.v1.models import Code, Files, LimitsBody, Seconds, Strict, Variables, content
from warmcell.interfaces.serve.v1.processes import process_of, waited, written
from warmcell.interfaces.serve.web_sockets import (
    DONE,
    accept,
    command,
    heard,
    say,
    side_by_side,
    socket_door,
    tell_output,
)
from warmcell.languages.registry import canonical
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.processes import AsyncProcess, PtySize

#: For the first message of a client that wants something run.
FIRST_SECONDS = 30.0


class Nothing(Strict):
    """A message that says all by its type."""


class LiveRunBody(Strict):
    """A program that is fed while it runs; with `pty` it has a terminal."""

    language: str
    code: Code
    timeout: Seconds
    env: Variables = Field({})
    limits: LimitsBody | None = None
    files: Files = Field({})
    pty: TerminalBody | None = None


_COMMANDS: dict[str, type[Strict]] = {
    "resize": TerminalBody,
    "signal": SignalBody,
    "close_stdin": Nothing,
    "kill": Nothing,
}


async def attach(socket: WebSocket, tenant: Tenant) -> None:
    """What is kept of its output, then what comes; what is sent goes to its stdin. It goes on when the client goes."""
    held, process = held_of(socket, tenant), await process_of(socket, tenant)

    async def write(data: bytes) -> None:
        await written(held, process, data, is_patient=True)

    await accept(socket)
    telling = tell_output(socket, process.output(), service_of(socket).draining)
    await side_by_side(telling, _obey(socket, process, write))
    await _end(socket, process)


async def run(socket: WebSocket, tenant: Tenant) -> None:
    """The first message says what to run; it ends with its client."""
    service = service_of(socket)
    await accept(socket)
    body = await _first(socket)
    check_time(body.timeout, service.settings.max_timeout)
    limits = None if body.limits is None else body.limits.limits()
    async with service.turn(tenant), service.make_sandbox(tenant, limits, env=body.env) as sandbox:
        await _carry_out(socket, sandbox, body)


async def _first(socket: WebSocket) -> LiveRunBody:
    try:
        async with asyncio.timeout(FIRST_SECONDS):
            async for message in heard(socket):
                return parsed(message if isinstance(message, bytes) else message.encode(), LiveRunBody)
    except TimeoutError:
        raise Refused(408, f"nothing to run came within {FIRST_SECONDS:g} s") from None
    raise Refused(400, "nothing to run came")


async def _carry_out(socket: WebSocket, sandbox: AsyncSandbox, body: LiveRunBody) -> None:
    for path, data in body.files.items():
        await sandbox.write_file(path, content(f"files[{path!r}]", data))
    size = None if body.pty is None else PtySize(body.pty.cols, body.pty.rows)
    language = canonical(body.language)
    process = await sandbox.spawn_code(body.code, language, pty=size, timeout=body.timeout)
    if isinstance(process, ExecResult):
        await say(socket, "result", plain_outcome(process))
        await socket.close(DONE)
        return
    telling = tell_output(socket, _capped(process, sandbox.limits.output_bytes), None)
    await side_by_side(telling, _obey(socket, process, process.write))
    await _end(socket, process)


async def _capped(process: AsyncProcess, most: int) -> AsyncIterator[OutputEvent]:
    """As in any run: bytes past the cap are not delivered, and the result says truncated."""
    left = {"stdout": most, "stderr": most}
    async with aclosing(process.output()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            data = piece.data[: left[piece.stream]]
            left[piece.stream] -= len(data)
            if data:
                yield OutputEvent(piece.stream, data)


async def _obey(socket: WebSocket, process: AsyncProcess, write: Any) -> None:
    """Bytes are for its stdin, texts are about it. In order: while it does not read, nothing more is taken."""
    async for message in heard(socket):
        try:
            if isinstance(message, bytes):
                await write(message)
            else:
                await _do(process, *command(message, _COMMANDS))
        except InvalidRequest as error:  # it reads no more, or has no terminal: what it says goes on
            await say(socket, "refused", {"error": plain_error(error)})


async def _do(process: AsyncProcess, kind: str, asked: Any) -> None:
    if kind == "resize":
        await process.resize(asked.cols, asked.rows)
    elif kind == "signal":
        await process.signal(asked.signal)
    elif kind == "close_stdin":
        await process.close_stdin()
    else:
        await process.kill()


async def _end(socket: WebSocket, process: AsyncProcess) -> None:
    """Its result, where it has ended. Otherwise the client has gone, and nobody is there to hear anything."""
    if not process.is_running:
        await say(socket, "result", await waited(process, None))
        await socket.close(DONE)


def routes() -> list[Any]:
    return [
        socket_door("/v1/sandboxes/{id}/processes/{pid}/ws", attach, "sandbox"),
        socket_door("/v1/run/ws", run, "run"),
    ]
