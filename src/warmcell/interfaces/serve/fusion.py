"""SandboxFusion: `/run_code`, which verl and other trainers call. Facts about its clients: docs/server.md."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import BackendBusy, InvalidRequest, SandboxError
from warmcell.core.types import ExecRequest
from warmcell.interfaces.serve.build_and_run import Step, Steps, build_and_run, refused_code
from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import Refused, answer, read_model, refusal, told, while_connected
from warmcell.interfaces.serve.service import Service, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import decoded
from warmcell.languages.registry import known_language

#: A client waits for both timeouts and ten seconds more, and tries again only after a 504: it must come before that.
PATIENCE = 8.0

Seconds = Annotated[float, Field(gt=0)]


class RunCode(BaseModel):
    """Fields that we do not know are ignored, as over there."""

    code: str
    language: str
    compile_timeout: Seconds = 10
    run_timeout: Seconds = 10
    memory_limit_MB: int = -1  # noqa: N815
    stdin: str | None = None
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []

    def request(self) -> ExecRequest:
        if known_language(self.language) is None:
            raise InvalidRequest(f"unknown language {self.language[:40]!r}", field="language")
        contents = {path: text for path, text in self.files.items() if text is not None}
        return ExecRequest(
            self.language,
            self.code,
            self.run_timeout,
            stdin=self.stdin,
            memory_limit_mb=self.memory_limit_MB if self.memory_limit_MB > 0 else None,
            files={path: decoded(f"files[{path!r}]", text) for path, text in contents.items()},
            fetch_files=self.fetch_files,
        )


async def run_code(request: Request, tenant: Tenant) -> Response:
    """Runs a program as SandboxFusion does."""
    service = service_of(request)
    body = await read_model(request, RunCode, service.settings.max_body)
    steps = await while_connected(request, _steps(service, tenant, body))
    return answer(_rendered(steps))


async def _steps(service: Service, tenant: Tenant, body: RunCode) -> Steps:
    patience = min(PATIENCE, service.settings.queue_timeout)
    try:
        asked = service.bounded(body.request())
        return await build_and_run(service, tenant, asked, body.compile_timeout, patience)
    except InvalidRequest as error:
        if (steps := refused_code(error)) is None:
            raise
        return steps


def _rendered(steps: Steps) -> dict[str, Any]:
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
        "status": "TimeLimitExceeded" if is_late else "Finished",
        "execution_time": step.result.duration,
        "return_code": None if is_late else step.result.exit_code,
        "stdout": step.result.stdout,  # text always: a null here is added to text over there
        "stderr": step.stderr,
    }


def fusion_refusal(error: Exception) -> Response:
    """Busy is 504, which is tried again; `SandboxError` is for our failures and for nothing else."""
    if isinstance(error, BackendBusy) or (isinstance(error, Refused) and error.status == 503):
        return answer({"detail": str(error)}, 504, {"Retry-After": "1"})
    if isinstance(error, SandboxError) and error.fault == "host":
        return answer(_failure(told(error)))
    if isinstance(error, Refused) and error.status == 500:
        return answer(_failure(error.message))
    if isinstance(error, SandboxError):
        return answer({"detail": told(error)}, 422)
    return refusal(error)


def _failure(message: str) -> dict[str, Any]:
    steps = {"compile_result": None, "run_result": None}
    return {"status": "SandboxError", "message": message, **steps, "executor_pod_name": "", "files": {}}


def routes() -> list[Any]:
    return [door("POST", "/run_code", run_code, "run", fusion_refusal)]
