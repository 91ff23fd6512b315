"""`/v1/sandboxes/{id}/ports`: expose servers in the sandbox on loopback of the host.

No path of this server shows a guest's pages: they would have the server's origin, and could do in a browser all that
its user may do.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.requests import read_model
from warmcell.interfaces.serve.responses import HttpError, as_conflict, json_response
from warmcell.interfaces.serve.routing import NO_CONTENT, route
from warmcell.interfaces.serve.service import get_entry
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.sandbox_models import PortBody
from warmcell.interfaces.serve.v1.sandbox_state import state_of
from warmcell.sandbox.ports import AsyncExposedPort

MAX_PORTS = 16
_PORT = re.compile(r"[1-9][0-9]{0,4}")


async def every(request: Request, tenant: Tenant) -> Response:
    """The exposed ports."""
    return json_response([_to_dict(port) for port in state_of(get_entry(request, tenant)).ports.values()])


async def expose(request: Request, tenant: Tenant) -> Response:
    """Forwards a new port on the host's loopback to a port of the sandbox."""
    entry, body = get_entry(request, tenant), await read_model(request, PortBody)
    ports = state_of(entry).ports
    if body.port in ports:
        return json_response(_to_dict(ports[body.port]), 201)
    if len(ports) >= MAX_PORTS:
        raise HttpError(429, f"the sandbox already has {MAX_PORTS} exposed ports", headers={"Retry-After": "5"})
    with as_conflict():
        made = await entry.sandbox.expose(body.port)
    if body.port in ports or len(ports) >= MAX_PORTS:  # another request was faster
        await made.aclose()
        raise HttpError(409, "another request is exposing this port")
    ports[body.port] = made
    return json_response(_to_dict(made), 201)


async def close(request: Request, tenant: Tenant) -> Response:
    """Stops forwarding and closes its connections."""
    entry, name = get_entry(request, tenant), request.path_params["port"]
    found = state_of(entry).ports.pop(int(name), None) if _PORT.fullmatch(name) else None
    if found is None:
        raise HttpError(404, f"port {name[:20]} of the sandbox is not exposed")
    await found.aclose()
    return Response(status_code=204)


def _to_dict(port: AsyncExposedPort) -> dict[str, Any]:
    return {"port": port.guest_port, "host_port": port.port, "url": port.url}


def routes() -> list[Any]:
    at = "/v1/sandboxes/{id}/ports"
    return [
        route("GET", at, every, "sandbox", answers=("Ports",)),
        route("POST", at, expose, "sandbox", body=PortBody, answers=("Port",), status=201),
        route("DELETE", at + "/{port}", close, "sandbox", **NO_CONTENT),
    ]
