"""`/v1/sandboxes/{id}/processes`: programs that go on between requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import InvalidRequest, SessionBusy
from warmcell.interfaces.serve.doors import NOTHING, door
from warmcell.interfaces.serve.exchange import (
    ENDED_OTHERWISE,
    answer,
    as_it_is,
    plain_outcome,
    read_body,
    read_model,
    while_connected,
)
from warmcell.interfaces.serve.held_sandboxes import Held
from warmcell.interfaces.serve.service import Service, held_of, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.event_streams import OutputTexts, event, event_stream, with_pauses
from warmcell.interfaces.serve.v1.living_models import SignalBody, SpawnBody, TerminalBody
from warmcell.interfaces.serve.v1.queries import number_in_query, query
from warmcell.sandbox.processes import AsyncProcess, ProcessInfo, PtySize

_PID = re.compile(r"[1-9][0-9]{0,9}")
_POSITION = re.compile(r"(?P<stdout>[0-9]{1,18})-(?P<stderr>[0-9]{1,18})")
WAIT_SECONDS, MOST_WAIT_SECONDS = 30.0, 60.0


class NoSuchProcess(InvalidRequest):
    """To who asks over there what it is to who asks here; to HTTP something that is not found."""

    http_status = 404

    def __init__(self) -> None:
        super().__init__("there is no such process", field="pid", hint="processes() lists them")


async def every(request: Request, tenant: Tenant) -> Response:
    """What was started and still runs, and the last hundred that have ended."""
    return answer([_plain(info) for info in await held_of(request, tenant).sandbox.processes()])


async def spawn(request: Request, tenant: Tenant) -> Response:
    """Starts a program and leaves it running."""
    held = held_of(request, tenant)
    body = await read_model(request, SpawnBody, service_of(request).settings.max_body)
    return answer(_plain((await started(held, body)).info), 201)


async def started(held: Held, body: SpawnBody) -> AsyncProcess:
    size = None if body.pty is None else PtySize(body.pty.cols, body.pty.rows)
    options: dict[str, Any] = {"cwd": body.cwd, "env": body.env, "stdin": body.stdin, "timeout": body.timeout}
    with as_it_is("limits.processes"):
        return await held.sandbox.spawn(body.command, pty=size, **options)


async def one(request: Request, tenant: Tenant) -> Response:
    """One of them."""
    return answer(_plain((await process_of(request, tenant)).info))


async def kill(request: Request, tenant: Tenant) -> Response:
    """Ends it and everything that it started."""
    await (await process_of(request, tenant)).kill()
    return Response(status_code=204)


async def write(request: Request, tenant: Tenant) -> Response:
    """Gives the body to the program to read; answered when it has taken all of it."""
    process = await process_of(request, tenant)
    data = await read_body(request, service_of(request).settings.max_body)
    with as_it_is():
        await while_connected(request, written(held_of(request, tenant), process, data))
    return Response(status_code=204)


async def written(held: Held, process: AsyncProcess, data: bytes, *, is_patient: bool = False) -> None:
    """One write at a time: what a program does not read is not heaped up here, also not by clients that hang up."""
    under_way: dict[int, asyncio.Future[None]] = held.extras.setdefault("writes", {})
    while process.pid in under_way:
        if not is_patient:
            raise SessionBusy("the process has not yet read what was written before")
        await asyncio.wait([under_way[process.pid]])
    writing = under_way[process.pid] = asyncio.ensure_future(process.write(data))

    def end(done: asyncio.Future[None]) -> None:
        del under_way[process.pid]
        done.cancelled() or done.exception()  # whoever waited may have gone

    writing.add_done_callback(end)
    await asyncio.shield(writing)


async def close_stdin(request: Request, tenant: Tenant) -> Response:
    """The program reads what was written, and then the end."""
    await (await process_of(request, tenant)).close_stdin()
    return Response(status_code=204)


async def resize(request: Request, tenant: Tenant) -> Response:
    """Gives its terminal another size."""
    process = await process_of(request, tenant)
    body = await read_model(request, TerminalBody, service_of(request).settings.max_body)
    with as_it_is():
        await process.resize(body.cols, body.rows)
    return Response(status_code=204)


async def send_signal(request: Request, tenant: Tenant) -> Response:
    """To the program and its process group."""
    process = await process_of(request, tenant)
    body = await read_model(request, SignalBody, service_of(request).settings.max_body)
    await process.signal(body.signal)
    return Response(status_code=204)


async def wait(request: Request, tenant: Tenant) -> Response:
    """Its result, when it has ended; `{"status": "running"}` where it goes on for longer than `timeout`."""
    process = await process_of(request, tenant)
    seconds = number_in_query(request, "timeout", WAIT_SECONDS, MOST_WAIT_SECONDS)
    return answer(await while_connected(request, waited(process, seconds)))


async def waited(process: AsyncProcess, seconds: float | None) -> dict[str, Any]:
    try:
        return plain_outcome(await process.wait(seconds))
    except TimeoutError:
        return {"status": "running"}
    except ENDED_OTHERWISE as error:
        return plain_outcome(error)


async def output(request: Request, tenant: Tenant) -> Response:
    """What is kept of its output, then what comes, and last its result."""
    process = await process_of(request, tenant)
    heard = _heard(request.headers.get("last-event-id") or request.query_params.get("from", "0-0"))
    return event_stream(_output(service_of(request), process, heard))


def _heard(position: str) -> dict[str, int]:
    found = _POSITION.fullmatch(position)
    if found is None:
        raise InvalidRequest("must be the id of an event, such as 120-0", field="from")
    return {name: int(count) for name, count in found.groupdict().items()}


async def _output(service: Service, process: AsyncProcess, heard: Mapping[str, int]) -> AsyncIterator[str]:
    """The id of an event is how many bytes of each stream there were by then: who comes again names the last."""
    texts, positions = OutputTexts(), dict(heard)
    async with aclosing(with_pauses(process.output_since(heard), service.draining)) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            if piece is None:
                yield ": it goes on\n\n"
                continue
            position, item = piece
            positions[item.stream] = position
            yield event(item.stream, texts.plain(item), f"{positions['stdout']}-{positions['stderr']}")
    yield event("result", await waited(process, None))


async def process_of(request: Any, tenant: Tenant) -> AsyncProcess:
    held, pid = held_of(request, tenant), request.path_params["pid"]
    if not _PID.fullmatch(pid):
        raise NoSuchProcess
    try:
        return await held.sandbox.attach(int(pid))
    except InvalidRequest:
        raise NoSuchProcess from None


def _plain(info: ProcessInfo) -> dict[str, Any]:
    names = ("pid", "command", "cwd", "is_running", "exit_code")
    return {name: getattr(info, name) for name in names}


def routes() -> list[Any]:
    every_one = "/v1/sandboxes/{id}/processes"
    at = every_one + "/{pid}"
    position = query("from", {"type": "string", "pattern": "^[0-9]{1,18}-[0-9]{1,18}$"})
    seconds = query("timeout", {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_WAIT_SECONDS})
    return [
        door("GET", every_one, every, "sandbox", answers=("Processes",)),
        door("POST", every_one, spawn, "sandbox", body=SpawnBody, answers=("Process",), status=201),
        door("GET", at, one, "sandbox", answers=("Process",)),
        door("DELETE", at, kill, "sandbox", **NOTHING),
        door("POST", f"{at}/stdin", write, "sandbox", raw_body=True, **NOTHING),
        door("DELETE", f"{at}/stdin", close_stdin, "sandbox", **NOTHING),
        door("POST", f"{at}/resize", resize, "sandbox", body=TerminalBody, **NOTHING),
        door("POST", f"{at}/signal", send_signal, "sandbox", body=SignalBody, ends_something=True, **NOTHING),
        door("GET", f"{at}/wait", wait, "sandbox", answers=("Waited",), parameters=[seconds]),
        door("GET", f"{at}/output", output, "sandbox", answers=("events",), parameters=[position]),
    ]
