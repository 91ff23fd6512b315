"""`/v1/sandboxes/{id}/sessions`: stateful interpreters that run cells, with their client or in the background."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import SessionNotFound
from warmcell.interfaces.serve.background_jobs import FROM, KeptByTenant, position_of
from warmcell.interfaces.serve.event_streams import Emit, EventStream, stream_events, wants_events
from warmcell.interfaces.serve.middleware import id_of
from warmcell.interfaces.serve.requests import read_model, while_connected
from warmcell.interfaces.serve.responses import (
    ENDED_EARLY,
    UNREAD,
    HttpError,
    as_conflict,
    json_response,
    outcome_response,
    outcome_to_dict,
)
from warmcell.interfaces.serve.routing import NO_CONTENT, route
from warmcell.interfaces.serve.saved_sessions import reason_of_loss, restore_sessions
from warmcell.interfaces.serve.server_limits import check_timeout
from warmcell.interfaces.serve.service import Service, get_entry, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import BranchBody, CellBody, InputBody, SessionBody
from warmcell.interfaces.serve.v1.sandbox_state import SessionEntry, state_of
from warmcell.interfaces.serve.v1.sandboxes import sandbox_to_dict
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.session import AsyncSession
from warmcell.sessions.cell_results import CellError, CellResult

MAX_SESSIONS = 32


async def list_sessions(request: Request, tenant: Tenant) -> Response:
    """The sessions of the sandbox."""
    entry = get_entry(request, tenant)
    await restore_sessions(entry)
    return json_response([session.to_dict() for session in state_of(entry).sessions.values()])


async def create(request: Request, tenant: Tenant) -> Response:
    """Starts an interpreter."""
    entry, body = get_entry(request, tenant), await read_model(request, SessionBody)
    await restore_sessions(entry)
    state = state_of(entry)
    if len(state.sessions) + state.sessions_starting >= MAX_SESSIONS:
        raise HttpError(429, f"the sandbox already has {MAX_SESSIONS} sessions", headers={"Retry-After": "5"})

    async def start() -> SessionEntry:
        async with get_service(request).run_slot(tenant):
            return state.add_session(await entry.sandbox.session(body.language, cwd=body.cwd, env=body.env))

    state.sessions_starting += 1
    try:
        with as_conflict("limits.processes"):
            found = await while_connected(request, start())
    finally:
        state.sessions_starting -= 1
    return json_response(found.to_dict(), 201)


async def describe_session(request: Request, tenant: Tenant) -> Response:
    """One session."""
    return json_response((await find_session(request, tenant)).to_dict())


async def close(request: Request, tenant: Tenant) -> None:
    """Ends the interpreter and everything that it started."""
    found = await find_session(request, tenant)
    state_of(get_entry(request, tenant)).sessions.pop(found.session.id, None)
    await found.session.close()


async def run(request: Request, tenant: Tenant) -> Response:
    """Runs a cell. An exception is part of the result; variables, imports and the directory are kept."""
    found, body = await find_session(request, tenant), await read_cell(request)
    cell = partial(run_cell, get_service(request), tenant, found, body)
    if wants_events(request) or body.answers_input:
        work = lambda emit: cell(cell_callbacks(found, emit, body.answers_input))  # noqa: E731
        return EventStream(stream_events(work, request.scope[UNREAD]))
    return outcome_response(await while_connected(request, cell({})))


async def read_cell(request: Request) -> CellBody:
    body = await read_model(request, CellBody)
    if body.timeout is not None:
        check_timeout(body.timeout, get_service(request).settings.max_timeout)
    return body


async def run_cell(
    service: Service, tenant: Tenant, found: SessionEntry, body: CellBody, callbacks: dict[str, Any]
) -> dict[str, Any]:
    async with found.cell_slot(service.run_slot(tenant)) as is_granted:
        if not is_granted:
            return outcome_to_dict(CellResult(error=CellError("KeyboardInterrupt", "")))
        try:
            return outcome_to_dict(await found.session.run(body.code, timeout=body.timeout, **callbacks))
        except ENDED_EARLY as error:
            return outcome_to_dict(error)


def cell_callbacks(found: SessionEntry, emit: Emit, answers_input: bool) -> dict[str, Any]:
    async def ask(prompt: str) -> str | None:
        question: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        found.question = question
        await emit("input", {"prompt": prompt})  # it may wait for the client, and be answered meanwhile
        return await question

    callbacks: dict[str, Callable[[Any], Awaitable[object]]] = {
        "on_stdout": lambda text: emit("stdout", {"text": text}),
        "on_stderr": lambda text: emit("stderr", {"text": text}),
        "on_display": lambda shown: emit("display", dataclasses.asdict(shown)),
    }
    return callbacks | ({"on_input": ask} if answers_input else {})


async def type_input(request: Request, tenant: Tenant) -> None:
    """Answers the `input` event of the running cell."""
    found, body = await find_session(request, tenant), await read_model(request, InputBody)
    question, found.question = found.question, None
    if question is None or question.done():
        raise HttpError(409, "no cell of this session is waiting for input")
    question.set_result(body.text)


async def interrupt(request: Request, tenant: Tenant) -> Response:
    """Interrupts the running cell, as Ctrl-C does, or the first that waits. False: there is none."""
    return json_response({"interrupted": await (await find_session(request, tenant)).interrupt()})


async def restart(request: Request, tenant: Tenant) -> None:
    """Replaces the interpreter by a new one without the variables."""
    found = await find_session(request, tenant)

    async def renew() -> None:
        async with get_service(request).run_slot(tenant):
            await found.session.restart()

    await while_connected(request, renew())


async def variables(request: Request, tenant: Tenant) -> Response:
    """The variables that cells have defined, as short texts."""
    found = await find_session(request, tenant)
    return json_response(await while_connected(request, found.session.variables()))


async def fork(request: Request, tenant: Tenant) -> Response:
    """Forks the session with its variables and files into a new sandbox of the same tenant."""
    found, service = await find_session(request, tenant), get_service(request)
    body = await read_model(request, BranchBody)
    parent = get_entry(request, tenant)
    service.check_policy(parent)
    branches: list[AsyncSession] = []

    async def branch() -> AsyncSandbox:
        branches.append(await found.session.fork(body.reseed))
        return cast("AsyncSandbox", branches[0].sandbox)

    with as_conflict(), service.gpus.count_use(tenant, parent.has_gpu) as keep:
        making = service.sandboxes.add_async(branch, tenant, body.lifetime, body.metadata)
        entry = await while_connected(request, making)
        keep(entry)
    session = state_of(entry).add_session(branches[0])
    return json_response({"sandbox": sandbox_to_dict(entry), "session": session.to_dict()}, 201)


async def find_session(request: Request, tenant: Tenant) -> SessionEntry:
    entry, identity = get_entry(request, tenant), request.path_params["session"]
    await restore_sessions(entry)
    found = state_of(entry).sessions.get(identity)
    if found is None:
        raise SessionNotFound(f"session not found{reason_of_loss(entry, identity)}")
    return found


# ---- cells that continue without their client and can be read again ----


async def start_cell(request: Request, tenant: Tenant) -> Response:
    """Starts a cell that continues when the client disconnects."""
    found, service, body = await find_session(request, tenant), get_service(request), await read_cell(request)
    kept = service.state.get(KeptByTenant, KeptByTenant)[tenant.id]
    job = found.cells.start(partial(_run_and_log, service, tenant, found, body), {}, kept)
    job.keep_body(request)
    job.end_with(service.revocable(tenant, "sandbox"))
    service.open_requests.add(tenant.id, id_of(request.scope), job.task)
    return json_response(job.to_dict(), 201)


async def _run_and_log(service: Service, tenant: Tenant, found: SessionEntry, body: CellBody, emit: Emit) -> object:
    callbacks = cell_callbacks(found, emit, body.answers_input)
    if body.answers_input:
        ask = callbacks["on_input"]

        async def ask_and_confirm(prompt: str) -> str | None:
            answer: str | None = await ask(prompt)
            await emit("answered", {})
            return answer

        callbacks["on_input"] = ask_and_confirm
    outcome = await run_cell(service, tenant, found, body, callbacks)
    return {name: value for name, value in outcome.items() if name not in ("stdout", "stderr")}


async def list_cells(request: Request, tenant: Tenant) -> Response:
    """The running cell of the session and the last ones that ended."""
    return json_response([job.to_dict() for job in (await find_session(request, tenant)).cells.all()])


async def cell_events(request: Request, tenant: Tenant) -> Response:
    """Events from the start or after `from`: output, `display`, `input`, `answered`, and last `result` or `error`."""
    job = (await find_session(request, tenant)).cells.find(request.path_params["cell"])
    return EventStream(job.events(position_of(request)))


def routes() -> list[Any]:
    collection = "/v1/sandboxes/{id}/sessions"
    at = collection + "/{session}"
    cells = f"{at}/cells"
    return [
        route("GET", collection, list_sessions, "sandbox", answers=("Sessions",)),
        route("POST", collection, create, "sandbox", body=SessionBody, answers=("Session",), status=201),
        route("GET", at, describe_session, "sandbox", answers=("Session",)),
        route("DELETE", at, close, "sandbox", **NO_CONTENT),
        route("POST", f"{at}/run", run, "sandbox", body=CellBody, answers=("Cell", "text/event-stream")),
        route("POST", f"{at}/input", type_input, "sandbox", body=InputBody, **NO_CONTENT),
        route("POST", f"{at}/interrupt", interrupt, "sandbox", ends_something=True, answers=("Interrupted",)),
        route("POST", f"{at}/restart", restart, "sandbox", **NO_CONTENT),
        route("GET", f"{at}/variables", variables, "sandbox", answers=("Variables",)),
        route("POST", f"{at}/fork", fork, "sandbox", body=BranchBody, answers=("Branch",), status=201),
        route("POST", cells, start_cell, "sandbox", body=CellBody, answers=("BackgroundCell",), status=201),
        route("GET", cells, list_cells, "sandbox", answers=("BackgroundCells",)),
        route("GET", cells + "/{cell}/events", cell_events, "sandbox", answers=("events",), parameters=[FROM]),
    ]
