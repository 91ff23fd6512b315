"""SandboxFusion's `/run_jupyter`: the cells of a notebook, in a session that ends with the request."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import ExecutionTimeout, MemoryExceeded, SessionEnded
from warmcell.core.types import MIB, Limits
from warmcell.interfaces.serve.fusion import QUEUE_SECONDS, fusion_refusal
from warmcell.interfaces.serve.requests import read_model, while_connected
from warmcell.interfaces.serve.responses import json_response
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.server_limits import check_timeout
from warmcell.interfaces.serve.service import Service, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import decode_base64
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sessions.cell_results import CellResult, DisplayData

Driver = dict[str, Any]
#: All fetched files together, and all output of cells: they are in one JSON response.
MAX_FETCHED, MAX_CELL_OUTPUT = 64 * MIB, 32 * MIB


class RunJupyter(BaseModel):
    """`cell_timeout` 0: cells have no timeout of their own."""

    cells: Annotated[list[str], Field(max_length=1000)]
    cell_timeout: Annotated[float, Field(ge=0)] = 0
    total_timeout: Annotated[float, Field(gt=0)] = 45
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
    return json_response(await while_connected(request, _notebook(service, tenant, body)))


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
    return [route("POST", "/run_jupyter", run_jupyter, "run", fusion_refusal)]
