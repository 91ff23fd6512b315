"""`/v1/sandboxes/{id}/ports`: servers in the sandbox, on loopback of the machine that this server runs on.

There is no path of this server that shows a guest's pages: they would have its origin, and could do in a browser all
that its user may do here.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.doors import NOTHING, door
from warmcell.interfaces.serve.exchange import Refused, answer, as_it_is, read_model
from warmcell.interfaces.serve.held_sandboxes import Held
from warmcell.interfaces.serve.service import held_of, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.living_models import PortBody
from warmcell.sandbox.ports import AsyncExposedPort

MOST_PORTS = 16
_PORT = re.compile(r"[1-9][0-9]{0,4}")


async def every(request: Request, tenant: Tenant) -> Response:
    """The ports that are exposed."""
    return answer([_plain(port) for port in _ports(held_of(request, tenant)).values()])


async def expose(request: Request, tenant: Tenant) -> Response:
    """Lets connections to a port of this machine's loopback through to that port of the sandbox."""
    held = held_of(request, tenant)
    body = await read_model(request, PortBody, service_of(request).settings.max_body)
    ports = _ports(held)
    if body.port in ports:
        return answer(_plain(ports[body.port]), 201)
    if len(ports) >= MOST_PORTS:
        raise Refused(429, f"there are {MOST_PORTS} ports already", headers={"Retry-After": "5"})
    with as_it_is():
        made = await held.sandbox.expose(body.port)
    if body.port in ports or len(ports) >= MOST_PORTS:  # another request was quicker
        await made.aclose()
        raise Refused(409, "the port is being exposed by another request")
    ports[body.port] = made
    return answer(_plain(made), 201)


async def close(request: Request, tenant: Tenant) -> Response:
    """Ends its connections."""
    held, name = held_of(request, tenant), request.path_params["port"]
    found = _ports(held).pop(int(name), None) if _PORT.fullmatch(name) else None
    if found is None:
        raise Refused(404, "that port is not exposed")
    await found.aclose()
    return Response(status_code=204)


def _ports(held: Held) -> dict[int, AsyncExposedPort]:
    found: dict[int, AsyncExposedPort] = held.extras.setdefault("ports", {})
    return found


def _plain(port: AsyncExposedPort) -> dict[str, Any]:
    return {"port": port.guest_port, "host_port": port.port, "url": port.url}


def routes() -> list[Any]:
    at = "/v1/sandboxes/{id}/ports"
    return [
        door("GET", at, every, "sandbox", answers=("Ports",)),
        door("POST", at, expose, "sandbox", body=PortBody, answers=("Port",), status=201),
        door("DELETE", at + "/{port}", close, "sandbox", **NOTHING),
    ]
