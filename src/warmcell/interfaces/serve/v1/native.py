"""Our own API for single runs: `/v1/run`, `/v1/judge`, what this host can do."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.output_events import OutputEvent, ResultEvent
from warmcell.core.types import ExecRequest
from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import (
    ENDED_OTHERWISE,
    answer,
    plain_error,
    plain_outcome,
    read_model,
    while_connected,
)
from warmcell.interfaces.serve.service import Service, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.event_streams import OutputTexts, event, event_stream, wants_events, with_pauses
from warmcell.interfaces.serve.v1.models import JudgeBody, RunBody
from warmcell.judging.judge import ajudge
from warmcell.judging.verdicts import Verdict
from warmcell.lifetime.threads import in_thread

DOCTOR_SECONDS = 60.0


async def run(request: Request, tenant: Tenant) -> Response:
    """Runs a program. What a limit ended is a result too: `status` says so."""
    service = service_of(request)
    body = await read_model(request, RunBody, service.settings.max_body)
    asked = service.bounded(body.request())
    if wants_events(request):
        return event_stream(_events(service, tenant, asked))
    return answer(plain_outcome(await while_connected(request, _outcome(service, tenant, asked))))


async def _outcome(service: Service, tenant: Tenant, asked: ExecRequest) -> Any:
    async with service.turn(tenant) as backend:
        try:
            return await backend.execute(asked)
        except ENDED_OTHERWISE as error:
            return error


async def _events(service: Service, tenant: Tenant, asked: ExecRequest) -> AsyncIterator[str]:
    """Server-sent events: `stdout` and `stderr` as they come, last `result` or `error`."""
    texts = OutputTexts()
    try:
        async with service.turn(tenant) as backend, aclosing(with_pauses(backend.stream(asked))) as events:  # type: ignore[type-var]
            async for item in events:
                if item is None:
                    yield ": the run goes on\n\n"
                elif isinstance(item, OutputEvent):
                    yield event(item.stream, texts.plain(item))
                elif isinstance(item, ResultEvent):
                    yield event("result", plain_outcome(item.result))
    except ENDED_OTHERWISE as error:
        yield event("result", plain_outcome(error))


async def judge(request: Request, tenant: Tenant) -> Response:
    """Builds a program once, runs it on every case and says what each came to."""
    service = service_of(request)
    body = await read_model(request, JudgeBody, service.settings.max_body)
    asked = service.bounded(body.request())
    cases = [item.case() for item in body.cases]
    for case in cases:
        if case.timeout is not None:
            service.bounded(dataclasses.replace(asked, timeout=case.timeout))

    async def judged() -> list[Verdict]:
        # One place for the whole: cases of one program run beside each other only as far as processors go.
        async with service.turn(tenant) as backend:
            options: dict[str, Any] = {"checker": body.checker, "clock": body.clock, "stop_early": body.stop_early}
            return await ajudge(asked, cases, backend=backend, **options)

    verdicts = await while_connected(request, judged())
    failed = next((verdict for verdict in verdicts if not verdict.ok), None)
    return answer(
        {
            "status": "accepted" if failed is None else failed.status,
            "accepted": sum(verdict.ok for verdict in verdicts),
            "total": len(cases),
            "verdicts": [_plain_verdict(verdict) for verdict in verdicts],
        }
    )


def _plain_verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status,
        "time": verdict.time,
        "cpu_time": verdict.cpu_time,
        "memory_bytes": verdict.memory_bytes,
        "result": None if verdict.result is None else verdict.result.to_dict(),
        "error": None if verdict.error is None else plain_error(verdict.error),
    }


async def capabilities(request: Request, tenant: Tenant) -> Response:
    """Which languages there are and what is really enforced."""
    found = await in_thread(service_of(request).backend.capabilities)
    versions = await in_thread(lambda: dict(found.versions))
    return answer(
        {
            "languages": [str(language) for language in found.supported_languages],
            "versions": versions,
            "isolation_class": found.isolation_class,
            "enforced_limits": dataclasses.asdict(found.enforced_limits),
            "network": list(found.network),
        }
    )


class Doctor:
    """Attacks our own cage on demand, one examination at a time; a fresh one serves everybody for a minute."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._report: dict[str, Any] = {}
        self._at = 0.0

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """What this host can enforce, proved by trying."""
        async with self._lock:
            if not self._report or time.monotonic() - self._at > DOCTOR_SECONDS:
                self._report, self._at = await in_thread(_examined), time.monotonic()
        return answer(self._report)


def _examined() -> dict[str, Any]:
    from warmcell.diagnosis.doctor import examine

    report = examine()
    rows = [dataclasses.asdict(row) for row in report.rows]
    return {"default_available": report.default_available, "rows": rows}


async def alive(request: Request, tenant: Tenant) -> Response:
    """The process answers."""
    return answer({"status": "ok"})


async def ready(request: Request, tenant: Tenant) -> Response:
    """Whether new work is taken."""
    service = service_of(request)
    if service.is_draining or service.queue.waiting >= service.settings.max_waiting:
        return answer({"status": "busy"}, 503, {"Retry-After": "1"})
    return answer({"status": "ready"})


def routes() -> list[Any]:
    return [
        door("POST", "/v1/run", run, "run", body=RunBody, answers=("Result", "text/event-stream")),
        door("POST", "/v1/judge", judge, "run", body=JudgeBody, answers=("Judged",)),
        door("GET", "/v1/capabilities", capabilities, "run", answers=("Capabilities",)),
        door("GET", "/v1/doctor", Doctor(), "doctor", answers=("Report",)),
        door("GET", "/healthz", alive, None, answers=("Status",)),
        door("GET", "/readyz", ready, None, answers=("Status",)),
    ]
