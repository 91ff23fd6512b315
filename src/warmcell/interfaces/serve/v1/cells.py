"""`/sessions/{session}/cells` of a sandbox: cells that continue without their client and can be read again."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.background_jobs import FROM, position_of
from warmcell.interfaces.serve.event_streams import Emit, event_stream
from warmcell.interfaces.serve.middleware import id_of
from warmcell.interfaces.serve.responses import json_response
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.service import Service, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.sandbox_models import CellBody
from warmcell.interfaces.serve.v1.sandbox_state import SessionEntry
from warmcell.interfaces.serve.v1.sessions import cell_callbacks, find_session, read_cell, run_cell


async def start(request: Request, tenant: Tenant) -> Response:
    """Starts a cell that continues when the client disconnects."""
    found, service, body = await find_session(request, tenant), get_service(request), await read_cell(request)

    async def work(emit: Emit) -> object:
        return await _run(service, tenant, found, body, emit)

    job = found.cells.start(work, {})
    service.revocable[tenant.id].add(job.task)
    job.task.add_done_callback(service.revocable[tenant.id].discard)
    service.open_requests.add(tenant.id, id_of(request.scope), job.task)
    return json_response(job.to_dict(), 201)


async def _run(service: Service, tenant: Tenant, found: SessionEntry, body: CellBody, emit: Emit) -> object:
    callbacks = cell_callbacks(found, emit, body.answers_input)
    if body.answers_input:
        ask = callbacks["on_input"]

        async def ask_and_confirm(prompt: str) -> str:
            answer: str = await ask(prompt)
            await emit("answered", {})
            return answer

        callbacks["on_input"] = ask_and_confirm
    outcome = await run_cell(service, tenant, found, body, callbacks)
    return {name: value for name, value in outcome.items() if name not in ("stdout", "stderr")}


async def every(request: Request, tenant: Tenant) -> Response:
    """The running cell of the session and the last ones that ended."""
    return json_response([job.to_dict() for job in (await find_session(request, tenant)).cells.all()])


async def events(request: Request, tenant: Tenant) -> Response:
    """Events from the start or after `from`: output, `display`, `input`, `answered`, and last `result` or `error`."""
    job = (await find_session(request, tenant)).cells.find(request.path_params["cell"])
    return event_stream(job.events(position_of(request)))


def routes() -> list[Any]:
    at = "/v1/sandboxes/{id}/sessions/{session}/cells"
    return [
        route("POST", at, start, "sandbox", body=CellBody, answers=("BackgroundCell",), status=201),
        route("GET", at, every, "sandbox", answers=("BackgroundCells",)),
        route("GET", at + "/{cell}/events", events, "sandbox", answers=("events",), parameters=[FROM]),
    ]
