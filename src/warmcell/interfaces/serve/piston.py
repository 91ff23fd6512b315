"""Piston: `/api/v2/runtimes` and `/api/v2/execute`."""

from __future__ import annotations

import re
import signal
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.types import MIB, ExecRequest
from warmcell.interfaces.serve.build_and_run import Step, run_request
from warmcell.interfaces.serve.requests import read_model, while_connected
from warmcell.interfaces.serve.responses import (
    HttpError,
    error_response,
    json_response,
    outcome_response,
    public_message,
    status_of,
)
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.service import Service, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import decode_base64
from warmcell.languages.registry import find_language, lookup_language
from warmcell.lifetime.threads import in_thread

Milliseconds = Annotated[float, Field(gt=0)]


class File(BaseModel):
    content: str
    name: str = ""
    encoding: Literal["utf8", "base64", "hex"] = "utf8"

    def data(self) -> bytes:
        if self.encoding == "base64":
            return decode_base64("files", self.content)
        if self.encoding == "utf8":
            return self.content.encode("utf-8", "surrogatepass")
        try:
            return bytes.fromhex(self.content)
        except ValueError:
            raise InvalidRequest("is not hexadecimal", field="files") from None


class Execute(BaseModel):
    """The first file is the program; the others lie in its directory."""

    language: str
    version: str
    files: Annotated[list[File], Field(min_length=1)]
    stdin: str = ""
    args: list[str] = []
    run_timeout: Milliseconds = 3000
    compile_timeout: Milliseconds = 10_000
    run_memory_limit: int = -1

    def request(self) -> ExecRequest:
        code = self.files[0].data()
        try:
            text = code.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("the program is not UTF-8 text", field="files") from None
        others = {file.name or f"file{index}.code": file.data() for index, file in enumerate(self.files[1:], 1)}
        memory = max(1, self.run_memory_limit // MIB) if self.run_memory_limit > 0 else None
        return ExecRequest(
            self.language,
            text,
            self.run_timeout / 1000,
            stdin=self.stdin,
            memory_limit_mb=memory,
            args=self.args,
            files=others,
            ends_at_output_limit=True,
        )


async def runtimes(request: Request, tenant: Tenant) -> Response:
    versions = await _versions(get_service(request))
    aliases = {name: list(find_language(name).aliases) for name in versions}
    return json_response([{"language": n, "version": v, "aliases": aliases[n]} for n, v in versions.items()])


async def execute(request: Request, tenant: Tenant) -> Response:
    service = get_service(request)
    body = await read_model(request, Execute)
    row = lookup_language(body.language)
    version = (await _versions(service)).get(row.name) if row is not None else None
    if row is None or version is None or not fits(version, body.version):
        raise InvalidRequest(f"{body.language[:40]}-{body.version[:40]} runtime is unknown")
    patience, compile_timeout = service.settings.queue_timeout, body.compile_timeout / 1000
    steps = await while_connected(request, run_request(service, tenant, body.request, compile_timeout, patience))
    response: dict[str, Any] = {"language": row.name, "version": version}
    if steps.compile is not None:
        response["compile"] = _step(steps.compile)
    return outcome_response(response | {"run": _step(steps.run or Step("ended", steps.compile.result))})  # type: ignore[union-attr]


async def _versions(service: Service) -> dict[str, str]:
    """Versions by the language's name, numbers only."""
    backend = service.backend

    def ask_toolchains() -> dict[str, str]:
        return {str(name): version_number(text) for name, text in backend.capabilities().versions.items()}

    if backend not in _KNOWN:
        _KNOWN[backend] = await in_thread(ask_toolchains)
    return _KNOWN[backend]


#: Cached, because asking fifteen toolchains takes longer than most programs run.
_KNOWN: WeakKeyDictionary[ProcessBackend, dict[str, str]] = WeakKeyDictionary()


def version_number(text: str) -> str:
    """`Python 3.11.2` becomes `3.11.2`; always three parts, as clients expect."""
    match = re.search(r"\d+(?:\.\d+){0,2}", text)
    parts = match.group().split(".") if match else []
    return ".".join((*parts, "0", "0", "0")[:3])


def fits(version: str, selector: str) -> bool:
    """`*`, `3`, `3.x`, `3.11.2`, `^3.9`, `~3.11`, `>=3.8`."""
    match = re.fullmatch(r"(\^|~|>=|=|v)?\s*((?:\d{1,9}|[xX*])(?:\.(?:\d{1,9}|[xX*])){0,2})", selector.strip())
    if match is None:
        return False
    mine = [int(part) for part in version.split(".")]
    asked = [None if part in "xX*" else int(part) for part in match[2].split(".")]
    fixed = [part for part in asked if part is not None]
    if match[1] in ("^", "~", ">="):
        kept = {"^": 1, "~": 2, ">=": 0}[match[1]]
        return mine[:kept] == fixed[:kept] and mine >= fixed
    return all(part is None or part == own for part, own in zip(asked, mine, strict=False))


def _step(step: Step) -> dict[str, Any]:
    result = step.result
    number = signal.SIGKILL if step.end != "ended" else result.signal
    status = {"timeout": "TO", "memory": "SG", "output": "OL"}.get(step.end) or (
        "SG" if number else "RE" if result.exit_code else None
    )
    return {
        "stdout": result.stdout,
        "stderr": step.stderr,
        "output": result.stdout + step.stderr,
        "code": None if number else result.exit_code,
        "signal": _name_of(number) if number else None,
        "message": step.note or None,
        "status": status,
        "cpu_time": round(result.usage.cpu_time * 1000),
        "wall_time": round(result.duration * 1000),
        "memory": result.usage.peak_memory_bytes,
    }


def _name_of(number: int) -> str:
    """`SIGKILL`; `SIG40` for one of the real-time signals, most of which have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def piston_refusal(error: Exception) -> Response:
    if isinstance(error, SandboxError):
        status = status_of(error)
        return json_response({"message": public_message(error)}, 400 if status == 422 else status)
    if isinstance(error, HttpError):
        return json_response({"message": error.message}, error.status, error.headers)
    return error_response(error)


def routes() -> list[Any]:
    return [
        route("GET", "/api/v2/runtimes", runtimes, "run", piston_refusal),
        route("POST", "/api/v2/execute", execute, "run", piston_refusal),
    ]
