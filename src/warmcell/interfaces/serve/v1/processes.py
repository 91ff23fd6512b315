"""`/v1/sandboxes/{id}/processes`: programs that keep running between requests."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field
from pydantic.config import JsonDict
from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.event_streams import (
    KEEPALIVE,
    EventStream,
    OutputDecoder,
    event_chunks,
    format_event,
    with_keepalives,
)
from warmcell.interfaces.serve.requests import read_body, read_model, while_connected
from warmcell.interfaces.serve.responses import (
    ENDED_EARLY,
    as_conflict,
    json_response,
    outcome_response,
    outcome_to_dict,
)
from warmcell.interfaces.serve.routing import NO_CONTENT, route
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry, write_to_process
from warmcell.interfaces.serve.service import Service, get_entry, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import (
    WHOLE,
    Code,
    Directory,
    Plain,
    Seconds,
    Strict,
    Variables,
    number_in_query,
    query,
)
from warmcell.sandbox.processes import AsyncProcess, PtySize

_PID = re.compile(r"[1-9][0-9]{0,9}")
_POSITION = re.compile(r"(?P<stdout>[0-9]{1,18})-(?P<stderr>[0-9]{1,18})")
WAIT_SECONDS, MAX_WAIT_SECONDS = 30.0, 60.0
Cells = Annotated[int, Field(ge=1, le=65_535), WHOLE]
_PROGRAM: JsonDict = {"prefixItems": [{"type": "string", "pattern": r"^[^\x00]+$"}]}
CommandLine = Annotated[list[Plain], Field(min_length=1, max_length=1000, json_schema_extra=_PROGRAM)]


class TerminalBody(Strict):
    """Columns and rows."""

    cols: Cells
    rows: Cells


class SpawnBody(Strict):
    """`command`: a shell script, or a list of a program and its arguments. Without `timeout` it may run as long as the
    sandbox; with `pty` it has a terminal, and all output is `stdout`."""

    command: Code | CommandLine
    cwd: Directory | None = None
    env: Variables = Field({})
    pty: TerminalBody | None = None
    stdin: bool = True
    timeout: Seconds | None = None


class SignalBody(Strict):
    """The number of the signal: 2 is SIGINT, 15 SIGTERM."""

    signal: Annotated[int, Field(ge=1, le=64), WHOLE]


class NoSuchProcess(InvalidRequest):
    """`InvalidRequest` for remote clients, as in the library; status 404 in HTTP."""

    http_status = 404

    def __init__(self) -> None:
        super().__init__("process not found", field="pid", hint="processes() lists them")


async def list_processes(request: Request, tenant: Tenant) -> Response:
    """The running processes and the last hundred that ended."""
    return json_response([asdict(info) for info in await get_entry(request, tenant).sandbox.processes()])


async def spawn(request: Request, tenant: Tenant) -> Response:
    """Starts a program in the background."""
    entry, body = get_entry(request, tenant), await read_model(request, SpawnBody)
    start = get_service(request).start_process(tenant, lambda: start_process(entry, body))
    process = await while_connected(request, start)
    return json_response(asdict(process.info), 201)


async def start_process(entry: SandboxEntry, body: SpawnBody) -> AsyncProcess:
    size = None if body.pty is None else PtySize(body.pty.cols, body.pty.rows)
    options: dict[str, Any] = {"cwd": body.cwd, "env": body.env, "stdin": body.stdin, "timeout": body.timeout}
    with as_conflict("limits.processes"):
        return await entry.sandbox.spawn(body.command, pty=size, **options)


async def describe_process(request: Request, tenant: Tenant) -> Response:
    """One process."""
    return json_response(asdict((await get_process(request, tenant)).info))


async def kill(request: Request, tenant: Tenant) -> None:
    """Kills the process and everything that it started."""
    await (await get_process(request, tenant)).kill()


async def write(request: Request, tenant: Tenant) -> None:
    """Writes the body to stdin; answers when the program has read all of it."""
    process, data = await get_process(request, tenant), await read_body(request)
    with as_conflict():
        await while_connected(request, write_to_process(get_entry(request, tenant), process, data))


async def close_stdin(request: Request, tenant: Tenant) -> None:
    """Closes stdin: the program reads what was written and then end of file."""
    await (await get_process(request, tenant)).close_stdin()


async def resize(request: Request, tenant: Tenant) -> None:
    """Resizes the terminal."""
    process, body = await get_process(request, tenant), await read_model(request, TerminalBody)
    with as_conflict():
        await process.resize(body.cols, body.rows)


async def send_signal(request: Request, tenant: Tenant) -> None:
    """Sends a signal to the process group of the program."""
    process, body = await get_process(request, tenant), await read_model(request, SignalBody)
    await process.signal(body.signal)


async def wait(request: Request, tenant: Tenant) -> Response:
    """The result, once the program has ended; `{"status": "running"}` after `timeout` seconds."""
    process = await get_process(request, tenant)
    seconds = number_in_query(request, "timeout", WAIT_SECONDS, MAX_WAIT_SECONDS)
    return outcome_response(await while_connected(request, wait_for_process(process, seconds)))


async def wait_for_process(process: AsyncProcess, seconds: float | None) -> dict[str, Any]:
    try:
        return outcome_to_dict(await process.wait(seconds))
    except TimeoutError:
        return {"status": "running"}
    except ENDED_EARLY as error:
        return outcome_to_dict(error)


async def output(request: Request, tenant: Tenant) -> Response:
    """The retained output, then new output, and last the result."""
    process = await get_process(request, tenant)
    position = _parse_position(request.headers.get("last-event-id") or request.query_params.get("from", "0-0"))
    return EventStream(_output(get_service(request), process, position))


def _parse_position(position: str) -> dict[str, int]:
    found = _POSITION.fullmatch(position)
    if found is None:
        raise InvalidRequest("must be the id of an event, such as 120-0", field="from")
    return {name: int(count) for name, count in found.groupdict().items()}


async def _output(service: Service, process: AsyncProcess, start: Mapping[str, int]) -> AsyncIterator[str]:
    """Yield output events. An event's id is its position in both streams, from which a client can resume."""
    texts, positions = OutputDecoder(), dict(start)
    async with aclosing(with_keepalives(process.local.output_since(start), service.draining)) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            if piece is None:
                yield KEEPALIVE
                continue
            position, item = piece
            positions[item.stream] = position
            yield format_event(item.stream, texts.to_dict(item), f"{positions['stdout']}-{positions['stderr']}")
    for chunk in event_chunks("result", await wait_for_process(process, None)):
        yield chunk


async def get_process(request: Any, tenant: Tenant) -> AsyncProcess:
    entry, pid = get_entry(request, tenant), request.path_params["pid"]
    if not _PID.fullmatch(pid):
        raise NoSuchProcess
    try:
        return await entry.sandbox.attach(int(pid))
    except InvalidRequest:
        raise NoSuchProcess from None


def routes() -> list[Any]:
    collection = "/v1/sandboxes/{id}/processes"
    at = collection + "/{pid}"
    position = query("from", {"type": "string", "pattern": "^[0-9]{1,18}-[0-9]{1,18}$"})
    seconds = query("timeout", {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WAIT_SECONDS})
    return [
        route("GET", collection, list_processes, "sandbox", answers=("Processes",)),
        route("POST", collection, spawn, "sandbox", body=SpawnBody, answers=("Process",), status=201),
        route("GET", at, describe_process, "sandbox", answers=("Process",)),
        route("DELETE", at, kill, "sandbox", **NO_CONTENT),
        route("POST", f"{at}/stdin", write, "sandbox", raw_body=True, **NO_CONTENT),
        route("DELETE", f"{at}/stdin", close_stdin, "sandbox", **NO_CONTENT),
        route("POST", f"{at}/resize", resize, "sandbox", body=TerminalBody, **NO_CONTENT),
        route("POST", f"{at}/signal", send_signal, "sandbox", body=SignalBody, ends_something=True, **NO_CONTENT),
        route("GET", f"{at}/wait", wait, "sandbox", answers=("Waited",), parameters=[seconds]),
        route("GET", f"{at}/output", output, "sandbox", answers=("events",), parameters=[position]),
    ]
