"""`/v1/sandboxes`: work directories that stay, and what runs in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.types import ExecResult
from warmcell.interfaces.serve.ceiling import USUAL_SECONDS, check_time
from warmcell.interfaces.serve.doors import NOTHING, door
from warmcell.interfaces.serve.exchange import (
    ENDED_OTHERWISE,
    answer,
    as_it_is,
    plain_outcome,
    read_model,
    while_connected,
)
from warmcell.interfaces.serve.held_sandboxes import Held
from warmcell.interfaces.serve.service import held_of, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.event_streams import event_stream, told, wants_events
from warmcell.interfaces.serve.v1.living_models import PackagesBody
from warmcell.interfaces.serve.v1.models import CodeBody, CreateBody, ExecBody, ScriptBody, content

#: A run of a sandbox, with what is to hear its output.
Run = Callable[..., Awaitable[ExecResult]]


async def create(request: Request, tenant: Tenant) -> Response:
    """Makes a sandbox."""
    service = service_of(request)
    body = await read_model(request, CreateBody, service.settings.max_body)
    most = service.settings.max_timeout
    timeout = min(USUAL_SECONDS, most) if body.timeout is None else check_time(body.timeout, most)
    options: dict[str, Any] = {"env": body.env, "timeout": timeout, "live": body.live, "forkable": body.forkable}
    limits = None if body.limits is None else body.limits.limits()
    held = service.held.add(
        lambda: service.make_sandbox(tenant, limits, **options), tenant, body.lifetime, body.metadata
    )
    return answer(plain_sandbox(held), 201)


async def every(request: Request, tenant: Tenant) -> Response:
    """Your sandboxes."""
    return answer([plain_sandbox(held) for held in service_of(request).held.of(tenant)])


async def one(request: Request, tenant: Tenant) -> Response:
    """One of your sandboxes."""
    return answer(plain_sandbox(held_of(request, tenant)))


async def destroy(request: Request, tenant: Tenant) -> Response:
    """Ends all that runs in it and removes its files."""
    await service_of(request).held.remove(held_of(request, tenant))
    return Response(status_code=204)


async def run_command(request: Request, tenant: Tenant) -> Response:
    """Runs one command, without a shell."""
    held, body = held_of(request, tenant), await _body(request, ExecBody)
    given = _options(request, body)

    def run(**heard: Any) -> Awaitable[ExecResult]:
        return held.sandbox.exec(body.command, body.args, cwd=body.cwd, **given, **heard)

    return await _ran(request, tenant, run)


async def run_script(request: Request, tenant: Tenant) -> Response:
    """Runs a shell script."""
    held, body = held_of(request, tenant), await _body(request, ScriptBody)
    given = _options(request, body)
    return await _ran(request, tenant, lambda **heard: held.sandbox.sh(body.script, cwd=body.cwd, **given, **heard))


async def run_code(request: Request, tenant: Tenant) -> Response:
    """Runs source text in the work directory."""
    held, body = held_of(request, tenant), await _body(request, CodeBody)
    given = _options(request, body)
    return await _ran(request, tenant, lambda **heard: held.sandbox.run(body.code, body.language, **given, **heard))


async def install(request: Request, tenant: Tenant) -> Response:
    """Packages for what runs from now on, from where pip or npm gets them on this host."""
    held, body = held_of(request, tenant), await _body(request, PackagesBody)
    await while_connected(request, held.sandbox.install(*body.packages, manager=body.manager))
    return Response(status_code=204)


async def tools(request: Request, tenant: Tenant) -> Response:
    """The commands that there are."""
    with as_it_is():
        return answer(await held_of(request, tenant).sandbox.available_tools())


async def _body(request: Request, kind: Any) -> Any:
    return await read_model(request, kind, service_of(request).settings.max_body)


def _options(request: Request, body: Any) -> dict[str, Any]:
    if body.timeout is not None:
        check_time(body.timeout, service_of(request).settings.max_timeout)
    stdin = None if body.stdin is None else content("stdin", body.stdin)
    return {"stdin": stdin, "timeout": body.timeout}


async def _ran(request: Request, tenant: Tenant, run: Run) -> Response:
    """The outcome; as events, with the output as it comes, for who asks for them."""

    async def outcome(**heard: Any) -> dict[str, Any]:
        async with service_of(request).turn(tenant):
            try:
                return plain_outcome(await run(**heard))
            except ENDED_OTHERWISE as error:
                return plain_outcome(error)

    if not wants_events(request):
        return answer(await while_connected(request, outcome()))
    return event_stream(
        told(
            lambda tell: outcome(
                on_stdout=lambda text: tell("stdout", {"text": text}),
                on_stderr=lambda text: tell("stderr", {"text": text}),
            )
        )
    )


def plain_sandbox(held: Held) -> dict[str, Any]:
    limits = held.sandbox.limits
    return {
        "id": held.id,
        "created": held.created,
        "expires": held.expires,
        "timeout": held.sandbox.timeout,
        "metadata": held.metadata,
        "limits": {name: getattr(limits, name) for name in limits.__slots__},
    }


def routes() -> list[Any]:
    at, outcome = "/v1/sandboxes/{id}", ("Result", "text/event-stream")
    return [
        door("POST", "/v1/sandboxes", create, "sandbox", body=CreateBody, answers=("Sandbox",), status=201),
        door("GET", "/v1/sandboxes", every, "sandbox", answers=("Sandboxes",)),
        door("GET", at, one, "sandbox", answers=("Sandbox",)),
        door("DELETE", at, destroy, "sandbox", **NOTHING),
        door("POST", f"{at}/exec", run_command, "sandbox", body=ExecBody, answers=outcome),
        door("POST", f"{at}/sh", run_script, "sandbox", body=ScriptBody, answers=outcome),
        door("POST", f"{at}/run", run_code, "sandbox", body=CodeBody, answers=outcome),
        door("POST", f"{at}/install", install, "install", body=PackagesBody, **NOTHING),
        door("GET", f"{at}/tools", tools, "sandbox", answers=("Names",)),
    ]
