"""`/v1/runs`: runs that continue when their client disconnects, and whose output can be read again."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import BackendUnavailable
from warmcell.core.output_events import OutputEvent, ResultEvent
from warmcell.core.types import ExecRequest
from warmcell.interfaces.serve.background_jobs import FROM, BackgroundJob, BackgroundJobs, position_of
from warmcell.interfaces.serve.event_streams import Emit, OutputDecoder, event_stream
from warmcell.interfaces.serve.middleware import id_of
from warmcell.interfaces.serve.requests import read_model
from warmcell.interfaces.serve.responses import ENDED_EARLY, json_response, outcome_to_dict
from warmcell.interfaces.serve.routing import NO_CONTENT, route
from warmcell.interfaces.serve.service import RunPlace, Service, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import RunBody

PATH = "/v1/runs"
#: Per tenant, the ended ones included.
MAX_RUNS = 8
#: How long an ended run can still be read.
KEEP_SECONDS = 900.0
_OUTPUT = frozenset({"stdout", "stderr", "stdout_base64", "stderr_base64"})


class RunsByTenant:
    """The background runs of all tenants. They end with their token, and with the server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._jobs: dict[str, BackgroundJobs] = {}
        service.on_close.append(self._close)
        service.on_revoked.append(self._keep_only)

    def of(self, tenant: Tenant) -> BackgroundJobs:
        return self._jobs.setdefault(tenant.id, BackgroundJobs(MAX_RUNS))

    def start(self, tenant: Tenant, asked: ExecRequest, place: RunPlace, request: str) -> BackgroundJob:
        """`request`: the id of the request that started it, by which an operator can end it."""
        jobs = self.of(tenant)

        async def work(emit: Emit) -> object:
            return await _run(self._service, tenant, asked, place, emit)

        job = jobs.start(work, {"language": str(asked.language)})
        job.task.add_done_callback(lambda _: self._forget_later(jobs, job))
        self._service.open_requests.add(tenant.id, request, job.task)
        return job

    def _forget_later(self, jobs: BackgroundJobs, job: BackgroundJob) -> None:
        asyncio.get_running_loop().call_later(KEEP_SECONDS, lambda: jobs.forget(job))

    async def _keep_only(self, tenants: set[str]) -> None:
        for identity in self._jobs.keys() - tenants:
            await self._jobs.pop(identity).aclose()

    async def _close(self) -> None:
        await self._keep_only(set())


def runs_of(request: Request) -> RunsByTenant:
    service = get_service(request)
    return service.state.get(RunsByTenant, lambda: RunsByTenant(service))


async def _run(service: Service, tenant: Tenant, asked: ExecRequest, place: RunPlace, emit: Emit) -> object:
    texts = OutputDecoder()
    slot = service.run_slot(tenant, **place)
    try:
        async with slot as backend, aclosing(backend.stream(asked)) as events:  # type: ignore[type-var]
            async for item in events:
                if isinstance(item, OutputEvent):
                    await emit(item.stream, {"text": texts.to_dict(item)["text"]})
                elif isinstance(item, ResultEvent):
                    return _without_output(outcome_to_dict(item.result))
    except ENDED_EARLY as error:
        return _without_output(outcome_to_dict(error))
    raise BackendUnavailable("the run ended without a result", hint="try again")


def _without_output(outcome: dict[str, Any]) -> dict[str, Any]:
    """The log has the output already."""
    return {name: value for name, value in outcome.items() if name not in _OUTPUT}


async def start(request: Request, tenant: Tenant) -> Response:
    """Starts a run that continues when the client disconnects."""
    service = get_service(request)
    body = await read_model(request, RunBody)
    place = await service.find_place(tenant, body.gpus, body.image, body.user)
    job = runs_of(request).start(tenant, service.apply_limits(body.request()), place, id_of(request.scope))
    return json_response(job.to_dict(), 201)


async def every(request: Request, tenant: Tenant) -> Response:
    """The background runs of this token: the running ones, and those that ended in the last quarter of an hour."""
    return json_response([job.to_dict() for job in runs_of(request).of(tenant).all()])


async def one(request: Request, tenant: Tenant) -> Response:
    """One background run."""
    return json_response(_find(request, tenant).to_dict())


async def events(request: Request, tenant: Tenant) -> Response:
    """Events from the start or after `from`: `stdout`, `stderr`, `dropped`, and last `result` or `error`."""
    return event_stream(_find(request, tenant).events(position_of(request)))


async def remove(request: Request, tenant: Tenant) -> Response:
    """Ends the run and forgets it."""
    await runs_of(request).of(tenant).remove(_find(request, tenant))
    return Response(status_code=204)


def _find(request: Request, tenant: Tenant) -> BackgroundJob:
    return runs_of(request).of(tenant).find(request.path_params["run"])


def routes() -> list[Any]:
    at = PATH + "/{run}"
    return [
        route("POST", PATH, start, "run", body=RunBody, answers=("BackgroundRun",), status=201),
        route("GET", PATH, every, "run", answers=("BackgroundRuns",)),
        route("GET", at, one, "run", answers=("BackgroundRun",)),
        route("GET", f"{at}/events", events, "run", answers=("events",), parameters=[FROM]),
        route("DELETE", at, remove, "run", **NO_CONTENT),
    ]
