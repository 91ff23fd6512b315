"""WebSockets to programs: `.../processes/{pid}/ws` attaches to a process, `/v1/run/ws` runs a new program."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from pydantic import Field
from starlette.websockets import WebSocket

from warmcell.core import events
from warmcell.core.errors import InvalidRequest
from warmcell.core.output_events import OutputEvent
from warmcell.core.types import ExecResult
from warmcell.interfaces.serve.requests import parse_model
from warmcell.interfaces.serve.responses import HttpError, error_to_dict, outcome_to_dict
from warmcell.interfaces.serve.sandbox_registry import write_to_process
from warmcell.interfaces.serve.server_limits import check_timeout
from warmcell.interfaces.serve.service import get_entry, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import Code, Files, LimitsBody, Seconds, Strict, Variables, to_content
from warmcell.interfaces.serve.v1.processes import get_process, wait_for_process
from warmcell.interfaces.serve.v1.sandbox_models import SignalBody, TerminalBody
from warmcell.interfaces.serve.v1.waiting_input import WaitingInput
from warmcell.interfaces.serve.websockets import (
    DONE,
    accept,
    parse_command,
    receive_messages,
    run_until_first_ends,
    send_message,
    send_output,
    websocket_route,
)
from warmcell.languages.registry import canonical
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.processes import AsyncProcess, PtySize

#: Timeout for the first message of `/v1/run/ws`.
FIRST_SECONDS = 30.0


class Nothing(Strict):
    """A message without fields."""


class LiveRunBody(Strict):
    """A program with interactive input; with `pty` it has a terminal."""

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
    """Send the retained and the new output; messages go to stdin. The process survives a disconnect."""
    entry, process = get_entry(socket, tenant), await get_process(socket, tenant)

    async def write(data: bytes) -> None:
        await write_to_process(entry, process, data, wait=True)

    await accept(socket)
    sending = send_output(socket, process.output(), get_service(socket).draining)
    await run_until_first_ends(sending, _handle_messages(socket, process, write, drains=True))
    await _send_result(socket, process)


async def run(socket: WebSocket, tenant: Tenant) -> None:
    """Run the program of the first message; a disconnect ends it."""
    service = get_service(socket)
    await accept(socket)
    body = await _read_first(socket)
    check_timeout(body.timeout, service.settings.max_timeout)
    limits = None if body.limits is None else body.limits.limits()
    async with service.run_slot(tenant), service.make_sandbox(tenant, limits, env=body.env) as sandbox:
        with _show_in_activity(body.language):
            await _run_program(socket, sandbox, body)


@contextmanager
def _show_in_activity(language: str) -> Iterator[None]:
    subject = secrets.token_hex(8)
    if events.listeners:
        events.emit("program.started", subject, {"backend": "process", "language": canonical(language)})
    try:
        yield
    finally:
        if events.listeners:
            events.emit("program.ended", subject, {})


async def _read_first(socket: WebSocket) -> LiveRunBody:
    try:
        async with asyncio.timeout(FIRST_SECONDS):
            async for message in receive_messages(socket):
                return parse_model(message if isinstance(message, bytes) else message.encode(), LiveRunBody)
    except TimeoutError:
        raise HttpError(408, f"no program was sent within {FIRST_SECONDS:g} s") from None
    raise HttpError(400, "no program was sent")


async def _run_program(socket: WebSocket, sandbox: AsyncSandbox, body: LiveRunBody) -> None:
    for path, data in body.files.items():
        await sandbox.write_file(path, to_content(f"files[{path!r}]", data))
    size = None if body.pty is None else PtySize(body.pty.cols, body.pty.rows)
    language = canonical(body.language)
    process = await sandbox.spawn_code(body.code, language, pty=size, timeout=body.timeout)
    if isinstance(process, ExecResult):
        await send_message(socket, "result", outcome_to_dict(process))
        await socket.close(DONE)
        return
    sending = send_output(socket, _cap_output(process, sandbox.limits.output_bytes), None)
    await run_until_first_ends(sending, _handle_messages(socket, process, process.write, drains=False))
    await _send_result(socket, process)


async def _cap_output(process: AsyncProcess, most: int) -> AsyncIterator[OutputEvent]:
    """Drop output past the limit, as in other runs; the result has the truncated flags."""
    left = {"stdout": most, "stderr": most}
    async with aclosing(process.output()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            data = piece.data[: left[piece.stream]]
            left[piece.stream] -= len(data)
            if data:
                yield OutputEvent(piece.stream, data)


async def _handle_messages(socket: WebSocket, process: AsyncProcess, write: Any, *, drains: bool) -> None:
    """Write binary messages to stdin, execute text messages, also while the program does not read its input.

    `drains`: what was sent before a disconnect is still delivered.
    """

    async def refuse(error: InvalidRequest) -> None:  # stdin is closed, or no terminal: its output continues
        await send_message(socket, "refused", {"error": error_to_dict(error)})

    async def receive() -> None:
        async for message in receive_messages(socket):
            try:
                if isinstance(message, bytes):
                    await waiting.add(message)
                else:
                    await _execute(process, waiting, *parse_command(message, _COMMANDS))
            except InvalidRequest as error:
                await refuse(error)
        if drains:
            await waiting.drain()

    waiting = WaitingInput(write, process.close_stdin, refuse)
    await run_until_first_ends(receive(), waiting.deliver())


async def _execute(process: AsyncProcess, waiting: WaitingInput, kind: str, fields: Any) -> None:
    if kind == "resize":
        await process.resize(fields.cols, fields.rows)
    elif kind == "signal":
        await process.signal(fields.signal)
    elif kind == "close_stdin":
        await waiting.end()
    else:
        await process.kill()


async def _send_result(socket: WebSocket, process: AsyncProcess) -> None:
    """Send the result if the process has ended; otherwise the client has disconnected."""
    if not process.is_running:
        await send_message(socket, "result", await wait_for_process(process, None))
        await socket.close(DONE)


def routes() -> list[Any]:
    return [
        websocket_route("/v1/sandboxes/{id}/processes/{pid}/ws", attach, "sandbox"),
        websocket_route("/v1/run/ws", run, "run"),
    ]
