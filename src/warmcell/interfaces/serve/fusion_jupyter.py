"""SandboxFusion's `/run_jupyter`: cells of one notebook, in one session that lives as long as the request."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import ExecutionTimeout, SessionEnded
from warmcell.core.types import Limits
from warmcell.interfaces.serve.ceiling import check_time
from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import answer, read_model, while_connected
from warmcell.interfaces.serve.fusion import PATIENCE, fusion_refusal
from warmcell.interfaces.serve.service import Service, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import decoded
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sessions.cell_results import CellResult

Driver = dict[str, Any]


class RunJupyter(BaseModel):
    """A timeout of 0 for cells is none of their own."""

    cells: Annotated[list[str], Field(max_length=1000)]
    cell_timeout: Annotated[float, Field(ge=0)] = 0
    total_timeout: Annotated[float, Field(gt=0)] = 45
    memory_limit_MB: int = -1  # noqa: N815
    kernel: Literal["python3"] = "python3"
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


async def run_jupyter(request: Request, tenant: Tenant) -> Response:
    """Runs cells as SandboxFusion does: one that fails does not stop the next."""
    service = service_of(request)
    body = await read_model(request, RunJupyter, service.settings.max_body)
    if "total_timeout" not in body.model_fields_set:
        body.total_timeout = min(body.total_timeout, service.settings.max_timeout)
    check_time(body.total_timeout, service.settings.max_timeout, "total_timeout")
    return answer(await while_connected(request, _notebook(service, tenant, body)))


async def _notebook(service: Service, tenant: Tenant, body: RunJupyter) -> dict[str, Any]:
    memory = Limits(memory_mb=body.memory_limit_MB) if body.memory_limit_MB > 0 else None
    patience = min(PATIENCE, service.settings.queue_timeout)
    cells: list[dict[str, Any]] = []
    files: dict[str, str] = {}
    async with (
        service.turn(tenant, patience),
        service.make_sandbox(tenant, limits=memory, track_changes=False) as sandbox,
    ):
        for path, text in body.files.items():
            if text is not None:
                await sandbox.write_file(path, decoded(f"files[{path!r}]", text))
        driver = await _run_cells(sandbox, body, cells)
        for path in body.fetch_files:
            with suppress(FileNotFoundError):
                files[path] = b64encode(await sandbox.read_file(path)).decode()
    is_success = driver["status"] == "Finished" and driver["return_code"] == 0
    named = {"status": "Success" if is_success else "Failed", "message": "" if is_success else driver["stderr"]}
    return {**named, "driver": driver, "cells": cells, "executor_pod_name": "", "files": files}


async def _run_cells(sandbox: AsyncSandbox, body: RunJupyter, cells: list[dict[str, Any]]) -> Driver:
    """Fills `cells`, and says how the notebook as a whole went."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(body.total_timeout), sandbox.session("python") as session:
            for code in body.cells:
                seconds = body.cell_timeout or body.total_timeout
                result = await session.run(code, timeout=seconds) if code.strip() else CellResult()
                cells.append(_cell(result))
    except (TimeoutError, ExecutionTimeout):
        return _driver(began, "TimeLimitExceeded", None, "the notebook ran out of time")
    except SessionEnded as error:
        return _driver(began, "Finished", 1, error.message)
    return _driver(began, "Finished", 0, "")


def _cell(result: CellResult) -> dict[str, Any]:
    error = result.error
    told = [] if error is None else [{"ename": error.name, "evalue": error.message, "traceback": error.traceback}]
    display = [dict(shown.mime) for shown in result.outputs]
    return {"stdout": result.stdout, "stderr": result.stderr, "display": display, "error": told}


def _driver(began: float, status: str, code: int | None, stderr: str) -> Driver:
    seconds = time.monotonic() - began
    return {"status": status, "execution_time": seconds, "return_code": code, "stdout": "", "stderr": stderr}


def routes() -> list[Any]:
    return [door("POST", "/run_jupyter", run_jupyter, "run", fusion_refusal)]
