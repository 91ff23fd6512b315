"""`/v1/sandboxes`: work directories that stay, and what runs in them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import ExecutionTimeout, FuelExhausted, MemoryExceeded
from warmcell.core.types import ExecResult
from warmcell.interfaces.cli.render import to_plain
from warmcell.interfaces.serve.ceiling import check_time
from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import answer, read_body, read_model, while_connected
from warmcell.interfaces.serve.held_sandboxes import Held
from warmcell.interfaces.serve.models import CodeBody, CreateBody, ExecBody, ScriptBody, content
from warmcell.interfaces.serve.service import Service, service_of
from warmcell.interfaces.serve.tokens import Tenant


async def create(request: Request, tenant: Tenant) -> Response:
    """Makes a sandbox."""
    service = service_of(request)
    body = await read_model(request, CreateBody, service.settings.max_body)
    check_time(body.timeout, service.settings.max_timeout)
    options: dict[str, Any] = {"env": body.env, "timeout": body.timeout}
    held = service.held.add(lambda: service.make_sandbox(tenant, **options), tenant, body.lifetime, body.metadata)
    return answer(_plain(held), 201)


async def every(request: Request, tenant: Tenant) -> Response:
    """Your sandboxes."""
    return answer([_plain(held) for held in service_of(request).held.of(tenant)])


async def one(request: Request, tenant: Tenant) -> Response:
    """One of your sandboxes."""
    return answer(_plain(_held(request, tenant)))


async def destroy(request: Request, tenant: Tenant) -> Response:
    """Ends all that runs in it and removes its files."""
    await service_of(request).held.remove(_held(request, tenant))
    return Response(status_code=204)


async def run_command(request: Request, tenant: Tenant) -> Response:
    """Runs one command, without a shell."""
    held, body = _held(request, tenant), await _body(request, ExecBody)
    given = _options(request, body)
    return await _ran(request, tenant, held.sandbox.exec(body.command, body.args, cwd=body.cwd, **given))


async def run_script(request: Request, tenant: Tenant) -> Response:
    """Runs a shell script."""
    held, body = _held(request, tenant), await _body(request, ScriptBody)
    return await _ran(request, tenant, held.sandbox.sh(body.script, cwd=body.cwd, **_options(request, body)))


async def run_code(request: Request, tenant: Tenant) -> Response:
    """Runs source text in the work directory."""
    held, body = _held(request, tenant), await _body(request, CodeBody)
    return await _ran(request, tenant, held.sandbox.run(body.code, body.language, **_options(request, body)))


async def read_file(request: Request, tenant: Tenant) -> Response:
    """The content of a file."""
    data = await _held(request, tenant).sandbox.read_file(_path(request))
    return Response(data, media_type="application/octet-stream")


async def write_file(request: Request, tenant: Tenant) -> Response:
    """Puts the body at the path, making directories on the way."""
    held = _held(request, tenant)
    data = await read_body(request, service_of(request).settings.max_body)
    await held.sandbox.write_file(_path(request), data)
    return Response(status_code=204)


async def remove_file(request: Request, tenant: Tenant) -> Response:
    """Removes a file, or a directory with all that is in it."""
    await _held(request, tenant).sandbox.remove(_path(request))
    return Response(status_code=204)


async def list_files(request: Request, tenant: Tenant) -> Response:
    """The entries of a directory (`?path=`), sorted."""
    found = await _held(request, tenant).sandbox.list_dir(request.query_params.get("path") or ".")
    names = ("name", "is_dir", "is_file", "size")
    return answer([{name: getattr(entry, name) for name in names} for entry in found])


async def diff(request: Request, tenant: Tenant) -> Response:
    """What was created, modified and deleted since it was made."""
    found = await _held(request, tenant).sandbox.diff()
    return answer([{"path": change.path, "kind": change.kind} for change in found])


def _held(request: Request, tenant: Tenant) -> Held:
    return service_of(request).held.find(tenant, request.path_params["id"])


def _path(request: Request) -> str:
    return str(request.path_params["path"])


async def _body(request: Request, kind: Any) -> Any:
    return await read_model(request, kind, service_of(request).settings.max_body)


def _options(request: Request, body: Any) -> dict[str, Any]:
    if body.timeout is not None:
        check_time(body.timeout, service_of(request).settings.max_timeout)
    stdin = None if body.stdin is None else content("stdin", body.stdin)
    return {"stdin": stdin, "timeout": body.timeout}


async def _ran(request: Request, tenant: Tenant, run: Coroutine[Any, Any, ExecResult]) -> Response:
    return answer(to_plain(await while_connected(request, _in_turn(service_of(request), tenant, run))))


async def _in_turn(service: Service, tenant: Tenant, run: Coroutine[Any, Any, ExecResult]) -> Any:
    try:
        async with service.turn(tenant):
            return await run
    except (ExecutionTimeout, MemoryExceeded, FuelExhausted) as error:
        return error
    finally:
        run.close()  # where its turn never came


def _plain(held: Held) -> dict[str, Any]:
    return {"id": held.id, "created": held.created, "expires": held.expires, "metadata": held.metadata}


def routes() -> list[Any]:
    at, files = "/v1/sandboxes/{id}", "/v1/sandboxes/{id}/files/{path:path}"
    return [
        door("POST", "/v1/sandboxes", create, "sandbox", body=CreateBody, answers=("Sandbox",), status=201),
        door("GET", "/v1/sandboxes", every, "sandbox", answers=("Sandboxes",)),
        door("GET", at, one, "sandbox", answers=("Sandbox",)),
        door("DELETE", at, destroy, "sandbox", answers=("nothing",), status=204),
        door("POST", f"{at}/exec", run_command, "sandbox", body=ExecBody, answers=("Result",)),
        door("POST", f"{at}/sh", run_script, "sandbox", body=ScriptBody, answers=("Result",)),
        door("POST", f"{at}/run", run_code, "sandbox", body=CodeBody, answers=("Result",)),
        door("GET", f"{at}/files", list_files, "sandbox", answers=("Entries",)),
        door("GET", f"{at}/diff", diff, "sandbox", answers=("Changes",)),
        door("GET", files, read_file, "sandbox", answers=("bytes",)),
        door("PUT", files, write_file, "sandbox", raw_body=True, answers=("nothing",), status=204),
        door("DELETE", files, remove_file, "sandbox", answers=("nothing",), status=204),
    ]
