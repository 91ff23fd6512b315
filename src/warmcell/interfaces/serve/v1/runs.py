"""Single runs: `/v1/run`, `/v1/judge`, in the background `/v1/runs`; capabilities, doctor, health."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.core.output_events import OutputEvent, ResultEvent
from warmcell.core.types import MIB, ExecRequest
from warmcell.interfaces.serve.background_jobs import FROM, BackgroundJob, BackgroundJobs, KeptByTenant, position_of
from warmcell.interfaces.serve.event_streams import (
    KEEPALIVE,
    Emit,
    EventStream,
    OutputDecoder,
    event_chunks,
    format_event,
    wants_events,
    with_keepalives,
)
from warmcell.interfaces.serve.middleware import id_of
from warmcell.interfaces.serve.requests import read_model, while_connected
from warmcell.interfaces.serve.responses import (
    ENDED_EARLY,
    count_characters,
    error_to_dict,
    json_response,
    outcome_response,
    outcome_to_dict,
)
from warmcell.interfaces.serve.routing import NO_CONTENT, route
from warmcell.interfaces.serve.service import RunPlace, Service, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import JudgeBody, RunBody
from warmcell.judging.judge import ajudge
from warmcell.judging.verdicts import Verdict, verdict_to_plain
from warmcell.lifetime.threads import in_thread

#: How long an answer about this host is reused.
CACHE_SECONDS = 60.0
Answer = TypeVar("Answer")
#: The output of all cases together: it is in one JSON response, in which a byte may take six.
MAX_JUDGE_OUTPUT = 32 * MIB
BACKGROUND_RUNS = "/v1/runs"
#: Background runs per tenant, including ended ones.
MAX_RUNS = 8
#: How long an ended run can still be read.
KEEP_SECONDS = 900.0
_OUTPUT = frozenset({"stdout", "stderr", "stdout_base64", "stderr_base64"})


async def run(request: Request, tenant: Tenant) -> Response:
    """Runs a program. A program ended by a limit has a result too; see `status`."""
    service = get_service(request)
    body = await read_model(request, RunBody)
    limited = service.apply_limits(body.request())
    place = await service.find_place(tenant, body.gpus, body.image, body.user)
    if wants_events(request):
        return EventStream(_events(service, tenant, limited, place))
    outcome = await while_connected(request, _outcome(service, tenant, limited, place))
    return outcome_response(outcome_to_dict(outcome))


async def _outcome(service: Service, tenant: Tenant, run_request: ExecRequest, place: RunPlace) -> Any:
    async with service.run_slot(tenant, **place) as backend:
        try:
            return await backend.execute(run_request)
        except ENDED_EARLY as error:
            return error


async def _events(service: Service, tenant: Tenant, run_request: ExecRequest, place: RunPlace) -> AsyncIterator[str]:
    """Yield `stdout` and `stderr` events, and last `result` or `error`."""
    texts = OutputDecoder()
    slot = service.run_slot(tenant, **place)
    try:
        async with slot as backend, aclosing(with_keepalives(backend.stream(run_request))) as events:  # type: ignore[type-var]
            async for item in events:
                if item is None:
                    yield KEEPALIVE
                elif isinstance(item, OutputEvent):
                    yield format_event(item.stream, texts.to_dict(item))
                elif isinstance(item, ResultEvent):
                    for chunk in event_chunks("result", outcome_to_dict(item.result)):
                        yield chunk
    except ENDED_EARLY as error:
        outcome = outcome_to_dict(error)
        with service.concurrency.count_unread(tenant, count_characters(outcome)):  # it has no slot any more
            for chunk in event_chunks("result", outcome):
                yield chunk


async def judge(request: Request, tenant: Tenant) -> Response:
    """Builds a program once, runs it on every case and returns the verdicts."""
    service = get_service(request)
    body = await read_model(request, JudgeBody)
    limited = service.apply_limits(body.request())
    place = await service.find_place(tenant, body.gpus, body.image, body.user)
    cases = [item.case() for item in body.cases]
    for case in cases:
        if case.timeout is not None:
            service.apply_limits(dataclasses.replace(limited, timeout=case.timeout))

    outputs = 0

    def add_output(index: int, verdict: Verdict) -> None:
        nonlocal outputs
        if verdict.result is not None:
            outputs += len(verdict.result.stdout_bytes) + len(verdict.result.stderr_bytes)
        if outputs > MAX_JUDGE_OUTPUT:
            message = f"the outputs of all cases together exceed {MAX_JUDGE_OUTPUT >> 20} MiB"
            raise InvalidRequest(message, field="cases", hint="send fewer cases, or lower limits.output_bytes")

    async def run_cases() -> list[Verdict]:
        # One slot for all cases: they run in parallel only as far as there are processors.
        async with service.run_slot(tenant, **place) as backend:
            options: dict[str, Any] = {"checker": body.checker, "clock": body.clock, "stop_early": body.stop_early}
            options["max_elapsed"] = service.settings.max_timeout
            return await ajudge(limited, cases, backend=backend, on_verdict=add_output, **options)

    verdicts = await while_connected(request, run_cases())
    failed = next((verdict for verdict in verdicts if not verdict.ok), None)
    return outcome_response(
        {
            "status": "accepted" if failed is None else failed.status,
            "accepted": sum(verdict.ok for verdict in verdicts),
            "total": len(cases),
            "verdicts": [verdict_to_plain(verdict, error_to_dict) for verdict in verdicts],
        }
    )


class CachedQuery(Generic[Answer]):
    """Caches the answer to a slow question for a minute. Concurrent callers share one query."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._last: tuple[object, Answer, float] | None = None

    async def ask(self, question: object, find_answer: Callable[[], Answer]) -> Answer:
        """Return the cached answer, or that of `find_answer`, which may block."""
        async with self._lock:
            last = self._last
            if last is None or last[0] != question or time.monotonic() - last[2] > CACHE_SECONDS:
                last = self._last = question, await in_thread(find_answer), time.monotonic()
            return last[1]


class Capabilities:
    """Cached: versions are queried by starting every toolchain."""

    def __init__(self) -> None:
        self._versions: CachedQuery[dict[str, str]] = CachedQuery()

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """The languages of this host and the limits that are enforced."""
        found = await in_thread(get_service(request).backend.capabilities)
        versions = await self._versions.ask(frozenset(found.versions), lambda: dict(found.versions))
        return json_response(
            {
                "languages": [str(language) for language in found.supported_languages],
                "versions": versions,
                "isolation_class": found.isolation_class,
                "enforced_limits": dataclasses.asdict(found.enforced_limits),
                "network": list(found.network),
            }
        )


class Doctor:
    """Examines the host by attacking our own cage."""

    def __init__(self) -> None:
        self._report: CachedQuery[dict[str, Any]] = CachedQuery()

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """What this host can enforce, verified by trying."""
        return json_response(await self._report.ask("this host", _examine))


def _examine() -> dict[str, Any]:
    from warmcell.diagnosis.doctor import examine

    report = examine()
    rows = [dataclasses.asdict(row) for row in report.rows]
    return {"default_available": report.default_available, "rows": rows}


async def alive(request: Request, tenant: Tenant) -> Response:
    """Liveness: the process responds."""
    return json_response({"status": "ok"})


async def ready(request: Request, tenant: Tenant) -> Response:
    """Readiness: whether the server accepts new work."""
    service = get_service(request)
    if service.is_draining or service.queue.waiting >= service.settings.max_waiting:
        return json_response({"status": "busy"}, 503, {"Retry-After": "1"})
    if (problem := service.resources.problem()) is not None:
        return json_response({"status": problem}, 503, {"Retry-After": "5"})
    return json_response({"status": "ready"})


# ---- runs that continue when their client disconnects, and whose output can be read again ----


class RunsByTenant:
    """The background runs of all tenants. They end with their token, and with the server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._jobs: dict[str, BackgroundJobs] = {}
        service.on_close.append(lambda: self._end(set(self._jobs)))
        service.on_revoked.append(self._end)

    def of(self, tenant: Tenant) -> BackgroundJobs:
        return self._jobs.setdefault(tenant.id, BackgroundJobs(MAX_RUNS))

    def start(self, tenant: Tenant, run_request: ExecRequest, place: RunPlace, request: str) -> BackgroundJob:
        """`request`: the id of the request that started it, by which an operator can end it."""
        jobs = self.of(tenant)
        work = partial(_run, self._service, tenant, run_request, place)
        kept = self._service.state.get(KeptByTenant, KeptByTenant)[tenant.id]
        job = jobs.start(work, {"language": str(run_request.language)}, kept)
        job.task.add_done_callback(lambda task: task.get_loop().call_later(KEEP_SECONDS, jobs.forget, job))
        job.end_with(self._service.revocable(tenant, "run"))
        self._service.open_requests.add(tenant.id, request, job.task)
        return job

    async def _end(self, tenants: set[str]) -> None:
        for identity in self._jobs.keys() & tenants:
            await self._jobs.pop(identity).aclose()


def runs_of(request: Request) -> RunsByTenant:
    service = get_service(request)
    return service.state.get(RunsByTenant, lambda: RunsByTenant(service))


async def _run(service: Service, tenant: Tenant, run_request: ExecRequest, place: RunPlace, emit: Emit) -> object:
    texts = OutputDecoder()
    slot = service.run_slot(tenant, **place)
    try:
        async with slot as backend, aclosing(backend.stream(run_request)) as events:  # type: ignore[type-var]
            async for item in events:
                if isinstance(item, OutputEvent):
                    await emit(item.stream, {"text": texts.to_dict(item)["text"]})
                elif isinstance(item, ResultEvent):
                    return _without_output(outcome_to_dict(item.result))
    except ENDED_EARLY as error:
        return _without_output(outcome_to_dict(error))
    raise BackendUnavailable("the run ended without a result", hint="try again")


def _without_output(outcome: dict[str, Any]) -> dict[str, Any]:
    """Remove the output, which the log already has."""
    return {name: value for name, value in outcome.items() if name not in _OUTPUT}


async def start(request: Request, tenant: Tenant) -> Response:
    """Starts a run that continues when the client disconnects."""
    service = get_service(request)
    body = await read_model(request, RunBody)
    place = await service.find_place(tenant, body.gpus, body.image, body.user)
    job = runs_of(request).start(tenant, service.apply_limits(body.request()), place, id_of(request.scope))
    job.keep_body(request)
    return json_response(job.to_dict(), 201)


async def list_runs(request: Request, tenant: Tenant) -> Response:
    """The background runs of this token: the running ones, and those that ended in the last quarter of an hour."""
    return json_response([job.to_dict() for job in runs_of(request).of(tenant).all()])


async def describe_run(request: Request, tenant: Tenant) -> Response:
    """One background run."""
    return json_response(_find(request, tenant).to_dict())


async def events(request: Request, tenant: Tenant) -> Response:
    """Events from the start or after `from`: `stdout`, `stderr`, `dropped`, and last `result` or `error`."""
    return EventStream(_find(request, tenant).events(position_of(request)))


async def remove(request: Request, tenant: Tenant) -> None:
    """Ends the run and forgets it."""
    await runs_of(request).of(tenant).remove(_find(request, tenant))


def _find(request: Request, tenant: Tenant) -> BackgroundJob:
    return runs_of(request).of(tenant).find(request.path_params["run"])


def routes() -> list[Any]:
    at = BACKGROUND_RUNS + "/{run}"
    return [
        route("POST", "/v1/run", run, "run", body=RunBody, answers=("Result", "text/event-stream")),
        route("POST", "/v1/judge", judge, "run", body=JudgeBody, answers=("Judged",)),
        route("GET", "/v1/capabilities", Capabilities(), "run", answers=("Capabilities",)),
        route("GET", "/v1/doctor", Doctor(), "doctor", answers=("Report",)),
        route("GET", "/healthz", alive, None, answers=("Status",)),
        route("GET", "/readyz", ready, None, answers=("Status",)),
        route("POST", BACKGROUND_RUNS, start, "run", body=RunBody, answers=("BackgroundRun",), status=201),
        route("GET", BACKGROUND_RUNS, list_runs, "run", answers=("BackgroundRuns",)),
        route("GET", at, describe_run, "run", answers=("BackgroundRun",)),
        route("GET", f"{at}/events", events, "run", answers=("events",), parameters=[FROM]),
        route("DELETE", at, remove, "run", **NO_CONTENT),
    ]
