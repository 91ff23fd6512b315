"""Our own API for single runs: `/v1/run`, `/v1/judge`, what this host can do."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from warmcell.core.errors import ExecutionTimeout, FuelExhausted, MemoryExceeded, SandboxError
from warmcell.core.output_events import OutputEvent, ResultEvent
from warmcell.core.types import ExecRequest
from warmcell.interfaces.cli.render import to_plain
from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import answer, plain_error, read_model, while_connected
from warmcell.interfaces.serve.models import JudgeBody, RunBody
from warmcell.interfaces.serve.service import Service, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.judging.judge import ajudge
from warmcell.judging.verdicts import Verdict
from warmcell.lifetime.threads import in_thread

#: A client that hears nothing for longer is told that its run goes on.
KEEPALIVE_SECONDS = 15.0
DOCTOR_SECONDS = 60.0


async def run(request: Request, tenant: Tenant) -> Response:
    """Runs a program. What a limit ended is a result too: `status` says so."""
    service = service_of(request)
    body = await read_model(request, RunBody, service.settings.max_body)
    asked = service.bounded(body.request())
    if "text/event-stream" in request.headers.get("accept", ""):
        return StreamingResponse(_events(service, tenant, asked), media_type="text/event-stream", headers=_UNCACHED)
    return answer(to_plain(await while_connected(request, _outcome(service, tenant, asked))))


_UNCACHED = {"Cache-Control": "no-store"}


async def _outcome(service: Service, tenant: Tenant, asked: ExecRequest) -> Any:
    async with service.turn(tenant) as backend:
        try:
            return await backend.execute(asked)
        except (ExecutionTimeout, MemoryExceeded, FuelExhausted) as error:
            return error


async def _events(service: Service, tenant: Tenant, asked: ExecRequest) -> AsyncIterator[str]:
    """Server-sent events: `stdout` and `stderr` as they come, last `result` or `error`."""
    decoders = {name: getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
    try:
        async with service.turn(tenant) as backend, aclosing(_with_pauses(backend.stream(asked))) as events:  # type: ignore[type-var]
            async for event in events:
                if event is None:
                    yield ": the run goes on\n\n"
                elif isinstance(event, OutputEvent):
                    raw = b64encode(event.data).decode()
                    yield _event(event.stream, {"text": decoders[event.stream].decode(event.data), "base64": raw})
                elif isinstance(event, ResultEvent):
                    yield _event("result", to_plain(event.result))
    except (ExecutionTimeout, MemoryExceeded, FuelExhausted) as error:
        yield _event("result", to_plain(error))
    except SandboxError as error:
        yield _event("error", {"error": plain_error(error)})


async def _with_pauses(events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The same, with None whenever nothing came for a while."""
    async with aclosing(events) as items:  # type: ignore[type-var]
        following = asyncio.ensure_future(anext(items, _END))
        try:
            while True:
                await asyncio.wait([following], timeout=KEEPALIVE_SECONDS)
                if not following.done():
                    yield None
                    continue
                if (event := following.result()) is _END:
                    return
                following = asyncio.ensure_future(anext(items, _END))
                yield event
        finally:
            following.cancel()
            await asyncio.wait([following])
            if not following.cancelled():
                following.exception()


_END: Any = object()


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=True, default=str)}\n\n"


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
