"""`/v1/sandboxes`: sandboxes with a lasting work directory, runs in them, copies of the directory, exposed ports."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.light import on_error
from warmcell.core.types import ExecResult
from warmcell.interfaces.serve.event_streams import EventStream, stream_events, wants_events
from warmcell.interfaces.serve.requests import read_model, while_connected
from warmcell.interfaces.serve.responses import (
    ENDED_EARLY,
    UNREAD,
    HttpError,
    as_conflict,
    json_response,
    outcome_response,
    outcome_to_dict,
)
from warmcell.interfaces.serve.routing import NO_CONTENT, route
from warmcell.interfaces.serve.sandbox_registry import MAX_CREATION_BYTES, SandboxEntry
from warmcell.interfaces.serve.saved_sandboxes import RestoredSandbox, SavedSandbox, install_packages, keep_new_sandbox
from warmcell.interfaces.serve.server_limits import DEFAULT_TIMEOUT, check_timeout
from warmcell.interfaces.serve.service import Service, get_entry, get_service
from warmcell.interfaces.serve.state_homes import StateHome
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import (
    CodeBody,
    CreateBody,
    ExecBody,
    ForkBody,
    NetworkBody,
    PackagesBody,
    PortBody,
    RestoreBody,
    ScriptBody,
    to_content,
)
from warmcell.interfaces.serve.v1.sandbox_state import keep_sessions, state_of
from warmcell.net.rules.network_update import from_plain
from warmcell.sandbox.ports import AsyncExposedPort
from warmcell.workspace.mount_points import OwnDirectory

#: Snapshots per sandbox: each may use as much disk as the sandbox itself.
MAX_SNAPSHOTS = 8
MAX_PORTS = 16
_PORT = re.compile(r"[1-9][0-9]{0,4}")


async def create(request: Request, tenant: Tenant) -> Response:
    """Makes a sandbox."""
    service = get_service(request)
    body = await read_model(request, CreateBody, min(service.settings.max_body, MAX_CREATION_BYTES))
    options = await choose_options(service, tenant, body)
    service.sandboxes.check_room(tenant)
    home = None if service.saved is None else service.saved.make_home()
    make = partial(service.make_sandbox, tenant, **options, work_dir=home and OwnDirectory(home.path))
    undo = on_error(lambda: None) if home is None else on_error(home.close)
    with undo, service.gpus.count_use(tenant, options["gpus"] is not None) as keep:
        entry = service.sandboxes.add(make, tenant, body.lifetime, body.metadata)
        keep(entry)
    if home is not None:
        await keep_new_sandbox(service, entry, SavedSandbox("v1", home, lambda: describe(body)))
        keep_sessions(entry)
    return json_response(sandbox_to_dict(entry), 201)


async def choose_options(service: Service, tenant: Tenant, body: CreateBody) -> dict[str, Any]:
    """Check a request; return the options of `make_sandbox`."""
    most = service.settings.max_timeout
    timeout = min(DEFAULT_TIMEOUT, most) if body.timeout is None else check_timeout(body.timeout, most)
    options: dict[str, Any] = {"env": body.env, "timeout": timeout, "live": body.live, "forkable": body.forkable}
    limits = None if body.limits is None else body.limits.limits()
    return options | {"limits": limits} | {**await service.find_place(tenant, body.gpus, body.image, body.user)}


def describe(body: CreateBody) -> dict[str, Any]:
    """The request, to be saved for the next server."""
    return {"asked": body.model_dump(mode="json", exclude_unset=True)}


async def restore_sandbox(service: Service, tenant: Tenant, own: dict[str, Any], home: StateHome) -> RestoredSandbox:
    """Restore a sandbox of the previous server, from the request that made it."""
    body = CreateBody.model_validate(own["asked"])
    options = await choose_options(service, tenant, body)
    sandbox = service.make_sandbox(tenant, **options, work_dir=OwnDirectory(home.path))

    def attach(entry: SandboxEntry) -> None:
        if options["gpus"] is not None:
            service.gpus.count_restored(tenant, entry)
        saved = entry.state.find(SavedSandbox)
        assert saved is not None
        saved.describe = lambda: describe(body)
        keep_sessions(entry)

    return RestoredSandbox(sandbox, attach)


async def list_sandboxes(request: Request, tenant: Tenant) -> Response:
    """Your sandboxes."""
    return json_response([sandbox_to_dict(entry) for entry in get_service(request).sandboxes.of(tenant)])


async def describe_sandbox(request: Request, tenant: Tenant) -> Response:
    """One of your sandboxes."""
    return json_response(sandbox_to_dict(get_entry(request, tenant)))


async def destroy(request: Request, tenant: Tenant) -> None:
    """Ends everything that runs in the sandbox and removes its files."""
    await get_service(request).sandboxes.remove(get_entry(request, tenant))


async def run_command(request: Request, tenant: Tenant) -> Response:
    """Runs one command, without a shell."""
    entry, body = get_entry(request, tenant), await read_model(request, ExecBody)
    return await _respond(request, tenant, body, partial(entry.sandbox.exec, body.command, body.args, cwd=body.cwd))


async def run_script(request: Request, tenant: Tenant) -> Response:
    """Runs a shell script."""
    entry, body = get_entry(request, tenant), await read_model(request, ScriptBody)
    return await _respond(request, tenant, body, partial(entry.sandbox.sh, body.script, cwd=body.cwd))


async def run_code(request: Request, tenant: Tenant) -> Response:
    """Runs source text in the work directory."""
    entry, body = get_entry(request, tenant), await read_model(request, CodeBody)
    return await _respond(request, tenant, body, partial(entry.sandbox.run, body.code, body.language))


async def install(request: Request, tenant: Tenant) -> None:
    """Installs packages for later runs, from the index that pip or npm uses on this host."""
    entry, body = get_entry(request, tenant), await read_model(request, PackagesBody)

    async def run() -> None:
        async with get_service(request).run_slot(tenant):
            await install_packages(get_service(request), entry, body.packages, body.manager)

    await while_connected(request, run())


async def update_network(request: Request, tenant: Tenant) -> None:
    """Narrows what the sandbox may reach, and closes connections that are no longer allowed."""
    entry, body = get_entry(request, tenant), await read_model(request, NetworkBody)
    await entry.sandbox.update_network(from_plain(**body.model_dump()))  # type: ignore[arg-type]
    entry.on_change()


async def connections(request: Request, tenant: Tenant) -> Response:
    """The last connections of the sandbox, allowed and refused, oldest first."""
    found = await get_entry(request, tenant).sandbox.connections()
    return json_response([dataclasses.asdict(connection) for connection in found])


async def tools(request: Request, tenant: Tenant) -> Response:
    """The available commands."""
    with as_conflict():
        return json_response(await get_entry(request, tenant).sandbox.available_tools())


async def _respond(
    request: Request, tenant: Tenant, body: ExecBody | ScriptBody | CodeBody, run: Callable[..., Awaitable[ExecResult]]
) -> Response:
    """Respond with the outcome as JSON, or with the output as events if the client accepts those."""
    if body.timeout is not None:
        check_timeout(body.timeout, get_service(request).settings.max_timeout)
    stdin = None if body.stdin is None else to_content("stdin", body.stdin)

    async def outcome(**callbacks: Any) -> dict[str, Any]:
        async with get_service(request).run_slot(tenant):
            try:
                return outcome_to_dict(await run(stdin=stdin, timeout=body.timeout, **callbacks))
            except ENDED_EARLY as error:
                return outcome_to_dict(error)

    if not wants_events(request):
        return outcome_response(await while_connected(request, outcome()))
    return EventStream(
        stream_events(
            lambda emit: outcome(
                on_stdout=lambda text: emit("stdout", {"text": text}),
                on_stderr=lambda text: emit("stderr", {"text": text}),
            ),
            request.scope[UNREAD],
        )
    )


def sandbox_to_dict(entry: SandboxEntry) -> dict[str, Any]:
    limits = entry.sandbox.limits
    return {
        "id": entry.id,
        "created": entry.created,
        "expires": entry.expires,
        "timeout": entry.sandbox.timeout,
        "metadata": entry.metadata,
        "limits": {name: getattr(limits, name) for name in limits.__slots__},
    }


# ---- copies of the work directory ----


async def fork(request: Request, tenant: Tenant) -> Response:
    """Makes a new sandbox with the same policy and a copy of the work directory, without its processes."""
    entry, service = get_entry(request, tenant), get_service(request)
    body = await read_model(request, ForkBody)
    service.check_policy(entry)
    with service.gpus.count_use(tenant, entry.has_gpu) as keep:
        making = service.sandboxes.add_async(
            lambda: entry.sandbox.fork(body.snapshot), tenant, body.lifetime, entry.metadata | body.metadata
        )
        made = await while_connected(request, making)
        keep(made)
    return json_response(sandbox_to_dict(made), 201)


async def snapshot(request: Request, tenant: Tenant) -> Response:
    """Copies the work directory; the copy lasts as long as the sandbox."""
    entry = get_entry(request, tenant)
    state = state_of(entry)
    if state.snapshots >= MAX_SNAPSHOTS:
        raise HttpError(429, f"the sandbox already has {MAX_SNAPSHOTS} snapshots", headers={"Retry-After": "60"})
    state.snapshots += 1
    try:
        taken = await entry.sandbox.snapshot()
    except BaseException:
        state.snapshots -= 1
        raise
    return json_response({"id": str(taken), "skipped": list(taken.skipped)}, 201)


async def restore(request: Request, tenant: Tenant) -> None:
    """Restores the work directory from a snapshot."""
    entry, body = get_entry(request, tenant), await read_model(request, RestoreBody)
    await entry.sandbox.restore(body.snapshot)


# ---- ports: servers in the sandbox, exposed on loopback of the host ----

# No path of this server shows a guest's pages: they would have the server's origin, and could do in a browser all that
# its user may do.


async def list_ports(request: Request, tenant: Tenant) -> Response:
    """The exposed ports."""
    return json_response([_port_to_dict(port) for port in state_of(get_entry(request, tenant)).ports.values()])


async def expose(request: Request, tenant: Tenant) -> Response:
    """Forwards a new port on the host's loopback to a port of the sandbox."""
    entry, body = get_entry(request, tenant), await read_model(request, PortBody)
    ports = state_of(entry).ports
    if body.port in ports:
        return json_response(_port_to_dict(ports[body.port]), 201)
    if len(ports) >= MAX_PORTS:
        raise HttpError(429, f"the sandbox already has {MAX_PORTS} exposed ports", headers={"Retry-After": "5"})
    with as_conflict():
        made = await entry.sandbox.expose(body.port)
    if body.port in ports or len(ports) >= MAX_PORTS:  # another request was faster
        await made.aclose()
        raise HttpError(409, "another request is exposing this port")
    ports[body.port] = made
    return json_response(_port_to_dict(made), 201)


async def close_port(request: Request, tenant: Tenant) -> None:
    """Stops forwarding and closes its connections."""
    entry, name = get_entry(request, tenant), request.path_params["port"]
    found = state_of(entry).ports.pop(int(name), None) if _PORT.fullmatch(name) else None
    if found is None:
        raise HttpError(404, f"port {name[:20]} of the sandbox is not exposed")
    await found.aclose()


def _port_to_dict(port: AsyncExposedPort) -> dict[str, Any]:
    return {"port": port.guest_port, "host_port": port.port, "url": port.url}


def routes() -> list[Any]:
    at, outcome = "/v1/sandboxes/{id}", ("Result", "text/event-stream")
    return [
        route("POST", "/v1/sandboxes", create, "sandbox", body=CreateBody, answers=("Sandbox",), status=201),
        route("GET", "/v1/sandboxes", list_sandboxes, "sandbox", answers=("Sandboxes",)),
        route("GET", at, describe_sandbox, "sandbox", answers=("Sandbox",)),
        route("DELETE", at, destroy, "sandbox", **NO_CONTENT),
        route("POST", f"{at}/exec", run_command, "sandbox", body=ExecBody, answers=outcome),
        route("POST", f"{at}/sh", run_script, "sandbox", body=ScriptBody, answers=outcome),
        route("POST", f"{at}/run", run_code, "sandbox", body=CodeBody, answers=outcome),
        route("POST", f"{at}/install", install, "install", body=PackagesBody, **NO_CONTENT),
        route("PUT", f"{at}/network", update_network, "sandbox", body=NetworkBody, **NO_CONTENT),
        route("GET", f"{at}/connections", connections, "sandbox", answers=("Connections",)),
        route("GET", f"{at}/tools", tools, "sandbox", answers=("Names",)),
        route("POST", f"{at}/fork", fork, "sandbox", body=ForkBody, answers=("Sandbox",), status=201),
        route("POST", f"{at}/snapshots", snapshot, "sandbox", answers=("Snapshot",), status=201),
        route("POST", f"{at}/restore", restore, "sandbox", body=RestoreBody, **NO_CONTENT),
        route("GET", f"{at}/ports", list_ports, "sandbox", answers=("Ports",)),
        route("POST", f"{at}/ports", expose, "sandbox", body=PortBody, answers=("Port",), status=201),
        route("DELETE", f"{at}/ports/{{port}}", close_port, "sandbox", **NO_CONTENT),
    ]
