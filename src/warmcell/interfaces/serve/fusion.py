"""SandboxFusion's `/run_code` and `/run_jupyter`, called by verl and other trainers. See docs/server.md."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import (
    BackendBusy,
    ExecutionTimeout,
    InvalidRequest,
    MemoryExceeded,
    SandboxError,
    SessionEnded,
)
from warmcell.core.types import MIB, ExecRequest, Limits
from warmcell.interfaces.serve.build_and_run import Step, Steps, run_request
from warmcell.interfaces.serve.requests import read_model, while_connected
from warmcell.interfaces.serve.responses import (
    HttpError,
    error_response,
    json_response,
    outcome_response,
    public_message,
)
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.server_limits import check_timeout
from warmcell.interfaces.serve.service import Service, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import decode_base64
from warmcell.languages.registry import lookup_language
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sessions.cell_results import CellResult, DisplayData

#: Seconds in the queue. A client waits for both timeouts plus ten seconds and retries only after a 504, so the 504 must
#: arrive before that.
QUEUE_SECONDS = 8.0
#: All fetched files together, and all output of cells: they are in one JSON response.
MAX_FETCHED, MAX_CELL_OUTPUT = 64 * MIB, 32 * MIB
Driver = dict[str, Any]
Seconds = Annotated[float, Field(gt=0)]


class RunCode(BaseModel):
    """Unknown fields are ignored, as SandboxFusion does."""

    code: str
    language: str
    compile_timeout: Seconds = 10
    run_timeout: Seconds = 10
    memory_limit_MB: int = -1  # noqa: N815
    stdin: str | None = None
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []

    def request(self) -> ExecRequest:
        if lookup_language(self.language) is None:
            raise InvalidRequest(f"unknown language {self.language[:40]!r}", field="language")
        contents = {path: text for path, text in self.files.items() if text is not None}
        return ExecRequest(
            self.language,
            self.code,
            self.run_timeout,
            stdin=self.stdin,
            memory_limit_mb=self.memory_limit_MB if self.memory_limit_MB > 0 else None,
            files={path: decode_base64(f"files[{path!r}]", text) for path, text in contents.items()},
            fetch_files=self.fetch_files,
            ends_at_output_limit=True,
        )


async def run_code(request: Request, tenant: Tenant) -> Response:
    service = get_service(request)
    body = await read_model(request, RunCode)
    steps = await while_connected(request, _steps(service, tenant, body))
    return outcome_response(_render(steps))


async def _steps(service: Service, tenant: Tenant, body: RunCode) -> Steps:
    patience = min(QUEUE_SECONDS, service.settings.queue_timeout)
    # On an overloaded host a guest is given longer to use its time, but its client does not wait for that.
    longest = body.compile_timeout + body.run_timeout + patience
    try:
        async with asyncio.timeout(longest):
            return await run_request(service, tenant, body.request, body.compile_timeout, patience)
    except TimeoutError:
        raise BackendBusy(longest) from None


def _render(steps: Steps) -> dict[str, Any]:
    taken = [step for step in (steps.compile, steps.run) if step is not None]
    failed = next((step for step in taken if not step.is_success), None)
    files = steps.run.result.files if steps.run is not None else {}
    return {
        "status": "Success" if failed is None else "Failed",
        "message": "" if failed is None else failed.note,
        "compile_result": _step(steps.compile),
        "run_result": _step(steps.run),
        "executor_pod_name": "",
        "files": {path: b64encode(content).decode() for path, content in files.items()},
    }


def _step(step: Step | None) -> dict[str, Any] | None:
    if step is None:
        return None
    is_late = step.end == "timeout"
    return {
        "status": {"timeout": "TimeLimitExceeded", "output": "Error"}.get(step.end, "Finished"),
        "execution_time": step.result.duration,
        "return_code": None if is_late else step.result.exit_code,
        "stdout": step.result.stdout,  # never null: clients concatenate it
        "stderr": step.stderr,
    }


def fusion_refusal(error: Exception) -> Response:
    """Render our failure: 504, which clients retry, if it may succeed later; else the status `SandboxError`."""
    if isinstance(error, HttpError) and error.status == 503:
        return json_response({"detail": str(error)}, 504, {"Retry-After": "1"})
    if isinstance(error, SandboxError) and error.fault == "host":
        if error.retryable:
            return json_response({"detail": public_message(error)}, 504, {"Retry-After": "1"})
        return json_response(_failure(public_message(error)))
    if isinstance(error, HttpError) and error.status == 500:
        return json_response(_failure(error.message))
    if isinstance(error, SandboxError):
        return json_response({"detail": public_message(error)}, 422)
    return error_response(error)


def _failure(message: str) -> dict[str, Any]:
    steps = {"compile_result": None, "run_result": None}
    return {"status": "SandboxError", "message": message, **steps, "executor_pod_name": "", "files": {}}


class RunJupyter(BaseModel):
    """Its session ends with the request. `cell_timeout` 0: cells have no timeout of their own."""

    cells: Annotated[list[str], Field(max_length=1000)]
    cell_timeout: Annotated[float, Field(ge=0)] = 0
    total_timeout: Seconds = 45
    memory_limit_MB: int = -1  # noqa: N815
    kernel: Literal["python3"] = "python3"
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


async def run_jupyter(request: Request, tenant: Tenant) -> Response:
    """Runs cells as SandboxFusion does: after a failing cell the next one runs."""
    service = get_service(request)
    body = await read_model(request, RunJupyter)
    if "total_timeout" not in body.model_fields_set:
        body.total_timeout = min(body.total_timeout, service.settings.max_timeout)
    check_timeout(body.total_timeout, service.settings.max_timeout, "total_timeout")
    return outcome_response(await while_connected(request, _notebook(service, tenant, body)))


async def _notebook(service: Service, tenant: Tenant, body: RunJupyter) -> dict[str, Any]:
    memory = Limits(memory_mb=body.memory_limit_MB) if body.memory_limit_MB > 0 else None
    patience = min(QUEUE_SECONDS, service.settings.queue_timeout)
    cells: list[dict[str, Any]] = []
    files: dict[str, str] = {}
    async with (
        service.run_slot(tenant, patience),
        service.make_sandbox(tenant, limits=memory, track_changes=False) as sandbox,
    ):
        for path, text in body.files.items():
            if text is not None:
                await sandbox.write_file(path, decode_base64(f"files[{path!r}]", text))
        driver = await _run_cells(sandbox, body, cells)
        left = MAX_FETCHED
        for path in dict.fromkeys(body.fetch_files):
            with suppress(FileNotFoundError):
                content = await sandbox.read_file(path, max_bytes=max(1, left))
                left -= len(content)
                files[path] = b64encode(content).decode()
    is_success = driver["status"] == "Finished" and driver["return_code"] == 0
    named = {"status": "Success" if is_success else "Failed", "message": "" if is_success else driver["stderr"]}
    return {**named, "driver": driver, "cells": cells, "executor_pod_name": "", "files": files}


async def _run_cells(sandbox: AsyncSandbox, body: RunJupyter, cells: list[dict[str, Any]]) -> Driver:
    """Append the results to `cells`, and return how the notebook as a whole ended."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(body.total_timeout), sandbox.session("python") as session:
            left = MAX_CELL_OUTPUT
            for code in body.cells:
                seconds = body.cell_timeout or body.total_timeout
                result = await session.run(code, timeout=seconds) if code.strip() else CellResult()
                cells.append(_cell(result))
                left -= len(result.stdout) + len(result.stderr) + sum(map(_size, result.outputs))
                if left < 0:
                    message = f"the output of all cells exceeds {MAX_CELL_OUTPUT >> 20} MiB"
                    return _driver(began, "Finished", 1, message)
    except (TimeoutError, ExecutionTimeout):
        return _driver(began, "TimeLimitExceeded", None, "the notebook timed out")
    except (SessionEnded, MemoryExceeded) as error:
        return _driver(began, "Finished", 1, error.message)
    return _driver(began, "Finished", 0, "")


def _cell(result: CellResult) -> dict[str, Any]:
    error = result.error
    errors = [] if error is None else [{"ename": error.name, "evalue": error.message, "traceback": error.traceback}]
    display = [dict(shown.mime) for shown in result.outputs]
    return {"stdout": result.stdout, "stderr": result.stderr, "display": display, "error": errors}


def _size(shown: DisplayData) -> int:
    return sum(len(str(content)) for content in shown.mime.values())


def _driver(began: float, status: str, code: int | None, stderr: str) -> Driver:
    seconds = time.monotonic() - began
    return {"status": status, "execution_time": seconds, "return_code": code, "stdout": "", "stderr": stderr}


def routes() -> list[Any]:
    return [
        route("POST", "/run_code", run_code, "run", fusion_refusal),
        route("POST", "/run_jupyter", run_jupyter, "run", fusion_refusal),
    ]
