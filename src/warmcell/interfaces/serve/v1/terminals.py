"""WebSockets to programs: `.../processes/{pid}/ws` attaches to a process, `/v1/run/ws` runs a new program, and
`/v1/sandboxes/{id}/ports/{port}/ws` connects to a port.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from pydantic import Field
from starlette.websockets import WebSocket, WebSocketDisconnect

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
from warmcell.interfaces.serve.v1.processes import SignalBody, TerminalBody, get_process, wait_for_process
from warmcell.interfaces.serve.websockets import (
    DONE,
    MAX_MESSAGE,
    accept,
    parse_command,
    receive_messages,
    run_until_first_ends,
    send_message,
    send_output,
    websocket_route,
)
from warmcell.languages.registry import canonical
from warmcell.lifetime.threads import cancel_and_wait
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.processes import AsyncProcess, PtySize

#: Timeout for the first message of `/v1/run/ws`.
FIRST_SECONDS = 30.0
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_CHUNK = 1 << 16
_MESSAGE_OVERHEAD = 64


class WaitingInput:
    """Input that the program has not read yet, in order and bounded.

    `deliver` writes it, and calls `on_refused` with the error if that fails.
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
        on_refused: Callable[[InvalidRequest], Awaitable[None]],
    ) -> None:
        self._write, self._close, self._on_refused = write, close, on_refused
        self._waiting = bytearray()
        self._is_ending = self._is_busy = False
        self._changed = asyncio.Condition()

    async def add(self, data: bytes) -> None:
        """Add input. Waits while more than the size of a message is unread, which makes the client wait too."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < MAX_MESSAGE and not self._is_ending)
            self._waiting += data
            self._changed.notify_all()

    async def end(self) -> None:
        """Close the program's stdin after the input that waits."""
        async with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    async def deliver(self) -> None:
        """Write the input until cancelled."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._waiting or self._is_ending)
                data, self._is_busy = bytes(self._waiting), True
                self._waiting.clear()
                self._changed.notify_all()
            try:
                await (self._write(data) if data else self._close())
            except InvalidRequest as error:  # it is closed
                await self._on_refused(error)
            async with self._changed:
                self._is_ending &= bool(data)
                self._is_busy = False
                self._changed.notify_all()

    async def drain(self) -> None:
        """Returns when everything was delivered."""
        async with self._changed:
            await self._changed.wait_for(lambda: not (self._waiting or self._is_ending or self._is_busy))


class MessageQueue:
    """Messages that are read ahead, so that a disconnect is noticed at once. Bounded."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._messages: deque[bytes | str] = deque()
        self._size = 0
        self._changed = asyncio.Condition()

    async def fill(self) -> None:
        """Read messages until the client disconnects."""
        async for message in receive_messages(self._socket):
            async with self._changed:
                await self._changed.wait_for(lambda: self._size < MAX_MESSAGE)
                self._messages.append(message)
                self._size += len(message) + _MESSAGE_OVERHEAD
                self._changed.notify_all()

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._messages)
                message = self._messages.popleft()
                self._size -= len(message) + _MESSAGE_OVERHEAD
                self._changed.notify_all()
            yield message


class NoFields(Strict):
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
    "close_stdin": NoFields,
    "kill": NoFields,
}


async def attach(socket: WebSocket, tenant: Tenant) -> None:
    """Send the retained and the new output; messages go to stdin. The process survives a disconnect."""
    entry, process = get_entry(socket, tenant), await get_process(socket, tenant)

    async def write(data: bytes) -> None:
        await write_to_process(entry, process, data, wait=True)

    await accept(socket)
    sending = send_output(socket, process.output(), get_service(socket).draining)
    messages = receive_messages(socket)
    await run_until_first_ends(sending, _handle_messages(socket, messages, process, write, drains=True))
    await _send_result(socket, process)


async def run(socket: WebSocket, tenant: Tenant) -> None:
    """Run the program of the first message; a disconnect ends it, also while it waits for a slot or is built."""
    await accept(socket)
    body = await _read_first(socket)
    check_timeout(body.timeout, get_service(socket).settings.max_timeout)
    messages = MessageQueue(socket)
    await run_until_first_ends(messages.fill(), _run_in_slot(socket, tenant, body, messages))


async def _run_in_slot(
    socket: WebSocket, tenant: Tenant, body: LiveRunBody, messages: AsyncIterable[bytes | str]
) -> None:
    service = get_service(socket)
    limits = None if body.limits is None else body.limits.limits()
    async with service.run_slot(tenant), service.make_sandbox(tenant, limits, env=body.env) as sandbox:
        with _show_in_activity(body.language):
            await _run_program(socket, sandbox, body, messages)


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


async def _run_program(
    socket: WebSocket, sandbox: AsyncSandbox, body: LiveRunBody, messages: AsyncIterable[bytes | str]
) -> None:
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
    await run_until_first_ends(sending, _handle_messages(socket, messages, process, process.write, drains=False))
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


async def _handle_messages(
    socket: WebSocket, messages: AsyncIterable[bytes | str], process: AsyncProcess, write: Any, *, drains: bool
) -> None:
    """Write binary messages to stdin, execute text messages, also while the program does not read its input.

    With `drains`, input that was sent before a disconnect is still delivered.
    """

    async def refuse(error: InvalidRequest) -> None:  # stdin is closed, or no terminal: its output continues
        await send_message(socket, "refused", {"error": error_to_dict(error)})

    async def receive() -> None:
        async for message in messages:
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


# ---- one connection to a port of the sandbox, for clients on other machines ----


async def tunnel(socket: WebSocket, tenant: Tenant) -> None:
    """Copy both ways until both sides have ended or the client disconnects."""
    entry, name = get_entry(socket, tenant), socket.path_params["port"]
    if not _PORT.fullmatch(name):
        raise HttpError(404, f"invalid port {name[:20]!r}: use a number from 1 to 65535")
    try:
        reader, writer = await asyncio.open_connection(sock=await entry.sandbox.connect(int(name)))
    except ConnectionError:
        raise HttpError(502, "connection refused: nothing listens on that port in the sandbox") from None
    try:
        await accept(socket)
        outward = asyncio.ensure_future(_relay_to_client(socket, reader))
        try:
            await _relay_to_guest(socket, writer)
            await run_until_first_ends(asyncio.wait([outward]), _wait_for_disconnect(socket))
            outward.result()
        finally:
            await cancel_and_wait(outward)
        await socket.close(DONE)
    finally:
        writer.close()


async def _relay_to_guest(socket: WebSocket, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # the guest stopped reading; its output continues
        async for message in receive_messages(socket):
            if isinstance(message, str):
                parse_command(message, {"end": NoFields})
                writer.write_eof()
                return
            writer.write(message)
            await writer.drain()
        raise WebSocketDisconnect


async def _wait_for_disconnect(socket: WebSocket) -> None:
    async for _ in receive_messages(socket):  # what comes after the end is dropped
        pass
    raise WebSocketDisconnect


async def _relay_to_client(socket: WebSocket, reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(data)
    await send_message(socket, "end", {})


def routes() -> list[Any]:
    return [
        websocket_route("/v1/sandboxes/{id}/processes/{pid}/ws", attach, "sandbox"),
        websocket_route("/v1/run/ws", run, "run"),
        websocket_route("/v1/sandboxes/{id}/ports/{port}/ws", tunnel, "sandbox"),
    ]
